"""Receiving transfers of one link, and the slots granted to its peer.

More than 500 lines: whatever may come for a granted slot, in whichever order, is to be seen in one place.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import math
from collections import deque
from collections.abc import Collection, Iterable

import msgspec

from fedrdma_fate.core.actions import (
    Action,
    AddInSlot,
    ClearHeader,
    ComputeDigest,
    CopyStaged,
    Failed,
    Finished,
    SendFrame,
    SendReport,
    WipeChunk,
)
from fedrdma_fate.core.digest import MISTAGGED, TAGGED, chunk_digest
from fedrdma_fate.core.held import Ranges
from fedrdma_fate.core.shares.share_sender import NO_ARRIVALS, Arrivals
from fedrdma_fate.core.state_machines import ReceivingMachine
from fedrdma_fate.core.x.chunking import TAGS, chunk_of_immediate
from fedrdma_fate.core.x.receiver import XReceiver
from fedrdma_fate.engine.arrival_notes import ArrivalNotes
from fedrdma_fate.engine.events import (
    Emit,
    FrameToSend,
    GrantRequested,
    PayloadReceived,
    ReceiveFailed,
    SlotsReturned,
    SlotsStillOpen,
    TransferKept,
    TransferNoted,
    TransferProgress,
    TransferSealed,
    TransferStats,
)
from fedrdma_fate.engine.granted_slot import (
    MOST_EARLY_CHUNKS,
    EarlyChunk,
    Ended,
    Granted,
    clear_stale_header,
    offer_digest,
    parsed,
    wipe,
)
from fedrdma_fate.engine.kept_slot import KeptSlot
from fedrdma_fate.engine.landing import LEAST_BYTES, Landing, may_change_payload
from fedrdma_fate.engine.link_datagrams import COPIES, LinkDatagrams
from fedrdma_fate.engine.opening import Opening
from fedrdma_fate.engine.openings import Openings
from fedrdma_fate.engine.repair_memory import add_into
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.engine.setup import open_receiver, uses_chunk_immediates, wants_repairs
from fedrdma_fate.late_numpy import prepare
from fedrdma_fate.obs.complaints import EACH_TELLS
from fedrdma_fate.ports import Completion, Endpoint, Slot
from fedrdma_fate.security.sealing import PathOpener
from fedrdma_fate.wire.datagrams import Header
from fedrdma_fate.wire.errors import ErrorCode, TransferError, TransportError
from fedrdma_fate.wire.frames import (
    PROBE_TRANSFERS_FROM,
    ChunkTags,
    ControlFrame,
    Delivered,
    DigestRun,
    Grant,
    GrantRequest,
    MessageKey,
    Offer,
    Refused,
    Report,
    ResendChunks,
    Restart,
    Share,
)
from fedrdma_fate.wire.header import HEADER_BYTES, header_present
from fedrdma_fate.wire.sealed import INTRODUCTION_BYTES, RECORD_OVERHEAD

logger = logging.getLogger(__name__)

_BAD_LOOKS = 100
"""Polling may see a header half landed: only one that stays bad for so many looks is damaged."""

_ENDED = 256
"""Transfers that are remembered for frames and datagrams that come late: many more than end in that time."""


class IncomingTransfers:
    """All grants given to a peer on one link, and what comes in through them. Runs on the link's thread.

    A grant that no transfer has been announced for lives no longer than the data path: the peer asks anew on the next.

    Attributes:
        arrivals: of mode `fedrdma-x` so far, on all data paths; any thread may read it.
    """

    def __init__(self, settings: LinkSettings, emit: Emit, datagrams: LinkDatagrams) -> None:
        self._settings = settings
        self._emit = emit
        self._datagrams = datagrams
        self._endpoint: Endpoint | None = None
        self._opener: PathOpener | None = None
        self._granted: dict[int, Granted] = {}
        self._tagged: dict[int, int] = {}
        self._early_chunks = 0
        self._ended: dict[int, Ended] = {}
        self._openings = Openings(settings, emit, datagrams, self._remember)
        self._lost_at: float | None = None
        self._shares_told = 0
        self.arrivals = NO_ARRIVALS

    # -- commands -------------------------------------------------------------------------------------------------

    def grant(self, grant: int, slot: Slot, transfer: int, kept: KeptSlot | None = None) -> None:
        """Let the peer write into a slot, on what is kept there: for the transfer that asked, or (0) as a credit."""
        if self._endpoint is None:
            self._emit(SlotsReturned((slot,)) if kept is None else TransferKept(kept))
            return
        granted = self._granted[grant] = Granted(slot, transfer)
        # of two grants with one tag the first keeps it, and the other is for the modes without chunk immediates
        self._tagged.setdefault(grant % TAGS, grant)
        if kept is None:
            self._datagrams.post(self._expose(self._endpoint, grant), COPIES)
            return
        granted.kept = kept
        if self._opener is not None and not self._is_sealed_by_poster:
            self._opener.note_resumed(grant)
        # too long for a datagram perhaps
        self._expose(self._endpoint, grant)

    def tell_share(self, rate: float, place: float) -> None:
        """Tell the peer what is let through, in bytes a second, infinite: all; and its place among those that begin."""
        if self._endpoint is None:
            return
        self._shares_told += 1
        share = Share(self._settings.transport, self._shares_told, rate if math.isfinite(rate) else 0.0, place)
        self._datagrams.post(share, COPIES)
        self._emit(FrameToSend(share))

    def on_early_request(self, request: GrantRequest) -> None:
        """The peer asks for a slot by a datagram, before or after the frame: where it has one, that is told again."""
        granted = next((each for each in self._granted.values() if each.asked_by == request.transfer), None)
        if granted is None:
            self._emit(GrantRequested(request, early=True))
        elif granted.told is not None and granted.offer is None and granted.kept is None:
            self._datagrams.post(granted.told)

    def path_up(self, endpoint: Endpoint, now: float, opener: PathOpener | None = None) -> None:
        """The data path is new: what was announced goes on in its slots, under new keys.

        What comes has been opened by `opener`, where there is one, which knows of which transfer it was.
        """
        self._opener = opener
        self._endpoint = endpoint
        self._lost_at = None
        for grant, granted in list(self._granted.items()):
            if opener is not None:
                opener.note_resumed(grant)
            if granted.receiver is not None:
                self._withdraw_landed(granted)
                self._carry_out(grant, granted, granted.receiver.restart(), now)
            self._expose(endpoint, grant)

    def path_lost(self, now: float, still_open: Collection[int] = (), wiped: Collection[int] = ()) -> None:
        """Nothing can come until it is renewed. To be called when nothing can be written any more.

        Args:
            now: seconds.
            still_open: grants of which that is not sure. Their transfers begin anew, in other slots.
            wiped: grants in which something may be gone that had arrived. Their transfers begin anew as well.
        """
        # the next path would take it for the offered message's, as nobody vouches for anew
        foreign = [
            grant for grant, granted in self._granted.items() if granted.offer and not self._is_of(grant, granted.offer)
        ]
        opener = self._opener if self._is_sealed_by_poster else None
        self._endpoint = self._opener = None
        stuck = [grant for grant in still_open if grant in self._granted]
        self._tell_open(self._granted[grant].slot for grant in stuck)
        self._return(stuck)
        if self._lost_at is None:
            self._lost_at = now
        self._return([*wiped, *foreign])
        if self._settings.continues_sealed:
            self._keep((grant for grant, granted in self._granted.items() if granted.is_sealed), opener)
        # what was sealed is of no use under the keys of the next path
        self._return(grant for grant, granted in self._granted.items() if granted.is_sealed)
        self._keep((grant for grant, granted in self._granted.items() if granted.offer is None), opener)
        self._return(grant for grant, granted in self._granted.items() if granted.offer is None)

    def end(self) -> None:
        """The link ends: every slot goes back. What was announced comes by another link, or its owner knows better."""
        if self._settings.continues():
            self._keep(self._granted)
        self._return(self._granted)
        self._openings.clear()

    def look_again(self, key: MessageKey) -> None:
        """What is asked about a message has another answer now: what may be missing of it, or whether it is late."""
        for granted in self._granted.values():
            if granted.offer is not None and granted.offer.key == key:
                self._ask_share(granted)

    def decline(self, offer: Offer, answer: ControlFrame) -> None:
        """The transfer will not come through its grant; `answer` says why."""
        granted = self._granted.get(offer.grant)
        if granted is not None and granted.offer is None:
            self._return([offer.grant])
        self._emit(FrameToSend(answer))

    def idle_credits(self) -> list[int]:
        """Standing grants that nothing has come through yet."""
        return [grant for grant, entry in self._granted.items() if entry.asked_by == 0 and entry.offer is None]

    # -- from the peer --------------------------------------------------------------------------------------------

    def on_return(self, grant: int) -> None:
        """The peer gives a grant back, perhaps in the middle of a transfer that it has given up or begun anew."""
        self._return([grant])
        self._openings.drop(grant)

    def on_offer(self, offer: Offer, now: float) -> None:
        """A transfer begins, unless a datagram has said so before."""
        granted = self._granted.get(offer.grant)
        ended = self._ended.get(offer.grant)
        if (granted is not None and granted.offer == offer) or (ended and ended.transfer == offer.transfer):
            return
        if offer.grant in self._openings:
            return
        if not self._may_begin(offer):
            # taken back while the offer was on its way, or its chunks could not be told from another's
            self._emit(FrameToSend(Restart(self._settings.transport, offer.transfer)))
            return
        try:
            self._begin(offer, now)
        except TransferError as error:
            self._complain("refused offer", offer, error)
            self.decline(offer, Refused(offer.transfer, error.code.value, error.message))

    def on_early_offer(self, offer: Offer, now: float) -> None:
        """The same by a datagram, before or after the frame: what cannot begin is left to the frame to be answered."""
        if self._may_begin(offer):
            with contextlib.suppress(TransferError):
                self._begin(offer, now)

    def _may_begin(self, offer: Offer) -> bool:
        granted = self._granted.get(offer.grant)
        mistaken = uses_chunk_immediates(offer.mode) and self._tagged.get(offer.grant % TAGS) != offer.grant
        if self._endpoint is None or granted is None or granted.offer is not None or mistaken:
            return False
        # what lies there, and its sender counts on, is of another payload
        return granted.kept is None or granted.kept.is_of(offer)

    def _begin(self, offer: Offer, now: float) -> None:
        assert self._endpoint is not None
        granted = self._granted[offer.grant]
        sealed = self._is_sealed_by_poster
        tagged = self._opener is not None and not sealed
        service = self._endpoint.chunk_service
        # what is sealed before it is posted is sealed once: a chunk of it that is damaged does not come again
        asks_digests = self._settings.tells_digests() and not sealed
        granted.receiver = open_receiver(
            offer, granted.slot.length, service, sealed=sealed, tagged=tagged, asks_digests=asks_digests
        )
        granted.offer = offer
        granted.started = now
        if offer.repair_chunks:
            # before the last of its chunks come, by which what was lost is found
            prepare()
        if self._settings.notes_arrivals and not granted.is_sealed and _may_go_on(offer) and self._settings.continues():
            vouched = tagged and offer.mode != "fedrdma"
            granted.notes = ArrivalNotes(offer, granted.slot, granted.receiver, now, tagged=vouched)
        goes_on = self._settings.notes_arrivals and self._settings.continues_sealed and _may_go_on(offer)
        if granted.is_sealed and goes_on and self._opener is not None:
            self._emit(TransferSealed(offer, granted.slot, self._opener, granted.adopted))
        if self._settings.tells_landed and not granted.is_sealed and _is_told_of_landing(offer):
            granted.landing = Landing(offer, granted.slot, granted.receiver)
        self._ask_share(granted)
        if self._settings.poll_headers:
            clear_stale_header(granted, granted.receiver)
        if granted.kept is not None:
            self._carry_out(offer.grant, granted, granted.receiver.adopt(granted.kept.held), now)
        early, early_writes = dict(granted.early), list(granted.early_writes)
        self._forget_early(granted)
        for immediate, chunk in early.items():
            actions = granted.receiver.on_chunk(immediate, chunk.arrived_at, now, *chunk[1:])
            self._count(granted, granted.receiver, now)
            self._carry_out(offer.grant, granted, actions, now)
        for landed in early_writes:
            actions = granted.receiver.on_landed(landed.offset, landed.length, landed.digest)
            self._carry_out(offer.grant, granted, actions, now)
        if granted.header:
            self._carry_out(offer.grant, granted, granted.receiver.on_announced(granted.header), now)
        elif granted.announced:
            self._look_at_header(offer.grant, granted, granted.receiver, now)

    def on_reconcile(self, transfers: Iterable[tuple[int, int]]) -> None:
        """The peer resumes these transfers: tell it which are not known here any more."""
        for transfer, grant in transfers:
            granted = self._granted.get(grant)
            if granted is None or granted.offer is None or granted.offer.transfer != transfer:
                self._emit(FrameToSend(Restart(self._settings.transport, transfer)))

    def on_immediate(self, grant: int, now: float) -> None:
        """A header was written behind everything before it."""
        granted = self._granted.get(grant)
        if granted is None or self._settings.poll_headers:
            return
        if granted.receiver is None:
            granted.announced = True
        else:
            self._look_at_header(grant, granted, granted.receiver, now)

    def on_header(self, header: Header, now: float) -> None:
        """`fedrdma-x`: a header came by a datagram."""
        granted, ended = self._granted.get(header.grant), self._ended.get(header.grant)
        if ended is not None and ended.delivered:
            # so it was not heard of
            self._datagrams.post(Delivered(ended.transfer))
        elif granted is None or parsed(header.raw) is None:
            return
        elif granted.receiver is None:
            granted.header = header.raw
        else:
            self._carry_out(header.grant, granted, granted.receiver.on_announced(header.raw), now)

    def on_chunk(self, landed: Completion, now: float) -> None:
        """`fedrdma-x`: a chunk was written.

        Raises:
            TransportError: LINK_LOST when the peer has written more of them before their offers than are kept.
        """
        grant = self._tagged.get(chunk_of_immediate(landed.immediate)[0])
        granted = None if grant is None else self._granted.get(grant)
        if grant is None or granted is None:
            return
        place = (landed.offset, landed.length) if landed.length else None
        if place is not None and landed.grant != grant:
            # written elsewhere than it says: what lies in this slot is not of this transfer
            return
        chunk = EarlyChunk(now, landed.digest, place, landed.received_bytes)
        if granted.receiver is not None:
            actions = granted.receiver.on_chunk(landed.immediate, now, now, *chunk[1:])
            self._count(granted, granted.receiver, now)
            self._carry_out(grant, granted, actions, now)
        else:
            self._keep_early(granted, landed, chunk)

    def on_landed(self, landed: Completion, now: float) -> None:
        """A chunk was seen to land."""
        grant = landed.immediate
        granted = self._granted.get(grant)
        if granted is None:
            return
        if granted.receiver is not None:
            actions = granted.receiver.on_landed(landed.offset, landed.length, landed.digest)
            self._carry_out(grant, granted, actions, now)
        elif landed.digest in (TAGGED, MISTAGGED):
            if self._has_room_for_early():
                granted.early_writes.append(landed)
        elif self._early_chunks < MOST_EARLY_CHUNKS:
            # a hint: without it nothing is told of how far the payload has landed
            self._early_chunks += 1
            granted.early_writes.append(landed)

    def on_abort(self, transfer: int, code: ErrorCode, reason: str, now: float) -> None:
        """The sender gave a transfer up."""
        for grant, granted in list(self._granted.items()):
            if granted.receiver is not None and granted.receiver.transfer == transfer:
                self._carry_out(grant, granted, granted.receiver.on_abort(code, reason), now)
            elif granted.receiver is None and granted.asked_by == transfer:
                self._return([grant])
        self._openings.on_abort(transfer, code, reason)

    def on_chunk_digests(self, transfer: int, told: bytes, now: float) -> None:
        """The sender tells the digests of a transfer's chunks."""
        for grant, granted in list(self._granted.items()):
            if granted.receiver is not None and granted.receiver.transfer == transfer:
                self._carry_out(grant, granted, granted.receiver.on_chunk_digests(told), now)

    def on_digest_run(self, run: DigestRun) -> None:
        """The sender tells digests of chunks that may be missing. One that overtakes the offer comes again after it."""
        for granted in self._granted.values():
            if granted.receiver is not None and granted.receiver.transfer == run.transfer:
                granted.receiver.on_digest_run(run.first, run.digests)

    def on_chunk_tags(self, told: ChunkTags) -> None:
        """The sender tells what opens chunks that are sealed in their slot, should their table not come."""
        granted = self._granted.get(told.grant)
        receiver = None if granted is None else granted.receiver
        if granted is None or not isinstance(receiver, XReceiver) or receiver.transfer != told.transfer:
            return
        plan, count = receiver.plan, len(told.tags) // RECORD_OVERHEAD
        if not (granted.is_sealed and receiver.is_bounded) or told.first + count > plan.count - plan.trailer_count:
            return
        if granted.tags is None:
            granted.tags = bytearray(plan.trailer_bytes)
            granted.tags[:INTRODUCTION_BYTES] = told.introduction
        elif granted.tags[:INTRODUCTION_BYTES] != told.introduction:
            return
        at = INTRODUCTION_BYTES + told.first * RECORD_OVERHEAD
        granted.tags[at : at + count * RECORD_OVERHEAD] = told.tags[: count * RECORD_OVERHEAD]
        first = plan.trailer_count + told.first
        receiver.on_tags_told(range(first, first + count))

    # -- time -----------------------------------------------------------------------------------------------------

    def timer(self) -> float | None:
        """When `on_timer` wants to be called."""
        times = [self._openings.timer()]
        for entry in self._granted.values():
            if entry.receiver is not None:
                times.append(entry.receiver.timer())
            if entry.notes is not None and self._endpoint is not None:
                times.append(entry.notes.timer())
        if self._lost_at is not None and self._granted:
            times.append(self._lost_at + self._settings.idle_timeout)
        due = [moment for moment in times if moment is not None]
        return min(due) if due else None

    def on_timer(self, now: float) -> None:
        """Let transfers do what is due, and take memory back from a peer that has been gone for too long.

        Its transfers begin anew when it is back.
        """
        self._openings.on_timer(now)
        for grant, granted in list(self._granted.items()):
            receiver = granted.receiver
            due = None if receiver is None else receiver.timer()
            if receiver is not None and due is not None and now >= due:
                self._ask_share(granted)
                self._carry_out(grant, granted, receiver.on_timer(now), now)
            if granted.notes is not None and grant in self._granted and self._endpoint is not None:
                self._note(granted.notes, now)
        if self._lost_at is not None and self._granted and now >= self._lost_at + self._settings.idle_timeout:
            logger.warning("%d half-received messages are dropped: their sender is gone", len(self._granted))
            self._return(self._granted)

    def wants_polling(self) -> bool:
        """Whether somebody has to look for headers."""
        if not self._settings.poll_headers or self._endpoint is None:
            return False
        return any(entry.receiver is not None for entry in self._granted.values())

    def look_for_headers(self, now: float) -> None:
        """`notify: poll` (paper, section 3.2): look at the first bytes of every slot in use."""
        for grant, granted in list(self._granted.items()):
            receiver = granted.receiver
            if receiver is None:
                continue
            raw = granted.header_bytes(receiver)
            if not header_present(raw):
                granted.looks = 0
            elif parsed(raw) is not None or granted.looks >= _BAD_LOOKS:
                granted.looks = 0
                self._look_at_header(grant, granted, receiver, now)
            else:
                granted.looks += 1

    @property
    def under_way(self) -> bool:
        """Whether anything is."""
        return any(entry.receiver is not None for entry in self._granted.values()) or bool(self._openings.progress())

    def progress(self) -> list[TransferProgress]:
        """What is under way."""
        under_way = (entry.progress() for entry in self._granted.values())
        return self._openings.progress() + [progress for progress in under_way if progress is not None]

    # -- inside ---------------------------------------------------------------------------------------------------

    def _count(self, granted: Granted, receiver: ReceivingMachine, now: float) -> None:
        if not isinstance(receiver, XReceiver):
            return
        arrived, overtaken = granted.counted
        granted.counted = receiver.arrived_bytes, receiver.overtaken_bytes
        before = self.arrivals
        self.arrivals = Arrivals(
            before.received_bytes + receiver.arrived_bytes - arrived,
            before.lost_bytes + receiver.overtaken_bytes - overtaken,
            now,
            receiver.plan.chunk_bytes,
        )

    def _expose(self, endpoint: Endpoint, grant: int) -> Grant:
        granted = self._granted[grant]
        remote = endpoint.expose(grant, granted.slot)
        # one that is in use must not look like a credit to a sender that has forgotten what for
        transfer = granted.asked_by if granted.offer is None else granted.offer.transfer
        frame = Grant(self._settings.transport, grant, remote.key, remote.address, remote.length, transfer)
        if granted.kept is not None and granted.offer is None:
            kept = granted.kept
            ranges = kept.held.ranges if self._can_use(kept) else ()
            frame = msgspec.structs.replace(frame, continues=kept.offer.grant, held=ranges)
        granted.told = frame
        self._emit(FrameToSend(frame))
        return frame

    def _keep(self, grants: Iterable[int], opener: PathOpener | None = None) -> None:
        """Close these slots to the peer, and leave them to whoever goes on there, where something does.

        Args:
            grants: whose they are.
            opener: of what came sealed into them, on a data path that is lost.
        """
        for grant in list(grants):
            if (kept := self._granted[grant].to_keep(opener)) is not None:
                self._forget(grant)
                self._emit(TransferKept(kept))

    def _note(self, notes: ArrivalNotes, now: float) -> None:
        pieces = notes.on_timer(now)
        if pieces is not None:
            self._emit(TransferNoted(notes.offer, notes.slot, notes.payload_at, notes.tagged, notes.digested, pieces))

    def _can_use(self, kept: KeptSlot) -> bool:
        """Whether what lies there counts as much as what comes by this data path, or its sender vouches for it."""
        if self._is_sealed_by_poster:
            return self._settings.continues_sealed
        return self._opener is None or kept.held.tagged or kept.offer.mode == "fedrdma"

    def _return(self, grants: Iterable[int]) -> None:
        """Close these slots to the peer and give them to the owner; unknown ones are ignored."""
        slots = tuple(self._forget(grant).slot for grant in list(grants) if grant in self._granted)
        if slots:
            self._emit(SlotsReturned(slots))

    def _tell_open(self, slots: Iterable[Slot]) -> None:
        stuck = tuple(slots)
        if stuck:
            self._emit(SlotsStillOpen(stuck))

    def _keep_early(self, granted: Granted, landed: Completion, early: EarlyChunk) -> None:
        # a chunk has a byte at least, so no transfer through this slot has one of a higher index
        if chunk_of_immediate(landed.immediate)[1] >= granted.slot.length:
            return
        if landed.immediate in granted.early:
            if early.digest is not None:
                # its bytes are those that lie there now
                granted.early[landed.immediate] = early
            return
        if self._has_room_for_early():
            granted.early[landed.immediate] = early

    def _has_room_for_early(self) -> bool:
        """Whether one more is kept, which counts from now on.

        Raises:
            TransportError: LINK_LOST when there is none, and nobody would send it again; elsewhere it counts as lost.
        """
        if self._early_chunks < MOST_EARLY_CHUNKS:
            self._early_chunks += 1
            return True
        if self._endpoint is not None and self._endpoint.chunk_service.reliable:
            message = f"the peer wrote more than {MOST_EARLY_CHUNKS} chunks before it announced what they are of."
            raise TransportError(ErrorCode.LINK_LOST, message)
        return False

    def _forget_early(self, granted: Granted) -> None:
        self._early_chunks -= len(granted.early) + len(granted.early_writes)
        granted.early.clear()
        granted.early_writes.clear()

    def _complain(self, kind: str, offer: Offer, reason: object) -> None:
        complaints, site = self._settings.complaints, self._settings.site
        message = "refused %s: %s"
        complaints.add(logger, kind, site, message, offer.key, reason, level=logging.ERROR, lines=EACH_TELLS)

    def _is_of(self, grant: int, offer: Offer) -> bool:
        """Whether what came into a grant over this data path, if anything, was sealed for this offer."""
        opener = self._opener
        return opener is None or opener.is_of(grant, offer.transfer, offer_digest(offer))

    def _look_at_header(self, grant: int, granted: Granted, receiver: ReceivingMachine, now: float) -> None:
        offer = granted.offer
        assert offer is not None
        if not self._is_of(grant, offer):
            # nothing is delivered without a header, and what came with this one was sealed for something else
            code, reason = ErrorCode.SEAL_BROKEN, "what came was sealed for another message"
            self._complain("sealed otherwise", offer, reason)
            self._emit(FrameToSend(Refused(offer.transfer, code.value, reason)))
            self._carry_out(grant, granted, receiver.on_abort(code, reason), now)
            return
        self._carry_out(grant, granted, receiver.on_announced(granted.header_bytes(receiver)), now)

    def _carry_out(self, grant: int, granted: Granted, actions: Iterable[Action], now: float) -> None:
        receiver, offer = granted.receiver, granted.offer
        assert receiver is not None
        assert offer is not None
        queue = deque(actions)
        if granted.landing is not None and (written_over := granted.landing.look()) is not None:
            self._emit(written_over)
        while queue:
            action = queue.popleft()
            if granted.landing is not None and may_change_payload(action):
                self._withdraw_landed(granted)
            match action:
                case ComputeDigest(chunk):
                    part = granted.slot.part(receiver.layout.payload_at + chunk.offset, chunk.length)
                    queue.extend(receiver.on_digest(chunk.index, chunk_digest(part.view)))
                case CopyStaged(source, target, length):
                    base = granted.slot.region.address + granted.slot.offset
                    # unlike a memoryview assignment, memmove lets other threads run
                    ctypes.memmove(base + target, base + source, length)
                case AddInSlot(source, target, length):
                    view = granted.slot.view
                    add_into(view[target : target + length], view[source : source + length])
                case ClearHeader(at):
                    granted.slot.view[at : at + HEADER_BYTES] = bytes(HEADER_BYTES)
                case WipeChunk(chunk):
                    part = granted.slot.part(receiver.layout.payload_at + chunk.offset, chunk.length)
                    ctypes.memset(part.region.address + part.offset, 0, chunk.length)
                case SendFrame(ResendChunks(chunks=chunks)) if chunks and granted.is_sealed and offer.mode != "fedrdma":
                    # all of it is here, and the digest is wrong: its tags say of which chunks
                    self._begin_opening(grant, granted, offer, receiver, (), now)
                    return
                case SendFrame(frame):
                    if isinstance(frame, Delivered):
                        if not self._settings.tells_delivered(offer.transfer):
                            continue
                        # besides: a packet of the control channel that is lost costs it 240 ms
                        self._datagrams.post(frame, COPIES)
                    self._emit(FrameToSend(frame))
                case SendReport(report):
                    self._send_report(report)
                case Finished(missing):
                    if wants_repairs(offer, receiver.plan):
                        prepare()
                    if receiver.plan.trailer_bytes:
                        # whether it is delivered is for its tags to say
                        self._begin_opening(grant, granted, offer, receiver, missing, now)
                        return
                    endpoint = self._endpoint
                    # of what is missing some may still be on its way
                    self._forget(grant, drains=bool(missing))
                    if missing and (endpoint is None or grant in endpoint.still_open):
                        # what can still be written is not told apart from what is missing: it begins anew elsewhere
                        self._emit(SlotsReturned((granted.slot,)))
                        return
                    wipe(granted.slot, receiver.layout.payload_at, missing)
                    tells = self._settings.tells_delivered(offer.transfer)
                    self._remember(grant, Ended(offer.transfer, tells))
                    if not tells and isinstance(receiver, XReceiver):
                        # until its sender is told that it is kept, it shall not take the path for broken
                        self._emit(FrameToSend(receiver.report(now)))
                    stats = TransferStats(now - granted.started, 0, 0)
                    payload_at = receiver.layout.payload_at
                    if self._settings.kept(offer, granted.slot, payload_at, missing):
                        self._emit(PayloadReceived(offer, granted.slot, payload_at, stats, missing))
                    else:
                        # another link of the peer was faster
                        self._emit(SlotsReturned((granted.slot,)))
                case Failed(code, reason):
                    self._forget(grant)
                    self._remember(grant, Ended(offer.transfer, False))
                    self._emit(ReceiveFailed(offer, granted.slot, code, reason))
                case _:
                    raise RuntimeError(f"a receiver cannot ask for {action}")
        if granted.landing is not None and (landed := granted.landing.advance()) is not None:
            self._emit(landed)

    def _withdraw_landed(self, granted: Granted) -> None:
        if granted.landing is not None and (withdrawn := granted.landing.withdraw()) is not None:
            self._emit(withdrawn)

    @property
    def _is_sealed_by_poster(self) -> bool:
        return self._opener is not None and self._endpoint is not None and self._endpoint.sealed_by_poster

    def _ask_share(self, granted: Granted) -> None:
        """Our task may say late that something may be missing, and all other messages of a round be there."""
        if granted.receiver is not None and granted.offer is not None and granted.receiver.is_bounded:
            key, settings = granted.offer.key, self._settings
            spend = functools.partial(settings.spend_holes, key)
            granted.receiver.let_miss(settings.loss_share(key), spend, is_late=settings.is_late(key))

    def _begin_opening(
        self, grant: int, granted: Granted, offer: Offer, receiver: ReceivingMachine, missing: Ranges, now: float
    ) -> None:
        """All of it has arrived but what may be missing: close its slot to the peer, and to all else, and open it."""
        endpoint, opener = self._endpoint, self._opener
        tags = self._forget(grant, drains=bool(missing)).tags
        if opener is None or endpoint is None or grant in endpoint.still_open:
            # what can still be written cannot be opened; the path is lost, and it begins anew on the next
            self._emit(SlotsReturned((granted.slot,)))
            return
        if isinstance(receiver, XReceiver) and receiver.lacks_table and tags is not None:
            layout = receiver.layout
            granted.slot.part(layout.payload_at + receiver.plan.trailer_at, len(tags)).view[:] = tags
        opening = Opening(offer, granted.slot, receiver.layout, granted.started, missing, granted.adopted)
        self._openings.begin(grant, opening, opener, now)

    def _send_report(self, report: Report) -> None:
        """By the data path where it has datagrams: on the control channel, a lost one would hold up all behind it."""
        if not self._datagrams.post(report):
            self._emit(FrameToSend(report))

    def _remember(self, grant: int, ended: Ended) -> None:
        self._ended[grant] = ended
        if len(self._ended) > _ENDED:
            del self._ended[next(iter(self._ended))]

    def _forget(self, grant: int, *, drains: bool = False) -> Granted:
        if self._endpoint is not None:
            # a path that breaks just now says so again when it is asked to make progress
            with contextlib.suppress(TransportError):
                (self._endpoint.drain if drains else self._endpoint.withdraw)(grant)
            if self._opener is not None:
                self._opener.forget(grant)
            if grant in self._endpoint.still_open:
                self._tell_open([self._granted[grant].slot])
        if self._tagged.get(grant % TAGS) == grant:
            del self._tagged[grant % TAGS]
        granted = self._granted.pop(grant)
        self._forget_early(granted)
        granted.landing = None
        return granted


def _is_told_of_landing(offer: Offer) -> bool:
    return offer.total_bytes >= LEAST_BYTES and not offer.loss_share and offer.transfer < PROBE_TRANSFERS_FROM


def _may_go_on(offer: Offer) -> bool:
    """Whether it is worth a note: probes are of no use to anybody later."""
    return offer.total_bytes > 0 and offer.transfer < PROBE_TRANSFERS_FROM
