"""What keys of a stream's dictionaries and members of its sets cost: of stack, and of time; and how much that may be.

A key is hashed wherever it is put, and compared with those there that have the same hash. Python bounds neither:

- a tuple is hashed through all tuples within it, as often as they are met, and on the stack, however deep. Of tuples
  that hold the one before twice, forty take hours; a frozenset, which keeps its hash, is compared as slowly;
- numbers of the same hash are easily found (multiples of 2**61 - 1, tuples of them), and each such key is compared with
  all that came before;
- so is long text with equal text, and a long number is hashed digit by digit.

What is made and put is counted here in values that are hashed or compared; a stream may have so many and no more.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterable
from typing import Any

MOST_DEEP = 1_000
"""Tuples and frozensets around each other: what Python lets functions call each other, and more than its own pickler
writes."""

MOST_VALUES = 20_000
"""Hashed or compared for a stream of any length: less than a millisecond, for a table has a stream in each key."""

VALUES_PER_BYTE = 16
"""And so many for each of its bytes: more than honest ones take, and no more time than making the objects of it."""

PIECE = 1024
"""Characters of text, or bits of a number, that are compared in the time of a value."""

_OWN_HASH = sys.hash_info.modulus
"""Integers below have each a hash of their own."""


def most_values(stream_bytes: int) -> int:
    """How many values may be hashed or compared for a stream."""
    return MOST_VALUES + VALUES_PER_BYTE * stream_bytes


class HashCost:
    """The tuples, frozensets and keys of one stream, each taken in before it is hashed."""

    def __init__(self, stream_bytes: int) -> None:
        self._left = most_values(stream_bytes)
        # by identity, with the object, so that no other one gets its identity
        self._nested: dict[int, tuple[object, int, int]] = {}
        self._alike: dict[int, tuple[object, _Alike]] = {}

    @property
    def left(self) -> int:
        """How many values may still be hashed or compared."""
        return self._left

    def take(self, made: tuple[Any, ...] | frozenset[Any], spent: int = 0) -> bool:
        """Take in a tuple or frozenset; those within it were taken in before.

        Args:
            made: it.
            spent: values that putting its members cost; comparing it with an equal one costs them again.

        Returns:
            Whether it is neither too deep nor stands for too much.
        """
        deepest, values = 0, len(made)
        for item in made:
            if isinstance(item, tuple | frozenset):
                _, depth, within = self._nested.get(id(item), (item, 1, len(item)))
                if depth > deepest:
                    deepest = depth
                values += within
            else:
                values += _pieces(item)
        values = max(values, spent)
        if values > len(made) or deepest:
            self._nested[id(made)] = made, deepest + 1, values
            self._left -= values
        return deepest < MOST_DEEP and self._left >= 0

    def put(self, keys: Iterable[Any], into: object | None = None) -> bool:
        """Take in keys that are put into a dictionary or set.

        Args:
            keys: they.
            into: where; None where they are all of it.

        Returns:
            Whether that costs no more than it may. What is beyond is not hashed.

        Raises:
            TypeError: when one has no hash.
        """
        alike: _Alike | None = None
        for key in keys:
            kind = type(key)
            if kind is str or kind is bytes or (kind is int and -_OWN_HASH < key < _OWN_HASH):
                # hashes of text are not to be foreseen, so that only equal text is compared
                if kind is not int and len(key) >= PIECE:
                    self._left -= len(key) // PIECE
                continue
            cost = 1 + self._values_of(key)
            self._left -= cost
            if self._left < 0:
                return False
            if alike is None:
                alike = self._alike_in(into)
            self._left -= cost * alike.count(hash(key))
        return self._left >= 0

    def _alike_in(self, into: object | None) -> _Alike:
        if into is None:
            return _Alike()
        _, alike = self._alike.get(id(into), (None, None))
        if alike is None:
            alike = _Alike()
            self._alike[id(into)] = into, alike
        return alike

    def _values_of(self, key: object) -> int:
        if isinstance(key, tuple | frozenset):
            found = self._nested.get(id(key))
            return len(key) if found is None else found[2]
        return _pieces(key)


class _Alike:
    """Hashes of the keys of one dictionary or set."""

    __slots__ = ("_counts", "_seen")

    def __init__(self) -> None:
        self._seen: set[int] = set()
        # of those alone that came more than once, which are few
        self._counts: collections.Counter[int] = collections.Counter()

    def count(self, hashed: int) -> int:
        """How many with that hash came before; takes in another one."""
        known = len(self._seen)
        self._seen.add(hashed)
        if len(self._seen) > known:
            return 0
        self._counts[hashed] += 1
        return self._counts[hashed]


def _pieces(item: object) -> int:
    """How many values' time it takes beyond that of one, to hash it or to compare it with an equal one."""
    if isinstance(item, str | bytes):
        return len(item) // PIECE
    if isinstance(item, int):
        return item.bit_length() // PIECE
    return 0
