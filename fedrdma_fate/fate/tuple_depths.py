"""How deep tuples lie within tuples, and for how many values they stand: what hashing one takes of stack and time.

Hashing goes through every tuple within a tuple, as often as it is met, and C counts neither. Of tuples that hold the
tuple before twice, forty take hours.
"""

from __future__ import annotations

from typing import Any

MOST_DEEP = 1_000
"""Tuples around each other: what Python lets functions call each other, and more than its own pickler writes."""

MOST_VALUES = 100_000_000
"""That a tuple stands for, when those within it are counted wherever they are met: hashing them takes seconds."""


class TupleDepths:
    """The tuples of one stream that hold tuples, each added when it is made."""

    def __init__(self) -> None:
        # by identity, with the tuple, so that no other one gets its identity
        self._nested: dict[int, tuple[tuple[Any, ...], int, int]] = {}

    def add(self, made: tuple[Any, ...]) -> bool:
        """Take in a tuple; those within it that hold tuples were added before.

        Returns:
            Whether it is neither too deep nor stands for too much.
        """
        deepest, values = 0, len(made)
        for item in made:
            if isinstance(item, tuple):
                _, depth, within = self._nested.get(id(item), (item, 1, len(item)))
                deepest = max(deepest, depth)
                values += within
        if deepest:
            self._nested[id(made)] = (made, deepest + 1, values)
        return deepest < MOST_DEEP and values <= MOST_VALUES
