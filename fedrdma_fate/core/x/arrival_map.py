"""What the receiver of a `fedrdma-x` transfer has, as both ends keep it; `wire.frames.Report` carries it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator


class ArrivalMap:
    """A bitmap of positions in the order of sending, kept as a count of leading ones and the rest.

    It says what the ACK ranges of QUIC do (RFC 9000, section 19.3), and whole, so that a lost report does not matter.

    Attributes:
        count: positions that there are.
        complete: every position below this one is there.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.complete = 0
        self._beyond = 0

    @property
    def full(self) -> bool:
        """Whether every position is there."""
        return self.complete == self.count

    @property
    def beyond(self) -> bytes:
        """The rest behind `complete`, as in a report."""
        return self._beyond.to_bytes(-(-self._beyond.bit_length() // 8), "little")

    def __contains__(self, position: int) -> bool:
        return position < self.complete or bool(self._beyond >> (position - self.complete) & 1)

    def add(self, position: int) -> bool:
        """A position is there; whether that is new.

        Raises:
            IndexError: there is no such position.
        """
        if not 0 <= position < self.count:
            raise IndexError(f"position {position} of {self.count}")
        if position in self:
            return False
        self._beyond |= 1 << (position - self.complete)
        self._advance()
        return True

    def discard(self, positions: Iterable[int]) -> None:
        """These have to come again."""
        # in bytes: to shift so long a number once for each of very many takes seconds
        gone = bytearray(-(-self.count // 8))
        for position in positions:
            gone[position // 8] |= 1 << position % 8
        all_there = (self._beyond << self.complete | ((1 << self.complete) - 1)) & ~int.from_bytes(gone, "little")
        self.complete, self._beyond = 0, all_there
        self._advance()

    def __iter__(self) -> Iterator[int]:
        """What is there, ascending."""
        return itertools.chain(range(self.complete), _bits(self._beyond, self.complete))

    def missing_from(self, first: int) -> list[int]:
        """Positions from `first` on that are not there."""
        return list(_bits(*self._holes(first)))

    def missing_count(self, first: int) -> int:
        """How many those are."""
        return self._holes(first)[0].bit_count()

    def merge(self, complete: int, beyond: bytes) -> Iterator[int]:
        """Take a report in; yields the positions that were not known.

        Args:
            complete: every position below this one is there.
            beyond: little-endian bitmap, bit k: position complete + k is there.

        Raises:
            IndexError: it speaks of positions that do not exist.
        """
        told = int.from_bytes(beyond, "little")
        if not 0 <= complete <= self.count or complete + told.bit_length() > self.count:
            raise IndexError(f"positions up to {complete + told.bit_length()} of {self.count}")
        told = told << complete | ((1 << complete) - 1)
        base = self.complete
        new = (told >> base) & ~self._beyond
        self._beyond |= new
        self._advance()
        return _bits(new, base)

    def _holes(self, first: int) -> tuple[int, int]:
        """A bitmap of what is missing from `first` on, and the position that its lowest bit stands for."""
        base = max(first, self.complete)
        return ~(self._beyond >> (base - self.complete)) & ((1 << (self.count - base)) - 1), base

    def _advance(self) -> None:
        ones = (~self._beyond & (self._beyond + 1)).bit_length() - 1
        self._beyond >>= ones
        self.complete += ones


def _bits(bitmap: int, base: int) -> Iterator[int]:
    if not bitmap:
        return
    low = (bitmap & -bitmap).bit_length() - 1
    digits = bin(bitmap >> low)[:1:-1]
    at = digits.find("1")
    while at >= 0:
        yield base + low + at
        at = digits.find("1", at + 1)
