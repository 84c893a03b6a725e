"""Grants receive slots to a peer, and takes in what comes through them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

from fedrdma_fate.engine.events import TransferStats
from fedrdma_fate.engine.link import Link
from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.hub import Hub
from fedrdma_fate.gateway.mailbox import Message
from fedrdma_fate.gateway.spilling import make_room
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import ControlFrame, Delivered, GrantRequest, Inline, Offer, Refused
from fedrdma_fate.wire.header import HEADER_BYTES

logger = logging.getLogger(__name__)

REMEMBERED_TRANSFERS = 16384
"""Delivered transfers that are remembered, so that one sent again after a lost connection is not taken twice."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Grant:
    """A slot that is granted: its lease, and the transport whose ring it belongs to, if any."""

    lease: Lease
    credit_of: str = ""


class Receiving:
    """Everything that one peer sends us. Belongs to the event loop's thread."""

    def __init__(self, peer: str, hub: Hub, send: Callable[[ControlFrame], object]) -> None:
        self._peer = peer
        self._hub = hub
        self._send = send
        self._granted: dict[int, _Grant] = {}
        self._asked: dict[int, asyncio.Task[None]] = {}
        self._next_grant = 0
        self._delivered: OrderedDict[int, None] = OrderedDict()

    # -- grants ---------------------------------------------------------------------------------------------------

    def fill_ring(self, link: Link, transport: str) -> None:
        """Grant slots ahead of time, as many as are configured and as there is room for just now."""
        memory = self._hub.config.memory
        standing = sum(grant.credit_of == transport for grant in self._granted.values())
        for _ in range(memory.ring_slots - standing):
            lease = self._hub.receive_pool.lease(int(memory.ring_slot_bytes), self._owner)
            if lease is None:
                return
            self._grant(link, _Grant(lease, transport), 0)

    def on_grant_request(self, request: GrantRequest, link: Link) -> None:
        """The peer asks for a slot; it may ask again after a reconnection."""
        if request.transfer in self._delivered:
            self._send(Delivered(request.transfer))
        elif request.transfer not in self._asked:
            self._asked[request.transfer] = spawn(self._hub.tasks, self._answer_request(request, link))

    def slots_returned(self, slots: Sequence[Slot]) -> None:
        """Slots are no longer granted."""
        for slot in slots:
            self._take_back(slot).release()

    def peer_restarted(self) -> None:
        """The peer's transfer ids begin anew."""
        for task in self._asked.values():
            task.cancel()
        self._asked.clear()
        self._delivered.clear()

    async def _answer_request(self, request: GrantRequest, link: Link) -> None:
        pool = self._hub.receive_pool
        try:
            lease = pool.lease(request.slot_bytes, self._owner)
            if lease is None:
                waiting = asyncio.ensure_future(pool.acquire(request.slot_bytes, self._owner))
                spawn(self._hub.tasks, make_room(self._hub, pool))
                link.recall_credits()
                lease = await waiting
        except FedRDMAError as error:
            logger.warning("refused a transfer of %s: %s", self._peer, error)
            self._asked.pop(request.transfer, None)
            self._send(Refused(request.transfer, error.code.value, error.message))
            return
        self._grant(link, _Grant(lease), request.transfer)

    def _grant(self, link: Link, grant: _Grant, transfer: int) -> None:
        self._next_grant += 1
        slot = grant.lease.slot
        self._granted[slot.offset] = grant
        # a new grant must not show the header of what its slot held before
        slot.view[:HEADER_BYTES] = bytes(HEADER_BYTES)
        link.grant(self._next_grant, slot, transfer)

    def _take_back(self, slot: Slot) -> Lease:
        return self._granted.pop(slot.offset).lease

    @property
    def _owner(self) -> str:
        return f"peer:{self._peer}"

    # -- payloads -------------------------------------------------------------------------------------------------

    def on_offer(self, offer: Offer, link: Link) -> None:
        """A transfer begins: pass it on, unless it is none of ours."""
        if offer.transfer in self._delivered:
            self._send(Delivered(offer.transfer))
        elif self._hub.routes.is_local(offer.key.destination):
            link.frame(offer)
        else:
            link.reject(offer, ErrorCode.WRONG_PARTY, self._not_here(offer))

    def received(self, offer: Offer, slot: Slot, payload_at: int, stats: TransferStats) -> None:
        """A payload is whole in its slot."""
        lease = self._take_back(slot)
        self._asked.pop(offer.transfer, None)
        self._remember(offer.transfer)
        message = Message(offer.key, offer.kind, offer.total_bytes, lease=lease, payload_at=payload_at)
        kept = self._hub.mailbox.deliver(message)
        if self._hub.receive_pool.wanted_bytes:
            spawn(self._hub.tasks, make_room(self._hub, self._hub.receive_pool))
        self._hub.metrics.payload_moved("received", self._peer, offer.mode, offer.transport, offer.total_bytes)
        self._hub.metrics.transfer_ended("received", self._peer, offer.mode, stats.seconds, 0)
        self._trace_delivered(offer, offer.total_bytes, offer.mode, offer.transport, stats.seconds, kept)

    def receive_failed(self, offer: Offer, slot: Slot, code: ErrorCode, reason: str) -> None:
        """An announced payload will not come."""
        self._take_back(slot).release()
        self._asked.pop(offer.transfer, None)
        self._hub.mailbox.fail(offer.key, code.value, reason)
        self._hub.metrics.transfer_ended("failed", self._peer, offer.mode, 0.0, 0)
        logger.error("%s from %s was not received: [%s] %s", offer.key, self._peer, code.value, reason)
        self._hub.trace.emit("receive_failed", **_key_fields(offer), code=code.value, reason=reason, peer=self._peer)

    def on_inline(self, inline: Inline) -> None:
        """A small message came; it may come again after a reconnection."""
        if not self._hub.routes.is_local(inline.key.destination):
            self._send(Refused(inline.transfer, ErrorCode.WRONG_PARTY.value, self._not_here(inline)))
            return
        if inline.transfer not in self._delivered:
            self._remember(inline.transfer)
            message = Message(inline.key, inline.kind, len(inline.body), body=inline.body)
            kept = self._hub.mailbox.deliver(message)
            self._hub.metrics.inline_moved("received", self._peer)
            self._trace_delivered(inline, len(inline.body), "inline", "control", 0.0, kept)
        self._send(Delivered(inline.transfer))

    def already_delivered(self, transfer: int) -> bool:
        """Whether this transfer of the peer has been taken in."""
        return transfer in self._delivered

    def _remember(self, transfer: int) -> None:
        self._delivered[transfer] = None
        while len(self._delivered) > REMEMBERED_TRANSFERS:
            self._delivered.popitem(last=False)

    def _not_here(self, frame: Offer | Inline) -> str:
        return f"{frame.key.destination} is not served at {self._hub.config.site}"

    def _trace_delivered(
        self, frame: Offer | Inline, total_bytes: int, mode: str, transport: str, seconds: float, kept: bool
    ) -> None:
        self._hub.trace.emit(
            "delivered",
            **_key_fields(frame),
            bytes=total_bytes,
            mode=mode,
            transport=transport,
            seconds=seconds,
            peer=self._peer,
            kept=kept,
        )


def _key_fields(frame: Offer | Inline) -> dict[str, object]:
    key = frame.key
    return {
        "transfer": frame.transfer,
        "session": key.session,
        "name": key.name,
        "tag": key.tag,
        "source": str(key.source),
        "destination": str(key.destination),
    }
