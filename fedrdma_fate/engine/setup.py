"""Opens transfers: which state machines drive them, by their mode, set up for what is known of the path."""

from __future__ import annotations

import dataclasses
import logging
import math

from fedrdma_fate.core.held import Ranges
from fedrdma_fate.core.plan import DEFAULT_CHUNK_BYTES, ChunkPlan, SlotLayout, plan_of_offer
from fedrdma_fate.core.receiver import Receiver, ReceiveSettings
from fedrdma_fate.core.sealed_plan import sealable, sealed_slot_bytes, with_table
from fedrdma_fate.core.sender import Sender, SendSettings
from fedrdma_fate.core.state_machines import ReceivingMachine, SendingMachine
from fedrdma_fate.core.x.bounded_loss import ELEMENT_ALIGNMENT_BYTES, LossBound, may_bound
from fedrdma_fate.core.x.chunking import (
    FIRST_RELIABLE_CHUNK_BYTES,
    LEAST_CHUNK_BYTES,
    SLOW_PATH_RATE,
    TAGS,
    UNKNOWN_LOSS,
    best_chunk_bytes,
    best_queue_pairs,
    bounded_chunk_rate,
    filling_chunk_bytes,
    first_chunk_bytes,
    loses_many_chunks,
    short_path_chunk_bytes,
    tolerant_chunk_bytes,
    whole_blocks,
    whole_datagrams,
)
from fedrdma_fate.core.x.receiver import REPORT_BYTES, XReceiver, XReceiveSettings
from fedrdma_fate.core.x.repair_code import RepairPlan, plan_repairs, repairs_of_offer
from fedrdma_fate.core.x.sender import XSender, XSendSettings
from fedrdma_fate.core.x.short_path import SHORT_ROUND_TRIP_SECONDS
from fedrdma_fate.engine.outgoing_transfer import OutgoingTransfer
from fedrdma_fate.engine.path_memory import PathMemory
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.engine.repair_memory import RepairBuffer
from fedrdma_fate.engine.sealing_ring import LARGEST_SEALED_CHUNK_BYTES, WINDOW_BYTES
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.ports import ChunkService
from fedrdma_fate.wire.errors import ErrorCode, TransferError
from fedrdma_fate.wire.frames import Grant, Mode, Offer

logger = logging.getLogger(__name__)

SELF_PACED_WINDOW_BYTES = 32 * 1024 * 1024
"""Bytes in flight where the transport finds the rate: more than it needs to keep every stream busy."""

REPORT_DELAY_SECONDS = 0.004
"""What a report takes besides the round trip: they come every 2 ms, and later from a busy host."""

FEW_SENDERS = 8
"""What one is let send before it has ever sent is its part where all begin who may. In the end it may have what it has
where so few send (UniFL, section 4.1: eight of 64): repair chunks are to do for that. Where more do, they do for more
than a round trip."""

BUDGET_CHUNKS = 4
"""That may be missing of a message where the transport cuts it no further: a chunk that has come in part is missing."""

LEAST_BUDGET_CHUNK_BYTES = 64 * 1024
"""But no shorter ones for that: each costs both ends' processors some microseconds. Ours."""

EPOCHS_OF_A_GRANT = 64
"""Begun by damage, of which a receiver tells no more than three times, and a sender believes no more than sixteen."""


def _first_epoch(grant: int) -> int:
    """So that a late report of a transfer that begins anew, in another slot and cut otherwise, is none of it."""
    return grant * EPOCHS_OF_A_GRANT


def uses_chunk_immediates(mode: Mode) -> bool:
    """Whether immediates name the chunks: then nothing depends on order, and offers and headers go by datagram too."""
    return mode == "fedrdma-x"


