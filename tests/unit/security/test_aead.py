"""Ciphers write into room that is there, also with a `cryptography` that gives new bytes."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from fedrdma_fate.security.aead import CopyingAead, make_aead
from fedrdma_fate.security.ciphers import AES, CHACHA

KEY, NONCE, ABOUT = bytes(range(32)), bytes(12), b"about"
DATA = memoryview(b"weights" * 100)


def copying(cipher: str) -> CopyingAead:
    """As on Python 3.10 beside FATE Flow."""
    made: Any = AESGCM(KEY) if cipher == AES else ChaCha20Poly1305(KEY)
    return CopyingAead(made)


@pytest.mark.parametrize("cipher", [AES, CHACHA])
def test_whichever_way_the_bytes_are_the_same_and_open_again(cipher: str) -> None:
    sealed, copied = bytearray(len(DATA) + 16), bytearray(len(DATA) + 16)
    make_aead(cipher, KEY).encrypt_into(NONCE, DATA, ABOUT, memoryview(sealed))
    copying(cipher).encrypt_into(NONCE, DATA, ABOUT, memoryview(copied))
    assert sealed == copied == make_aead(cipher, KEY).encrypt(NONCE, DATA, ABOUT)
    assert copying(cipher).encrypt(NONCE, DATA, ABOUT) == sealed
    for opener in (make_aead(cipher, KEY), copying(cipher)):
        opened = bytearray(len(DATA))
        opener.decrypt_into(NONCE, sealed, ABOUT, memoryview(opened))
        assert opened == DATA


@pytest.mark.parametrize("cipher", [AES, CHACHA])
def test_a_wrong_tag_is_refused_whichever_way(cipher: str) -> None:
    sealed = bytearray(copying(cipher).encrypt(NONCE, DATA, ABOUT))
    sealed[-1] ^= 1
    for opener in (make_aead(cipher, KEY), copying(cipher)):
        with pytest.raises(InvalidTag):
            opener.decrypt_into(NONCE, sealed, ABOUT, memoryview(bytearray(len(DATA))))


def test_a_copying_cipher_leaves_the_room_alone_where_the_tag_is_wrong() -> None:
    room = bytearray(b"\x07" * len(DATA))
    with pytest.raises(InvalidTag):
        copying(AES).decrypt_into(NONCE, bytes(len(DATA) + 16), ABOUT, memoryview(room))
    assert room == b"\x07" * len(DATA)


def test_a_cipher_that_is_none_of_ours_is_an_error() -> None:
    with pytest.raises(ValueError, match="no cipher 'rot13'"):
        make_aead("rot13", KEY)
