"""TLS of a task that dials a gateway: the gateway proves its site by its certificate, the task shows none."""

from __future__ import annotations

import socket
import ssl

from fedrdma_fate.security.credentials import peer_site
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, TransportError


def secured(connection: socket.socket, authorities: str, site: str) -> ssl.SSLSocket:
    """Shake hands on a connection; blocks as long as its time-out says.

    Args:
        connection: to what should be the gateway; it belongs to what is returned.
        authorities: whose certificates are believed, PEM.
        site: whose gateway it has to be.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: the authorities are none.
        OSError: that failed; ssl.SSLError is one.
        TransportError: TLS_REFUSED where no authority vouches for it, PEER_IDENTITY for another site's certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # a site is known by the URI of its certificate, wherever it is dialled
    context.check_hostname = False
    try:
        context.load_verify_locations(cadata=authorities)
    except (TypeError, ValueError, ssl.SSLError) as error:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"`authorities` in the file of `tasks_access` are no certificates in PEM: {error}.",
            "`fedrdma access` makes one.",
        ) from error
    try:
        tls = context.wrap_socket(connection)
    except ssl.SSLCertVerificationError as error:
        raise TransportError(
            ErrorCode.TLS_REFUSED,
            f"the gateway's certificate is not believed: {error.verify_message}.",
            "Make the file of `tasks_access` anew by `fedrdma access`, and compare the clocks of both hosts.",
        ) from error
    try:
        shown = peer_site(tls.getpeercert(binary_form=True) or b"")
        if shown != site:
            raise TransportError(
                ErrorCode.PEER_IDENTITY,
                f"what answers has the certificate of the site {shown!r}, not of {site!r}.",
                "Name this site's own gateway in the file of `tasks_access`.",
            )
    except BaseException:
        tls.close()
        raise
    return tls
