"""The last update of a sum while it comes: which of its bytes are in the total already. It adds nothing itself.

The total is another place than the sum: there is written, block by block, what the sum is with the update. So nothing
of an update has to be taken out again: where its bytes turn out to be others, they are added once more.

1. An update comes from its end to its start. From time to time it is told from where on it lies there (`told`).
2. What is new of that is one piece; one at a time is being added (`begin`, `added`).
3. What was told may turn out not to count (`withdrawn`), or another transfer brings the update (`told` with another
   source). Then nothing of it is in, and a piece that is being added just then does not count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of an update that are to be added now.

    Attributes:
        start: where in the update they begin.
        end: where they end.
        epoch: of which beginning.
    """

    start: int
    end: int
    epoch: int


class LastUpdate:
    """One update."""

    def __init__(self) -> None:
        self._source: Hashable = None
        self._epoch = 0
        self._told_from = self._added_from = self._total = 0
        self._adding: Piece | None = None

    @property
    def source(self) -> Hashable:
        """Where the bytes lie that are in; None: none are."""
        return self._source

    @property
    def done_bytes(self) -> tuple[int, int]:
        """How many of its bytes are in, and how many it has; 0 of 0 where nothing of it is known to be coming."""
        return self._total - self._added_from, self._total

    @property
    def adding(self) -> Piece | None:
        """What is being added."""
        return self._adding

    @property
    def next_up(self) -> Piece | None:
        """What would be added now; None where there is nothing, or something is being added."""
        if self._adding is not None or self._told_from >= self._added_from:
            return None
        return Piece(self._told_from, self._added_from, self._epoch)

    @property
    def whole(self) -> bool:
        """Whether all of it is in."""
        return self._source is not None and self._adding is None and not self._added_from

    def told(self, source: Hashable, start: int, total: int) -> None:
        """Bytes lie there from `start` on to its end, at `total`.

        Args:
            source: the place and the transfer; not None.
            start: what was told before holds, so a later one counts for nothing.
            total: bytes of the update.

        Raises:
            ValueError: such bytes cannot be.
        """
        if source is None or not 0 <= start <= total:
            raise ValueError(f"from {start} of {total} bytes of {source}")
        if (source, total) != (self._source, self._total):
            self._begin_anew(source, total)
        self._told_from = min(self._told_from, start)

    def withdrawn(self, source: Hashable) -> None:
        """What was told of this source does not count; of another one that is known already."""
        if source == self._source:
            self._begin_anew(None, 0)

    def begin(self) -> Piece | None:
        """Begin to add what is next, and say what that is."""
        if (piece := self.next_up) is not None:
            self._adding = piece
        return piece

    def added(self) -> None:
        """What was being added is in, unless it does not count any more."""
        piece, self._adding = self._adding, None
        if piece is not None and piece.epoch == self._epoch:
            self._added_from = piece.start

    def _begin_anew(self, source: Hashable, total: int) -> None:
        self._source, self._total = source, total
        self._told_from = self._added_from = total
        self._epoch += 1
