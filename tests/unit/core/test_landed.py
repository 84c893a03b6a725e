"""How far a payload lies in its slot: a stretch that grows as its chunks come, in the order in which they are sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.core.digest import TAGGED
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.receiver import Receiver, ReceiveSettings
from fedrdma_fate.core.x.chunking import immediate_of
from fedrdma_fate.core.x.receiver import XReceiver, XReceiveSettings
from fedrdma_fate.wire.frames import Mode

CHUNK = 1000


class Coming:
    """A transfer whose chunks come one after the other."""

    def __init__(self, mode: Mode, plan: ChunkPlan, tail: range = range(0)) -> None:
        self.plan = plan
        self.mode = mode
        self.receiver: Receiver | XReceiver
        if mode == "fedrdma-x":
            self.receiver = XReceiver(7, plan, XReceiveSettings(3, tail=tail))
        else:
            self.receiver = Receiver(7, plan, ReceiveSettings(mode, tagged=True))

    def lands(self, index: int) -> None:
        chunk = self.plan.chunk(index)
        if isinstance(self.receiver, XReceiver):
            self.receiver.on_chunk(immediate_of(3, index), 0.0, 0.0)
        else:
            self.receiver.on_landed(self.receiver.layout.write_offset(chunk), chunk.length, TAGGED)

    @property
    def landed(self) -> tuple[int, int]:
        return self.receiver.landed


@pytest.mark.parametrize("enable_bytes", [0, 300])
def test_what_comes_from_the_end_on_is_a_stretch_up_to_the_end(enable_bytes: int) -> None:
    plan = ChunkPlan(4500, CHUNK, enable_bytes)
    for mode in ("fedrdma-e", "fedrdma-x"):
        coming = Coming(mode, plan)  # type: ignore[arg-type]
        assert coming.landed == (0, 0)
        for index in reversed(range(plan.count)):
            coming.lands(index)
            assert coming.landed == (plan.chunk(index).offset, 4500)


def test_what_comes_from_the_start_on_is_a_stretch_from_the_start() -> None:
    coming = Coming("grpc", ChunkPlan(4500, CHUNK))
    for index in range(5):
        coming.lands(index)
        assert coming.landed == (0, min(4500, (index + 1) * CHUNK))


@pytest.mark.parametrize("mode", ["grpc", "fedrdma-e", "fedrdma-x"])
def test_what_comes_ahead_of_its_turn_counts_when_the_gap_is_closed(mode: Mode) -> None:
    coming = Coming(mode, ChunkPlan(4000, CHUNK))
    first, second, third = (0, 1, 2) if mode == "grpc" else (3, 2, 1)
    for index in (first, third):
        coming.lands(index)
    start, end = coming.landed
    assert end - start == CHUNK
    coming.lands(second)
    start, end = coming.landed
    assert end - start == 3 * CHUNK


def test_a_tail_that_goes_behind_all_others_is_none_of_it() -> None:
    coming = Coming("fedrdma-x", ChunkPlan(8000, CHUNK), tail=range(2, 5))
    for index in (7, 6, 5, 1, 0):
        coming.lands(index)
    assert coming.landed == (5000, 8000)
    for index in (4, 3, 2):
        coming.lands(index)
    assert coming.landed == (5000, 8000)


@given(
    st.sampled_from(["grpc", "fedrdma-e", "fedrdma-x"]),
    st.integers(1, 12),
    st.integers(0, 999),
    st.sampled_from([0, 100, 1000]),
    st.data(),
)
def test_in_whatever_order_chunks_come_no_byte_is_told_that_is_not_there_and_what_was_told_stays(
    mode: Mode, chunks: int, short: int, enable_bytes: int, data: st.DataObject
) -> None:
    total = chunks * CHUNK - short
    plan = ChunkPlan(total, CHUNK, min(enable_bytes, max(0, total - 1)))
    ends = sorted(data.draw(st.tuples(st.integers(0, plan.count), st.integers(0, plan.count))))
    tail = range(*ends) if mode == "fedrdma-x" else range(0)
    coming, there, before = Coming(mode, plan, tail), set[int](), (0, 0)
    for index in data.draw(st.permutations(range(plan.count))):
        coming.lands(index)
        chunk = plan.chunk(index)
        there.update(range(chunk.offset, chunk.offset + chunk.length))
        start, end = coming.landed
        assert there.issuperset(range(start, end))
        assert set(range(*before)).issubset(range(start, end))
        before = start, end
    if not tail:
        assert coming.landed == (0, total)
