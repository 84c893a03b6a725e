"""Grants receive slots to a peer, and takes in what comes through them.

More than 500 lines: every way in which a message of a peer comes, or ends, is to be seen in one place.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from fedrdma_fate.core.credits import MOST_REQUESTS
from fedrdma_fate.core.held import Ranges, bytes_in
from fedrdma_fate.core.plan import HEADER_SPACE_BYTES
from fedrdma_fate.engine.events import PayloadLanded, TransferNoted, TransferSealed, TransferStats
from fedrdma_fate.engine.kept_slot import KeptSlot
from fedrdma_fate.engine.link_thread import LinkHandle
from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal.lost_messages import REMEMBERED_LOST
from fedrdma_fate.gateway.messages.late_messages import PARTY_HAD_LEFT, LateMessage
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.peers.announced import AnnouncedTransfers
from fedrdma_fate.gateway.peers.borrowing import Borrowing
from fedrdma_fate.gateway.peers.ended_transfers import EndedTransfers
from fedrdma_fate.gateway.peers.entitlement import why_not_admitted
from fedrdma_fate.gateway.peers.kept_transfers import KeptTransfers
from fedrdma_fate.gateway.peers.probe_transfers import lease_spare
from fedrdma_fate.gateway.peers.same_payload import SAME_PAYLOAD, SamePayloads
from fedrdma_fate.gateway.peers.saving import Saving
from fedrdma_fate.gateway.spilling import keep_small, make_room, why_no_room_for_small
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.obs.complaints import EACH_TELLS
from fedrdma_fate.ports import LentRegion, Slot
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, MemoryPoolError, WireError
from fedrdma_fate.wire.frames import (
    INLINE_LIMIT_BYTES,
    PROBE_TRANSFERS_FROM,
    ChunkTags,
    Delivered,
    GrantRequest,
    Inline,
    Lend,
    LendDecline,
    LendReturn,
    MessageKey,
    Offer,
    Refused,
    SamePayload,
    SamePayloadGone,
)
from fedrdma_fate.wire.header import HEADER_BYTES
from fedrdma_fate.wire.site_sum import is_site_sum

logger = logging.getLogger(__name__)

_AHEAD_STEP_BYTES = 64 * 1024
"""Slots granted ahead are multiples of this, one step or two longer than the last message: the next may differ by a few
bytes."""

FIRST_AHEAD_FRACTION = 3 / 8
"""Of the receive region, for the first large messages of all peers; what is left is room for others, and for probes."""

MOST_REQUESTS_KEPT = 4 * MOST_REQUESTS
"""Transfers of a peer that wait for a slot or have one: its gateway asks for so many on each of its two data paths, and
what it has given up may still be on its way."""

PACED_ROUND_TRIP_SECONDS = 0.01
"""In the modes that wait for each chunk: while one transfer waits for so long, the other sends a chunk of 16 MiB at up
to 13 Gbit/s."""

MOST_ANNOUNCED = 8192
"""Transfers of a peer that were announced and have not ended: more than it can have grants and credits for."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Grant:
    """A slot that is granted.

    Attributes:
        lease: of the slot.
        link: what grants it.
        credit_of: the transport that it is a standing grant of, if it is one.
        large: whether it is one beside the ring; see `Receiving._grant_ahead`.
        asked_by: the transfer that asked for it, else 0.
        number: of the grant.
    """

    lease: Lease
    link: LinkHandle
    credit_of: str = ""
    large: bool = False
    asked_by: int = 0
    number: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Request:
    """A transfer that waits for room."""

    link: LinkHandle
    task: asyncio.Task[None]


