"""How transfers are opened: the state machine by the mode, the cut and the window by what is known of the path."""

from __future__ import annotations

import dataclasses
import os

import pytest

from fedrdma_fate.core.digest import BLOCK_BYTES, block_digest, blocks_of, chunk_digest
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.chunking import (
    FIRST_CHUNK_BYTES,
    FIRST_CHUNK_PACKETS,
    FIRST_RELIABLE_CHUNK_BYTES,
    WIDE_WINDOW_BYTES,
    best_chunk_bytes,
)
from fedrdma_fate.core.x.receiver import XReceiver
from fedrdma_fate.core.x.sender import XSender
from fedrdma_fate.core.x.short_path import MOST_WINDOW_BYTES
from fedrdma_fate.engine import payload
from fedrdma_fate.engine.outgoing_transfer import OutgoingTransfer
from fedrdma_fate.engine.path_memory import PathMemory
from fedrdma_fate.engine.payload import Outgoing, Payload
from fedrdma_fate.engine.repair_memory import RepairBuffer
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.engine.setup import SELF_PACED_WINDOW_BYTES, open_receiver, open_transfer
from fedrdma_fate.ports import ChunkService, Slot
from fedrdma_fate.wire.frames import Grant, Offer
from tests.support.endpoints import HeapRegion
from tests.support.engine import KEY, outgoing

LOSSY = ChunkService(reliable=False, self_paced=False, queue_pairs=2, mtu_bytes=500)


LOOPBACK = ChunkService(reliable=False, self_paced=False, mtu_bytes=65_475, repairs_packets=True)
"""`udp` on one host: a datagram is as long as the route of loopback has them."""

FAST = PathState(1.1e9, 0.001, 0.0, window_bytes=MOST_WINDOW_BYTES)


def opened(
    message: Outgoing,
    service: ChunkService,
    memory: PathMemory,
    settings: LinkSettings | None = None,
    *,
    sealed: bool = False,
) -> OutgoingTransfer:
    """The transfer of a message into a grant that is large enough."""
    grant = Grant("memory", 1, 7, 0, 1 << 50, 0)
    set_up, buffer = settings or LinkSettings("verbs"), RepairBuffer(None)
    return open_transfer(message, grant, service, memory, buffer, set_up, 0.0, sealed=sealed)


def recut(total: int) -> Outgoing:
    region = HeapRegion(16)
    slot = Slot(region, 0, 16)
    made = outgoing(b"", mode="fedrdma-x")
    plan = dataclasses.replace(made.plan, total_bytes=total, chunk_bytes=4 << 20)
    return dataclasses.replace(made, payload=type(made.payload)(slot, 16), plan=plan, recut=True)


def test_the_chunk_size_follows_what_is_known_of_the_path_unless_it_is_set() -> None:
    memory, whole = PathMemory(), recut(1 << 28)
    assert opened(whole, LOSSY, memory).outgoing.plan.chunk_bytes == FIRST_CHUNK_PACKETS * LOSSY.mtu_bytes
    large = dataclasses.replace(LOSSY, mtu_bytes=4096)
    assert opened(whole, large, memory).outgoing.plan.chunk_bytes == FIRST_CHUNK_BYTES
    repairing = dataclasses.replace(LOSSY, repairs_packets=True)
    assert opened(whole, repairing, memory).outgoing.plan.chunk_bytes == FIRST_CHUNK_BYTES // 500 * 500
    memory.learn(PathState(1.25e9, 0.02, None), "probed")
    assert opened(whole, LOSSY, memory).outgoing.plan.chunk_bytes == best_chunk_bytes(1.25e9, None, 500, 1 << 28)
    memory.learn(PathState(1.25e9, 0.02, 0.001), "measured")
    assert opened(whole, LOSSY, memory).outgoing.plan.chunk_bytes == best_chunk_bytes(1.25e9, 0.001, 500, 1 << 28)
    assert opened(whole, ChunkService(), memory).outgoing.plan.chunk_bytes == 4 << 20, "a transport that paces itself"
    by_hand = dataclasses.replace(whole, recut=False)
    assert opened(by_hand, LOSSY, memory).outgoing.plan is by_hand.plan


