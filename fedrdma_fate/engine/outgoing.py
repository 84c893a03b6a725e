"""Sending transfers of one link: gets them a grant, carries out what their state machines ask for."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from fedrdma_fate.core.actions import (
    Action,
    AddToRepairs,
    ComputeDigest,
    Failed,
    Finished,
    PostChunk,
    PostRepair,
    SendFrame,
    WriteChunk,
    WriteHeader,
)
from fedrdma_fate.core.backoff import Backoff
from fedrdma_fate.core.credits import MOST_REQUESTS, Credits, GrantDeduplicator
from fedrdma_fate.core.plan import SlotLayout
from fedrdma_fate.core.sender import SenderState
from fedrdma_fate.engine.events import Emit, FrameToSend, PayloadSent, SendFailed, TransferProgress, TransferStats
from fedrdma_fate.engine.link_datagrams import LinkDatagrams
from fedrdma_fate.engine.outgoing_transfer import OutgoingTransfer, Posted, Repeated, progress_of
from fedrdma_fate.engine.path_memory import PathMemory
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.engine.repair_memory import RepairBuffer, prepare
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.engine.setup import close_transfer, open_transfer, uses_chunk_immediates, worthwhile_repairs
from fedrdma_fate.ports import Endpoint
from fedrdma_fate.security.sealing import PathSealer, digest_of_offer
from fedrdma_fate.wire.datagrams import Header
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, TransportError
from fedrdma_fate.wire.frames import Abort, Grant, GrantRequest, GrantReturn, Reconcile, Report, encode_frame

logger = logging.getLogger(__name__)

_IMMEDIATES = 1 << 32
"""An immediate value has 32 bits, and names the grant."""

Post = WriteChunk | PostChunk | PostRepair | WriteHeader

_OFFER_REPEATS = 4
"""By datagrams; the control channel brings it in any case."""


class OutgoingTransfers:
    """All sending transfers of a link. Runs on the link's thread."""

    def __init__(self, settings: LinkSettings, emit: Emit, datagrams: LinkDatagrams) -> None:
        self._settings = settings
        self._emit = emit
        self._datagrams = datagrams
        self._endpoint: Endpoint | None = None
        self._sealer: PathSealer | None = None
        self._credits = Credits()
        self._copies = GrantDeduplicator()
        self._waiting: dict[int, Outgoing] = {}
        self._active: dict[int, OutgoingTransfer] = {}
        self._lingering: list[OutgoingTransfer] = []
        self._posted: dict[int, Posted] = {}
        self._given_up: set[int] = set()
        self._asked: set[int] = set()
        self._next_work_request = 0
        self._repair_buffer = RepairBuffer(settings.repair_region)
        self.memory = PathMemory(settings.known)

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
            self._ask_next(transfer)
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.cancel(code, reason), now)

    def path_up(self, endpoint: Endpoint, now: float, sealer: PathSealer | None = None) -> None:
        """The data path is new: the peer is about to send the grants of what is under way anew, with new keys.

        What is written is sealed by `sealer`, where there is one.
        """
        self._sealer = sealer
        for transfer, active in list(self._active.items()):
            if active.service != endpoint.chunk_service:
                # it was set up for another one; the peer is about to send its grant anew all the same
                self._given_up.add(active.grant.grant)
                self.on_restart(transfer, now)
        self._endpoint = endpoint
        self._credits.clear()
        self._asked &= self._active.keys()
        if self._active:
            transfers = tuple((transfer, active.grant.grant) for transfer, active in self._active.items())
            self._emit(FrameToSend(Reconcile(self._settings.transport, transfers)))
        for outgoing in list(self._waiting.values()):
            self._seek_grant(outgoing, now)

    def path_lost(self) -> None:
        """Pause everything. To be called when the transport reads no slot any more."""
        self._endpoint = self._sealer = None
        self._posted.clear()
        self._given_up.clear()
        for active in self._active.values():
            active.sender.pause()
            active.offering = active.heading = None
            active.chunks_in_flight = 0
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
        self._asked.clear()
        for outgoing in given_up:
            self._emit(SendFailed(outgoing, code, reason))

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
        elif grant.transfer in self._waiting:
            self._begin(self._waiting.pop(grant.transfer), grant, now)
        else:
            self._give_back(grant.grant)

    def on_recall(self, grant: int) -> None:
        """The peer wants an unused grant back."""
        if self._credits.recall(grant):
            self._give_back(grant)

    def on_chunk_ack(self, transfer: int, index: int, now: float) -> None:
        """`fedrdma`: a chunk was taken in."""
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.on_chunk_ack(index, now), now)

    def on_report(self, report: Report, now: float) -> None:
        """`fedrdma-x`: the peer says what has arrived."""
        active = self._active.get(report.transfer)
        if active is not None:
            active.offering = None
            self._carry_out(active, active.sender.on_report(report, now), now)

    def on_resend(self, transfer: int, chunks: Iterable[int], now: float) -> None:
        """The peer found damage."""
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.on_resend(chunks, now), now)

    def on_delivered(self, transfer: int, now: float) -> None:
        """The peer has the payload, perhaps by an earlier link."""
        waiting = self._waiting.pop(transfer, None)
        if waiting is not None:
            self._emit(PayloadSent(waiting, TransferStats(0.0, 0, 0)))
            self._ask_next(transfer)
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.on_delivered(now), now)

    def on_refused(self, transfer: int, code: ErrorCode, reason: str, now: float) -> None:
        """The peer will not take the payload."""
        waiting = self._waiting.pop(transfer, None)
        if waiting is not None:
            self._emit(SendFailed(waiting, code, reason))
            self._ask_next(transfer)
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.on_refused(code, reason), now)

    def on_restart(self, transfer: int, now: float) -> None:
        """The peer lost track of a transfer: begin anew with another grant."""
        active = self._active.pop(transfer, None)
        if active is not None:
            # what the transport still reads of them goes to a grant that is over
            self._forget_repairs(active)
            close_transfer(active, self.memory)
            self._give_back(active.grant.grant)
            self._asked.discard(transfer)
            self.submit(active.outgoing, now)

    def on_write_done(self, work_request: int, now: float) -> None:
        """A completion of ours."""
        posted = self._posted.pop(work_request, None)
        if posted is None:
            return
        active = posted.transfer
        active.chunks_in_flight -= posted.is_chunk
        if active.outcome is not None:
            if active.chunks_in_flight == 0 and active in self._lingering:
                self._lingering.remove(active)
                self._tell_end(active)
        elif self._active.get(active.outgoing.transfer) is active:
            self._carry_out(active, active.sender.on_write_done(posted.own_request, now), now)

    # -- time -----------------------------------------------------------------------------------------------------

    def timer(self) -> float | None:
        """When `on_timer` wants to be called."""
        times = [due for active in self._active.values() if (due := active.timer()) is not None]
        times += [active.ended_at + self._settings.idle_timeout for active in self._lingering]
        return min(times, default=None)

    def on_timer(self, now: float) -> None:
        """Let transfers find out that they have stalled.

        Raises:
            TransportError: LINK_LOST when the transport does not let go of a slot.
        """
        for active in list(self._active.values()):
            for repeated in active.repeated:
                if repeated.backoff.on_timer(now):
                    self._datagrams.post(repeated.datagram)
            self._carry_out(active, active.sender.on_timer(now), now)
        if any(now >= active.ended_at + self._settings.idle_timeout for active in self._lingering):
            raise TransportError(ErrorCode.LINK_LOST, "writes of a transfer that has ended do not complete.")

    def progress(self) -> list[TransferProgress]:
        """What is under way."""
        under_way = [active.progress() for active in self._active.values()]
        return under_way + [progress_of(waiting, "waiting-for-grant", 0, 0.0) for waiting in self._waiting.values()]

    # -- inside ---------------------------------------------------------------------------------------------------

    def _seek_grant(self, outgoing: Outgoing, now: float) -> None:
        needed = SlotLayout(outgoing.plan, outgoing.mode).slot_bytes
        grant = self._credits.take(needed)
        if grant is not None:
            del self._waiting[outgoing.transfer]
            self._begin(outgoing, grant, now)
        else:
            for outgrown in self._credits.take_outgrown():
                self._give_back(outgrown.grant)
            self._ask(outgoing.transfer, needed)

    def _ask(self, transfer: int, slot_bytes: int) -> None:
        """Ask for a slot, unless so many have been asked for that this one waits for its turn."""
        if transfer in self._asked or len(self._asked) < MOST_REQUESTS:
            self._asked.add(transfer)
            self._emit(FrameToSend(GrantRequest(self._settings.transport, transfer, slot_bytes)))

    def _ask_next(self, ended: int) -> None:
        """A transfer has ended: where it had asked for a slot, the first that waits for its turn may."""
        if ended not in self._asked:
            return
        self._asked.discard(ended)
        following = next((each for each in self._waiting.values() if each.transfer not in self._asked), None)
        if following is not None and self._endpoint is not None:
            self._ask(following.transfer, SlotLayout(following.plan, following.mode).slot_bytes)

    def _complain(self, kind: str, message: str, *values: object) -> None:
        self._settings.complaints.add(logger, kind, self._settings.site, message, *values)

    def _use_credits(self, now: float) -> None:
        for transfer, outgoing in list(self._waiting.items()):
            grant = self._credits.take(SlotLayout(outgoing.plan, outgoing.mode).slot_bytes)
            if grant is not None:
                del self._waiting[transfer]
                self._begin(outgoing, grant, now)

    def _give_back(self, grant: int) -> None:
        self._emit(FrameToSend(GrantReturn(self._settings.transport, grant)))

    def _begin(self, outgoing: Outgoing, grant: Grant, now: float) -> None:
        assert self._endpoint is not None
        active = open_transfer(
            outgoing, grant, self._endpoint.chunk_service, self.memory, self._repair_buffer, self._settings, now
        )
        self._active[outgoing.transfer] = active
        offer = active.offer
        self._seal(active)
        self._emit(FrameToSend(offer))
        if uses_chunk_immediates(outgoing.mode) and self._datagrams.post(offer):
            active.offering = Repeated(offer, Backoff(now, _OFFER_REPEATS))
        self._carry_out(active, active.sender.start(now), now)

    def _seal(self, active: OutgoingTransfer) -> None:
        """Begin another attempt, with a key of its own."""
        sealer, offer = self._sealer, active.offer
        message = digest_of_offer(encode_frame(offer))
        active.sealer = None if sealer is None else sealer.begin(offer.transfer, offer.grant, message)

    def _resume(self, active: OutgoingTransfer, grant: Grant, now: float) -> None:
        active.grant = grant
        self._seal(active)
        if active.sender.state is SenderState.PAUSED:
            self._carry_out(active, active.sender.resume(now, same_slot=True), now)

    def _carry_out(self, active: OutgoingTransfer, actions: Iterable[Action], now: float) -> None:
        queue = deque(actions)
        while queue:
            action = queue.popleft()
            match action:
                case WriteHeader() if self._send_header(active, action, now):
                    pass
                case WriteChunk() | PostChunk() | PostRepair() | WriteHeader():
                    if not self._post(active, action, now):
                        return
                case AddToRepairs(chunk, numbers):
                    if active.repairs is not None:
                        active.repairs.add(active.outgoing.payload.part(chunk), numbers)
                case ComputeDigest(chunk):
                    value = active.outgoing.payload.digest(chunk)
                    queue.extend(active.sender.on_digest(chunk.index, value))
                case SendFrame(frame):
                    self._emit(FrameToSend(frame))
                case Finished():
                    stats = TransferStats(now - active.started, active.sender.resent_bytes, active.writes)
                    self._end(active, stats, now)
                case Failed():
                    self._end(active, action, now)
                case _:
                    raise RuntimeError(f"a sender cannot ask for {action}")

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
        try:
            self._post_to(endpoint, active, action)
        except FedRDMAError as error:
            if error.code is ErrorCode.LINK_LOST:
                raise
            if isinstance(action, PostRepair):
                logger.info("a repair chunk could not be sent: %s", error)
                return True
            self._carry_out(active, active.sender.cancel(error.code, error.message), now)
            return False
        return True

    def _post_to(self, endpoint: Endpoint, active: OutgoingTransfer, action: Post) -> None:
        self._next_work_request += 1
        request = self._next_work_request
        target, at = active.target, action.at
        match action:
            case WriteHeader(header=header):
                endpoint.post_bytes(request, header.encode(), target, at, active.grant.grant)
            case WriteChunk(chunk=chunk):
                endpoint.post_write(request, active.outgoing.payload.part(chunk), target, at)
            case PostChunk(chunk=chunk, queue_pair=queue_pair, immediate=immediate):
                part = active.outgoing.payload.part(chunk)
                endpoint.post_chunk(request, part, target, at, queue_pair, immediate)
            case PostRepair(number=number, queue_pair=queue_pair, immediate=immediate):
                assert active.repairs is not None
                endpoint.post_chunk(request, active.repairs.slot(number), target, at, queue_pair, immediate)
        is_chunk = not isinstance(action, WriteHeader)
        active.chunks_in_flight += is_chunk
        self._posted[request] = Posted(active, action.work_request, is_chunk)
        active.writes += 1

    def _forget_repairs(self, active: OutgoingTransfer) -> None:
        if active.repairs is not None:
            active.repairs = None
            self._repair_buffer.release()

    def _end(self, active: OutgoingTransfer, outcome: TransferStats | Failed, now: float) -> None:
        """The transfer is over; its owner may have the slot when the transport has let go of it."""
        del self._active[active.outgoing.transfer]
        self._ask_next(active.outgoing.transfer)
        close_transfer(active, self.memory)
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
                self._emit(PayloadSent(active.outgoing, stats))
            case Failed(code, reason):
                self._emit(SendFailed(active.outgoing, code, reason))
