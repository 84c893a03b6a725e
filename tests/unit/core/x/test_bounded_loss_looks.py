"""How often a receiver looks whether what is missing may be: a peer that leaves it waiting does not keep it busy."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fedrdma_fate.core.damage import pack_digests
from fedrdma_fate.core.digest import payload_digest
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.receiver import ReceiverState
from fedrdma_fate.core.x.bounded_loss import MOST_LOOK_SECONDS, LossBound
from fedrdma_fate.core.x.chunking import immediate_of
from fedrdma_fate.core.x.receiver import XReceiver, XReceiveSettings
from fedrdma_fate.wire.header import ChunkHeader, HeaderKind

TAG, TRANSFER, COUNT, CHUNK = 3, 7, 100, 64
PLAN = ChunkPlan(COUNT * CHUNK, CHUNK)
SHARE = 0.2


class CountingBound(LossBound):
    """Counts how often it is asked about every chunk that is missing."""

    asked = 0

    def allows(self, indices: Iterable[int], share: float) -> bool:
        self.asked += 1
        return super().allows(indices, share)


def receiver_of(arrived: int, share: float) -> tuple[XReceiver, CountingBound]:
    """So many of its chunks have come, and a header."""
    bound = CountingBound(PLAN, SHARE, 0)
    receiver = XReceiver(TRANSFER, PLAN, XReceiveSettings(TAG, bound=bound))
    receiver.let_miss(share)
    for position in range(arrived):
        index = COUNT - 1 - position
        receiver.on_chunk(immediate_of(TAG, index), 0.0, 0.0, digest=index)
    digest = payload_digest(list(range(COUNT)))
    header = ChunkHeader(HeaderKind.PAYLOAD, TRANSFER, PLAN.total_bytes, 0, PLAN.total_bytes, digest, 0, COUNT)
    receiver.on_announced(header.encode())
    return receiver, bound


def looks_until(receiver: XReceiver, end: float) -> int:
    """How often it is woken until then."""
    looks = 0
    while not receiver.finished and (due := receiver.timer()) is not None and due < end:
        receiver.on_timer(due)
        looks += 1
    return looks


def test_of_a_transfer_whose_sender_has_stopped_nobody_looks_at_all_that_is_missing_again_and_again() -> None:
    receiver, bound = receiver_of(1, SHARE)
    assert looks_until(receiver, 60.0) < 60 / MOST_LOOK_SECONDS + 10
    assert bound.asked == 0
    assert receiver.state is ReceiverState.RECEIVING


def test_a_sender_that_tells_other_digests_at_each_look_is_not_believed_and_keeps_nobody_busy() -> None:
    receiver, bound = receiver_of(COUNT - 10, SHARE)
    for number in range(2000):
        due = receiver.timer()
        assert due is not None
        receiver.on_timer(due)
        receiver.on_digest_run(0, pack_digests([number] * 64))
    assert receiver.state is ReceiverState.RECEIVING
    assert bound.asked < 20


@pytest.mark.parametrize("late", [0.0, 0.03, 0.5])
def test_digests_that_are_late_cost_no_more_than_they_are_late(late: float) -> None:
    receiver, _ = receiver_of(COUNT - 10, SHARE)
    looks_until(receiver, late)
    for first in range(0, COUNT, 64):
        receiver.on_digest_run(first, pack_digests(list(range(first, min(first + 64, COUNT)))))
    looks_until(receiver, 2 * late + 0.01)
    assert receiver.state is ReceiverState.DELIVERED


def test_a_task_that_says_late_what_may_be_missing_is_heard_soon() -> None:
    receiver, _ = receiver_of(COUNT - 10, 0.0)
    for first in range(0, COUNT, 64):
        receiver.on_digest_run(first, pack_digests(list(range(first, min(first + 64, COUNT)))))
    looks_until(receiver, 10.0)
    assert receiver.state is ReceiverState.RECEIVING
    receiver.let_miss(SHARE)
    looks_until(receiver, 10.0 + 2 * MOST_LOOK_SECONDS)
    assert receiver.state is ReceiverState.DELIVERED