def test_long_chunks_of_datagrams_are_whole_blocks_whose_digests_the_task_has_told() -> None:
    memory, whole = PathMemory(), recut(1 << 28)
    memory.learn(FAST, "measured")
    assert opened(whole, LOOPBACK, memory).outgoing.plan.chunk_bytes == 2 * BLOCK_BYTES
    # of less than two blocks the rest of a batch is more
    slower = dataclasses.replace(FAST, window_bytes=WIDE_WINDOW_BYTES)
    memory.learn(slower, "measured")
    short = opened(whole, LOOPBACK, memory).outgoing.plan.chunk_bytes
    assert BLOCK_BYTES < short < 2 * BLOCK_BYTES
    assert short % LOOPBACK.mtu_bytes == 0


def test_chunks_that_are_sealed_are_whole_datagrams_for_nobody_has_told_their_digests() -> None:
    memory, whole = PathMemory(), recut(1 << 28)
    memory.learn(FAST, "measured")
    assert opened(whole, LOOPBACK, memory, sealed=True).outgoing.plan.chunk_bytes == 8 * LOOPBACK.mtu_bytes


def test_of_whole_blocks_whose_digests_are_told_none_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    region = HeapRegion(4 * BLOCK_BYTES)
    region.view[:] = os.urandom(region.length)
    told = [block_digest(region.view[start:end]) for start, end in blocks_of(region.length)]
    sent = Payload(region.slot(), region.length)
    sent.on_written(0, told)
    plan = ChunkPlan(region.length, 2 * BLOCK_BYTES)
    expected = [chunk_digest(region.view[chunk.offset : chunk.offset + chunk.length]) for chunk in plan]
    monkeypatch.setattr(payload, "block_digest", lambda _block: pytest.fail("it was told"))
    assert [sent.digest(chunk) for chunk in plan] == expected


def test_of_a_message_of_which_something_may_be_missing_chunks_are_short_where_packets_are_lost() -> None:
    memory, whole = PathMemory(), recut(1 << 22)
    memory.learn(PathState(1.25e8, 0.02, 0.05), "measured")
    large = dataclasses.replace(LOSSY, mtu_bytes=4096)
    tolerant = dataclasses.replace(whole, loss_share=0.1, whole_bytes=4096)
    for known in (memory, PathMemory()):
        assert opened(whole, large, known).outgoing.plan.chunk_bytes == 16384
        assert opened(tolerant, large, known).outgoing.plan.chunk_bytes == 8192, "also of a path that is not known"
    assert opened(tolerant, LOSSY, PathMemory()).outgoing.plan.chunk_bytes <= 4 * LOSSY.mtu_bytes
    lossless = opened(tolerant, dataclasses.replace(large, reliable=True), PathMemory()).outgoing.plan
    assert lossless.chunk_bytes > 16384, "nothing is lost there"


def test_where_a_receiver_says_what_may_be_sent_chunks_are_short_if_many_of_them_are_lost() -> None:
    memory, whole = PathMemory(), recut(1 << 23)
    memory.learn(PathState(8.75e7, 0.04, 0.01), "measured")
    rdma = dataclasses.replace(LOSSY, mtu_bytes=1024)
    assert opened(whole, rdma, memory).outgoing.plan.chunk_bytes == 16384, "who finds its rate alone"
    memory.told = 1.4e7
    assert opened(whole, rdma, memory).outgoing.plan.chunk_bytes == 8192
    assert opened(whole, dataclasses.replace(rdma, mtu_bytes=4096), memory).outgoing.plan.chunk_bytes == 16384
    # of what lost a datagram only that goes again, or nothing is lost
    for service in (
        dataclasses.replace(rdma, repairs_packets=True),
        dataclasses.replace(rdma, reliable=True, depth=128),
    ):
        assert opened(whole, service, memory).outgoing.plan.chunk_bytes >= 16384
    memory.learn(PathState(8.75e7, 0.04, 0.001), "measured")
    assert opened(whole, rdma, memory).outgoing.plan.chunk_bytes == 16384
    # as short ones of a faster share would be too many, and of a fast link's many small shares at its receiver
    memory.learn(PathState(1.25e9, 0.04, 0.1), "measured")
    for memory.told in (4e8, 1.4e7):
        assert opened(whole, rdma, memory).outgoing.plan.chunk_bytes == 16384


