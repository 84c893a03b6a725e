"""Mutual TLS of mode `grpc`: each side takes exactly the certificate that it knows from the control channel.

grpcio checks less than the control channel does: no revocation lists, and names of hosts only. The control channel has
checked the very certificate, so it is the one that counts here.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

import grpc
from cryptography import x509

from fedrdma_fate.security.credentials import Credentials
from fedrdma_fate.wire.errors import ErrorCode, TransportError

ONLY_TLS_1_3 = "PSK-AES128-CBC-SHA"
"""For GRPC_SSL_CIPHER_SUITES, before grpcio is first used: a list for TLS 1.2 of which nothing here can be used, since
it needs a key shared beforehand; those of TLS 1.3 are not on this list (OpenSSL's ciphers(1))."""


class GrpcCredentials:
    """Makes what grpcio takes of the credentials of the moment. May be called from any thread."""

    def __init__(self, current: Callable[[], Credentials]) -> None:
        """
        Args:
            current: the credentials of the moment.
        """
        self._current = current

    def for_server(self) -> grpc.ServerCredentials:
        """For all who dial; who they are has to be compared with `peer_certificate`."""
        fetch = self._configuration
        return grpc.dynamic_ssl_server_credentials(fetch(), fetch, require_client_authentication=True)

    def for_channel(self, certificate: bytes) -> tuple[grpc.ChannelCredentials, str]:
        """For a channel to the owner of a certificate, and the name to expect in it.

        Args:
            certificate: the peer's, DER, known from the control channel.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when it names no host, as grpcio wants it.
        """
        chain, key, _ = self._current().pem
        pinned = ssl.DER_cert_to_PEM_cert(certificate).encode()
        return grpc.ssl_channel_credentials(pinned, key, chain), _host_name(certificate)

    def for_site(self, site: str, host: str, port: int, seconds: float) -> tuple[grpc.ChannelCredentials, str]:
        """For a channel to who has no control channel: it is asked for its certificate first, which may block.

        Args:
            site: that the certificate has to name.
            host: where it listens.
            port: likewise.
            seconds: for the connection, and for each part of the handshake.

        Raises:
            TransportError: PEER_IDENTITY where it names another, TRANSPORT_UNAVAILABLE; see `for_channel`.
            OSError: it cannot be reached, or shows none that we believe.
        """
        current = self._current()
        with (
            socket.create_connection((host, port), seconds) as connection,
            current.client.wrap_socket(connection) as tls,
        ):
            shown = tls.getpeercert(binary_form=True) or b""
            if (named := current.site_at(tls)) != site:
                raise TransportError(
                    ErrorCode.PEER_IDENTITY,
                    f"the certificate at {host}:{port} is of the site {named!r}, not of {site!r}.",
                    "Correct `peers[].address`, or have a certificate made for it.",
                )
        return self.for_channel(shown)

    @staticmethod
    def peer_certificate(context: grpc.ServicerContext) -> bytes | None:
        """The certificate of who dialled, DER."""
        found = context.auth_context().get("x509_pem_cert")
        return ssl.PEM_cert_to_DER_cert(bytes(found[0]).decode()) if found else None

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        chain, key, authorities = self._current().pem
        return grpc.ssl_server_certificate_configuration([(key, chain)], authorities)


def _host_name(certificate: bytes) -> str:
    try:
        extension = x509.load_der_x509_certificate(certificate).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        return extension.value.get_values_for_type(x509.DNSName)[0]
    except (x509.ExtensionNotFound, IndexError) as error:
        raise TransportError(
            ErrorCode.TRANSPORT_UNAVAILABLE,
            "no grpc data path: the peer's certificate has no DNS name, without which grpcio takes none.",
            "Have one made with a DNS name, any, beside the site's URI.",
        ) from error
