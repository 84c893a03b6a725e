"""How chunks are cut into pieces, and which pieces of one cut are those of another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Cut(NamedTuple):
    """A chunk in so many pieces of `size` bytes each, but for the last, which may be shorter.

    Another length of datagrams makes another cut of the same chunk. Neither end needs the chunk's length to go from one
    to the other: the last pieces of both end where the chunk does.
    """

    pieces: int
    size: int

    @property
    def all(self) -> int:
        """A bit for each piece."""
        return (1 << self.pieces) - 1


def cut_for(length: int, size: int) -> Cut:
    """Of so many bytes, in pieces of this size."""
    return Cut(-(-length // size), size)


def recut(there: int, old: Cut, new: Cut) -> int:
    """Which pieces of the new cut lie wholly within those pieces of the old one that are there; a bit for each."""
    result = 0
    for first, end in _runs(there):
        from_piece = -(-first * old.size // new.size)
        to_piece = new.pieces if end >= old.pieces else min(end * old.size // new.size, new.pieces)
        if to_piece > from_piece:
            result |= (1 << to_piece) - (1 << from_piece)
    return result


def _runs(bits: int) -> Iterator[tuple[int, int]]:
    """First and end of each row of set bits."""
    at = 0
    while bits:
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        ones = (~bits & (bits + 1)).bit_length() - 1
        bits >>= ones
        yield at + zeros, at + zeros + ones
        at += zeros + ones
