"""Writes over queue pairs: dealt in turns, split, signalled in batches, and fenced only where they have to be."""

from __future__ import annotations

import pytest

from fedrdma_fate.transport.verbs.interface import Piece, Target
from fedrdma_fate.transport.verbs.outbound import SIGNAL_BYTES, SIGNAL_EVERY, VerbsOutbound, Write

KIB = 1024


class RecordingPair:
    """Keeps what is posted; nothing completes by itself."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.posted: list[tuple[int, Piece, Target, bool, int | None]] = []

    def write(
        self, work_request: int, source: Piece, target: Target, *, signalled: bool, immediate: int | None = None
    ) -> None:
        self.posted.append((work_request, source, target, signalled, immediate))

    @property
    def signals(self) -> list[int]:
        return [request for request, _, _, signalled, _ in self.posted if signalled]


class Places:
    """Staging memory with a few places."""

    def __init__(self, places: int = 4) -> None:
        self.free_places = places

    def put(self, data: bytes) -> Piece | None:
        if not self.free_places:
            return None
        self.free_places -= 1
        return Piece(0x9000, len(data), 9)

    def free(self, piece: Piece) -> None:
        assert piece.key == 9
        self.free_places += 1


class Bench:
    """An outbound over some recorded queue pairs."""

    def __init__(self, pairs: int, depth: int = 64, largest: int = 1 << 30, places: int = 4) -> None:
        self.pairs = [RecordingPair(number) for number in range(pairs)]
        self.places = Places(places)
        self.outbound = VerbsOutbound(self.pairs, depth, largest, self.places)  # type: ignore[arg-type]

    def write(self, request: int, length: int = KIB) -> None:
        self.outbound.add(Write(request, Piece(request * length, length, 1), Target(0x1000, 2)))

    def fence(self, request: int, immediate: int = 7) -> None:
        self.outbound.add(Write(request, Piece(0, 3, 0), Target(0x1000, 2), immediate, b"abc"))

    def done(self, pair: int, sequence: int) -> list[int]:
        return [write.work_request for write in self.outbound.completed(pair, sequence)]


def test_writes_are_dealt_to_the_queue_pairs_in_turns() -> None:
    bench = Bench(3)
    for request in range(7):
        bench.write(request)
    bench.outbound.flush()
    assert [len(pair.posted) for pair in bench.pairs] == [3, 2, 2]


def test_a_batch_is_signalled_every_so_many_writes_and_at_its_end() -> None:
    bench = Bench(1)
    for request in range(SIGNAL_EVERY + 5):
        bench.write(request)
    bench.outbound.flush()
    assert bench.pairs[0].signals == [SIGNAL_EVERY, SIGNAL_EVERY + 5]


def test_a_large_write_has_a_completion_of_its_own() -> None:
    bench = Bench(1)
    for request in range(3):
        bench.write(request, SIGNAL_BYTES)
    bench.outbound.flush()
    assert bench.pairs[0].signals == [1, 2, 3]


def test_one_completion_reports_every_write_it_covers_in_order() -> None:
    bench = Bench(1)
    for request in range(100, 110):
        bench.write(request)
    bench.outbound.flush()
    assert bench.done(0, 10) == list(range(100, 110))
    assert bench.outbound.has_idle_lane


def test_a_write_beyond_the_largest_message_is_split_and_only_its_last_message_is_signalled() -> None:
    bench = Bench(1, largest=1000)
    bench.write(1, 2500)
    bench.outbound.flush()
    posted = bench.pairs[0].posted
    assert [(source.address - 2500, source.length) for _, source, _, _, _ in posted] == [
        (0, 1000),
        (1000, 1000),
        (2000, 500),
    ]
    assert [target.address for _, _, target, _, _ in posted] == [0x1000, 0x1000 + 1000, 0x1000 + 2000]
    assert [signalled for _, _, _, signalled, _ in posted] == [False, False, True]


def test_a_write_that_no_send_queue_can_hold_is_refused() -> None:
    bench = Bench(1, depth=2, largest=1000)
    with pytest.raises(ValueError, match="2001 bytes"):
        bench.write(1, 2001)


def test_what_does_not_fit_into_the_send_queues_waits_for_completions() -> None:
    bench = Bench(2, depth=2)
    for request in range(6):
        bench.write(request)
    bench.outbound.flush()
    assert [len(pair.posted) for pair in bench.pairs] == [2, 2]
    assert bench.done(0, bench.pairs[0].signals[-1]) == [0, 2]
    bench.outbound.flush()
    assert [len(pair.posted) for pair in bench.pairs] == [4, 2]


def test_a_fence_behind_writes_of_one_queue_pair_is_posted_at_once_behind_them() -> None:
    bench = Bench(2)
    bench.write(1)
    bench.fence(2)
    bench.outbound.flush()
    assert [immediate for *_, immediate in bench.pairs[0].posted] == [None, 7]
    assert not bench.pairs[1].posted


def test_a_fence_behind_writes_of_two_queue_pairs_waits_for_one_of_them() -> None:
    bench = Bench(2)
    bench.write(1)
    bench.write(2)
    bench.fence(3)
    bench.outbound.flush()
    assert all(immediate is None for pair in bench.pairs for *_, immediate in pair.posted)
    assert bench.done(0, 1) == [1]
    bench.outbound.flush()
    assert [immediate for *_, immediate in bench.pairs[1].posted] == [None, 7]


def test_later_writes_overtake_a_fence_that_waits_but_later_fences_do_not() -> None:
    bench = Bench(2)
    bench.write(1)
    bench.write(2)
    bench.fence(3, immediate=1)
    bench.write(4)
    bench.fence(5, immediate=2)
    bench.outbound.flush()
    assert len(bench.pairs[0].posted) == 2
    assert bench.done(0, 1) == [1]
    bench.outbound.flush()
    assert [immediate for *_, immediate in bench.pairs[1].posted] == [None, 1]
    assert bench.done(0, bench.pairs[0].signals[-1]) == [4]
    bench.outbound.flush()
    assert [immediate for *_, immediate in bench.pairs[1].posted] == [None, 1, 2]


def test_a_fence_is_not_overtaken_by_one_that_would_land_on_another_queue_pair() -> None:
    """The first fence sits behind a write that was posted after it: it must be seen there all the same."""
    bench = Bench(2)
    bench.write(1)
    bench.write(2)
    bench.fence(3, immediate=1)
    bench.write(4)
    bench.write(5)
    bench.outbound.flush()
    assert bench.done(0, 1) == [1]
    bench.outbound.flush()
    bench.fence(6, immediate=2)
    bench.outbound.flush()
    immediates = [[immediate for *_, immediate in pair.posted if immediate] for pair in bench.pairs]
    assert immediates == [[], [1]]


def test_a_fence_waits_for_a_place_to_stage_its_bytes() -> None:
    bench = Bench(1, places=1)
    bench.fence(1, immediate=1)
    bench.fence(2, immediate=2)
    bench.outbound.flush()
    assert [immediate for *_, immediate in bench.pairs[0].posted] == [1]
    assert bench.done(0, 1) == [1]
    bench.outbound.flush()
    assert [immediate for *_, immediate in bench.pairs[0].posted] == [1, 2]
