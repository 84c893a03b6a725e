"""Digests of numbered pieces, nine bytes each: a gigabyte in chunks of 16 KiB has 65,536 of them."""

from __future__ import annotations

import array
from collections.abc import Sequence


class DigestTable:
    """A mapping from 0 … count - 1 to digests of 64 bits.

    Raises:
        IndexError: for a number beyond `count`, everywhere but in `get`.
    """

    def __init__(self, count: int) -> None:
        self._values = array.array("Q", [0]) * count
        self._known = bytearray(count)
        self._left = count

    @property
    def complete(self) -> bool:
        """Whether every digest is known."""
        return not self._left

    def __contains__(self, number: int) -> bool:
        return bool(self._known[number])

    def __getitem__(self, number: int) -> int:
        """The digest.

        Raises:
            KeyError: it is not known.
        """
        if not self._known[number]:
            raise KeyError(number)
        return self._values[number]

    def get(self, number: int) -> int | None:
        """The digest, None when it is not known or there is no such number."""
        return self._values[number] if 0 <= number < len(self._known) and self._known[number] else None

    def __setitem__(self, number: int, digest: int) -> None:
        self._values[number] = digest
        self._left -= not self._known[number]
        self._known[number] = 1

    def discard(self, number: int) -> None:
        """Forget one, if it is known."""
        self._left += self._known[number]
        self._known[number] = 0

    def in_order(self) -> Sequence[int]:
        """Every digest; only when `complete`."""
        return self._values
