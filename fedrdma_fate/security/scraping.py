"""TLS of the endpoint for Prometheus: for who has a certificate of this very site."""

from __future__ import annotations

import socket
import ssl

from fedrdma_fate.security.reloading import SiteCredentials
from fedrdma_fate.wire.errors import ErrorCode, TransportError


class ScrapeSecurity:
    """Lets this site's own monitoring in, and no peer. May be called from any thread."""

    def __init__(self, credentials: SiteCredentials) -> None:
        self._credentials = credentials

    def secure(self, connection: socket.socket) -> ssl.SSLSocket:
        """Shake hands on a connection that was accepted; blocks as long as its time-out says.

        Raises:
            OSError: that failed; ssl.SSLError is one.
            TransportError: PEER_IDENTITY for the certificate of another site.
        """
        credentials = self._credentials.current
        secured = credentials.server.wrap_socket(connection, server_side=True)
        try:
            site = credentials.site_at(secured)
            if site != credentials.site:
                raise TransportError(
                    ErrorCode.PEER_IDENTITY,
                    f"the certificate is that of the site {site!r}; the metrics are for {credentials.site!r} alone.",
                    "Scrape with a certificate that names this site.",
                )
        except BaseException:
            secured.close()
            raise
        return secured
