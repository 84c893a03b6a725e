"""What a probe sends within its bounds, and what it concludes."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.goodput_probe import (
    CHUNK_SIZES,
    SIZE_ROUNDS,
    Bounds,
    Trial,
    best_trial,
    first_chunk_plans,
    judge_first_chunks,
    link_rate,
    measuring_plan,
)
from fedrdma_fate.core.plan import ChunkPlan

MIB = 1 << 20
WIDE = Bounds(256 * MIB, 512 * MIB, 10.0, 1e10, 0.0)
LARGE = ChunkPlan(4 * MIB, 4 * MIB)


def bounds(**changes: float) -> Bounds:
    return Bounds(**{name: changes.get(name, getattr(WIDE, name)) for name in Bounds.__slots__})  # type: ignore[arg-type]


def trial(chunk_bytes: int, megabits: float, *, survived: bool = True) -> Trial:
    """One that reached so many Mbit/s."""
    return Trial(ChunkPlan(8 * MIB, chunk_bytes), 8 * MIB * 8 / (megabits * 1e6), survived)


# --- bounds ---


@pytest.mark.parametrize("rate", [1e6, 1e8, 1e10])
@pytest.mark.parametrize("trip", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("total", [1 * MIB, 64 * MIB, 512 * MIB])
def test_all_chunk_sizes_together_stay_within_the_bounds(rate: float, trip: float, total: int) -> None:
    left_bytes, left_seconds = total, 10.0
    coming = CHUNK_SIZES * SIZE_ROUNDS
    for at, size in enumerate(coming):
        left = bounds(total_bytes=left_bytes, seconds=left_seconds, bits_per_second=rate, round_trip_seconds=trip)
        plan = measuring_plan(size, len(coming) - at, left, enable=False)
        if plan is None:
            continue
        assert plan.chunk_bytes == size
        assert 0 < plan.total_bytes <= WIDE.largest_bytes
        left_bytes -= plan.total_bytes
        left_seconds -= plan.count * left.chunk_seconds(size)
    assert left_bytes >= 0
    assert left_seconds >= -1e-6


def test_on_a_fast_link_every_size_is_measured_within_the_default_bounds() -> None:
    left = WIDE.total_bytes
    for at, size in enumerate(CHUNK_SIZES):
        plan = measuring_plan(size, len(CHUNK_SIZES) * SIZE_ROUNDS - at, bounds(total_bytes=left), enable=False)
        assert plan is not None
        left -= plan.total_bytes


@pytest.mark.parametrize(
    "short",
    [{"largest_bytes": MIB - 1}, {"total_bytes": MIB - 1}, {"seconds": 0.0}, {"bits_per_second": 1e5}],
    ids=["memory", "bytes", "time", "rate"],
)
def test_a_size_that_does_not_fit_the_bounds_is_not_measured(short: dict[str, float]) -> None:
    assert measuring_plan(MIB, 1, bounds(), enable=False) is not None
    assert measuring_plan(MIB, 1, bounds(**short), enable=False) is None


def test_with_link_enable_a_small_chunk_is_cut_off() -> None:
    plan = measuring_plan(MIB, 18, WIDE, enable=True)
    assert plan is not None
    assert plan.enable_bytes == 4096


# --- large first chunks ---


@pytest.mark.parametrize(
    ("largest", "total", "chunk_bytes"), [(256, 512, 4), (4, 32, 4), (3, 512, 2), (256, 31, 2), (2, 16, 2)]
)
def test_the_largest_chunk_at_risk_that_fits_is_tried(largest: int, total: int, chunk_bytes: int) -> None:
    plans = first_chunk_plans(largest * MIB, total * MIB)
    assert plans is not None
    alone, behind = plans
    assert (alone.total_bytes, alone.count, alone.enable_bytes) == (chunk_bytes * MIB, 1, 0)
    assert (behind.total_bytes, behind.enable_bytes) == (chunk_bytes * MIB, 4096)


@pytest.mark.parametrize(("largest", "total"), [(1, 512), (256, 15), (0, 0)])
def test_without_room_for_a_chunk_at_risk_none_is_tried(largest: int, total: int) -> None:
    assert first_chunk_plans(largest * MIB, total * MIB) is None


@pytest.mark.parametrize(
    ("alone", "behind", "verdict", "word"),
    [
        ([(0.01, True), (0.01, True)], [(0.01, True), (0.01, True)], "never", "all 2"),
        ([(0.01, True), (0.30, False)], [(0.01, True), (0.01, True)], "always", "1 of 2"),
        ([(0.01, True), (0.90, True)], [(0.02, True), (0.01, True)], "always", "0.900 s"),
        # twice the time of next to nothing is noise
        ([(0.01, True), (0.04, True)], [(0.01, True), (0.01, True)], "never", "all 2"),
        ([(0.01, False), (0.01, False)], [(0.01, True), (0.01, False)], None, "even behind"),
        ([], [], None, "not tested"),
    ],
)
def test_large_first_chunks_are_judged_against_those_behind_a_small_one(
    alone: list[tuple[float, bool]], behind: list[tuple[float, bool]], verdict: str | None, word: str
) -> None:
    judged = judge_first_chunks([Trial(LARGE, *each) for each in alone], [Trial(LARGE, *each) for each in behind])
    assert judged.link_enable == verdict
    assert word in judged.reason


# --- the best chunk ---


def test_of_nearly_equal_sizes_the_smallest_is_chosen() -> None:
    best = best_trial([trial(MIB, 500), trial(2 * MIB, 920), trial(4 * MIB, 1000), trial(8 * MIB, 990)])
    assert best is not None
    assert best.plan.chunk_bytes == 2 * MIB


def test_a_size_that_was_lost_is_not_chosen() -> None:
    best = best_trial([trial(MIB, 500), trial(2 * MIB, 9000, survived=False)])
    assert best is not None
    assert best.plan.chunk_bytes == MIB


@pytest.mark.parametrize("trials", [[], [trial(MIB, 500, survived=False)]])
def test_where_nothing_arrived_none_is_chosen(trials: list[Trial]) -> None:
    assert best_trial(trials) is None


def test_the_rate_of_the_link_leaves_out_the_round_trips() -> None:
    # four chunks of 1 MiB at 1 Gbit/s, each with a round trip of 20 ms
    seconds = 4 * MIB * 8 / 1e9 + 4 * 0.02
    assert link_rate(Trial(ChunkPlan(4 * MIB, MIB), seconds), 0.02) == pytest.approx(1e9)


def test_a_round_trip_longer_than_the_trial_gives_no_endless_rate() -> None:
    fast = Trial(ChunkPlan(MIB, MIB), 0.001)
    assert link_rate(fast, 1.0) == pytest.approx(10 * fast.bits_per_second)
