"""Chunk plans, the order of sending, slot layouts, and what offers may claim."""

from __future__ import annotations

import dataclasses

import pytest

from fedrdma_fate.core.plan import LARGEST_COUNT, Chunk, ChunkPlan, SlotLayout, plan_of_offer, sending_order
from fedrdma_fate.wire.errors import ErrorCode, TransferError
from fedrdma_fate.wire.frames import MessageKey, Mode, Offer, Party

OFFER = Offer(
    transport="tcp",
    transfer=1,
    key=MessageKey("job", "model", "0", Party("guest", "9999"), Party("arbiter", "10000")),
    kind="object",
    total_bytes=1000,
    mode="fedrdma-e",
    grant=1,
    chunk_bytes=300,
    enable_bytes=50,
)


def test_the_last_chunk_takes_the_rest() -> None:
    assert list(ChunkPlan(10, 4)) == [Chunk(0, 0, 4), Chunk(1, 4, 4), Chunk(2, 8, 2)]


def test_the_link_enable_chunk_is_cut_off_the_end() -> None:
    assert list(ChunkPlan(10, 4, 1)) == [Chunk(0, 0, 4), Chunk(1, 4, 4), Chunk(2, 8, 1), Chunk(3, 9, 1)]


def test_an_empty_payload_has_no_chunks() -> None:
    assert list(ChunkPlan(0, 4)) == []


@pytest.mark.parametrize("index", [-1, 3])
def test_a_chunk_outside_the_plan_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError):
        ChunkPlan(10, 4).chunk(index)


@pytest.mark.parametrize(
    ("total_bytes", "chunk_bytes", "enable_bytes"),
    [
        pytest.param(-1, 4, 0, id="negative payload"),
        pytest.param(10, 0, 0, id="no chunk size"),
        pytest.param(10, -4, 0, id="negative chunk size"),
        pytest.param(10, 4, -1, id="negative Link-Enable chunk"),
        pytest.param(3, 4, 3, id="Link-Enable chunk as large as the payload"),
        pytest.param(0, 4, 1, id="Link-Enable chunk of an empty payload"),
        pytest.param(10, 4, 5, id="Link-Enable chunk larger than a chunk"),
        pytest.param(LARGEST_COUNT + 1, 1, 0, id="too many chunks"),
    ],
)
def test_numbers_that_make_no_plan_are_refused(total_bytes: int, chunk_bytes: int, enable_bytes: int) -> None:
    with pytest.raises(ValueError):
        ChunkPlan(total_bytes, chunk_bytes, enable_bytes)


@pytest.mark.parametrize(("offset", "index"), [(0, 0), (4, 1), (8, 2), (9, 3)])
def test_a_chunk_is_found_by_its_offset(offset: int, index: int) -> None:
    plan = ChunkPlan(10, 4, 1)
    assert plan.chunk_at(offset) == plan.chunk(index)


@pytest.mark.parametrize("offset", [-4, 1, 7, 10, 12])
def test_no_chunk_is_found_between_chunks_or_outside(offset: int) -> None:
    assert ChunkPlan(10, 4, 1).chunk_at(offset) is None


def test_a_multiple_of_the_chunk_size_inside_the_link_enable_chunk_is_no_chunk() -> None:
    plan = ChunkPlan(14, 4, 4)
    assert plan.chunk_at(12) is None
    assert plan.chunk_at(10) == Chunk(3, 10, 4)


@pytest.mark.parametrize(
    ("mode", "enable_bytes", "order"),
    [
        ("fedrdma", 0, [0, 1, 2]),
        ("fedrdma", 1, [3, 0, 1, 2]),
        ("fedrdma-e", 0, [2, 1, 0]),
        ("fedrdma-e", 1, [3, 2, 1, 0]),
        ("grpc", 0, [0, 1, 2]),
    ],
)
def test_the_order_of_sending(mode: Mode, enable_bytes: int, order: list[int]) -> None:
    plan = ChunkPlan(10, 4, enable_bytes)
    assert sending_order(plan, mode, range(plan.count)) == order


def test_what_is_left_is_sent_in_the_same_order() -> None:
    assert sending_order(ChunkPlan(10, 4, 1), "fedrdma", [2, 1, 1]) == [1, 2]
    assert sending_order(ChunkPlan(10, 4, 1), "fedrdma", [3, 2]) == [3, 2]
    assert sending_order(ChunkPlan(10, 4, 1), "fedrdma", []) == []


def test_fedrdma_e_writes_chunks_to_their_final_addresses_behind_one_header_page() -> None:
    layout = SlotLayout(ChunkPlan(10_000, 4000), "fedrdma-e")
    assert layout.header_at == 0
    assert [layout.write_offset(chunk) for chunk in layout.plan] == [4096, 8096, 12096]
    assert layout.slot_bytes == 4096 + 10_000


def test_fedrdma_stages_every_chunk_at_one_place_behind_the_payload() -> None:
    layout = SlotLayout(ChunkPlan(10_000, 4000), "fedrdma")
    assert layout.header_at == 4096 + 12_288
    assert {layout.write_offset(chunk) for chunk in layout.plan} == {4096 + 12_288 + 4096}
    assert layout.slot_bytes == layout.staged_chunk_at + 4000


def test_an_honest_offer_gives_the_senders_plan() -> None:
    assert plan_of_offer(OFFER, 4096 + 1000) == ChunkPlan(1000, 300, 50)


def test_an_offer_that_does_not_fit_its_grant_is_refused() -> None:
    with pytest.raises(TransferError, match="needs 5096 bytes, its grant has 5095") as caught:
        plan_of_offer(OFFER, 4096 + 999)
    assert caught.value.code is ErrorCode.GRANT_VIOLATION


@pytest.mark.parametrize("fault", [{"total_bytes": -1}, {"chunk_bytes": 0}, {"enable_bytes": 1000}])
def test_an_offer_without_sense_is_refused(fault: dict[str, int]) -> None:
    numbers = {"total_bytes": 1000, "chunk_bytes": 300, "enable_bytes": 50} | fault
    offer = Offer("tcp", 1, OFFER.key, "object", mode="fedrdma", grant=1, **numbers)
    with pytest.raises(TransferError) as caught:
        plan_of_offer(offer, 1 << 20)
    assert caught.value.code is ErrorCode.UNEXPECTED_EVENT


def test_a_plan_cannot_change_under_a_transfer() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ChunkPlan(10, 4).total_bytes = 11  # type: ignore[misc]
