"""How much room a sealed payload needs, however it is cut."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.plan import ChunkPlan, SlotLayout
from fedrdma_fate.core.sealed_plan import sealable, sealed_slot_bytes, with_table
from fedrdma_fate.core.x.chunking import best_chunk_bytes

LARGEST_SEALED = 1 << 24


@pytest.mark.parametrize("rate", [1e4, 625e3, 2.5e6, 7.5e6, 12.5e6, 125e6, 1.25e9, 12.5e9])
@pytest.mark.parametrize("loss", [0.0, 0.001, 0.05, 0.2])
@pytest.mark.parametrize("mtu", [256, 512, 1024, 1188, 1352, 1442, 2048, 4096, 8942, 65_000])
def test_a_slot_has_room_for_the_tags_of_any_cut_that_a_path_is_given(rate: float, loss: float, mtu: int) -> None:
    for total in (1, 1023, 1024, 1025, 2_340_000, 1 << 29, 1 << 31):
        asked = sealed_slot_bytes(ChunkPlan(total, 4 << 20), "fedrdma-x", recut=True)
        cut = sealable(ChunkPlan(total, best_chunk_bytes(rate, loss, mtu, total)), LARGEST_SEALED)
        plan = with_table(cut)
        assert SlotLayout(plan, "fedrdma-x").slot_bytes <= asked
        # the receiver knows the cut alone, and finds out from it what was asked for
        assert sealed_slot_bytes(plan, "fedrdma-x", recut=True) == asked


def test_a_slot_for_a_cut_that_was_set_by_hand_has_room_for_that_alone() -> None:
    plan = ChunkPlan(1 << 24, 1 << 20)
    by_hand, any_cut = (sealed_slot_bytes(plan, "fedrdma-x", recut=recut) for recut in (False, True))
    assert by_hand == SlotLayout(with_table(plan), "fedrdma-x").slot_bytes
    assert by_hand < any_cut < 1.03 * by_hand


def test_a_plan_with_a_link_enable_chunk_longer_than_the_least_chunk_has_a_slot_too() -> None:
    """The receiver of every sealed message asks, whatever its mode."""
    plan = ChunkPlan(4_194_303, 1 << 20, 4096)
    without = ChunkPlan(4_194_303, 1 << 20)
    assert sealed_slot_bytes(plan, "fedrdma-e", recut=True) >= sealed_slot_bytes(without, "fedrdma-e", recut=True)
