"""Transfers on the virtual link: how long they take, and what particular faults do to them."""

from __future__ import annotations

import dataclasses
import random

import pytest

from fedrdma_fate.core.actions import Failed, Finished
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.tuning import LinkTraits, plan_transfer
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import Mode
from tests.support.sim.ends import Hosts
from tests.support.sim.link import Break, Faults, LinkProfile
from tests.support.sim.world import Scenario, simulate

MIB = 1024 * 1024
GIB = 1024 * MIB
MODES: list[Mode] = ["grpc", "fedrdma", "fedrdma-e"]
STOP_AND_WAIT: list[Mode] = ["fedrdma", "fedrdma-e"]
PAYLOAD = random.Random(1).randbytes(100_000)
PLAN = ChunkPlan(len(PAYLOAD), 10_000, 500)


def scenario(mode: Mode, **changes: object) -> Scenario:
    return dataclasses.replace(Scenario(PLAN, mode, PAYLOAD), **changes)  # type: ignore[arg-type]


# -- time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", STOP_AND_WAIT)
@pytest.mark.parametrize("chunk_bytes", [256 * 1024, 4 * MIB, 64 * MIB])
@pytest.mark.parametrize(("rate_bps", "rtt"), [(10e9, 0.02), (1e9, 0.02), (100e9, 0.001)])
def test_stop_and_wait_moves_a_chunk_per_round_trip_and_its_time_on_the_wire(
    mode: Mode, chunk_bytes: int, rate_bps: float, rtt: float
) -> None:
    link = LinkProfile(rate_bps=rate_bps, rtt=rtt)
    outcome = simulate(Scenario(ChunkPlan(GIB, chunk_bytes), mode, link=link))
    assert outcome.sent == (Finished(),)
    model_bps = chunk_bytes * 8 / (rtt + chunk_bytes * 8 / rate_bps)
    assert GIB * 8 / outcome.seconds == pytest.approx(model_bps, rel=0.05)


@pytest.mark.parametrize("mode", STOP_AND_WAIT)
@pytest.mark.parametrize("total_bytes", [10**9, GIB])
def test_a_gigabyte_at_10_gbps_and_20_ms_takes_what_the_paper_measured(mode: Mode, total_bytes: int) -> None:
    plan = plan_transfer(mode, total_bytes, None, "auto", LinkTraits(10e9))
    outcome = simulate(Scenario(plan, mode, link=LinkProfile(rate_bps=10e9, rtt=0.02)))
    assert outcome.sent == (Finished(),)
    assert 5.5 < outcome.seconds < 6.1


@pytest.mark.parametrize(("rate_gbps", "paper_seconds"), [(1, 8.16), (2, 4.10), (3, 2.77)])
def test_table_2_at_low_rates_the_whole_payload_goes_at_the_rate_of_the_link(
    rate_gbps: int, paper_seconds: float
) -> None:
    plan = plan_transfer("fedrdma-e", 10**9, None, "auto", LinkTraits(rate_gbps * 1e9))
    outcome = simulate(Scenario(plan, "fedrdma-e", link=LinkProfile(rate_bps=rate_gbps * 1e9, rtt=0.02)))
    assert outcome.seconds == pytest.approx(paper_seconds, rel=0.05)


def test_fedrdma_e_writes_one_header_where_fedrdma_writes_one_a_chunk() -> None:
    assert simulate(scenario("fedrdma-e")).writes == PLAN.count + 1
    assert simulate(scenario("fedrdma")).writes == 2 * PLAN.count


def test_link_enable_costs_a_round_trip_and_a_small_last_chunk_saves_it() -> None:
    link = LinkProfile(rate_bps=10e9, rtt=0.02)
    total = 100 * MIB + 3000
    seconds = {
        name: simulate(Scenario(plan, "fedrdma-e", link=link)).seconds
        for name, plan in {
            "without": ChunkPlan(total, 4 * MIB),
            "cut off": ChunkPlan(total, 4 * MIB, 4096),
            "last chunk serves": plan_transfer("fedrdma-e", total, None, "always", LinkTraits(10e9)),
        }.items()
    }
    assert seconds["last chunk serves"] == pytest.approx(seconds["without"], abs=1e-6)
    assert seconds["cut off"] == pytest.approx(seconds["without"], abs=1e-4), "the cut chunk takes the rest's place"
    whole = ChunkPlan(100 * MIB, 4 * MIB), ChunkPlan(100 * MIB, 4 * MIB, 4096)
    plain, enabled = (simulate(Scenario(plan, "fedrdma-e", link=link)).seconds for plan in whole)
    assert enabled - plain == pytest.approx(link.rtt, rel=0.01)


def test_loss_lengthens_a_transfer_by_its_round_trips() -> None:
    plan = ChunkPlan(GIB, 4 * MIB)
    clean = simulate(Scenario(plan, "fedrdma-e"))
    lossy = simulate(Scenario(plan, "fedrdma-e", link=LinkProfile(loss=1e-4)))
    expected = 1e-4 * GIB / 4096 * 0.02
    assert lossy.seconds - clean.seconds == pytest.approx(expected, rel=0.5)
    assert lossy.sent == (Finished(),)


