"""What a receiver lets through, on a link: told, kept to, forgotten with the data path, and not got round."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator

import pytest

from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.x.controller import LEAST_SHARED_RATE
from fedrdma_fate.core.x.sender import XSender
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.ports import ChunkService
from fedrdma_fate.wire.errors import WireError
from fedrdma_fate.wire.frames import Offer, Share, decode_frame, encode_frame
from tests.support.endpoints import HeapRegion, MemoryWire
from tests.support.engine import SETTINGS, Pair, outgoing

KIB = 1024
BODY = random.Random(5).randbytes(800 * KIB)
LOSSY = ChunkService(reliable=False, self_paced=False, queue_pairs=2, mtu_bytes=4096)
KNOWN = KnownPath(PathState(1e8, 0.02, 0.0), "measured")
SHARE = 1e7


def connect(pair: Pair) -> None:
    wire = MemoryWire()
    wire.chunk_service, wire.has_datagrams = LOSSY, True
    pair.connect(wire)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(dataclasses.replace(SETTINGS, known=KNOWN))
    connect(made)
    yield made
    made.wire.ends[0].close()
    made.wire.ends[1].close()


def message(transfer: int = 1) -> Outgoing:
    return dataclasses.replace(outgoing(BODY, transfer, "fedrdma-x", 16 * KIB), recut=True)


def posted_at_once(pair: Pair) -> int:
    """Chunks that have gone and not landed."""
    return pair.wire.ends[1].arriving


def bounds(pair: Pair) -> list[float]:
    senders = (active.sender for active in pair.outgoing._active.values())
    return [sender._most_rate for sender in senders if isinstance(sender, XSender)]


def seconds_to_send(pair: Pair) -> float:
    pair.let_time_pass(5.0)
    ((_, stats),) = pair.sending.sent_messages
    return stats.seconds


def test_without_a_share_a_transfer_goes_as_fast_as_the_path_lets_it(pair: Pair) -> None:
    pair.outgoing.submit(message(), pair.now)
    assert seconds_to_send(pair) < 1.5 * len(BODY) / KNOWN.state.rate


def test_a_standing_grant_does_not_get_round_the_share_that_was_told_before(pair: Pair) -> None:
    pair.receiver.share(SHARE, 0.0)
    pair.grant(HeapRegion(2 * len(BODY)).slot())
    pair.run()
    pair.outgoing.submit(message(), pair.now)
    assert posted_at_once(pair) == 0, "not even the first chunk, whose place is the last"
    assert seconds_to_send(pair) > 0.9 * len(BODY) / SHARE


def test_the_share_of_a_transfer_under_way_changes_when_the_receiver_says_so(pair: Pair) -> None:
    pair.receiver.share(SHARE / 10_000, 0.0)
    pair.run()
    pair.outgoing.submit(message(), pair.now)
    pair.let_time_pass(0.05)
    assert bounds(pair) == [LEAST_SHARED_RATE], "a path that is found out about again needs a little"
    pair.receiver.share(math.inf, 0.0)
    pair.run()
    assert bounds(pair) == [math.inf]
    assert seconds_to_send(pair) < 0.1


def test_all_transfers_together_keep_to_the_share(pair: Pair) -> None:
    pair.receiver.share(SHARE, 0.0)
    pair.run()
    for transfer in (1, 2, 3):
        pair.outgoing.submit(message(transfer), pair.now)
    pair.run()
    assert bounds(pair) == pytest.approx([SHARE / 3] * 3)
    pair.let_time_pass(1.5 * 3 * len(BODY) / SHARE)
    assert len(pair.sending.sent_messages) == 3


def test_of_those_that_begin_together_each_waits_for_its_place(pair: Pair) -> None:
    pair.receiver.share(1e6, 0.75)
    pair.run()
    pair.outgoing.submit(message(), pair.now)
    pair.run()
    due = pair.outgoing._active[1].sender.timer()
    chunk_bytes = pair.outgoing._active[1].outgoing.plan.chunk_bytes
    assert due == pytest.approx(0.25 * chunk_bytes / 1e6, rel=0.05)


def test_chunks_are_cut_for_the_share_so_that_one_of_each_sender_fits_a_buffer(pair: Pair) -> None:
    # a path of 1e8 bytes a second without loss has chunks of 64 KiB
    pair.outgoing.submit(message(), pair.now)
    pair.run()
    alone = pair.outgoing._active[1].outgoing.plan.chunk_bytes if pair.outgoing._active else 64 * KIB
    pair.let_time_pass(1.0)
    pair.receiver.share(1e6, 0.0)
    pair.run()
    pair.outgoing.submit(message(2), pair.now)
    pair.run()
    assert pair.outgoing._active[2].outgoing.plan.chunk_bytes == 16 * KIB < alone


def test_a_share_that_comes_late_changes_nothing(pair: Pair) -> None:
    pair.outgoing.on_share(Share("memory", 7, SHARE), pair.now)
    pair.outgoing.on_share(Share("memory", 6, 1e6), pair.now)
    pair.outgoing.on_share(Share("memory", 7, 1e6), pair.now)
    assert pair.sender.bound == SHARE
    pair.outgoing.on_share(Share("memory", 8, 0.0), pair.now)
    assert pair.sender.bound == math.inf


def test_a_share_ends_with_its_data_path_and_the_next_begins_without(pair: Pair) -> None:
    pair.receiver.share(SHARE, 0.0)
    pair.run()
    assert pair.sender.bound == SHARE
    pair.lose_path()
    assert pair.sender.bound == math.inf
    pair.outgoing.on_share(Share("memory", 9, 1e6), pair.now)
    assert pair.sender.bound == math.inf, "of a path that is gone"
    connect(pair)
    pair.receiver.share(2 * SHARE, 0.0)
    pair.run()
    assert pair.sender.bound == 2 * SHARE


def test_a_share_is_told_by_a_datagram_too_for_the_control_channel_may_stall(pair: Pair) -> None:
    pair.receiver.share(SHARE, 0.0)
    pair.progress()
    assert pair.sender.bound == SHARE
    assert [frame.rate for frame in pair.receiving.take(Share)] == [SHARE]


def test_on_a_path_of_which_nothing_is_known_a_bounded_transfer_sends_no_train() -> None:
    pair = Pair()
    connect(pair)
    pair.receiver.share(1e6, 0.0)
    pair.grant(HeapRegion(2 * len(BODY)).slot())
    pair.run()
    pair.outgoing.submit(message(), pair.now)
    pair.run()
    assert pair.sending.take(Offer) == []
    assert pair.outgoing._active[1].sender.arrived_bytes <= 64 * KIB  # type: ignore[attr-defined]
    pair.let_time_pass(5.0)
    assert len(pair.sending.sent_messages) == 1
    pair.wire.ends[0].close()
    pair.wire.ends[1].close()


def test_what_has_arrived_is_counted_with_what_was_overtaken(pair: Pair) -> None:
    pair.wire.lost_chunks = frozenset({3})
    pair.outgoing.submit(message(), pair.now)
    pair.let_time_pass(2.0)
    assert len(pair.sending.sent_messages) == 1
    arrivals = pair.receiver.arrivals
    ((_, stats),) = pair.sending.sent_messages
    assert stats.resent_bytes == arrivals.lost_bytes == 32 * KIB, "one chunk"
    assert arrivals.received_bytes == len(BODY)


@pytest.mark.parametrize("field", ["rate", "place"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, 1e14])
def test_a_share_that_is_no_rate_is_malformed(field: str, value: float) -> None:
    good = {"transport": "udp", "number": 1, "rate": 1.0, "place": 0.5}
    assert decode_frame(encode_frame(Share(**good)))  # type: ignore[arg-type]
    with pytest.raises(WireError):
        decode_frame(encode_frame(Share(**{**good, field: value})))  # type: ignore[arg-type]


def test_a_receiver_that_tells_another_share_each_moment_slows_down_its_own_transfer_alone(pair: Pair) -> None:
    chance, numbers = random.Random(1), itertools.count(1)
    pair.outgoing.submit(message(), pair.now)
    pair.run()
    for _ in range(300):
        rate = chance.choice([0.0, 1e-300, 1.0, 1e6, 1e13])
        pair.outgoing.on_share(Share("memory", next(numbers), rate, chance.random()), pair.now)
        pair.let_time_pass(0.002)
    pair.outgoing.on_share(Share("memory", next(numbers), 0.0), pair.now)
    pair.let_time_pass(10.0)
    assert len(pair.sending.sent_messages) == 1


# --- what this site decides of its own link ---


def test_the_smaller_counts_of_what_the_peer_lets_through_and_what_is_its_part_of_the_own_link(pair: Pair) -> None:
    pair.receiver.share(SHARE, 0.0)
    pair.run()
    pair.outgoing.submit(message(), pair.now)
    pair.run()
    pair.outgoing.limit(SHARE / 2, 0.0, pair.now)
    assert bounds(pair) == [SHARE / 2]
    assert pair.sender.bound == SHARE, "what the peer has told"
    pair.outgoing.limit(2 * SHARE, 0.0, pair.now)
    assert bounds(pair) == [SHARE]
    pair.outgoing.limit(math.inf, 0.0, pair.now)
    assert bounds(pair) == [SHARE]


def test_a_limit_holds_for_the_first_chunk_and_ends_with_the_data_path(pair: Pair) -> None:
    pair.outgoing.limit(SHARE, 0.0, pair.now)
    pair.grant(HeapRegion(2 * len(BODY)).slot())
    pair.run()
    pair.outgoing.submit(message(), pair.now)
    assert posted_at_once(pair) == 0
    assert bounds(pair) == [SHARE]
    assert pair.outgoing._active[1].outgoing.plan.chunk_bytes == 16 * KIB
    pair.lose_path()
    connect(pair)
    assert bounds(pair) == [math.inf], "of what was under way, too"


def test_what_has_arrived_at_the_peer_is_counted_over_all_transfers(pair: Pair) -> None:
    assert pair.sender.deliveries.received_bytes == 0
    for transfer in (1, 2):
        pair.outgoing.submit(message(transfer), pair.now)
        pair.let_time_pass(1.0)
    assert pair.sender.deliveries.received_bytes == 2 * len(BODY)
    assert pair.sender.deliveries.lost_bytes == 0
    assert 0 < pair.sender.deliveries.at <= pair.now
