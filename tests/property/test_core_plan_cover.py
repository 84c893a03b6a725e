"""Plans and layouts over all sizes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.core.plan import HEADER_SPACE_BYTES, ChunkPlan, SlotLayout, sending_order
from fedrdma_fate.core.tuning import LinkEnable, LinkTraits, plan_transfer
from fedrdma_fate.wire.frames import Mode
from fedrdma_fate.wire.header import HEADER_BYTES

MODES = st.sampled_from(["grpc", "fedrdma", "fedrdma-e"])


@st.composite
def plans(draw: st.DrawFn) -> ChunkPlan:
    total = draw(st.one_of(st.integers(0, 50), st.integers(0, 2**40)))
    chunk = draw(st.integers(max(1, total // 60), total + 10))
    enable = draw(st.integers(0, min(chunk, max(0, total - 1))))
    return ChunkPlan(total, chunk, enable)


@given(plans())
def test_the_chunks_cover_the_payload_once_in_order(plan: ChunkPlan) -> None:
    end = 0
    for number, chunk in enumerate(plan):
        assert (chunk.index, chunk.offset) == (number, end)
        assert 0 < chunk.length <= plan.chunk_bytes
        assert plan.chunk_at(chunk.offset) == chunk
        end += chunk.length
    assert end == plan.total_bytes
    assert plan.count == len(list(plan))


@given(plans(), st.integers(-10, 2**40))
def test_a_chunk_is_found_only_at_its_offset(plan: ChunkPlan, offset: int) -> None:
    found = plan.chunk_at(offset)
    assert found == next((chunk for chunk in plan if chunk.offset == offset), None)


@given(plans(), MODES)
def test_every_chunk_is_sent_once_and_the_link_enable_chunk_first(plan: ChunkPlan, mode: Mode) -> None:
    order = sending_order(plan, mode, range(plan.count))
    assert sorted(order) == list(range(plan.count))
    if plan.enable_bytes:
        assert order[0] == plan.count - 1
    if mode == "fedrdma-e":
        assert order == sorted(order, reverse=True)


@given(plans(), MODES)
def test_the_regions_of_a_slot_fit_it_and_do_not_overlap(plan: ChunkPlan, mode: Mode) -> None:
    layout = SlotLayout(plan, mode)
    regions = [
        (layout.header_at, layout.header_at + HEADER_BYTES),
        (layout.payload_at, layout.payload_at + plan.total_bytes),
    ]
    if mode == "fedrdma":
        longest = max((chunk.length for chunk in plan), default=0)
        regions.append((layout.staged_chunk_at, layout.staged_chunk_at + longest))
    regions.sort()
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(regions))
    assert regions[0][0] >= 0
    assert regions[-1][1] <= layout.slot_bytes
    for chunk in plan:
        at = layout.write_offset(chunk)
        home = regions[-1] if mode == "fedrdma" else regions[1]
        assert home[0] <= at
        assert at + chunk.length <= home[1]
    assert layout.payload_at % HEADER_SPACE_BYTES == layout.header_at % HEADER_SPACE_BYTES == 0


@given(
    MODES,
    st.integers(0, 2**44),
    st.none() | st.integers(1, 2**36),
    st.sampled_from(["auto", "always", "never"]),
    st.none() | st.floats(1e6, 1e12),
    st.integers(256, 9000),
)
def test_whatever_is_configured_gives_a_valid_plan(
    mode: Mode, total: int, chunk: int | None, policy: LinkEnable, rate: float | None, mtu: int
) -> None:
    plan = plan_transfer(mode, total, chunk, policy, LinkTraits(rate, mtu))
    assert plan.total_bytes == total
    assert plan.enable_bytes == 0 or policy != "never"


@given(plans(), st.data())
def test_the_length_of_any_chunks_is_known_without_counting_them(plan: ChunkPlan, data: st.DataObject) -> None:
    indices = data.draw(st.sets(st.integers(0, plan.count - 1))) if plan.count else set()
    assert plan.bytes_of(indices) == sum(plan.chunk(index).length for index in indices)