def test_where_the_transport_paces_itself_several_chunks_fit_what_may_be_missing() -> None:
    for total, chunk_bytes in ((100 << 20, 256 << 10), (1 << 22, 64 << 10), (1 << 34, 4 << 20)):
        tolerant = dataclasses.replace(recut(total), loss_share=0.01, whole_bytes=0)
        cut = opened(tolerant, ChunkService(drains=True), PathMemory()).outgoing.plan.chunk_bytes
        assert chunk_bytes - 32 * 1024 <= cut <= chunk_bytes


def test_a_size_set_by_hand_that_the_path_cannot_carry_becomes_the_longest_that_it_can() -> None:
    by_hand = dataclasses.replace(recut(1 << 28), recut=False)
    short = dataclasses.replace(LOSSY, largest_chunk_bytes=1 << 20)
    assert opened(by_hand, short, PathMemory()).outgoing.plan.chunk_bytes == 1 << 20
    long = dataclasses.replace(LOSSY, largest_chunk_bytes=by_hand.plan.chunk_bytes)
    assert opened(by_hand, long, PathMemory()).outgoing.plan is by_hand.plan
    in_writes = dataclasses.replace(by_hand, mode="fedrdma-e")
    assert opened(in_writes, short, PathMemory()).outgoing.plan is by_hand.plan, "writes are streams, and have no end"


def test_on_a_slow_path_chunks_are_as_short_as_packets_where_some_are_lost_and_only_there() -> None:
    memory, whole = PathMemory(), recut(2_340_000)
    memory.learn(PathState(2.5e6, 0.02, 0.05), "measured")
    udp = dataclasses.replace(LOSSY, mtu_bytes=1442)
    assert opened(whole, udp, memory).outgoing.plan.chunk_bytes == 1442
    reliable = dataclasses.replace(LOSSY, reliable=True, depth=128)
    assert opened(whole, reliable, memory).outgoing.plan.chunk_bytes >= FIRST_CHUNK_BYTES


def test_a_path_that_is_not_known_is_cut_for_what_its_receiver_lets_through_where_that_is_little() -> None:
    memory, whole = PathMemory(), recut(2_340_000)
    udp = dataclasses.replace(LOSSY, mtu_bytes=1442, repairs_packets=True)
    unknown = opened(whole, udp, memory).outgoing.plan.chunk_bytes
    memory.told = 150e3
    assert opened(whole, udp, memory).outgoing.plan.chunk_bytes == 1442
    reliable = dataclasses.replace(LOSSY, reliable=True, depth=128)
    assert opened(whole, reliable, memory).outgoing.plan.chunk_bytes == FIRST_RELIABLE_CHUNK_BYTES
    memory.told = 1e9
    assert opened(whole, udp, memory).outgoing.plan.chunk_bytes == unknown


def test_the_chunks_of_a_slow_path_take_one_queue_pair_where_loss_is_told_by_those_that_follow() -> None:
    def queue_pairs(service: ChunkService) -> int:
        sender = opened(recut(2_340_000), service, memory).sender
        assert isinstance(sender, XSender)
        return sender.settings.queue_pairs

    memory, four = PathMemory(), dataclasses.replace(LOSSY, queue_pairs=4)
    assert queue_pairs(four) == 4, "nothing is known"
    memory.learn(PathState(1.25e8, 0.02, 0.01), "probed")
    assert queue_pairs(four) == 4
    memory.learn(PathState(7.5e6, 0.002, 0.2), "measured")
    assert queue_pairs(four) == 1
    assert queue_pairs(dataclasses.replace(four, reliable=True, depth=128)) == 4


