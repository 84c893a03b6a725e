"""Whole transfers on the virtual link: the payload comes whole, once, or both ends know that it did not."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from fedrdma_fate.core.actions import Failed, Finished
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.wire.frames import Mode
from tests.support.sim.link import Break, Faults, LinkProfile
from tests.support.sim.world import Hosts, Outcome, Scenario, simulate

MODES = st.sampled_from(["grpc", "fedrdma", "fedrdma-e"])
PROBABILITIES = st.sampled_from([0.0, 0.02, 0.2, 0.6])


@st.composite
def plans(draw: st.DrawFn) -> ChunkPlan:
    total = draw(st.one_of(st.integers(0, 3), st.integers(0, 30_000)))
    chunk = draw(st.integers(max(1, total // 24), max(1, total + 1000)))
    enable = draw(st.integers(0, min(chunk, max(0, total - 1))))
    return ChunkPlan(total, chunk, enable)


@st.composite
def hosts(draw: st.DrawFn) -> Hosts:
    return Hosts(
        notify=draw(st.sampled_from(["event", "poll"])),
        poll_interval=draw(st.sampled_from([0.001, 0.007])),
        hints=draw(st.booleans()),
    )


def links() -> st.SearchStrategy[LinkProfile]:
    return st.builds(
        LinkProfile,
        rate_bps=st.sampled_from([1e7, 1e9]),
        control_rtt=st.sampled_from([None, 0.001, 0.1]),
        loss=st.sampled_from([0.0, 0.01, 0.3]),
        mtu_bytes=st.sampled_from([64, 4096]),
    )


def payload_of(plan: ChunkPlan, seed: int) -> bytes:
    return random.Random(seed).randbytes(plan.total_bytes)


def assert_whole_or_known_to_fail(outcome: Outcome, payload: bytes) -> None:
    assert all(delivered == payload for delivered in outcome.delivered), "wrong bytes were delivered"
    assert len(outcome.delivered) <= 1, "delivered more than once"
    assert len(outcome.sent) == 1, "the sender must end, and once"
    assert len(outcome.received) == 1, "the receiver must end, and once"
    assert isinstance(outcome.sent[0], Finished) == isinstance(outcome.received[0], Finished), "the ends disagree"
    assert bool(outcome.delivered) == isinstance(outcome.received[0], Finished)


@settings(max_examples=250)
@given(plan=plans(), mode=MODES, hosts=hosts(), link=links(), data=st.data(), seed=st.integers(0, 2**32))
def test_any_transfer_under_any_faults_is_delivered_whole_once_or_fails_at_both_ends(
    plan: ChunkPlan, mode: Mode, hosts: Hosts, link: LinkProfile, data: st.DataObject, seed: int
) -> None:
    expected_seconds = 0.02 * (plan.count + 2)
    breaks = st.builds(
        Break,
        at=st.floats(0, 2 * expected_seconds),
        downtime=st.sampled_from([0.0, 0.015, 0.2, 0.2, None]),
        same_slot=st.booleans(),
    )
    faults = st.builds(
        Faults,
        corrupt_chunk=PROBABILITIES,
        corrupt_header=PROBABILITIES,
        repeat_announcement=PROBABILITIES,
        jitter=st.sampled_from([0.0, 0.05]),
        torn_header=st.sampled_from([0.0, 0.002]),
        breaks=st.lists(breaks, max_size=4).map(tuple),
    )
    payload = payload_of(plan, seed)
    scenario = Scenario(
        plan, mode, payload, link, data.draw(faults), hosts, seed=seed, idle_timeout=4.0, peer_silence=2.0
    )
    assert_whole_or_known_to_fail(simulate(scenario, limit=600.0), payload)


@settings(max_examples=100)
@given(plan=plans(), mode=MODES, hosts=hosts(), data=st.data(), seed=st.integers(0, 2**32))
def test_breaks_and_loss_alone_never_fail_a_transfer(
    plan: ChunkPlan, mode: Mode, hosts: Hosts, data: st.DataObject, seed: int
) -> None:
    breaks = st.builds(Break, at=st.floats(0, 1.0), downtime=st.floats(0, 0.2), same_slot=st.booleans())
    faults = Faults(jitter=0.01, repeat_announcement=0.2, breaks=tuple(data.draw(st.lists(breaks, max_size=5))))
    payload = payload_of(plan, seed)
    link = LinkProfile(rate_bps=1e8, loss=0.02, mtu_bytes=512)
    outcome = simulate(Scenario(plan, mode, payload, link, faults, hosts, seed=seed), limit=600.0)
    assert_whole_or_known_to_fail(outcome, payload)
    assert isinstance(outcome.sent[0], Finished)


@settings(max_examples=80)
@given(plan=plans().filter(lambda plan: plan.total_bytes > 0), mode=MODES, hosts=hosts(), seed=st.integers(0, 2**32))
def test_a_link_that_damages_every_chunk_delivers_nothing(plan: ChunkPlan, mode: Mode, hosts: Hosts, seed: int) -> None:
    payload = payload_of(plan, seed)
    outcome = simulate(Scenario(plan, mode, payload, faults=Faults(corrupt_chunk=1.0), hosts=hosts, seed=seed), 600.0)
    assert_whole_or_known_to_fail(outcome, payload)
    assert isinstance(outcome.received[0], Failed)
