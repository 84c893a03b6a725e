"""Keys of the data paths to one peer: what both greetings agree on, and what each connection makes of it."""

from __future__ import annotations

import hashlib

from fedrdma_fate.gateway.config.schema import Seal
from fedrdma_fate.security.ciphers import agreed_cipher, own_ciphers
from fedrdma_fate.security.datagram_tags import DatagramKeys
from fedrdma_fate.security.key_schedule import Greeter, KeyExchange, KeyExchangeError, SessionKeys
from fedrdma_fate.security.sealing import PathSealing
from fedrdma_fate.wire.errors import ErrorCode, TransportError, WireError
from fedrdma_fate.wire.frames import Hello

NEVER_SEALED = frozenset({"shm"})
"""Moves nothing off the host, so whoever could read along can read the memory itself."""

SEALED_IN_SLOT = frozenset({"udp", "verbs"})
"""Whose chunks are sealed before they are posted, and opened in their slot, which holds their tags as well; see
`Endpoint.sealed_by_poster`."""


class PeerKeys:
    """The exchange with one peer, as long as this gateway runs, and the keys of the control channel that there is.

    Attributes:
        exchange_key: our half, for our greetings.
        ciphers: what this host seals with, for our greetings.
    """

    def __init__(self, seal: Seal) -> None:
        """
        Args:
            seal: what is done to chunks.
        """
        self._seal = seal
        self._exchange = KeyExchange()
        self._session: SessionKeys | None = None
        self._cipher = ""
        self.exchange_key = self._exchange.public
        self.ciphers = own_ciphers()

    def check(self, hello: Hello) -> None:
        """Do nothing where chunks can be exchanged with whoever greets so.

        Raises:
            TransportError: SEAL_MISMATCH when it does something else to chunks, or with another cipher.
            WireError: MALFORMED_FRAME when its half of the exchange is none.
        """
        if hello.seal != self._seal:
            raise TransportError(
                ErrorCode.SEAL_MISMATCH,
                f"{hello.site} has `seal: {hello.seal}`, and this gateway `seal: {self._seal}`.",
                "Set the same on both sides.",
            )
        if self._seal != "off" and agreed_cipher(self.ciphers, hello.ciphers) is None:
            raise TransportError(ErrorCode.SEAL_MISMATCH, f"{hello.site} has no cipher that this gateway has.")
        try:
            self._exchange.shared(hello.exchange_key)
        except KeyExchangeError as error:
            raise WireError(ErrorCode.MALFORMED_FRAME, f"{hello.site} greets with {error}.") from error

    def agree(self, own: Hello, peer: Hello, own_certificate: bytes, peer_certificate: bytes) -> None:
        """A control channel is up; its greetings were checked.

        Args:
            own: our greeting on it.
            peer: the other side's.
            own_certificate: ours, DER; empty without TLS.
            peer_certificate: the other side's.
        """
        self._session = SessionKeys.of_greetings(
            self._exchange, _greeter(own, own_certificate), _greeter(peer, peer_certificate)
        )
        self._cipher = agreed_cipher(own.ciphers, peer.ciphers) or ""

    def path(self, transport: str, own_nonce: bytes, peer_nonce: bytes) -> tuple[DatagramKeys, PathSealing | None]:
        """Keys of one connection of a data path, and what seals its chunks; None where they are not sealed."""
        assert self._session is not None
        keys = self._session.path(transport, own_nonce, peer_nonce)
        if self._seal == "off" or transport in NEVER_SEALED:
            return keys.datagrams, None
        return keys.datagrams, PathSealing.of_keys(keys, self._cipher, self._seal)


def _greeter(hello: Hello, certificate: bytes) -> Greeter:
    digest = hashlib.sha256(certificate).digest() if certificate else b""
    return Greeter(hello.site, hello.incarnation, hello.exchange_key, digest, hello.seal, hello.ciphers)
