"""Cold regions: pages are taken when a slot is leased and given back when it is free."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fedrdma_fate.memory import region as region_module
from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

MEBIBYTE = 2**20


@pytest.fixture
def region() -> Iterator[SharedRegion]:
    made = SharedRegion.create("cold", 16 * MEBIBYTE, warm=False)
    yield made
    made.close()


def pages_bytes(region: SharedRegion) -> int:
    return os.fstat(region.fileno).st_blocks * 512


def test_a_cold_region_has_no_pages_until_a_slot_is_leased_and_none_after(region: SharedRegion) -> None:
    pool = SlotPool(region, "send", region)
    assert pages_bytes(region) == 0
    lease = pool.lease(5 * MEBIBYTE, "task")
    assert lease is not None
    lease.slot.view[:] = b"\xff" * (5 * MEBIBYTE)
    assert pages_bytes(region) == 5 * MEBIBYTE
    lease.release()
    assert pages_bytes(region) == 0


def test_giving_a_slot_back_leaves_its_neighbours_bytes_alone(region: SharedRegion) -> None:
    pool = SlotPool(region, "send", region)
    first, second = pool.lease(3 * MEBIBYTE + 1, "a"), pool.lease(3 * MEBIBYTE + 1, "b")
    assert first is not None
    assert second is not None
    second.slot.view[:] = b"\x5a" * len(second.slot.view)
    first.release()
    assert bytes(second.slot.view) == b"\x5a" * len(second.slot.view)


def test_attaching_to_a_cold_region_does_not_allocate_it(region: SharedRegion) -> None:
    other = SharedRegion.attach(os.dup(region.fileno), region.length)
    assert pages_bytes(region) == 0
    other.close()


def test_a_slot_that_gets_no_memory_is_refused_and_can_be_had_later(
    region: SharedRegion, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = SlotPool(region, "send", region)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(MemoryPoolError) as refused:
            pool.lease(MEBIBYTE, "task")
    assert refused.value.code is ErrorCode.REGION_UNAVAILABLE
    assert pool.stats().leased_bytes == 0
    assert pool.lease(16 * MEBIBYTE, "task") is not None


def test_a_slot_for_which_there_is_less_memory_than_it_takes_is_refused_before_it_costs_a_process_its_life(
    region: SharedRegion, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = SlotPool(region, "send", region)
    monkeypatch.setattr(region_module, "available_bytes", lambda: 2 * MEBIBYTE)
    with pytest.raises(MemoryPoolError) as refused:
        pool.lease(3 * MEBIBYTE, "task")
    assert refused.value.code is ErrorCode.REGION_UNAVAILABLE
    assert str(2 * MEBIBYTE) in refused.value.message
    assert pages_bytes(region) == 0
    assert pool.lease(2 * MEBIBYTE, "task") is not None


def test_the_end_of_a_trimmed_slot_gives_its_pages_back(region: SharedRegion) -> None:
    pool = SlotPool(region, "receive", region)
    lease = pool.lease(5 * MEBIBYTE, "task")
    assert lease is not None
    lease.slot.view[:] = b"\xff" * (5 * MEBIBYTE)
    lease.trim(2 * MEBIBYTE)
    assert pages_bytes(region) == 2 * MEBIBYTE
    assert bytes(lease.slot.view[-4:]) == b"\xff" * 4
    lease.release()
    assert pages_bytes(region) == 0
