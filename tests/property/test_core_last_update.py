"""The last update of a sum while it comes: whatever is told, and withdrawn, each byte is in once, as it is now."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fedrdma_fate.core.last_update import LastUpdate, Piece

TOTAL = 24
SOURCES = ("slot 1", "slot 2")


class Coming(RuleBasedStateMachine):
    """Bytes that lie in slots, may become others there, and a total in which each is written from where it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.update = LastUpdate()
        self.versions = 0
        # of each byte of a slot, which version lies there; and from where on that was told
        self.slots = {source: [0] * TOTAL for source in SOURCES}
        self.told_from = dict.fromkeys(SOURCES, TOTAL)
        self.total: list[tuple[str, int] | None] = [None] * TOTAL
        self.piece: tuple[Piece, list[tuple[str, int]]] | None = None

    @rule(source=st.sampled_from(SOURCES), start=st.integers(0, TOTAL))
    def told(self, source: str, start: int) -> None:
        start = min(start, self.told_from[source])
        for at in range(start, self.told_from[source]):
            self.versions += 1
            self.slots[source][at] = self.versions
        self.told_from[source] = start
        self.update.told(source, start, TOTAL)

    @rule(source=st.sampled_from(SOURCES))
    def told_once_more(self, source: str) -> None:
        self.update.told(source, self.told_from[source], TOTAL)

    @rule(source=st.sampled_from(SOURCES))
    def withdrawn(self, source: str) -> None:
        self.told_from[source] = TOTAL
        self.update.withdrawn(source)

    @precondition(lambda self: self.piece is None)
    @rule()
    def begin(self) -> None:
        piece = self.update.begin()
        if piece is not None:
            assert self.update.begin() is None
            source = self.update.source
            assert isinstance(source, str)
            self.piece = piece, [(source, self.slots[source][at]) for at in range(piece.start, piece.end)]

    @precondition(lambda self: self.piece is not None)
    @rule(repeated=st.booleans())
    def added(self, repeated: bool) -> None:
        # a worker that was killed over it does it once more, of what lies there then
        assert self.piece is not None
        piece, read = self.piece
        self.piece = None
        if repeated and piece.epoch == self.update._epoch:
            source = self.update.source
            assert isinstance(source, str)
            read = [(source, self.slots[source][at]) for at in range(piece.start, piece.end)]
        self.total[piece.start : piece.end] = read
        self.update.added()

    @invariant()
    def where_it_is_whole_the_total_has_what_lies_there_now(self) -> None:
        if self.update.whole:
            source = self.update.source
            assert isinstance(source, str)
            assert self.total == [(source, version) for version in self.slots[source]]

    @invariant()
    def what_is_next_was_told_and_is_not_in(self) -> None:
        piece, source = self.update.next_up, self.update.source
        if piece is not None:
            assert isinstance(source, str)
            assert self.told_from[source] <= piece.start < piece.end <= TOTAL


TestComing = Coming.TestCase
TestComing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_an_update_that_is_told_to_its_start_is_whole_when_all_its_pieces_are_added() -> None:
    update = LastUpdate()
    found = []
    for start in (20, 20, 7, 0):
        update.told("slot", start, TOTAL)
        if (piece := update.begin()) is not None:
            assert not update.whole
            found.append((piece.start, piece.end))
            update.added()
    assert found == [(20, 24), (7, 20), (0, 7)]
    assert update.whole


def test_a_piece_of_what_was_withdrawn_meanwhile_is_not_in() -> None:
    update = LastUpdate()
    update.told("slot", 0, TOTAL)
    assert update.begin() is not None
    update.withdrawn("slot")
    update.told("slot", 0, TOTAL)
    assert update.begin() is None
    update.added()
    assert not update.whole
    piece = update.begin()
    assert piece is not None
    assert (piece.start, piece.end) == (0, TOTAL)


@pytest.mark.parametrize(("source", "start"), [(None, 0), ("slot", -1), ("slot", TOTAL + 1)])
def test_what_cannot_be_is_refused(source: str | None, start: int) -> None:
    with pytest.raises(ValueError, match="bytes of"):
        LastUpdate().told(source, start, TOTAL)
