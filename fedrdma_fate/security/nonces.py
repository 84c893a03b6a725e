"""Nonces that cannot come twice: a counter of the sealings under one key (RFC 5116, section 3.2; SP 800-38D, 8.2.1).

The bytes of a slot may change between two sealings of the same chunk, because a task that keeps the slot writes on, or
because it is sent again. So what is counted are the sealings, and not the places.
"""

from __future__ import annotations

from typing import NoReturn

NONCE_BYTES = 12
"""Of a nonce: 96 bits, what both ciphers are made for."""

MOST_SEALINGS = 1 << 32
"""Under one key: with records of 256 KiB they are 1 PiB of one transfer. SP 800-38D allows as many (section 8.3)."""


class NonceError(Exception):
    """A nonce was asked for twice, or there are none left under this key: whoever asked must take a new key."""


def nonce_of(counter: int) -> bytes:
    """The nonce of a sealing: the key is one direction's of one attempt, so the fixed field (RFC 5116) is zero."""
    return counter.to_bytes(NONCE_BYTES, "big")


class NonceCounter:
    """Counts the sealings under one key. It cannot be copied, for a copy would count the same numbers again."""

    def __init__(self, most: int = MOST_SEALINGS) -> None:
        """
        Args:
            most: sealings that there may be.
        """
        self._most = most
        self._taken = 0

    @property
    def taken(self) -> int:
        """How many there were."""
        return self._taken

    def take(self) -> int:
        """The number of the next sealing, from 1; counted from now on, whatever becomes of it.

        Raises:
            NonceError: there were as many as there may be.
        """
        if self._taken >= self._most:
            raise NonceError(f"{self._most} sealings under one key")
        self._taken += 1
        return self._taken

    def claim(self, counter: int) -> int:
        """This very number, for whoever counts by other means; those that it skips are lost.

        Raises:
            NonceError: it was taken before, or is none that there may be.
        """
        if not self._taken < counter <= self._most:
            raise NonceError(f"sealing {counter} is asked for, and {self._taken} of {self._most} were")
        self._taken = counter
        return counter

    def __copy__(self) -> NoReturn:
        raise NonceError("a counter of nonces cannot be copied")

    def __deepcopy__(self, _memo: object) -> NoReturn:
        raise NonceError("a counter of nonces cannot be copied")

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise NonceError("a counter of nonces cannot be copied")
