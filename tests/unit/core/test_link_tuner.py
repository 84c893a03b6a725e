"""Chunk size and Link-Enable of the modes that wait for chunks: Table 2 to begin with, then what transfers teach."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedrdma_fate.core.link_tuner import BASELINE_TRANSFERS, Finding, LinkTuner
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.tuning import LinkTraits
from fedrdma_fate.wire.frames import Mode

MIB = 1 << 20
TOTAL = 64 * MIB
ROUND_TRIP = 0.02
UNKNOWN = LinkTraits()


def plan(tuner: LinkTuner, total: int = TOTAL, mode: Mode = "fedrdma-e", link: LinkTraits = UNKNOWN) -> ChunkPlan:
    return tuner.plan(mode, total, None, "auto", link)


def link_of(rate: float, buffer_bytes: int = 1 << 40) -> Callable[[ChunkPlan], float]:
    """How long a payload takes on a link: a chunk that does not fit the buffer is sent twenty times."""

    def seconds(cut: ChunkPlan) -> float:
        overrun = 20 if cut.chunk_bytes > buffer_bytes else 1
        return cut.count * ROUND_TRIP + cut.total_bytes * 8 * overrun / rate

    return seconds


def run(tuner: LinkTuner, seconds: Callable[[ChunkPlan], float], rounds: int, mode: Mode = "fedrdma-e") -> list[int]:
    """The chunk size of each of so many transfers."""
    used = []
    for _ in range(rounds):
        cut = plan(tuner, mode=mode)
        used.append(cut.chunk_bytes)
        tuner.on_transfer(mode, cut, seconds(cut), ROUND_TRIP)
    return used


def test_a_job_begins_with_table_2_and_climbs_while_larger_chunks_are_better() -> None:
    used = run(LinkTuner(), link_of(10e9), 100)
    assert used[:BASELINE_TRANSFERS] == [4 * MIB] * BASELINE_TRANSFERS
    top = used.index(TOTAL)
    assert used[:top] == sorted(used[:top])
    assert used[top:].count(TOTAL) >= len(used[top:]) - 3, "smaller ones are tried again now and then"


def test_chunks_that_overrun_the_buffer_are_tried_seldom_and_not_kept() -> None:
    used = run(LinkTuner(), link_of(10e9, buffer_bytes=9 * MIB), 400)
    assert used[-1] in (8 * MIB, 16 * MIB, 4 * MIB)
    later = used[100:]
    assert later.count(8 * MIB) > 0.95 * len(later)
    assert set(later) <= {4 * MIB, 8 * MIB, 16 * MIB}


def test_a_link_that_changes_in_the_middle_of_a_job_is_followed() -> None:
    tuner = LinkTuner()
    assert run(tuner, link_of(10e9), 60)[-1] == TOTAL
    assert run(tuner, link_of(10e9, buffer_bytes=16 * MIB), 400)[-50:].count(16 * MIB) > 45


def test_staging_is_not_to_take_much_beside_the_payload() -> None:
    assert max(run(LinkTuner(), link_of(10e9), 200, "fedrdma")) == TOTAL // 8


def test_what_is_set_by_hand_is_not_tuned() -> None:
    tuner = LinkTuner()
    for _ in range(30):
        cut = tuner.plan("fedrdma-e", TOTAL, 3 * MIB, "never", UNKNOWN)
        assert (cut.chunk_bytes, cut.enable_bytes) == (3 * MIB, 0)
        tuner.on_transfer("fedrdma-e", cut, 1.0, ROUND_TRIP)
    assert tuner.plan("fedrdma-e", TOTAL, 3 * MIB, "always", UNKNOWN).enable_bytes > 0


def test_a_rate_set_by_hand_begins_with_the_whole_payload_where_table_2_says_so_and_a_measured_one_does_not() -> None:
    assert plan(LinkTuner(), link=LinkTraits(1e9)).count == 1
    tuner = LinkTuner()
    run(tuner, link_of(1e9), 1)
    cut = plan(tuner)
    assert (cut.chunk_bytes, cut.enable_bytes) == (4 * MIB, 0), "of the buffer nothing is known"


def test_sizes_are_tuned_apart_and_small_payloads_and_other_modes_not_at_all() -> None:
    tuner = LinkTuner()
    run(tuner, link_of(10e9), 40)
    assert plan(tuner, TOTAL // 4).chunk_bytes == 4 * MIB
    assert plan(tuner, MIB).count == 1
    assert plan(tuner, mode="grpc").chunk_bytes == MIB
    tuner.on_transfer("grpc", ChunkPlan(TOTAL, MIB), 1.0, ROUND_TRIP)
    assert set(tuner.chunk_sizes()) == {"fedrdma-e/64", "fedrdma-e/16"}


@pytest.mark.parametrize("rate", [1e9, 5e9])
def test_transfers_tell_the_rate_behind_the_round_trips(rate: float) -> None:
    tuner = LinkTuner()
    cut = ChunkPlan(TOTAL, 16 * MIB)
    tuner.on_transfer("fedrdma-e", cut, link_of(rate)(cut), ROUND_TRIP)
    assert tuner.found is not None
    assert (tuner.found.rate_bps, tuner.found.source) == (pytest.approx(rate), "measured")
    tuner.on_transfer("fedrdma-e", cut, 10.0, ROUND_TRIP)
    assert tuner.found.rate_bps == pytest.approx(0.9 * rate), "one that was disturbed does not count for much"


@pytest.mark.parametrize(("seconds", "round_trip"), [(0.021, 0.02), (1.0, None), (0.0, 0.02)])
def test_where_a_transfer_cannot_tell_the_rate_none_is_told(seconds: float, round_trip: float | None) -> None:
    tuner = LinkTuner()
    tuner.on_transfer("fedrdma-e", ChunkPlan(MIB, MIB), seconds, round_trip)
    assert tuner.found is None


def test_the_rate_decides_link_enable_whoever_knows_it_and_one_set_by_hand_above_all() -> None:
    tuner, slow, fast = LinkTuner(), Finding(1e9, "probed"), Finding(9e9, "probed")
    enabled = [
        tuner.plan("fedrdma-e", TOTAL, None, "auto", link, seen).enable_bytes > 0
        for link, seen in ((UNKNOWN, None), (UNKNOWN, slow), (UNKNOWN, fast), (LinkTraits(9e9), slow))
    ]
    assert enabled == [True, False, True, True]
    assert tuner.rate(2e9, slow) == Finding(2e9, "configured")
    assert tuner.rate(None, slow) == slow
    assert tuner.rate(None, None) is None


def test_a_probe_sets_where_tuning_starts_and_whether_link_enable_is_needed() -> None:
    tuner = LinkTuner()
    run(tuner, link_of(10e9), 40)
    tuner.on_probe(9e9, MIB, "never", "all survived")
    cut = plan(tuner)
    assert (cut.chunk_bytes, cut.enable_bytes) == (MIB, 0)
    assert tuner.rate(None, None) == Finding(9e9, "probed")
    assert tuner.plan("fedrdma-e", TOTAL, None, "always", UNKNOWN).enable_bytes > 0, "set by hand"
    tuner.on_probe(None, None, None, "not tested")
    assert (plan(tuner).chunk_bytes, tuner.link_enable, tuner.link_enable_reason) == (MIB, "never", "all survived")
