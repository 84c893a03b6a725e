"""Cold regions: pages are taken when a slot is leased and given back when it is free."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

MEBIBYTE = 2**20


@pytest.fixture
def region() -> Iterator[SharedRegion]:
    path = Path("/dev/shm") / f"test-of-fedrdma-cold-{os.getpid()}"
    made = SharedRegion.create(path, 16 * MEBIBYTE, warm=False)
    yield made
    made.close()


def pages_bytes(region: SharedRegion) -> int:
    return os.stat(region.path).st_blocks * 512


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
    other = SharedRegion.attach(region.path)
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
