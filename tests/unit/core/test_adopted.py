"""What lies in a slot from another data path, as the receivers of both kinds take it."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.actions import Action, ComputeDigest, Finished, SendFrame
from fedrdma_fate.core.digest import MISTAGGED, TAGGED, payload_digest
from fedrdma_fate.core.held import Held
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.receiver import Receiver, ReceiveSettings
from fedrdma_fate.core.state_machines import ReceivingMachine
from fedrdma_fate.core.x.chunking import immediate_of
from fedrdma_fate.core.x.receiver import XReceiver, XReceiveSettings
from fedrdma_fate.wire.frames import ResendChunks
from fedrdma_fate.wire.header import ChunkHeader, HeaderKind

PLAN = ChunkPlan(40, 10)
KINDS = ["fedrdma-e", "fedrdma-x"]


def receiver(kind: str, *, tagged: bool) -> ReceivingMachine:
    if kind == "fedrdma-x":
        return XReceiver(7, PLAN, XReceiveSettings(1, report_seconds=None, tagged=tagged))
    return Receiver(7, PLAN, ReceiveSettings("fedrdma-e", tagged=tagged))


def land(machine: ReceivingMachine, index: int, digest: int | None = TAGGED) -> list[Action]:
    at = 4096 + 10 * index
    if isinstance(machine, XReceiver):
        return machine.on_chunk(immediate_of(1, index), 0.0, 0.0, digest, (at, 10))
    return machine.on_landed(at, 10, digest)


def announce(machine: ReceivingMachine) -> list[Action]:
    digest = payload_digest([TAGGED] * PLAN.count)
    return machine.on_announced(ChunkHeader(HeaderKind.PAYLOAD, 7, 40, 0, 40, digest, 0, PLAN.count).encode())


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_tag_has_vouched_for_on_an_earlier_stream_is_not_looked_at_on_the_next(kind: str) -> None:
    before = receiver(kind, tagged=True)
    for index in (1, 2):
        land(before, index)
    assert before.held == Held(((10, 30),), True)
    after = receiver(kind, tagged=True)
    assert after.adopt(before.held) == []
    assert after.placed_bytes == 20
    actions = land(after, 0) + land(after, 3) + announce(after)
    assert Finished() in actions
    assert not any(isinstance(action, ComputeDigest) for action in actions)


@pytest.mark.parametrize("kind", KINDS)
def test_what_had_a_wrong_tag_is_not_held(kind: str) -> None:
    before = receiver(kind, tagged=True)
    land(before, 1)
    land(before, 2)
    land(before, 2, MISTAGGED)
    assert before.held == Held(((10, 20),), True)


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_tag_has_vouched_for_does_not_count_on_a_sealed_stream(kind: str) -> None:
    after = receiver(kind, tagged=True)
    assert after.adopt(Held(((0, 40),), False)) == []
    assert after.placed_bytes == 0
    actions = announce(after)
    assert Finished() not in actions
    if kind == "fedrdma-e":
        assert SendFrame(ResendChunks(7, (0, 1, 2, 3))) in actions


def test_what_is_held_of_a_path_that_seals_nothing_is_looked_at_as_it_lies_there() -> None:
    after = receiver("fedrdma-x", tagged=False)
    asked = after.adopt(Held(((5, 30),), True))
    assert asked == [ComputeDigest(PLAN.chunk(index)) for index in (1, 2)]
    assert Finished() not in announce(after)


def test_what_is_held_is_not_counted_as_overtaken_when_the_rest_comes() -> None:
    after = receiver("fedrdma-x", tagged=False)
    after.adopt(Held(((20, 40),)))
    assert isinstance(after, XReceiver)
    land(after, 1, 5)
    land(after, 0, 5)
    assert after.overtaken_bytes == 0
    assert after.placed_bytes == 40