def test_the_same_seed_gives_the_same_transfer() -> None:
    faulty = scenario("fedrdma", link=LinkProfile(loss=0.1), faults=Faults(corrupt_chunk=0.2, jitter=0.01), seed=5)
    assert simulate(faulty) == simulate(faulty)
    assert simulate(faulty) != simulate(dataclasses.replace(faulty, seed=6))


# -- bytes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("notify", ["event", "poll"])
@pytest.mark.parametrize("hints", [False, True])
def test_a_clean_link_delivers_the_payload_once_and_sends_nothing_twice(mode: Mode, notify: str, hints: bool) -> None:
    outcome = simulate(scenario(mode, hosts=Hosts(notify=notify, hints=hints)))  # type: ignore[arg-type]
    assert outcome.delivered == (PAYLOAD,)
    assert (outcome.sent, outcome.received, outcome.resent_bytes) == ((Finished(),), (Finished(),), 0)


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_payload_is_delivered(mode: Mode) -> None:
    assert simulate(Scenario(ChunkPlan(0, 1), mode, b"")).delivered == (b"",)


@pytest.mark.parametrize("mode", MODES)
def test_polling_does_not_mistake_a_half_landed_header_for_damage(mode: Mode) -> None:
    faults = Faults(torn_header=0.0015)
    outcome = simulate(scenario(mode, hosts=Hosts(notify="poll", poll_interval=0.001), faults=faults))
    assert outcome.delivered == (PAYLOAD,)
    assert outcome.resent_bytes == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("same_slot", [True, False], ids=["same slot", "new slot"])
@pytest.mark.parametrize("at", [0.0, 0.009, 0.0101, 0.02, 0.051, 0.19, 0.24, 0.25])
def test_a_break_at_any_moment_is_survived(mode: Mode, same_slot: bool, at: float) -> None:
    faults = Faults(breaks=(Break(at, 0.1, same_slot),))
    outcome = simulate(scenario(mode, faults=faults, hosts=Hosts(digest_seconds=0.01)))
    assert outcome.delivered == (PAYLOAD,)
    assert outcome.sent == (Finished(),)


@pytest.mark.parametrize("mode", STOP_AND_WAIT)
def test_a_break_costs_one_chunk_in_the_same_slot_and_everything_so_far_in_a_new_one(mode: Mode) -> None:
    resent = {
        same_slot: simulate(scenario(mode, faults=Faults(breaks=(Break(0.165, 0.1, same_slot),)))).resent_bytes
        for same_slot in (True, False)
    }
    assert resent[True] == 10_000
    assert resent[False] > 70_000


@pytest.mark.parametrize("mode", MODES)
def test_a_path_that_never_comes_back_fails_at_both_ends(mode: Mode) -> None:
    outcome = simulate(scenario(mode, faults=Faults(breaks=(Break(0.02, None),))))
    assert outcome.delivered == ()
    ends = [*outcome.sent, *outcome.received]
    assert [end.code for end in ends if isinstance(end, Failed)] == [ErrorCode.PEER_UNREACHABLE] * 2


@pytest.mark.parametrize("mode", MODES)
def test_a_link_that_damages_everything_is_given_up_at_both_ends(mode: Mode) -> None:
    outcome = simulate(scenario(mode, faults=Faults(corrupt_chunk=1.0)))
    assert outcome.delivered == ()
    ends = [*outcome.sent, *outcome.received]
    assert [end.code for end in ends if isinstance(end, Failed)] == [ErrorCode.DIGEST_MISMATCH] * 2


@pytest.mark.parametrize("mode", MODES)
def test_delivery_may_overtake_the_completion_of_the_last_write(mode: Mode) -> None:
    outcome = simulate(scenario(mode, link=LinkProfile(rtt=0.1, control_rtt=0.0001)))
    assert outcome.delivered == (PAYLOAD,)
    assert outcome.sent == (Finished(),)


def test_a_lost_header_shows_as_an_idle_timeout_and_not_as_a_hang() -> None:
    # polled, a header whose magic is damaged looks like none at all
    outcomes = [
        simulate(
            scenario(
                "fedrdma-e", faults=Faults(corrupt_header=1.0), hosts=Hosts(notify="poll"), seed=seed, idle_timeout=2.0
            ),
            limit=100.0,
        )
        for seed in range(30)
    ]
    codes = {end.code for outcome in outcomes for end in (*outcome.sent, *outcome.received) if isinstance(end, Failed)}
    assert codes == {ErrorCode.IDLE_TIMEOUT, ErrorCode.HEADER_CORRUPT}
    assert all(len(outcome.sent) == len(outcome.received) == 1 for outcome in outcomes)


def test_a_payload_of_another_length_than_the_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="3 bytes for a plan of 4"):
        simulate(Scenario(ChunkPlan(4, 4), "fedrdma", b"abc"))
