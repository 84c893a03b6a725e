"""Keys of a data path: an X25519 exchange in the greetings (RFC 7748), and HKDF-SHA256 over it (RFC 5869).

    exchange ─ salt: both greetings, both certificates ─► session ─┬► from A to B ─┬► path ─┬► datagrams
                                                                   └► from B to A  ┘        └► chunks ─► each attempt

The private half is made for one peer and one run of the gateway, and never written down: what was recorded cannot be
opened later with the keys of the certificates. Each connection of a data path has keys of its own: both sides'
`connect` frames bring fresh random bytes. No key is used in both directions, for two purposes or for two attempts.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from typing import NamedTuple

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from fedrdma_fate.security.datagram_tags import DatagramKeys

PATH_NONCE_BYTES = 32
"""Of the random bytes that a `connect` frame carries: as many as a key has."""

KEY_BYTES = 32
"""Of each key: AES-256, ChaCha20 and keyed BLAKE2b take as many."""

_ATTEMPT = struct.Struct("<QI")


class KeyExchangeError(Exception):
    """The peer's half of the exchange is none: of another length, or one that gives a secret that anybody knows."""


class KeyExchange:
    """Our half of the exchange, for one peer.

    Attributes:
        public: the public half, for our greeting.
    """

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"KeyExchange(public={self.public.hex()})"

    def shared(self, peer: bytes) -> bytes:
        """The secret that both sides get, and nobody else.

        Raises:
            KeyExchangeError: `peer` is no public half (RFC 7748, section 6.1: the result must not be all zeros).
        """
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError as error:
            raise KeyExchangeError(f"{len(peer)} bytes that are no public key of X25519") from error


class Greeter(NamedTuple):
    """One side, as its greeting and its certificate say: all of it goes into the keys, so both have to agree on it.

    Attributes:
        site: its name.
        incarnation: of this run of its gateway.
        exchange_key: its public half.
        certificate: SHA-256 of its certificate in DER; empty without TLS.
        seal: what it wants sealed.
        ciphers: what it can seal with.
    """

    site: str
    incarnation: str
    exchange_key: bytes
    certificate: bytes
    seal: str
    ciphers: tuple[str, ...]

    def _transcript(self) -> bytes:
        parts = [self.site.encode(), self.incarnation.encode(), self.exchange_key, self.certificate, self.seal.encode()]
        return _joined([*parts, *(cipher.encode() for cipher in self.ciphers)])


class DirectionKeys(NamedTuple):
    """Keys of one connection of a data path, for what goes in one direction.

    Attributes:
        datagram: of its datagrams.
        chunks: those of the transfers' attempts are made of it.
        acknowledgements: of what the other side says of writes in this direction.
    """

    datagram: bytes
    chunks: bytes
    acknowledgements: bytes


class PathKeys(NamedTuple):
    """Keys of one connection of a data path; each side has the same two, the other way round."""

    send: DirectionKeys
    receive: DirectionKeys

    @property
    def datagrams(self) -> DatagramKeys:
        """Those of its datagrams."""
        return DatagramKeys(self.send.datagram, self.receive.datagram)

    @property
    def reversed(self) -> PathKeys:
        """As the other side has them."""
        return PathKeys(self.receive, self.send)


class SessionKeys:
    """What the keys of all data paths are made of, as long as one control channel lives."""

    def __init__(self, send: bytes, receive: bytes) -> None:
        self._send = send
        self._receive = receive

    def __repr__(self) -> str:
        return "SessionKeys()"

    @classmethod
    def of_greetings(cls, exchange: KeyExchange, own: Greeter, peer: Greeter) -> SessionKeys:
        """What both greetings lead to.

        Raises:
            KeyExchangeError: the peer's half is none.
        """
        first, second = sorted((own, peer), key=lambda greeter: (greeter.site, greeter.exchange_key))
        transcript = _joined([first._transcript(), second._transcript()])
        session = HKDF(
            hashes.SHA256(), KEY_BYTES, salt=hashlib.sha256(transcript).digest(), info=b"fedrdma-fate 2 session"
        ).derive(exchange.shared(peer.exchange_key))
        to_second = _expand(session, b"from the first site to the second")
        to_first = _expand(session, b"from the second site to the first")
        return cls(to_second, to_first) if own is first else cls(to_first, to_second)

    def path(self, transport: str, own_nonce: bytes, peer_nonce: bytes) -> PathKeys:
        """The keys of one connection of a data path.

        Args:
            transport: which.
            own_nonce: random bytes of ours, made for this connection.
            peer_nonce: the same of the peer.
        """
        return PathKeys(
            _direction(self._send, transport, own_nonce, peer_nonce),
            _direction(self._receive, transport, peer_nonce, own_nonce),
        )


def new_path_nonce() -> bytes:
    """Random bytes for a `connect` frame."""
    return secrets.token_bytes(PATH_NONCE_BYTES)


def attempt_key(chunks: bytes, transfer: int, attempt: int) -> bytes:
    """The key of one attempt of one transfer, in one direction of one connection."""
    return _expand(chunks, b"attempt", _ATTEMPT.pack(transfer, attempt))


def _direction(secret: bytes, transport: str, sender: bytes, receiver: bytes) -> DirectionKeys:
    path = _expand(secret, b"path", transport.encode(), sender, receiver)
    return DirectionKeys(*(_expand(path, purpose) for purpose in (b"datagrams", b"chunks", b"acknowledgements")))


def _expand(secret: bytes, purpose: bytes, *parts: bytes) -> bytes:
    """HKDF-Expand (RFC 5869, section 2.3); the lengths keep two lists of parts from looking alike."""
    return HKDFExpand(hashes.SHA256(), KEY_BYTES, b"fedrdma-fate 2 " + _joined([purpose, *parts])).derive(secret)


def _joined(parts: list[bytes]) -> bytes:
    """All parts, each with its length before it: no two lists give the same bytes."""
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)
