"""Sending transfers of one link: gets them a grant, carries out what their state machines ask for.

More than 500 lines: what begins a transfer, what it waits for and what ends it are to be seen in one place.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable

from fedrdma_fate.core.actions import (
    Action,
    AddToRepairs,
    ChunkArrived,
    ComputeDigest,
    Failed,
    Finished,
    PostChunk,
    PostRepair,
    SendFrame,
    TellDigests,
    WriteChunk,
    WriteHeader,
)
from fedrdma_fate.core.backoff import Backoff
from fedrdma_fate.core.credits import Credits, GrantDeduplicator
from fedrdma_fate.core.damage import pack_digests
from fedrdma_fate.core.sender import SenderState
from fedrdma_fate.core.shares.share_sender import NO_ARRIVALS, Arrivals
from fedrdma_fate.core.x.sender import XSender
from fedrdma_fate.engine.events import Emit, FrameToSend, PayloadSent, SendFailed, TransferProgress, TransferStats
from fedrdma_fate.engine.link_datagrams import COPIES, LinkDatagrams
from fedrdma_fate.engine.outgoing_transfer import ActiveTransfers, OutgoingTransfer, Repeated, progress_of
from fedrdma_fate.engine.path_memory import PathMemory
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.engine.posted_writes import Post, PostedWrites
from fedrdma_fate.engine.repair_memory import RepairBuffer
from fedrdma_fate.engine.sealing_ring import SealingRing
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.engine.setup import (
    close_transfer,
    open_transfer,
    slot_bytes_needed,
    uses_chunk_immediates,
    worthwhile_repairs,
)
from fedrdma_fate.engine.slot_requests import SlotRequests
from fedrdma_fate.engine.stalled import StalledTransfers
from fedrdma_fate.late_numpy import prepare
from fedrdma_fate.ports import Endpoint
from fedrdma_fate.security.sealing import PathSealer
from fedrdma_fate.wire.datagrams import Header
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, TransportError
from fedrdma_fate.wire.frames import (
    PROBE_TRANSFERS_FROM,
    Abort,
    DigestRun,
    Grant,
    GrantReturn,
    Reconcile,
    Report,
    Share,
)

logger = logging.getLogger(__name__)

_IMMEDIATES = 1 << 32
"""An immediate value has 32 bits, and names the grant."""

_OFFER_REPEATS = 4
"""By datagrams; the control channel brings it in any case."""

_MOST_BEGINNINGS = 4
"""Of a sealed transfer whose receiver finds damage: as many as it sends plain chunks, the first time included."""

_MOST_RESTARTS = 16
"""That the peer asks for, of one transfer on one data path: one of ours does once where it lost track, and three times
at most where it could not open what came."""

TAG_SECONDS = 1.0
"""Between two times that the peer is told tags: it opens by them what it has where this gateway is killed. So a
transfer that takes less than a second tells none."""

LEAST_TOLD_CHUNK_BYTES = 2048
"""Of shorter chunks tags are not told ahead: they would be more than 1.2 % of the payload, on paths that are slow."""

MOST_HELD_SECONDS = 0.1
"""That a peer may say to have held a report back: ours do for 2 ms, and for as long as a busy host is late."""


class OutgoingTransfers:
    """All sending transfers of a link. Runs on the link's thread.

    Attributes:
        memory: what is known of the path.
        deliveries: what has arrived at the peer in mode `fedrdma-x` so far, on all data paths, as it reports; any
            thread may read it.
    """

    def __init__(self, settings: LinkSettings, emit: Emit, datagrams: LinkDatagrams) -> None:
        self._settings = settings
        self._emit = emit
        self._datagrams = datagrams
        self._endpoint: Endpoint | None = None
        self._sealer: PathSealer | None = None
        self._ring: SealingRing | None = None
        self._stalled = StalledTransfers()
        self._damaged: Counter[int] = Counter()
        self._restarted: Counter[int] = Counter()
        self._credits = Credits()
        self._copies = GrantDeduplicator()
        self._waiting: dict[int, Outgoing] = {}
        self._granted: dict[int, Grant] = {}
        self._active = ActiveTransfers()
        self._lingering: list[OutgoingTransfer] = []
        self._posted = PostedWrites()
        self._given_up: set[int] = set()
        self._requests = SlotRequests(settings.transport, emit, datagrams)
        self._repair_buffer = RepairBuffer(settings.repair_region)
        self._arrived_at = 0.0
        self.deliveries = NO_ARRIVALS
        self._latest_share = -1
        self._told_place = self._own_place = 0.0
        self.memory = PathMemory(settings.known, settings.make_controller)

    # -- commands -------------------------------------------------------------------------------------------------

    def submit(self, outgoing: Outgoing, now: float) -> None:
        """Send a message as soon as the data path is up and the peer has granted a slot for it."""
        self._waiting[outgoing.transfer] = outgoing
        if self._endpoint is not None:
            self._seek_grant(outgoing, now)

    def on_written(self, transfer: int, now: float) -> None:
        """More of a payload lies in its slot."""
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.on_written(active.outgoing.payload.written_from, now), now)

    def cancel(self, transfer: int, code: ErrorCode, reason: str, now: float) -> None:
        """Give a message up."""
        waiting = self._waiting.pop(transfer, None)
        if waiting is not None:
            self._emit(FrameToSend(Abort(transfer, code.value, reason)))
            self._emit(SendFailed(waiting, code, reason))
            self._ask_next(transfer, now)
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.cancel(code, reason), now)

    def path_up(
        self, endpoint: Endpoint, now: float, sealer: PathSealer | None = None, ring: SealingRing | None = None
    ) -> None:
        """The data path is new: the peer is about to send the grants of what is under way anew, with new keys.

        What is written is sealed by `sealer`, where there is one; in the ring, where that is done before it is posted.
        """
        self._sealer, self._ring = sealer, ring
        self._restarted.clear()
        for transfer, active in list(self._active.items()):
            if active.sealed is not None:
                # under other keys: what has arrived is opened by the peer, which keeps its slot as long
                self._begin_with_another_grant(transfer, now, goes_on=True)
            elif active.service != endpoint.chunk_service:
                # it was set up for another one; the peer is about to send its grant anew all the same
                self._given_up.add(active.grant.grant)
                self._begin_with_another_grant(transfer, now)
        self._endpoint = endpoint
        self.memory.repairs_packets = endpoint.chunk_service.repairs_packets
        self._credits.clear()
        self._requests.keep(self._active.keys())
        if self._active:
            transfers = tuple((transfer, active.grant.grant) for transfer, active in self._active.items())
            self._emit(FrameToSend(Reconcile(self._settings.transport, transfers)))
        # of what was bounded on the one before; before they go on, both ends say what holds for this one
        self._share_out(now)
        for outgoing in list(self._waiting.values()):
            self._seek_grant(outgoing, now)

    def path_lost(self) -> None:
        """Pause everything. To be called when the transport reads no slot any more."""
        self._endpoint = self._sealer = self._ring = None
        # both ends know that it was of that path
        self._granted.clear()
        self._requests.path_lost()
        self._stalled.clear()
        self._posted.clear()
        self._given_up.clear()
        for active in self._active.values():
            active.note_so_far()
            active.sender.pause()
            active.offering = active.heading = None
            active.chunks_in_flight = 0
            active.stalled.clear()
        # both ends decide anew what goes by the next
        self._latest_share, self.memory.told, self.memory.limit = -1, math.inf, math.inf
        ended, self._lingering = self._lingering, []
        for active in ended:
            self._tell_end(active)

    def fail_all(self, code: ErrorCode, reason: str) -> None:
        """None of the messages will be sent. To be called without a data path."""
        given_up = [*self._waiting.values(), *(active.outgoing for active in self._active.values())]
        for active in self._active.values():
            self._forget_repairs(active)
            close_transfer(active, self.memory)
        self._waiting.clear()
        self._active.clear()
        self._requests.keep(())
        self._damaged.clear()
        self._restarted.clear()
        for outgoing in given_up:
            self._emit(SendFailed(outgoing, code, reason))

    def on_path_told(self, now: float) -> None:
        """What was waited for is known of the path, or is waited for no longer."""
        granted, self._granted = self._granted, {}
        for transfer, grant in granted.items():
            self._take_grant_of(transfer, grant, now)

    # -- from the peer --------------------------------------------------------------------------------------------

    def on_grant(self, grant: Grant, now: float) -> None:
        """A slot was granted, or is granted anew after the data path was renewed."""
        if self._copies.on_frame(grant):
            self._take_grant(grant, now)

    def on_early_grant(self, grant: Grant, now: float) -> None:
        """The same by a datagram, before or after the frame."""
        if self._copies.on_datagram(grant):
            self._take_grant(grant, now)

    def control_lost(self) -> None:
        """The control channel is gone, and what was on its way by it."""
        self._copies.control_lost()

    def _take_grant(self, grant: Grant, now: float) -> None:
        if self._endpoint is None:
            # of a path that is lost already: all grants come again with the next one
            return
        if not 0 <= grant.grant < _IMMEDIATES:
            self._complain("bad grant", "ignored a grant whose id %s is out of range", grant.grant)
            return
        if grant.grant in self._given_up:
            self._given_up.discard(grant.grant)
            return
        resumed = next((active for active in self._active.values() if active.grant.grant == grant.grant), None)
        if resumed is not None:
            self._resume(resumed, grant, now)
        elif grant.transfer == 0:
            if self._credits.add(grant):
                self._use_credits(now)
            else:
                self._complain("too many grants", "gave a grant back that is one too many")
                self._give_back(grant.grant)
        else:
            self._take_grant_of(grant.transfer, grant, now)

    def _take_grant_of(self, transfer: int, grant: Grant, now: float) -> None:
        """A slot that was granted for this transfer, which may have ended since."""
        outgoing, held = self._waiting.get(transfer), self._granted.get(transfer)
        if outgoing is None or (held is not None and held.grant != grant.grant):
            # where it is kept back it may have one that was granted ahead, and have asked for another before
            self._give_back(grant.grant)
        elif self._is_kept_back(outgoing):
            self._requests.answered(transfer)
            self._granted[transfer] = grant
        else:
            del self._waiting[transfer]
            self._begin(outgoing, grant, now)

    def on_share(self, share: Share, now: float) -> None:
        """The peer says what it lets through of all transfers together."""
        if self._endpoint is None or share.number <= self._latest_share:
            return
        self._latest_share = share.number
        self.memory.told, self._told_place = share.rate or math.inf, share.place
        if self._settings.repair_region is not None and not self._endpoint.chunk_service.reliable:
            # the first transfer may lose something
            prepare()
        self._share_out(now)

    def limit(self, rate: float, place: float, now: float) -> None:
        """Send no more than this of all transfers together, bytes a second: there are other peers to send to.

        Of the first chunk's time, `place` is the part that is not waited.
        """
        self.memory.limit, self._own_place = rate, place
        self._share_out(now)

    def _share_out(self, now: float) -> None:
        """Divide what may be sent among the transfers that go by it, of whom each may do as much."""
        bounded = [active for active in self._active.values() if isinstance(active.sender, XSender)]
        for active in bounded:
            if isinstance(active.sender, XSender) and active.outcome is None:
                self._carry_out(active, active.sender.bound_rate(self.memory.bound / len(bounded), now), now)

    def on_recall(self, grant: int) -> None:
        """The peer wants an unused grant back."""
        if self._credits.recall(grant):
            self._give_back(grant)

    def on_chunk_ack(self, transfer: int, index: int, now: float) -> None:
        """`fedrdma`: a chunk was taken in."""
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.on_chunk_ack(index, now), now)

    def on_chunk_nack(self, immediate: int, missing_bytes: int) -> None:
        """The data path would only send so many bytes of a chunk if it were posted again."""
        if (active := self._active.of_immediate(immediate)) is not None:
            active.sender.on_chunk_nack(immediate, missing_bytes)

    def on_report(self, report: Report, now: float) -> None:
        """`fedrdma-x`: the peer says what has arrived."""
        active = self._active.get(report.transfer)
        if active is not None:
            active.offering = None
            before = active.sender.arrived_bytes
            self._carry_out(active, active.sender.on_report(report, now), now)
            if active.sender.arrived_bytes > before:
                self._arrived_at = now
                self._note_delivered(active, now - min(max(0.0, report.held), MOST_HELD_SECONDS))

    def _note_delivered(self, active: OutgoingTransfer, now: float) -> None:
        """Count what has arrived of a transfer, and what was lost."""
        sender = active.sender
        if not isinstance(sender, XSender):
            return
        arrived, lost = active.counted
        active.counted = sender.delivered_bytes, sender.lost_bytes
        before = self.deliveries
        self.deliveries = Arrivals(
            before.received_bytes + sender.delivered_bytes - arrived,
            before.lost_bytes + sender.lost_bytes - lost,
            max(now, before.at),
        )

    def on_resend(self, transfer: int, chunks: Iterable[int], now: float) -> None:
        """The peer found damage.

        What was sealed is not kept once it has arrived, and not sealed anew under the same key: it is begun anew.
        """
        active = self._active.get(transfer)
        if active is None:
            return
        wanted, sealed = tuple(chunks), active.sealed
        # by chunk immediates everything is meant, whichever is named, unless digests have told which are damaged
        everything = wanted and uses_chunk_immediates(active.outgoing.mode) and not active.sender.told_digests
        if sealed is not None and (everything or not sealed.keeps_all(wanted)):
            self._begin_anew(active, now)
        else:
            self._carry_out(active, active.sender.on_resend(wanted, now), now)

    def on_digest_request(self, transfer: int, now: float) -> None:
        """The peer has all of a transfer, and a wrong digest."""
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.on_digest_request(), now)

    def _begin_anew(self, active: OutgoingTransfer, now: float) -> None:
        transfer = active.outgoing.transfer
        self._damaged[transfer] += 1
        if self._damaged[transfer] < _MOST_BEGINNINGS:
            self._begin_with_another_grant(transfer, now)
            return
        reason = f"the payload came damaged {self._damaged[transfer]} times"
        self._carry_out(active, active.sender.cancel(ErrorCode.DIGEST_MISMATCH, reason), now)

    def on_delivered(self, transfer: int, now: float) -> None:
        """The peer has the payload, perhaps by an earlier link; of one that is still being written that is not so."""
        active, waiting = self._active.get(transfer), self._waiting.get(transfer)
        outgoing = active.outgoing if active is not None else waiting
        if outgoing is not None and outgoing.payload.written_from:
            code = ErrorCode.MALFORMED_FRAME.value
            self._complain("untrue delivery", "[%s] not all of %s is written, and it is delivered", code, outgoing.key)
            return
        waiting = self._waiting.pop(transfer, None)
        if waiting is not None:
            self._emit(PayloadSent(waiting, TransferStats(0.0, 0, 0)))
            self._ask_next(transfer, now)
        if active is not None:
            self._carry_out(active, active.sender.on_delivered(now), now)

    def on_refused(self, transfer: int, code: ErrorCode, reason: str, now: float) -> None:
        """The peer will not take the payload."""
        waiting = self._waiting.pop(transfer, None)
        if waiting is not None:
            self._emit(SendFailed(waiting, code, reason))
            self._ask_next(transfer, now)
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.on_refused(code, reason), now)

    def on_restart(self, transfer: int, now: float) -> None:
        """The peer lost track of a transfer: begin anew with another grant."""
        active = self._active.get(transfer)
        if active is None:
            return
        self._restarted[transfer] += 1
        if self._restarted[transfer] <= _MOST_RESTARTS:
            if active.sealed is not None:
                # it may have found some chunks wrong, and keep the others
                active.outgoing.so_far.forget()
                active.outgoing.so_far.earlier = True
            self._begin_with_another_grant(transfer, now, goes_on=active.sealed is not None)
            return
        reason = f"asked to begin anew {self._restarted[transfer]} times"
        self._carry_out(active, active.sender.cancel(ErrorCode.UNEXPECTED_EVENT, reason), now)

    def _begin_with_another_grant(self, transfer: int, now: float, *, goes_on: bool = False) -> None:
        active = self._active.take(transfer)
        if active is not None:
            # what the transport still reads of them goes to a grant that is over
            self._forget_repairs(active)
            self._forget_sealed(active)
            close_transfer(active, self.memory)
            self._give_back(active.grant.grant)
            if not goes_on:
                active.outgoing.so_far.forget()
            self._requests.ended(transfer)
            self.submit(active.outgoing.plain, now)
            self._serve_stalled(now)

    def on_write_done(self, work_request: int, now: float) -> None:
        """A completion of ours."""
        posted = self._posted.take_done(work_request)
        if posted is None:
            return
        active = posted.transfer
        if active.outcome is not None:
            if active.chunks_in_flight == 0 and active in self._lingering:
                self._lingering.remove(active)
                self._tell_end(active)
        elif self._active.get(active.outgoing.transfer) is active:
            before = active.sender.arrived_bytes
            self._carry_out(active, active.sender.on_write_done(posted.own_request, now), now)
            if active.sender.arrived_bytes > before:
                self._note_delivered(active, now)
        self._serve_stalled(now)

    def waiting_since(self) -> float | None:
        """Since when chunks are under way, or lost, and none of any transfer has arrived; None where nobody waits."""
        waits = [since for active in self._active.values() if (since := active.sender.waiting_since) is not None]
        # a transfer that has just begun has waited for nothing yet
        return max(min(waits), self._arrived_at) if waits else None

    # -- time -----------------------------------------------------------------------------------------------------

    def timer(self) -> float | None:
        """When `on_timer` wants to be called."""
        times = self._requests.timers()
        if self._active:
            times += [due for active in self._active.values() if (due := active.timer()) is not None]
        if self._lingering:
            times += [active.ended_at + self._settings.idle_timeout for active in self._lingering]
        return min(times) if times else None

    def on_timer(self, now: float) -> None:
        """Let transfers find out that they have stalled.

        Raises:
            TransportError: LINK_LOST when the transport does not complete what was posted.
        """
        self._requests.on_timer(now)
        for active in list(self._active.values()):
            for repeated in active.repeated:
                if repeated.backoff.on_timer(now):
                    self._datagrams.post(repeated.datagram)
            if now >= active.tags_due:
                active.tags_due = now + TAG_SECONDS
                for tags in active.take_untold():
                    self._emit(FrameToSend(tags))
            if (fails_at := active.sender.fails_at) is not None and now >= fails_at and self._moves(active):
                active.sender.on_moving(now)
            self._carry_out(active, active.sender.on_timer(now), now)
            if active.outcome is not None and self._posted.any_of(active):
                raise TransportError(ErrorCode.LINK_LOST, "writes of a transfer that moved no more do not complete.")
        for active in self._lingering:
            if now < active.ended_at + self._settings.idle_timeout:
                continue
            if not self._moves(active):
                raise TransportError(ErrorCode.LINK_LOST, "writes of a transfer that has ended do not complete.")
            active.ended_at = now

    def _moves(self, active: OutgoingTransfer) -> bool:
        """Whether any byte has moved on the data path since this was last asked of this transfer, or since it began."""
        before, active.moved_bytes = active.moved_bytes, self._moved_bytes
        return active.moved_bytes != before

    @property
    def _moved_bytes(self) -> int:
        return 0 if self._endpoint is None else self._endpoint.moved_bytes

    @property
    def under_way(self) -> bool:
        """Whether anything is."""
        return bool(self._active or self._waiting)

    def progress(self) -> list[TransferProgress]:
        """What is under way."""
        under_way = [active.progress() for active in self._active.values()]
        return under_way + [progress_of(waiting, "waiting-for-grant", 0, 0.0) for waiting in self._waiting.values()]

    # -- inside ---------------------------------------------------------------------------------------------------

    def _is_kept_back(self, outgoing: Outgoing) -> bool:
        """Whether it is cut for the path, of which nothing is known yet, but soon will be."""
        return self.memory.awaits_train and outgoing.recut and uses_chunk_immediates(outgoing.mode)

    def _seek_grant(self, outgoing: Outgoing, now: float) -> None:
        needed = self._needed(outgoing)
        # where some of it has arrived, the peer may have kept that slot: to ask for it costs less than to begin anew
        knows_how = self._settings.continues() if self._ring is None else self._settings.continues_sealed
        goes_on = outgoing.so_far.is_some and knows_how
        grant = None if goes_on else self._credits.take(needed)
        if grant is not None:
            self._take_grant_of(outgoing.transfer, grant, now)
        else:
            for outgrown in () if goes_on else self._credits.take_outgrown():
                # ahead of the request, by the same ways: its room is what is asked for
                self._give_back(outgrown.grant)
                self._datagrams.post(GrantReturn(self._settings.transport, outgrown.grant), COPIES)
            if goes_on and self._settings.knows_tags():
                for tags in outgoing.so_far.tags:
                    self._emit(FrameToSend(tags))
            self._requests.ask(outgoing, needed, now)

    def _needed(self, outgoing: Outgoing) -> int:
        sealed = self._ring is not None
        needed = slot_bytes_needed(outgoing.plan, outgoing.mode, sealed=sealed, recut=outgoing.recut)
        if sealed or outgoing.mode == "grpc":
            return needed
        # it may have to go on where tags lie in its slot
        with_tags = slot_bytes_needed(outgoing.plan, outgoing.mode, sealed=True, recut=outgoing.recut)
        return max(needed, with_tags) if self._settings.leaves_room_for_tags(with_tags) else needed

    def _ask_next(self, ended: int, now: float) -> None:
        """A transfer has ended: where it had asked for a slot, another that waits for its turn may."""
        self._damaged.pop(ended, None)
        self._restarted.pop(ended, None)
        if not self._requests.ended(ended):
            return
        following = self._requests.next_of(self._waiting.values())
        if following is not None and self._endpoint is not None:
            self._requests.ask(following, self._needed(following), now)

    def _complain(self, kind: str, message: str, *values: object) -> None:
        self._settings.complaints.add(logger, kind, self._settings.site, message, *values)

    def _use_credits(self, now: float) -> None:
        for transfer, outgoing in list(self._waiting.items()):
            if transfer in self._granted or (self._requests.has_asked(transfer) and outgoing.so_far.is_some):
                continue
            grant = self._credits.take(self._needed(outgoing))
            if grant is not None:
                self._take_grant_of(transfer, grant, now)

    def _give_back(self, grant: int) -> None:
        self._emit(FrameToSend(GrantReturn(self._settings.transport, grant)))

    def _begin(self, outgoing: Outgoing, grant: Grant, now: float) -> None:
        assert self._endpoint is not None
        self._requests.answered(outgoing.transfer)
        active = open_transfer(
            outgoing,
            grant,
            self._endpoint.chunk_service,
            self.memory,
            self._repair_buffer,
            self._settings,
            now,
            sealed=self._ring is not None,
            place=self._told_place if self.memory.told < self.memory.limit else self._own_place,
            held=outgoing.held_in(grant, sealed=self._ring is not None),
        )
        outgoing.so_far.tags = ()
        active.moved_bytes = self._moved_bytes
        self._active.add(active)
        if math.isfinite(self.memory.bound):
            self._share_out(now)
        offer = active.offer
        active.begin_attempt(self._sealer, self._ring)
        if active.sealed is not None and self._tells_tags(active.outgoing):
            active.tags_due = now + TAG_SECONDS
        self._emit(FrameToSend(offer))
        if uses_chunk_immediates(outgoing.mode) and self._datagrams.post(offer):
            active.offering = Repeated(offer, Backoff(now, _OFFER_REPEATS))
        self._carry_out(active, active.sender.start(now), now)

    def _tells_tags(self, outgoing: Outgoing) -> bool:
        """Whether the peer is told them while chunks are under way; when the data path is gone, it is in any case."""
        is_worth_it = outgoing.plan.chunk_bytes >= LEAST_TOLD_CHUNK_BYTES and outgoing.transfer < PROBE_TRANSFERS_FROM
        return is_worth_it and self._settings.continues_sealed

    def _resume(self, active: OutgoingTransfer, grant: Grant, now: float) -> None:
        if active.sealed is not None:
            # begun on this very path: the same grant once more
            return
        active.grant = grant
        active.moved_bytes = self._moved_bytes
        active.begin_attempt(self._sealer, self._ring)
        if active.sender.state is SenderState.PAUSED:
            self._carry_out(active, active.sender.resume(now, same_slot=True), now)

    def _carry_out(self, active: OutgoingTransfer, actions: Iterable[Action], now: float) -> None:
        queue = self._stalled.admit(active, actions)
        while queue:
            action = queue.popleft()
            if not self._stalled.may_go(active, action):
                self._stalled.add(active, [action, *queue])
                return
            match action:
                case WriteHeader() if self._send_header(active, action, now):
                    pass
                case WriteChunk() | PostChunk() | PostRepair() | WriteHeader():
                    if not self._post(active, action, now):
                        return
                case AddToRepairs(chunk, numbers):
                    if active.repairs is not None:
                        active.repairs.add(active.source.part(chunk), numbers)
                case ChunkArrived(chunk):
                    if active.sealed is not None:
                        active.sealed.on_arrived(chunk)
                case ComputeDigest(chunk):
                    value = active.digest(chunk)
                    queue.extend(active.sender.on_digest(chunk.index, value))
                case SendFrame(frame):
                    self._emit(FrameToSend(frame))
                case TellDigests() if active.sealed is not None:
                    # by them what has come can be opened without the table
                    for tags in active.take_untold() if self._settings.knows_tags() else ():
                        self._emit(FrameToSend(tags))
                case TellDigests(first, digests):
                    run = DigestRun(active.outgoing.transfer, first, pack_digests(digests))
                    self._datagrams.post(run, COPIES)
                    self._emit(FrameToSend(run))
                case Finished():
                    stats = TransferStats(now - active.started, active.sender.resent_bytes, active.writes)
                    self._end(active, stats, now)
                case Failed():
                    self._end(active, action, now)
                case _:
                    raise RuntimeError(f"a sender cannot ask for {action}")
        self._serve_stalled(now)

    def _serve_stalled(self, now: float) -> None:
        """There may be room again for what waits for it."""
        while (active := self._stalled.next()) is not None:
            actions = self._stalled.take(active)
            self._carry_out(active, actions, now)

    def _send_header(self, active: OutgoingTransfer, action: WriteHeader, now: float) -> bool:
        """By datagrams, where the data path has them and the mode asks for no order."""
        if not uses_chunk_immediates(active.outgoing.mode):
            return False
        header = Header(active.grant.grant, action.header.encode())
        if not self._datagrams.post(header):
            return False
        active.heading = Repeated(header, Backoff(now))
        return True

    def _post(self, active: OutgoingTransfer, action: Post, now: float) -> bool:
        """Hand a write to the transport; False when the transfer cannot go on just now, or at all."""
        endpoint = self._endpoint
        if endpoint is None:
            active.sender.pause()
            return False
        if active.sealed is not None and isinstance(action, PostChunk) and not active.sealed.is_kept(action.chunk):
            # it waited for room so long that it was asked for twice, and has arrived
            return True
        try:
            self._posted.post(endpoint, active, action)
        except FedRDMAError as error:
            if error.code is ErrorCode.LINK_LOST:
                raise
            if isinstance(action, PostRepair):
                logger.info("a repair chunk could not be sent: %s", error)
                return True
            self._carry_out(active, active.sender.cancel(error.code, error.message), now)
            return False
        return True

    def _forget_repairs(self, active: OutgoingTransfer) -> None:
        if active.repairs is not None:
            active.repairs = None
            self._repair_buffer.release()

    def _forget_sealed(self, active: OutgoingTransfer) -> None:
        """What the transport still reads is free when it does not any more."""
        self._stalled.forget(active)
        if active.sealed is not None:
            active.sealed.close()

    def _end(self, active: OutgoingTransfer, outcome: TransferStats | Failed, now: float) -> None:
        """The transfer is over; its owner may have the slot when the transport has let go of it."""
        self._active.take(active.outgoing.transfer)
        self._forget_sealed(active)
        self._ask_next(active.outgoing.transfer, now)
        close_transfer(active, self.memory)
        if math.isfinite(self.memory.bound):
            self._share_out(now)
        if worthwhile_repairs(active.outgoing, active.service, self.memory, self._settings) is not None:
            prepare()
        active.outcome = outcome
        active.ended_at = now
        if active.chunks_in_flight and self._endpoint is not None:
            self._lingering.append(active)
        else:
            self._tell_end(active)

    def _tell_end(self, active: OutgoingTransfer) -> None:
        self._forget_repairs(active)
        match active.outcome:
            case TransferStats() as stats:
                self._emit(PayloadSent(active.outgoing.plain, stats))
            case Failed(code, reason):
                self._emit(SendFailed(active.outgoing.plain, code, reason))