def open_transfer(
    outgoing: Outgoing,
    grant: Grant,
    service: ChunkService,
    memory: PathMemory,
    buffer: RepairBuffer,
    settings: LinkSettings,
    now: float,
    *,
    sealed: bool = False,
    place: float = 0.0,
    held: Ranges = (),
) -> OutgoingTransfer:
    """The transfer of a message that was granted a slot: its cut, its repair chunks, its state machine.

    To be given to `close_transfer` when it has ended. With `sealed`, its chunks are sealed before they are posted.
    Where the receiver bounds the rate, `place` is the part of its first chunk's time that it does not wait. What
    is `held` lies in the slot already.
    """
    needed = slot_bytes_needed(outgoing.plan, outgoing.mode, sealed=sealed, recut=outgoing.recut)
    outgoing = _cut(outgoing, service, memory, sealed=sealed)
    if sealed:
        plan = with_table(sealable(outgoing.plan, LARGEST_SEALED_CHUNK_BYTES))
        outgoing = dataclasses.replace(outgoing, plan=plan)
    bound = _bound_of(outgoing, service, settings)
    # so that it is not always the same layer of a model of which something is missing
    tail = range(0) if bound is None else bound.tail(outgoing.transfer)
    # a sum of chunks that are not all sent is of no use
    wish = None if held else worthwhile_repairs(outgoing, service, memory, settings)
    repairs = None if wish is None else buffer.acquire(wish, grant.length)
    planned = None if repairs is None else repairs.plan
    sender = _sending_machine(outgoing, grant.grant, service, memory, settings, planned, place, bound, tail)
    sender.note_held(held)
    wished_bytes = 0 if wish is None else wish.wished_bytes
    if sealed:
        # what is granted ahead has room for the next table, however the next message is cut
        wished_bytes = max(wished_bytes, needed)
    return OutgoingTransfer(
        outgoing,
        sender,
        grant,
        service,
        now,
        repairs=repairs,
        wished_bytes=wished_bytes,
        bound=bound,
        tail=tail,
        held=held,
    )


def _bound_of(outgoing: Outgoing, service: ChunkService, settings: LinkSettings) -> LossBound | None:
    """Which chunks of the message may be missing in the end; None: none.

    Also where nothing is lost on the way, for it may be late; but not where what comes late costs the data path.
    """
    may_miss = uses_chunk_immediates(outgoing.mode) and (service.drains or not service.reliable)
    if not outgoing.loss_share or not may_miss or not settings.bounds_loss():
        return None
    if not may_bound(outgoing.plan):
        logger.warning(
            "nothing of %s is to be missing: its chunks have %d bytes", outgoing.key, outgoing.plan.chunk_bytes
        )
        return None
    return LossBound(outgoing.plan, outgoing.loss_share, outgoing.whole_bytes)


def slot_bytes_needed(plan: ChunkPlan, mode: Mode, *, sealed: bool, recut: bool) -> int:
    """Length of a receive slot for a message, however it is cut when it begins.

    Args:
        plan: how it is cut so far, without a table of tags.
        mode: transfer mode.
        sealed: whether its chunks are sealed before they are posted.
        recut: whether it may be cut anew.
    """
    if not sealed:
        return SlotLayout(plan, mode).slot_bytes
    return sealed_slot_bytes(sealable(plan, LARGEST_SEALED_CHUNK_BYTES), mode, recut=recut)


def close_transfer(transfer: OutgoingTransfer, memory: PathMemory) -> None:
    """It has ended, or begins anew: keep what it learnt of the path."""
    if isinstance(transfer.sender, XSender):
        memory.end(transfer.sender.control)


def worthwhile_repairs(
    outgoing: Outgoing, service: ChunkService, memory: PathMemory, settings: LinkSettings
) -> RepairPlan | None:
    """The repair chunks that would do the message good on this path, if any are to be."""
    if settings.repair_region is None or not uses_chunk_immediates(outgoing.mode) or service.reliable:
        return None
    known, loss = memory.state, _supposed_loss(memory)
    if known is None or not loss:
        return None
    # of a path that others use, too, no more goes in a round trip than what this sender is let send
    most = memory.bound if memory.loss is not None else max(memory.bound, known.rate / FEW_SENDERS)
    bytes_a_round = min(known.rate, most) * (known.min_rtt + REPORT_DELAY_SECONDS)
    may_miss_bytes = 0.0
    if outgoing.loss_share and settings.bounds_loss():
        may_miss_bytes = outgoing.loss_share * (outgoing.plan.total_bytes - outgoing.whole_bytes)
    return plan_repairs(outgoing.plan, service.mtu_bytes, loss, bytes_a_round, may_miss_bytes)


