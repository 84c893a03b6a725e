"""Authenticated encryption into room that is there, with whichever `cryptography` the Python allows.

From 47 on it writes there itself. On Python 3.10, FATE Flow's pins allow no more than 45, which gives new bytes: they
are copied, which costs time and the memory of one record, and nothing else.
"""

from __future__ import annotations

from typing import Any, Protocol

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from fedrdma_fate.security.ciphers import AES, CHACHA


class Aead(Protocol):
    """A cipher under one key."""

    def encrypt(self, nonce: bytes, data: Any, about: Any) -> bytes:
        """Bytes and tag, as new bytes; `about` is authenticated with them."""

    def encrypt_into(self, nonce: bytes, data: Any, about: Any, into: memoryview) -> object:
        """Bytes and tag, into exactly as much room as they need."""

    def decrypt_into(self, nonce: bytes, sealed: Any, about: Any, into: memoryview) -> object:
        """The bytes, into exactly as much room as they need.

        Raises:
            InvalidTag: the tag is wrong; what `into` holds nobody vouches for.
        """


class CopyingAead:
    """A cipher of a `cryptography` before 47, as an `Aead`."""

    def __init__(self, cipher: Any) -> None:
        self._cipher = cipher

    def encrypt(self, nonce: bytes, data: Any, about: Any) -> bytes:
        """See `Aead`."""
        sealed: bytes = self._cipher.encrypt(nonce, data, about)
        return sealed

    def encrypt_into(self, nonce: bytes, data: Any, about: Any, into: memoryview) -> None:
        """See `Aead`."""
        into[:] = self._cipher.encrypt(nonce, data, about)

    def decrypt_into(self, nonce: bytes, sealed: Any, about: Any, into: memoryview) -> None:
        """See `Aead`; `into` is left alone where the tag is wrong."""
        into[:] = self._cipher.decrypt(nonce, sealed, about)


def make_aead(cipher: str, key: bytes) -> Aead:
    """A cipher under a key.

    Raises:
        ValueError: it is none of ours.
    """
    if cipher not in (AES, CHACHA):
        raise ValueError(f"no cipher {cipher!r}")
    made: Any = AESGCM(key) if cipher == AES else ChaCha20Poly1305(key)
    in_place: Aead = made if hasattr(made, "encrypt_into") else CopyingAead(made)
    return in_place