def test_over_queue_pairs_that_take_few_chunks_they_are_large_enough_to_fill_the_path() -> None:
    memory, whole = PathMemory(), recut(1 << 28)
    few = dataclasses.replace(LOSSY, reliable=True, queue_pairs=1, depth=16)
    assert opened(whole, few, memory).outgoing.plan.chunk_bytes == FIRST_RELIABLE_CHUNK_BYTES
    memory.learn(PathState(1.25e9, 0.02, 0.5), "measured")
    assert opened(whole, few, memory).outgoing.plan.chunk_bytes == 4 << 20
    many = dataclasses.replace(few, queue_pairs=64, depth=64)
    assert opened(whole, many, memory).outgoing.plan.chunk_bytes == best_chunk_bytes(1.25e9, 0.0, 500, 1 << 28)


def test_a_window_that_was_set_by_hand_goes_before_any_other() -> None:
    by_hand = LinkSettings("verbs", window_bytes=12345)
    for service in (LOSSY, ChunkService()):
        made = opened(recut(1 << 28), service, PathMemory(), by_hand).sender
        assert isinstance(made, XSender)
        assert made.settings.window_bytes == 12345
        made = opened(recut(1 << 28), service, PathMemory()).sender
        assert isinstance(made, XSender)
        assert made.settings.window_bytes == (SELF_PACED_WINDOW_BYTES if service.self_paced else None)


def test_a_payload_of_any_length_can_be_cut() -> None:
    assert opened(recut(1 << 40), LOSSY, PathMemory()).outgoing.plan.count <= 1 << 20


def test_the_mode_decides_which_machine_receives() -> None:
    offer = Offer("memory", 9, KEY, "bytes", 10, "fedrdma-x", 5, 10, 0)
    assert type(open_receiver(offer, 5000, LOSSY)).__name__ == "XReceiver"
    assert type(open_receiver(_with(offer, mode="grpc"), 5000, LOSSY)).__name__ == "Receiver"


def test_nothing_is_solved_for_on_a_data_path_that_loses_nothing() -> None:
    offer = Offer("memory", 9, KEY, "bytes", 400, "fedrdma-x", 5, 10, 0, 40, 4)
    for service, repairs in ((LOSSY, 4), (ChunkService(), None)):
        receiver = open_receiver(offer, 9000, service)
        assert isinstance(receiver, XReceiver)
        planned = receiver.settings.repairs
        assert (None if planned is None else planned.repairs) == repairs


def _with(offer: Offer, **changes: object) -> Offer:
    fields = {name: getattr(offer, name) for name in offer.__struct_fields__}
    return Offer(**{**fields, **changes})  # type: ignore[arg-type]


def test_no_report_of_one_grant_is_taken_for_one_of_another_though_damage_has_begun_epochs_anew() -> None:
    def epochs(grant: int) -> set[int]:
        offer = Offer("verbs", 9, KEY, "object", 5000, "fedrdma-x", grant, 500, 0)
        receiver = open_receiver(offer, 10_000, LOSSY)
        assert isinstance(receiver, XReceiver)
        message, memory = dataclasses.replace(recut(5000), recut=False), PathMemory()
        slot = Grant("memory", grant, 7, 0, 1 << 50, 0)
        sender = open_transfer(message, slot, LOSSY, memory, RepairBuffer(None), LinkSettings("verbs"), 0.0).sender
        assert isinstance(sender, XSender)
        assert sender.settings.first_epoch == receiver.epoch
        return {receiver.epoch + times for times in range(sender.settings.max_resends + 1)}

    ranges = [epochs(grant) for grant in (0, 1, 2, 1000)]
    assert len(set.union(*ranges)) == sum(map(len, ranges))