class Receiving:
    """Everything that one peer sends us. Belongs to the event loop's thread.

    What names a message has passed the peer's `Entitlement` before it comes here.
    """

    def __init__(
        self,
        peer: str,
        context: GatewayContext,
        send: Callable[[Delivered | Refused | LendDecline | LendReturn | SamePayloadGone], object],
        lender_region: Callable[[], LentRegion | None],
        round_trip: Callable[[], float | None] = lambda: None,
        least_round_trip: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """
        Args:
            peer: name of its site.
            context: the gateway's.
            send: sends a frame, if there is a control channel.
            lender_region: see `Borrowing`.
            round_trip: of the control channel, seconds; None while it is not known.
            least_round_trip: the shortest of it so far; infinite while there was none.
        """
        self.borrowing = Borrowing(peer, context, send, lender_region)
        self.saving = Saving(context)
        self.same = SamePayloads()
        self._peer = peer
        self._context = context
        self._send = send
        self._round_trip = round_trip
        self._least_round_trip = least_round_trip
        self._granted: dict[int, _Grant] = {}
        self._requests: dict[int, _Request] = {}
        # of these, whose turn it is not yet
        self._held: set[int] = set()
        self._asked_by: dict[int, LinkHandle] = {}
        self._early_requests: dict[int, tuple[GrantRequest, LinkHandle]] = {}
        self._ahead: dict[str, int] = {}
        self._next_grant = 0
        self.kept = KeptTransfers(peer, context, self._complain)
        self._announced = AnnouncedTransfers()
        self._ended = EndedTransfers()
        self._lost: deque[Refused] = deque(maxlen=REMEMBERED_LOST)

    # -- grants ---------------------------------------------------------------------------------------------------

    def fill_ring(self, link: LinkHandle, transport: str) -> None:
        """Grant slots ahead of time, as many as are configured and as there is room for just now."""
        memory = self._context.config.memory
        standing = [grant.large for grant in self._granted.values() if grant.credit_of == transport]
        for _ in range(memory.ring_slots - standing.count(False)):
            try:
                lease = self._context.receive_pool.lease(int(memory.ring_slot_bytes), self.owner)
            except MemoryPoolError as error:
                self._complain("no ring", "no ring of receive slots for %s: %s", self._peer, error)
                return
            if lease is None:
                return
            self._grant(_Grant(lease, link, credit_of=transport))
        # after the ring, which would else lie between it and the room behind it
        if not any(standing):
            self._grant_ahead(link, transport)

    def lacks_ahead(self) -> list[str]:
        """Transports over which a slot for another large message would be granted, were there room."""
        standing = {grant.credit_of for grant in self._granted.values() if grant.large}
        return [transport for transport in self._ahead if transport not in standing]

    def _grant_ahead(self, link: LinkHandle, transport: str) -> None:
        """A slot for another message like the last large one, which then starts without the round trip of asking.

        Only while there is room for one more besides: it is a convenience, and the memory belongs to those who ask.
        """
        pool = self._context.receive_pool
        wished = min(self._ahead.get(transport) or self._first_ahead(transport), pool.most_bytes)
        try:
            lease = pool.lease(wished, self.owner) if wished and pool.has_room_for(wished, wished) else None
        except MemoryPoolError as error:
            self._complain("no slot ahead", "no receive slot ahead of time for %s: %s", self._peer, error)
            return
        if lease is not None:
            self._grant(_Grant(lease, link, credit_of=transport, large=True))

    def _first_ahead(self, transport: str) -> int:
        """As long as no large message has come; what the first does not fill is free again when it has come."""
        config = self._context.config
        goes_far = transport in ("tcp", "udp", "verbs")
        # cold memory is not taken before it is needed
        if config.mode_for(self._peer) != "fedrdma-x" or not goes_far or not config.memory.warm:
            return 0
        length = int(self._context.receive_pool.region.length * FIRST_AHEAD_FRACTION) // len(config.gateways)
        return length if length > int(config.memory.ring_slot_bytes) else 0

    def on_grant_request(self, request: GrantRequest, link: LinkHandle) -> None:
        """The peer asks for a slot. It asks again on each new data path; what it has been granted is on its way."""
        transfer = request.transfer
        if not transfer:
            # a slot for none is a standing grant, which nothing counts: how many there are is for us to say
            self._refuse_request(request, WireError(ErrorCode.MALFORMED_FRAME, "a slot was asked for no transfer."))
            return
        # it comes by itself now
        self.same.drop(transfer)
        if self._has_ended(transfer, request.key):
            self._send(self._ended.answer(transfer))
        elif transfer not in self._requests and transfer not in self._asked_by and transfer not in self.saving:
            if len(self._requests) + len(self._asked_by) >= MOST_REQUESTS_KEPT:
                self._refuse_request(request, _too_many_requests(self._peer))
                return
            if self._go_on(request, link):
                return
            task = spawn(self._context.tasks, self._answer_request(request, link))
            self._requests[transfer] = _Request(link, task)
        elif self._asked_by.get(transfer, link) is not link:
            # of a path that is being given up, whose thread has not said so yet
            self._early_requests[transfer] = request, link

    def on_early_grant_request(self, request: GrantRequest, link: LinkHandle) -> None:
        """The same by a datagram, before or after the frame: it gets what is free, and the frame does all else."""
        transfer, slot_bytes = request.transfer, request.slot_bytes
        known = self._has_ended(transfer, request.key) or transfer in self._requests or transfer in self._asked_by
        if known or transfer in self.saving or slot_bytes < HEADER_SPACE_BYTES:
            return
        if not 0 < transfer < PROBE_TRANSFERS_FROM:
            return
        if self.kept.is_sealed(transfer):
            # its tags come ahead of the frame
            return
        if len(self._requests) + len(self._asked_by) >= MOST_REQUESTS_KEPT or self._go_on(request, link):
            return
        key = self._paced(request)
        if key is not None and not self._context.summand_grants.may_come(self._peer, key):
            return
        with contextlib.suppress(MemoryPoolError):
            if (lease := self._context.receive_pool.lease(slot_bytes, self.owner)) is not None:
                self._grant(_Grant(lease, link, asked_by=transfer))

    @property
    def waits_for_memory(self) -> bool:
        """Whether the peer waits for a slot that there is no room for."""
        return any(transfer not in self._held for transfer in self._requests)

    def forget_requests(self, link: LinkHandle | None = None) -> None:
        """The data path of this link, or every one, is gone: who waits for room asks again on the next."""
        for transfer, request in list(self._requests.items()):
            if link is None or request.link is link:
                del self._requests[transfer]
                request.task.cancel()
        for transfer, (_, asking) in list(self._early_requests.items()):
            if link is None or asking is link:
                del self._early_requests[transfer]

    def slots_returned(self, slots: Sequence[Slot]) -> None:
        """Slots are no longer granted."""
        for slot in slots:
            self.kept.release(self._take_back(slot))

    def slots_still_open(self, slots: Sequence[Slot]) -> None:
        """The peer may go on writing into these: they stay leased for as long as this gateway runs."""
        for slot in slots:
            message = "%s bytes of receive memory stay unused: %s may still write there"
            self._complain("slot still open", message, slot.length, self._peer, level=logging.ERROR)
            self._granted[slot.offset].lease.share(f"still open to peer:{self._peer}")

    async def _answer_request(self, request: GrantRequest, link: LinkHandle) -> None:
        self._held.add(request.transfer)
        try:
            if (key := self._paced(request)) is not None:
                await self._context.summand_grants.turn(self._peer, key)
        finally:
            self._held.discard(request.transfer)
        try:
            lease = await self._acquire(request)
        except FedRDMAError as error:
            self._requests.pop(request.transfer, None)
            self._refuse_request(request, error)
            return
        del self._requests[request.transfer]
        self._grant(_Grant(lease, link, asked_by=request.transfer))

    def _paced(self, request: GrantRequest) -> MessageKey | None:
        """The message it is for, where two transfers at a time fill the path as well as more of them."""
        if request.transfer >= PROBE_TRANSFERS_FROM:
            # what it names was not looked at, and may be another site's
            return None
        if request.key is None or self._context.config.mode_for(self._peer) == "fedrdma-x":
            return request.key
        return request.key if self._least_round_trip() <= PACED_ROUND_TRIP_SECONDS else None

    def _refuse_request(self, request: GrantRequest, error: FedRDMAError) -> None:
        self._complain("refused request", "refused transfer %s of %s: %s", request.transfer, self._peer, error)
        self._send(Refused(request.transfer, error.code.value, error.message))

    async def _acquire(self, request: GrantRequest) -> Lease:
        slot_bytes = request.slot_bytes
        if slot_bytes < HEADER_SPACE_BYTES:
            raise WireError(ErrorCode.MALFORMED_FRAME, f"a receive slot of {slot_bytes} bytes was asked for.")
        pool = self._context.receive_pool
        if request.transfer >= PROBE_TRANSFERS_FROM:
            return self._spare_slot(slot_bytes)
        lease = pool.lease(slot_bytes, self.owner)
        if lease is not None:
            return lease
        message = "%s waits for %s bytes of receive memory"
        self._complain("waits for memory", message, self._peer, slot_bytes, level=logging.INFO)
        # in the next turn of the loop, when the request below stands in the queue
        asyncio.get_running_loop().call_soon(make_room, self._context, pool)
        return await pool.acquire(slot_bytes, self.owner)

    def _spare_slot(self, slot_bytes: int) -> Lease:
        if any(grant.asked_by >= PROBE_TRANSFERS_FROM for grant in self._granted.values()):
            raise MemoryPoolError(ErrorCode.POOL_TIMEOUT, f"another probe of {self._peer} has the memory for probes.")
        return lease_spare(self._context.receive_pool, slot_bytes, self.owner)

    def _grant(self, grant: _Grant, kept: KeptSlot | None = None) -> None:
        self._next_grant += 1
        slot = grant.lease.slot
        self._granted[slot.offset] = dataclasses.replace(grant, number=self._next_grant)
        if grant.asked_by:
            self._asked_by[grant.asked_by] = grant.link
        # a new grant must not show the header of what its slot held before
        slot.view[:HEADER_BYTES] = bytes(HEADER_BYTES)
        grant.link.grant(self._next_grant, slot, grant.asked_by, kept)

    def _take_back(self, slot: Slot) -> Lease:
        self.saving.drop_ahead(slot)
        self._context.coming_updates.gone(slot)
        grant = self._granted.pop(slot.offset)
        self.kept.take_told(grant.number)
        self._asked_by.pop(grant.asked_by, None)
        if (early := self._early_requests.pop(grant.asked_by, None)) is not None:
            # when this slot is where it goes to
            asyncio.get_running_loop().call_soon(self._answer_early, *early)
        return grant.lease

    def _answer_early(self, request: GrantRequest, link: LinkHandle) -> None:
        if link.alive:
            self.on_grant_request(request, link)

    # -- what goes on by another data path ------------------------------------------------------------------------

    def keep(self, kept: KeptSlot) -> None:
        """A data path has ended in the middle of a transfer: its slot is kept, for a while, for the next."""
        told = self.kept.take_told(kept.offer.grant)
        lease, transfer = self._take_back(kept.slot), kept.offer.transfer
        is_wanted = transfer not in self._ended and transfer not in self._requests and transfer not in self._asked_by
        if not is_wanted or transfer in self.saving or transfer >= PROBE_TRANSFERS_FROM or not kept.offer.total_bytes:
            self.kept.release(lease)
            return
        self.kept.keep(kept, lease, told)

    def on_chunk_tags(self, frame: ChunkTags) -> None:
        """The peer tells tags of what it has sealed."""
        self.kept.on_tags(frame, self._granted_slot)

    def _granted_slot(self, number: int) -> Slot | None:
        slots = (grant.lease.slot for grant in self._granted.values() if grant.number == number)
        return next(slots, None)

    def _go_on(self, request: GrantRequest, link: LinkHandle) -> bool:
        """Grant the slot in which a transfer had begun, where that is kept, and long enough for how it is sent now."""
        transfer = request.transfer
        if not self.kept.fits(transfer, request.slot_bytes):
            return False
        if self.kept.is_sealed(transfer):
            task = spawn(self._context.tasks, self._open_and_go_on(request, link))
            self._requests[transfer] = _Request(link, task)
            return True
        kept, lease = self.kept.take(transfer, request.transport)
        self._grant(_Grant(lease, link, asked_by=transfer), kept)
        return True

    async def _open_and_go_on(self, request: GrantRequest, link: LinkHandle) -> None:
        await self.kept.open(request.transfer)
        del self._requests[request.transfer]
        self.on_grant_request(request, link)

    def note(self, noted: TransferNoted) -> None:
        """So much has come: write it down, where it has not come to its end since."""
        if self._is_coming(noted.slot, noted.offer):
            self.kept.note(noted)

    def landed(self, told: PayloadLanded) -> None:
        """So much of a payload lies in its slot."""
        if self._is_coming(told.slot, told.offer):
            if self._context.journal.is_durable:
                self.saving.landed(told)
            self._context.coming_updates.landed(told)

    def sealed(self, begun: TransferSealed) -> None:
        """What comes into this slot lies there as sealed."""
        if self._is_coming(begun.slot, begun.offer):
            self.kept.sealed(begun)

    def _is_coming(self, slot: Slot, offer: Offer) -> bool:
        grant = self._granted.get(slot.offset)
        return grant is not None and grant.number == offer.grant and offer.transfer not in self._ended

    @property
    def owner(self) -> str:
        """Of the receive memory that the peer has."""
        return pool_owner(self._peer)

    # -- payloads -------------------------------------------------------------------------------------------------

    def on_offer(self, offer: Offer, link: LinkHandle) -> None:
        """A transfer begins: pass it on, unless it has ended before."""
        self.same.drop(offer.transfer)
        if self._has_ended(offer.transfer, offer.key):
            link.decline(offer, self._ended.answer(offer.transfer))
        elif offer.transfer in self.saving:
            self.saving.offered_again(offer, link)
        elif objection := self._too_much(offer):
            link.decline(offer, self.refuse(offer, ErrorCode.LIMIT_REACHED, objection))
        else:
            self._announced.add(offer)
            if offer.transfer < PROBE_TRANSFERS_FROM:
                self._context.summand_grants.begins(self._peer, offer.key)
            if offer.transfer in self._held and (request := self._requests.pop(offer.transfer, None)) is not None:
                # it needs no other slot: it has one that was granted ahead
                request.task.cancel()
            self._begin_sharing(offer)
            link.frame(offer)

    def on_early_offer(self, offer: Offer, link: LinkHandle) -> None:
        """The same by a datagram, before or after the frame: it begins what is right, and the frame does all else."""
        known = self._has_ended(offer.transfer, offer.key) or offer.transfer in self.saving
        if not known and not self._too_much(offer):
            self._begin_sharing(offer)
            link.begin_early(offer)

    def share_announced(self) -> None:
        """What goes on by a data path that is new takes its part in sharing the link."""
        for offer in self._announced.offers():
            self._begin_sharing(offer)

    def _begin_sharing(self, offer: Offer) -> None:
        self._context.sharing.begun(self._peer, offer, self._round_trip(), offer.total_bytes)

    def _too_much(self, frame: Offer | Inline | Lend | SamePayload) -> str:
        """Why a message is one too many, or an empty string."""
        total_bytes = len(frame.body) if isinstance(frame, Inline) else frame.total_bytes
        if isinstance(frame, Offer):
            if frame.transfer >= PROBE_TRANSFERS_FROM:
                return ""
            if len(self._announced) >= MOST_ANNOUNCED:
                return f"{len(self._announced)} transfers of {self._peer} are announced and have not ended"
        return self._context.mailbox.objection(self._peer, frame.key, total_bytes)

    def received(self, offer: Offer, slot: Slot, payload_at: int, stats: TransferStats, missing: Ranges = ()) -> None:
        """A payload lies in its slot, whole, but for what may be missing."""
        ahead_copy = self.saving.take_ahead(slot)
        self._context.coming_updates.came(slot)
        lease = self._take_back(slot)
        # what says that it has come, says that it is coming no more
        self.kept.received(slot)
        if offer.transfer >= PROBE_TRANSFERS_FROM:
            self._remember(Delivered(offer.transfer))
            lease.release()
            return
        # to what the next message like it would be granted: when this one is gone, that fits into its place
        ahead = _ahead_of(offer, self._context.receive_pool.most_bytes)
        lease.trim(ahead)
        message = Message(
            offer.key,
            offer.kind,
            offer.total_bytes,
            lease=lease,
            payload_at=payload_at,
            origin=self._peer,
            transfer=offer.transfer,
            missing=missing,
            seconds=stats.seconds,
            may_miss=offer.loss_share > 0,
        )
        # its link has written it down
        self._context.journal.follow(message)
        if slot.length > int(self._context.config.memory.ring_slot_bytes) and offer.mode == "fedrdma-x":
            self._ahead[offer.transport] = ahead
        if not offer.loss_share:
            self.same.came(message)
            # before anybody can let go of its slot
            for frame in self.same.take(offer.transfer):
                self.on_same_payload(frame)
        if self._context.journal.is_durable:
            # it has come, whatever becomes of its sender
            self._announced.discard(offer.transfer)
            self.kept.drop(offer.transfer)
            self._context.sharing.ended(self._peer, offer.transfer)
            arrived = functools.partial(self._arrived, offer, message, stats)
            self.saving.begin(message, arrived, self._not_saved, ahead_copy)
        else:
            self._arrived(offer, message, stats)

    def _arrived(self, offer: Offer, message: Message, stats: TransferStats) -> None:
        self._remember(Delivered(offer.transfer))
        if self._context.journal.is_durable:
            # else its link has said so
            self._send(Delivered(offer.transfer))
        kept = self._context.mailbox.deliver(message)
        make_room(self._context, self._context.receive_pool)
        self._context.metrics.payload_moved("received", self._peer, offer.mode, offer.transport, offer.total_bytes)
        self._context.metrics.transfer_ended("received", self._peer, offer.mode, stats.seconds, 0)
        missing_bytes = bytes_in(message.missing)
        if offer.loss_share:
            self._context.metrics.tolerant(self._peer, offer.key.name, offer.total_bytes, missing_bytes)
        self._trace_delivered(offer, offer.total_bytes, offer.mode, offer.transport, stats.seconds, kept, missing_bytes)

    def on_same_payload(self, frame: SamePayload) -> None:
        """A message has the payload of another transfer of the peer's; it may be told again after a reconnection."""
        transfer, same_as = frame.transfer, frame.same_as
        if self._has_ended(transfer, frame.key):
            self._send(self._ended.answer(transfer))
            return
        if transfer in self.saving:
            return
        self.same.drop(transfer)
        if objection := self._too_much(frame):
            self._send(self.refuse(frame, ErrorCode.LIMIT_REACHED, objection))
        elif transfer >= PROBE_TRANSFERS_FROM or self._comes_alone(transfer):
            self._send(SamePayloadGone(transfer, same_as))
        elif (message := self.same.find(frame)) is not None:
            self._take_same(frame, message)
        elif frame.is_coming and same_as not in self._ended and not self.same.is_full:
            self.same.wait(frame)
        else:
            self._send(SamePayloadGone(transfer, same_as))

    def _comes_alone(self, transfer: int) -> bool:
        """Whether it is on its way by a data path."""
        return transfer in self._announced or transfer in self._requests or transfer in self._asked_by

    def _take_same(self, frame: SamePayload, other: Message) -> None:
        """It is here, in the slot of the other one."""
        assert other.lease is not None
        lease = other.lease.share(self.owner)
        message = Message(
            frame.key,
            frame.kind,
            frame.total_bytes,
            lease=lease,
            payload_at=other.payload_at,
            origin=self._peer,
            transfer=frame.transfer,
        )
        journal = self._context.journal
        journal.keep(message, pending=journal.is_durable)
        if journal.is_durable:
            self.saving.begin(message, functools.partial(self._arrived_same, frame, message), self._not_saved)
        else:
            self._arrived_same(frame, message)

    def _arrived_same(self, frame: SamePayload, message: Message) -> None:
        self._remember(Delivered(frame.transfer))
        self._send(Delivered(frame.transfer))
        # another may have the same as this one, when the first is gone
        self.same.came(message)
        kept = self._context.mailbox.deliver(message)
        make_room(self._context, self._context.receive_pool)
        self._context.metrics.payload_moved("received", self._peer, SAME_PAYLOAD, "", frame.total_bytes)
        self._context.metrics.transfer_ended("received", self._peer, SAME_PAYLOAD, 0.0, 0)
        self._trace_delivered(frame, frame.total_bytes, SAME_PAYLOAD, "", 0.0, kept)

    def _not_saved(self, message: Message, error: FedRDMAError) -> None:
        """A message that came cannot be had on disk: both ends are told that it is not here."""
        key, refused = message.key, Refused(message.transfer, error.code.value, error.message)
        self._complain("not saved", "refused %s of %s: %s", key, self._peer, error, level=logging.ERROR)
        self._context.journal.forget_received(message)
        message.discard()
        self._remember(refused)
        self._send(refused)
        self._fail(key, error.code.value, error.message)

    def receive_failed(self, offer: Offer, slot: Slot, code: ErrorCode, reason: str) -> None:
        """An announced payload will not come."""
        self.kept.release(self._take_back(slot))
        self._not_received(offer, code, reason)

    def on_abort(self, transfer: int) -> None:
        """The peer has given a transfer up, and says why in an Undeliverable."""
        self.same.drop(transfer)
        self._announced.discard(transfer)
        self.kept.drop(transfer)
        self.saving.give_up(transfer)
        self._context.sharing.ended(self._peer, transfer)

    def on_undeliverable(self, key: MessageKey, code: str, reason: str) -> None:
        """The peer says that a message will not come."""
        message = "%s will not come from %s: [%s] %s"
        # of a sum that does not come its parties come alone
        level = logging.INFO if is_site_sum(key) else logging.ERROR
        self._complain("undeliverable", message, key, self._peer, code, reason, level=level)
        self._announced.discard_message(key)
        self.same.drop_message(key)
        for transfer in self.kept.of_message(lambda offer: offer.key == key):
            self.kept.drop(transfer)
        self.saving.give_up(key=key)
        self._fail(key, code, reason)

    def _fail(self, key: MessageKey, code: str, reason: str) -> None:
        if objection := self._context.mailbox.fail(key, code, reason, self._peer):
            message = "no room to remember that %s does not come: who waits for its source is told. %s"
            self._complain("notice dropped", message, key, objection)

    def peer_restarted(self, *, resumes: bool = False) -> None:
        """What the peer had announced, and had not been received, is gone with its memory, unless it says otherwise."""
        same = self.same.drop_all()
        if resumes:
            for transfer in list(self._announced):
                self._announced.discard(transfer)
            return
        self.kept.drop_all()
        reason = f"the gateway of {self._peer} was restarted in the middle of it"
        for offer in self._announced.offers():
            self._not_received(offer, ErrorCode.TRANSFER_ABORTED, reason)
        for frame in same:
            self._remember(Refused(frame.transfer, ErrorCode.TRANSFER_ABORTED.value, reason))
            self._fail(frame.key, ErrorCode.TRANSFER_ABORTED.value, reason)

    def _not_received(self, offer: Offer, code: ErrorCode, reason: str) -> None:
        self._remember(Refused(offer.transfer, code.value, reason))
        if offer.transfer >= PROBE_TRANSFERS_FROM:
            message = "a probe of %s did not arrive: [%s] %s"
            self._complain("lost probe", message, self._peer, code.value, reason, level=logging.INFO)
            return
        self._fail(offer.key, code.value, reason)
        self._context.metrics.transfer_ended("failed", self._peer, offer.mode, 0.0, 0)
        message = "%s from %s was not received: [%s] %s"
        self._complain("not received", message, offer.key, self._peer, code.value, reason, level=logging.ERROR)
        self._context.trace.receive_failed(offer.transfer, offer.key, self._peer, code, reason)

    def on_lend(self, lend: Lend) -> None:
        """A message lies in the peer's memory, for our task to map; it may be told again after a reconnection."""
        transfer = lend.transfer
        if transfer in self._ended:
            self._send(self._ended.answer(transfer))
            if not self.borrowing.holds(transfer):
                self._send(LendReturn(transfer))
            return
        if self.borrowing.holds(transfer):
            # told so long ago that it is not remembered; another message of that number would take its place
            self._send(Delivered(transfer))
            return
        if objection := self._too_much(lend):
            self._send(self.refuse(lend, ErrorCode.LIMIT_REACHED, objection))
            return
        try:
            message = self.borrowing.take(lend)
        except MemoryPoolError as error:
            self._complain("declined loan", "declined %s, which %s lends: %s", lend.key, self._peer, error)
            self._send(LendDecline(transfer, error.message))
            return
        if message is None:
            return
        self._remember(Delivered(transfer))
        self._send(Delivered(transfer))
        kept = self._context.mailbox.deliver(message)
        self._context.metrics.payload_moved("received", self._peer, "lent", "shm", lend.total_bytes)
        self._context.metrics.transfer_ended("received", self._peer, "lent", 0.0, 0)
        self._trace_delivered(lend, lend.total_bytes, "lent", "shm", 0.0, kept)

    def retry_early_lends(self) -> None:
        """The data path that lent messages waited for is there, or will not be."""
        for lend in self.borrowing.take_early():
            self.on_lend(lend)

    def on_inline(self, inline: Inline) -> None:
        """A small message came; it may come again after a reconnection."""
        if self._has_ended(inline.transfer, inline.key):
            self._send(self._ended.answer(inline.transfer))
            return
        if inline.transfer in self.saving:
            return
        if len(inline.body) > INLINE_LIMIT_BYTES:
            reason = f"{len(inline.body)} bytes came inline, {INLINE_LIMIT_BYTES} is the limit"
            self._send(self.refuse(inline, ErrorCode.MALFORMED_FRAME, reason))
            return
        if objection := self._too_much(inline):
            self._send(self.refuse(inline, ErrorCode.LIMIT_REACHED, objection))
            return
        if (full := why_no_room_for_small(self._context, inline.key)) is not None:
            self._send(self.refuse(inline, full.code, full.message))
            return
        message = Message(
            inline.key,
            inline.kind,
            len(inline.body),
            body=inline.body,
            origin=self._peer,
            transfer=inline.transfer,
        )
        if not self._context.journal.is_durable:
            self._arrived_small(inline, message)
        elif self.saving.is_full:
            reason = f"{self._context.config.site} has too many small messages to write to disk"
            self._send(self.refuse(inline, ErrorCode.LIMIT_REACHED, reason))
        else:
            self.saving.begin(message, functools.partial(self._arrived_small, inline, message), self._not_saved)

    def _arrived_small(self, inline: Inline, message: Message) -> None:
        self._remember(Delivered(inline.transfer))
        kept = self._context.mailbox.deliver(message)
        if kept:
            keep_small(self._context, message, self.owner)
            if not self._context.journal.is_durable:
                self._context.journal.keep(message)
        self._context.metrics.inline_moved("received", self._peer)
        self._trace_delivered(inline, len(inline.body), "inline", "control", 0.0, kept)
        self._send(Delivered(inline.transfer))

    def _has_ended(self, transfer: int, key: MessageKey | None) -> bool:
        """Whether a transfer has ended here; also where that is not remembered any more, and its message waits still.

        Else that would come once more, and what is written down of its end would be taken for that of the first.
        """
        if transfer in self._ended:
            return True
        if key is None or transfer >= PROBE_TRANSFERS_FROM:
            return False
        here = self._context.mailbox.find(key)
        if here is None or (here.origin, here.transfer) != (self._peer, transfer):
            return False
        self._remember(Delivered(transfer))
        return True

    def answer_ended(self, transfers: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """Of (transfer, grant) pairs that the peer would resume, tell it which have ended; the others."""
        still_open = []
        for transfer, grant in transfers:
            if transfer in self._ended:
                self._send(self._ended.answer(transfer))
            elif transfer not in self.saving:
                still_open.append((transfer, grant))
        return tuple(still_open)

    # -- after a restart of this gateway --------------------------------------------------------------------------

    def restore_ended(self, transfers: Iterable[int]) -> None:
        """An earlier run has confirmed these."""
        for transfer in transfers:
            self._remember(Delivered(transfer))

    def note_lost(self, transfer: int, reason: str) -> None:
        """A message that an earlier run has confirmed is lost: the peer is told on each new channel."""
        refused = Refused(transfer, ErrorCode.MESSAGE_LOST.value, reason)
        self._remember(refused)
        self._lost.append(refused)

    @property
    def has_to_tell(self) -> bool:
        """Whether the peer may not know yet that a message which it was told is here will not be pulled."""
        return bool(self._lost)

    def tell_lost(self) -> None:
        """The control channel is new: what had been confirmed, and is not here any more."""
        for refused in self._lost:
            self._send(refused)

    def _remember(self, end: Delivered | Refused) -> None:
        self._announced.discard(end.transfer)
        self.kept.drop(end.transfer)
        self._context.sharing.ended(self._peer, end.transfer)
        self._ended.add(end)
        self.same.drop(end.transfer)
        for frame in self.same.take(end.transfer):
            # it has not come, or not into a slot that others can have
            self._send(SamePayloadGone(frame.transfer, end.transfer))

    def note_summed(self, transfers: Sequence[int]) -> list[Delivered]:
        """These messages are here, in a sum of the peer's; what it is told of each that does not come alone already."""
        known = [
            each
            for each in transfers
            if each not in self._announced
            and each not in self._requests
            and each not in self._asked_by
            and each not in self.saving
            and each < PROBE_TRANSFERS_FROM
        ]
        for transfer in known:
            self._remember(Delivered(transfer))
        return [Delivered(transfer) for transfer in known]

    def turned_away(self, message: Message) -> None:
        """A message that had come is dropped: its session has ended, or knows no such source. Both ends are told."""
        key = message.key
        error = why_not_admitted(self._context.mailbox.sessions, key)
        told = "dropped %s from %s: [%s] %s"
        self._complain("turned away", told, key, self._peer, error.code.value, error.message, level=logging.ERROR)
        self.drop(message, error.code, error.message)

    def party_is_back(self, late: LateMessage) -> None:
        """A message was dropped when its party had left the session, and that has joined it again.

        Its sender knows whether it is of this use of the session or an earlier one, and answers where it is missed.
        """
        self._refuse_delivered(late.transfer, ErrorCode.SESSION_CLOSED, PARTY_HAD_LEFT)

    def drop(self, message: Message, code: ErrorCode, reason: str) -> None:
        """Nobody will get a message of the peer's that is here: its task is told."""
        self._refuse_delivered(message.transfer, code, reason)

    def _refuse_delivered(self, transfer: int, code: ErrorCode, reason: str) -> None:
        refused = Refused(transfer, code.value, reason)
        self._remember(refused)
        # its sender was told that it is here: without a channel now, it has to hear of this by the next
        self._lost.append(refused)
        self._send(refused)

    def refuse(
        self, frame: Offer | Inline | Lend | GrantRequest | SamePayload, code: ErrorCode, reason: str
    ) -> Refused:
        """The answer to a message that is not taken; it is in the log, too."""
        message = "refused %s from %s: [%s] %s"
        # the sum of a site may be late, and its parties come alone
        level = logging.INFO if frame.key is not None and is_site_sum(frame.key) else logging.ERROR
        self._complain("refused message", message, frame.key, self._peer, code.value, reason, level=level)
        return Refused(frame.transfer, code.value, reason)

    def _complain(self, kind: str, message: str, *values: object, level: int = logging.WARNING) -> None:
        lines = EACH_TELLS if level > logging.INFO else 1
        self._context.complaints.add(logger, kind, self._peer, message, *values, level=level, lines=lines)

    def _trace_delivered(
        self,
        frame: Offer | Inline | Lend | SamePayload,
        total_bytes: int,
        mode: str,
        transport: str,
        seconds: float,
        kept: bool,
        missing_bytes: int = 0,
    ) -> None:
        self._context.trace.delivered(
            frame.transfer,
            frame.key,
            total_bytes,
            self._peer,
            mode,
            transport,
            seconds,
            kept=kept,
            missing_bytes=missing_bytes,
        )


def _too_many_requests(site: str) -> FedRDMAError:
    return GatewayError(
        ErrorCode.LIMIT_REACHED,
        f"{site} waits for receive memory for {MOST_REQUESTS_KEPT} transfers already; that is as many as one peer may "
        "have.",
    )


def pool_owner(site: str) -> str:
    """The name under which a peer has receive memory."""
    return f"peer:{site}"


def _ahead_of(offer: Offer, most: int) -> int:
    """A slot for a message like this one, with the room that its sender would like to have if that can be."""
    wished = _ahead_bytes(max(offer.total_bytes, offer.wished_bytes))
    return wished if wished <= most else _ahead_bytes(offer.total_bytes)


def _ahead_bytes(total_bytes: int) -> int:
    """A slot for a message like one of this length: a little more, for the next may differ by a few bytes."""
    return (total_bytes // _AHEAD_STEP_BYTES + 2) * _AHEAD_STEP_BYTES
