"""A transfer that moves no more: who is told, and what becomes of the data path."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from fedrdma_fate.core import idle_time
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from fedrdma_fate.wire.frames import Abort
from tests.support.engine import SETTINGS, Pair, outgoing, slot_for

BODY = random.Random(9).randbytes(3456)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    made.connect()
    yield made
    made.wire.ends[0].close()
    made.wire.ends[1].close()


def half_way(pair: Pair) -> Slot:
    """A transfer of which one chunk has landed; its receive slot."""
    message = outgoing(BODY)
    slot = slot_for(message)
    pair.grant(slot)
    pair.carry()
    pair.outgoing.submit(message, pair.now)
    pair.carry()
    pair.progress(most=1)
    assert pair.incoming.progress()
    assert pair.outgoing.progress()
    return slot


def test_a_stalled_transfer_fails_both_sides_are_told_and_the_path_whose_writes_do_not_complete_is_lost(
    pair: Pair,
) -> None:
    """Somebody may have left one out, and all that is behind it would wait in vain, on and on."""
    slot = half_way(pair)
    pair.sending.frames.clear()
    pair.now = SETTINGS.idle_timeout + 1
    with pytest.raises(TransportError) as caught:
        pair.outgoing.on_timer(pair.now)
    assert caught.value.code is ErrorCode.LINK_LOST
    (abort,) = pair.sending.frames
    assert isinstance(abort, Abort)
    assert abort.code == ErrorCode.IDLE_TIMEOUT.value
    pair.carry()
    assert pair.receiving.returned == [slot]
    pair.lose_path()
    assert [code for _, code, _ in pair.sending.send_failures] == [ErrorCode.IDLE_TIMEOUT]


def test_a_transfer_none_of_whose_chunks_is_whole_in_time_goes_on_for_as_long_as_bytes_move_on_its_path(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow path a chunk takes longer than the idle time-out."""
    # else these few bytes would not be waited for
    monkeypatch.setattr(idle_time, "SLOWEST_MOVING_BYTES_PER_SECOND", 1)
    half_way(pair)
    sending = pair.wire.ends[0]
    for _ in range(2):
        pair.now += SETTINGS.idle_timeout
        sending.moved += 1
        pair.outgoing.on_timer(pair.now)
    assert pair.sending.send_failures == []
    due = pair.outgoing.timer()
    assert due is not None
    assert due > pair.now
    # from now on nothing does
    pair.now = due
    with pytest.raises(TransportError) as caught:
        pair.outgoing.on_timer(pair.now)
    assert caught.value.code is ErrorCode.LINK_LOST


def test_a_slow_path_that_still_reads_a_message_that_was_given_up_is_not_lost(pair: Pair) -> None:
    half_way(pair)
    sending = pair.wire.ends[0]
    pair.outgoing.on_refused(1, ErrorCode.WRONG_PARTY, "not here", pair.now)
    pair.now += SETTINGS.idle_timeout
    sending.moved += 1
    pair.outgoing.on_timer(pair.now)
    pair.now += SETTINGS.idle_timeout
    with pytest.raises(TransportError) as caught:
        pair.outgoing.on_timer(pair.now)
    assert caught.value.code is ErrorCode.LINK_LOST


def test_a_stalled_transfer_whose_writes_have_completed_costs_no_path(pair: Pair) -> None:
    half_way(pair)
    while not pair.receiving.received_offers:
        pair.progress()
    pair.progress()
    pair.now = SETTINGS.idle_timeout + 1
    # what the peer says of it does not come
    pair.receiving.frames.clear()
    pair.outgoing.on_timer(pair.now)
    assert [code for _, code, _ in pair.sending.send_failures] == [ErrorCode.IDLE_TIMEOUT]