def _supposed_loss(memory: PathMemory) -> float | None:
    """What the path loses of its packets, as transfers have found it. None: none has, nor is anything to be supposed.

    A transfer that is held to a share is one of many, and their round as long as the last of them takes.
    """
    if memory.loss is None and math.isfinite(memory.bound):
        return UNKNOWN_LOSS
    return memory.loss


def wants_repairs(offer: Offer, plan: ChunkPlan) -> bool:
    """Whether the sender of an offer would have liked repair chunks: then it wished for more than it needs."""
    if not plan.trailer_bytes:
        return offer.wished_bytes > 0
    return offer.wished_bytes > sealed_slot_bytes(plan, offer.mode, recut=True)


def open_receiver(
    offer: Offer,
    slot_bytes: int,
    service: ChunkService,
    *,
    sealed: bool = False,
    tagged: bool = False,
    asks_digests: bool = False,
) -> ReceivingMachine:
    """What receives this transfer into a slot of that length; with `sealed`, a table of tags besides.

    With `tagged`, the data path opens each write as it comes, and says so. With `asks_digests`, the sender tells them.

    Raises:
        TransferError: see `plan_of_offer`.
    """
    plan = plan_of_offer(offer, slot_bytes, with_table if sealed else None)
    if not uses_chunk_immediates(offer.mode):
        return Receiver(offer.transfer, plan, ReceiveSettings(offer.mode, tagged=tagged, asks_digests=asks_digests))
    repairs = repairs_of_offer(offer, plan, slot_bytes)
    if service.reliable:
        # nothing is lost, so nobody sends them
        repairs = None
    bound, tail = _bound_of_offer(offer, plan)
    details = XReceiveSettings(
        offer.grant % TAGS,
        repairs=repairs,
        first_epoch=_first_epoch(offer.grant),
        asks_digests=asks_digests,
        tagged=tagged,
        bound=bound,
        tail=tail,
    )
    if service.repairs_packets:
        details = dataclasses.replace(details, report_bytes=REPORT_BYTES)
    if service.reliable:
        # completions move the sender's window
        details = dataclasses.replace(details, report_seconds=None)
    return XReceiver(offer.transfer, plan, details)


def _bound_of_offer(offer: Offer, plan: ChunkPlan) -> tuple[LossBound | None, range]:
    """Which chunks may be missing, and which go last."""
    if not offer.loss_share and not offer.whole_bytes:
        return None, range(0)
    try:
        bound = LossBound(plan, offer.loss_share, offer.whole_bytes)
        return bound, bound.tail_from(offer.tail_from) if offer.tail_from else range(0)
    except ValueError as error:
        raise TransferError(ErrorCode.UNEXPECTED_EVENT, f"the offer of {offer.key} is senseless: {error}.") from error


