"""Which state machines drive a transfer, by its mode, and how they are set up for what is known of the path."""

from __future__ import annotations

import dataclasses

from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import DEFAULT_CHUNK_BYTES, ChunkPlan, plan_of_offer
from fedrdma_fate.core.receiver import Receiver, ReceiveSettings
from fedrdma_fate.core.sender import Sender, SendSettings
from fedrdma_fate.core.state_machines import ReceivingMachine, SendingMachine
from fedrdma_fate.core.x.chunking import (
    FIRST_CHUNK_BYTES,
    FIRST_RELIABLE_CHUNK_BYTES,
    TAGS,
    best_chunk_bytes,
    filling_chunk_bytes,
)
from fedrdma_fate.core.x.rate_control import RateController
from fedrdma_fate.core.x.receiver import XReceiver, XReceiveSettings
from fedrdma_fate.core.x.repair_code import RepairPlan, plan_repairs, repairs_of_offer
from fedrdma_fate.core.x.sender import XSender, XSendSettings
from fedrdma_fate.engine.events import KnownPath, LinkSettings, Outgoing, PathSource
from fedrdma_fate.ports import ChunkService
from fedrdma_fate.wire.frames import Offer

SELF_PACED_WINDOW_BYTES = 32 * 1024 * 1024
"""Bytes in flight where the transport finds the rate: more than it needs to keep every stream busy."""


REPORT_SECONDS = 0.004
"""What a report takes besides the round trip: they come every 2 ms, and later from a busy host."""

PROBE_AGREES = 2.0
"""A train whose rate is within this factor of what is remembered confirms it, and replaces it otherwise."""


class PathMemory:
    """What is known of the path to a peer, from transfer to transfer; a new data path changes nothing about it.

    Attributes:
        known: rate, round trip and loss, and how they are known; None while nothing is.
        rtt_hint: round trip of the control channel, seconds, None while it is not known.
    """

    def __init__(self, known: KnownPath | None = None) -> None:
        self.known = known
        self.rtt_hint: float | None = None
        self._users = 0

    @property
    def state(self) -> PathState | None:
        """Rate, round trip and loss, None while nothing is known."""
        return None if self.known is None else self.known.state

    @property
    def proved(self) -> bool:
        """Whether a transfer of this run has found it."""
        return self.known is not None and self.known.source == "measured"

    def learn(self, state: PathState, source: PathSource) -> None:
        """Something is known; what a transfer has found stands until another finds something else."""
        before = self.known
        if source != "measured" and before is not None:
            if before.source == "measured" or source == "configured":
                return
            if before.source == "remembered" and 1 / PROBE_AGREES < state.rate / before.state.rate < PROBE_AGREES:
                return
        self.known = KnownPath(state, source)

    def begin(self) -> RateController:
        """A transfer begins: at its share of the rate, where others are under way."""
        self._users += 1
        known = self.state
        if known is None:
            return RateController()
        capacity = max(known.capacity, known.rate)
        share = dataclasses.replace(known, rate=known.rate / self._users, capacity=capacity)
        return RateController(share, proved=self.proved)

    def end(self, control: RateController) -> None:
        """It has ended; what it found is remembered."""
        found = control.state()
        if found is not None and control.sampled:
            self.learn(dataclasses.replace(found, rate=found.rate * self._users), "measured")
        self._users -= 1


def cut(outgoing: Outgoing, service: ChunkService, memory: PathMemory) -> Outgoing:
    """The message, cut for what is known of the path, if that was left open."""
    if not outgoing.recut:
        return outgoing
    total, known = outgoing.plan.total_bytes, memory.state
    if service.self_paced:
        chunk_bytes = DEFAULT_CHUNK_BYTES
    elif known is None:
        chunk_bytes = FIRST_RELIABLE_CHUNK_BYTES if service.reliable else FIRST_CHUNK_BYTES
    else:
        loss = 0.0 if service.reliable else known.loss
        filling = filling_chunk_bytes(known.rate, known.min_rtt, service.most_chunks)
        chunk_bytes = max(best_chunk_bytes(known.rate, loss, service.mtu_bytes, total), filling)
    return dataclasses.replace(outgoing, plan=ChunkPlan(total, max(chunk_bytes, outgoing.plan.fewest_bytes)))


def wished_repairs(
    outgoing: Outgoing, service: ChunkService, memory: PathMemory, settings: LinkSettings
) -> RepairPlan | None:
    """The repair chunks that would do the message good on this path, if there is room for them, and any are to be."""
    if settings.repair_region is None:
        return None
    known = memory.state if memory.proved else None
    if outgoing.mode != "fedrdma-x" or service.reliable or known is None or not known.loss:
        return None
    return plan_repairs(outgoing.plan, service.mtu_bytes, known.loss, known.rate * (known.min_rtt + REPORT_SECONDS))


def sending_machine(
    outgoing: Outgoing,
    grant: int,
    service: ChunkService,
    memory: PathMemory,
    settings: LinkSettings,
    repairs: RepairPlan | None = None,
) -> SendingMachine:
    """What sends this message into this grant, with these repair chunks. `release` it when it has ended."""
    if outgoing.mode != "fedrdma-x":
        sending = SendSettings(outgoing.mode, settings.idle_timeout)
        return Sender(outgoing.transfer, outgoing.plan, sending, outgoing.payload.written_from)
    details = XSendSettings(
        tag=grant % TAGS,
        reliable=service.reliable,
        queue_pairs=service.queue_pairs,
        most_chunks=service.most_chunks,
        paced=not service.self_paced,
        window_bytes=settings.window_bytes or (SELF_PACED_WINDOW_BYTES if service.self_paced else None),
        mtu_bytes=service.mtu_bytes,
        rtt_hint=memory.rtt_hint,
        idle_timeout=settings.idle_timeout,
        repairs=repairs,
    )
    return XSender(outgoing.transfer, outgoing.plan, details, memory.begin(), outgoing.payload.written_from)


def release(sender: SendingMachine, memory: PathMemory) -> None:
    """The machine has ended: keep what it learnt."""
    if isinstance(sender, XSender):
        memory.end(sender.control)


def receiving_machine(offer: Offer, slot_bytes: int, service: ChunkService) -> ReceivingMachine:
    """What receives this transfer into a slot of that length.

    Raises:
        TransferError: see `plan_of_offer`.
    """
    plan = plan_of_offer(offer, slot_bytes)
    if offer.mode != "fedrdma-x":
        return Receiver(offer.transfer, plan, ReceiveSettings(offer.mode))
    details = XReceiveSettings(tag=offer.grant % TAGS, repairs=repairs_of_offer(offer, plan, slot_bytes))
    if service.reliable:
        # completions move the sender's window
        details = dataclasses.replace(details, report_seconds=None)
    return XReceiver(offer.transfer, plan, details)