def _cut(outgoing: Outgoing, service: ChunkService, memory: PathMemory, *, sealed: bool) -> Outgoing:
    """The message, cut for what is known of the path, if that was left open, and in no longer chunks than it takes."""
    if not outgoing.recut:
        largest = service.largest_chunk_bytes
        if not uses_chunk_immediates(outgoing.mode) or largest is None or outgoing.plan.chunk_bytes <= largest:
            return outgoing
        return dataclasses.replace(outgoing, plan=ChunkPlan(outgoing.plan.total_bytes, largest))
    total, known = outgoing.plan.total_bytes, memory.state
    if service.self_paced:
        chunk_bytes = DEFAULT_CHUNK_BYTES
        if outgoing.loss_share:
            may_miss_bytes = int(outgoing.loss_share * (total - outgoing.whole_bytes))
            chunk_bytes = min(max(may_miss_bytes // BUDGET_CHUNKS, LEAST_BUDGET_CHUNK_BYTES), chunk_bytes)
    elif known is None:
        first = first_chunk_bytes(
            service.mtu_bytes, repairs_packets=service.repairs_packets, lost_trains=memory.lost_trains
        )
        chunk_bytes = FIRST_RELIABLE_CHUNK_BYTES if service.reliable else first
        if not service.reliable and memory.bound <= SLOW_PATH_RATE:
            # of a path that is not known yet, it is known that no more of it is this sender's
            chunk_bytes = min(chunk_bytes, best_chunk_bytes(memory.bound, None, service.mtu_bytes, total))
        if outgoing.loss_share and not service.reliable:
            # nobody knows that the path is too fast for it
            chunk_bytes = tolerant_chunk_bytes(chunk_bytes, 0.0)
    else:
        loss = 0.0 if service.reliable else known.loss
        rate = bounded_chunk_rate(known.rate, memory.bound)
        filling = filling_chunk_bytes(rate, known.min_rtt, service.most_chunks)
        chunk_bytes = max(best_chunk_bytes(rate, loss, service.mtu_bytes, total), filling)
        repeats_all = not service.reliable and not service.repairs_packets
        loses_many = repeats_all and math.isfinite(memory.bound) and loses_many_chunks(loss, service.mtu_bytes)
        if loses_many or (outgoing.loss_share and not service.reliable):
            # by the way's own rate: where many share a fast link, the receiver has the chunks of them all
            chunk_bytes = max(tolerant_chunk_bytes(chunk_bytes, known.rate), filling)
        if service.repairs_packets and 0 < known.min_rtt < SHORT_ROUND_TRIP_SECONDS:
            chunk_bytes = short_path_chunk_bytes(chunk_bytes, rate, known.window_bytes)
    if service.repairs_packets and chunk_bytes > service.mtu_bytes:
        # of what is sealed the digests are others than those that are known
        blocks = 0 if sealed else whole_blocks(chunk_bytes)
        chunk_bytes = blocks or whole_datagrams(chunk_bytes, service.mtu_bytes)
    chunk_bytes = max(chunk_bytes, outgoing.plan.fewest_bytes)
    aligned = chunk_bytes - chunk_bytes % ELEMENT_ALIGNMENT_BYTES
    if outgoing.loss_share and aligned >= max(LEAST_CHUNK_BYTES, outgoing.plan.fewest_bytes):
        # so that no element is cut; of shorter ones a slot has no room for the table of tags
        chunk_bytes = aligned
    return dataclasses.replace(outgoing, plan=ChunkPlan(total, chunk_bytes))


def _sending_machine(
    outgoing: Outgoing,
    grant: int,
    service: ChunkService,
    memory: PathMemory,
    settings: LinkSettings,
    repairs: RepairPlan | None,
    place: float,
    bound: LossBound | None,
    tail: range,
) -> SendingMachine:
    sealed = outgoing.plan.trailer_bytes > 0
    if not uses_chunk_immediates(outgoing.mode):
        sending = SendSettings(outgoing.mode, settings.idle_timeout, tells_arrivals=sealed)
        return Sender(outgoing.transfer, outgoing.plan, sending, outgoing.payload.written_from)
    details = XSendSettings(
        tag=grant % TAGS,
        reliable=service.reliable,
        queue_pairs=service.queue_pairs if service.reliable else best_queue_pairs(memory.state, service.queue_pairs),
        most_chunks=service.most_chunks,
        paced=not service.self_paced,
        window_bytes=settings.window_bytes or (SELF_PACED_WINDOW_BYTES if service.self_paced else None),
        mtu_bytes=service.mtu_bytes,
        repairs_packets=service.repairs_packets,
        rtt_hint=memory.rtt_hint,
        idle_timeout=settings.idle_timeout,
        repairs=repairs,
        repairs_if_lossy=memory.loss is None,
        most_bytes=WINDOW_BYTES if sealed else None,
        tells_arrivals=sealed,
        first_epoch=_first_epoch(grant),
        is_probing=memory.is_probing,
        first_burst_bytes=int(place * outgoing.plan.chunk_bytes) if math.isfinite(memory.bound) else None,
        bound=bound,
        tail=tail,
    )
    return XSender(outgoing.transfer, outgoing.plan, details, memory.begin(), outgoing.payload.written_from)
