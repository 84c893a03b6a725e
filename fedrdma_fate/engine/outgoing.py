"""Sending transfers of one link: gets them a grant, carries out what their state machines ask for."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable

from fedrdma_fate.core.actions import Action, ComputeDigest, Failed, Finished, SendFrame, WriteChunk, WriteHeader
from fedrdma_fate.core.credits import CreditBook
from fedrdma_fate.core.plan import SlotLayout
from fedrdma_fate.core.sender import Sender, SenderState, SendSettings
from fedrdma_fate.engine.events import LinkEvents, LinkSettings, Outgoing, TransferProgress, TransferStats
from fedrdma_fate.ports import Endpoint, RemoteSlot
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import Grant, GrantRequest, GrantReturn, Offer, Reconcile


@dataclasses.dataclass(slots=True)
class _Active:
    """A transfer that has a grant."""

    outgoing: Outgoing
    sender: Sender
    grant: Grant
    started: float
    writes: int = 0

    @property
    def target(self) -> RemoteSlot:
        return RemoteSlot(self.grant.key, self.grant.address, self.grant.length)


class OutgoingTransfers:
    """All sending transfers of a link. Runs on the link's thread."""

    def __init__(self, settings: LinkSettings, events: LinkEvents) -> None:
        self._settings = settings
        self._events = events
        self._endpoint: Endpoint | None = None
        self._credits = CreditBook()
        self._waiting: dict[int, Outgoing] = {}
        self._active: dict[int, _Active] = {}
        self._work_requests: dict[int, tuple[int, int]] = {}
        self._next_work_request = 0

    # -- commands -------------------------------------------------------------------------------------------------

    def submit(self, outgoing: Outgoing, now: float) -> None:
        """Send a message as soon as the data path is up and the peer has granted a slot for it."""
        self._waiting[outgoing.transfer] = outgoing
        if self._endpoint is not None:
            self._seek_grant(outgoing, now)

    def cancel(self, transfer: int, code: ErrorCode, reason: str, now: float) -> None:
        """Give a transfer up."""
        waiting = self._waiting.pop(transfer, None)
        if waiting is not None:
            self._events.send_failed(waiting, code, reason)
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.cancel(code, reason), now)

    def path_up(self, endpoint: Endpoint, now: float) -> None:
        """The data path is new: every grant is about to be sent anew by the peer, with the new path's keys."""
        self._endpoint = endpoint
        self._credits.clear()
        if self._active:
            transfers = tuple((transfer, active.grant.grant) for transfer, active in self._active.items())
            self._events.frame(Reconcile(self._settings.transport, transfers))
        for outgoing in list(self._waiting.values()):
            self._seek_grant(outgoing, now)

    def path_lost(self) -> None:
        """Pause everything."""
        self._endpoint = None
        self._work_requests.clear()
        for active in self._active.values():
            active.sender.pause()

    def peer_restarted(self) -> None:
        """Nothing of what was sent is there any more: transfers begin anew, under new offers."""
        self._credits.clear()
        for transfer, active in self._active.items():
            self._waiting[transfer] = active.outgoing
        self._active.clear()

    # -- from the peer --------------------------------------------------------------------------------------------

    def on_grant(self, grant: Grant, now: float) -> None:
        """A slot was granted, or is granted anew after the data path was renewed."""
        resumed = next((active for active in self._active.values() if active.grant.grant == grant.grant), None)
        if resumed is not None:
            resumed.grant = grant
            if resumed.sender.state is SenderState.PAUSED:
                # the first offer may have been lost with the control channel
                self._offer(resumed)
                self._carry_out(resumed, resumed.sender.resume(now, same_slot=True), now)
            return
        if grant.transfer == 0:
            self._credits.add(grant)
            self._use_credits(now)
        elif grant.transfer in self._waiting:
            self._begin(self._waiting.pop(grant.transfer), grant, now)
        else:
            self._events.frame(GrantReturn(self._settings.transport, grant.grant))

    def on_recall(self, grant: int) -> None:
        """The peer wants an unused grant back."""
        if self._credits.recall(grant):
            self._events.frame(GrantReturn(self._settings.transport, grant))

    def on_chunk_ack(self, transfer: int, index: int, now: float) -> None:
        """`fedrdma`: a chunk was taken in."""
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.on_chunk_ack(index, now), now)

    def on_resend(self, transfer: int, chunks: Iterable[int], now: float) -> None:
        """The peer found damage."""
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.on_resend(chunks, now), now)

    def on_delivered(self, transfer: int, now: float) -> None:
        """The peer has the payload."""
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.on_delivered(now), now)

    def on_refused(self, transfer: int, code: ErrorCode, reason: str, now: float) -> None:
        """The peer will not take the payload."""
        waiting = self._waiting.pop(transfer, None)
        if waiting is not None:
            self._events.send_failed(waiting, code, reason)
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.on_refused(code, reason), now)

    def on_restart(self, transfer: int, now: float) -> None:
        """The peer lost track of a transfer: begin anew with another grant."""
        active = self._active.pop(transfer, None)
        if active is not None:
            self.submit(active.outgoing, now)

    def on_write_done(self, work_request: int, now: float) -> None:
        """A completion of ours."""
        transfer, own_request = self._work_requests.pop(work_request, (0, 0))
        active = self._active.get(transfer)
        if active is not None:
            self._carry_out(active, active.sender.on_write_done(own_request, now), now)

    # -- time -----------------------------------------------------------------------------------------------------

    def timer(self) -> float | None:
        """When `on_timer` wants to be called."""
        times = [due for active in self._active.values() if (due := active.sender.timer()) is not None]
        return min(times, default=None)

    def on_timer(self, now: float) -> None:
        """Let transfers find out that they have stalled."""
        for active in list(self._active.values()):
            self._carry_out(active, active.sender.on_timer(now), now)

    def progress(self) -> list[TransferProgress]:
        """What is under way."""
        under_way = [
            _progress(active.outgoing, active.sender.state.value, active.sender.arrived_bytes, active.started)
            for active in list(self._active.values())
        ]
        return under_way + [_progress(waiting, "waiting-for-grant", 0, 0.0) for waiting in list(self._waiting.values())]

    # -- inside ---------------------------------------------------------------------------------------------------

    def _seek_grant(self, outgoing: Outgoing, now: float) -> None:
        needed = SlotLayout(outgoing.plan, outgoing.mode).slot_bytes
        grant = self._credits.take(needed)
        if grant is not None:
            del self._waiting[outgoing.transfer]
            self._begin(outgoing, grant, now)
        else:
            self._events.frame(GrantRequest(self._settings.transport, outgoing.transfer, needed))

    def _use_credits(self, now: float) -> None:
        for transfer, outgoing in list(self._waiting.items()):
            grant = self._credits.take(SlotLayout(outgoing.plan, outgoing.mode).slot_bytes)
            if grant is not None:
                del self._waiting[transfer]
                self._begin(outgoing, grant, now)

    def _begin(self, outgoing: Outgoing, grant: Grant, now: float) -> None:
        settings = SendSettings(outgoing.mode, self._settings.idle_timeout)
        active = _Active(outgoing, Sender(outgoing.transfer, outgoing.plan, settings), grant, now)
        self._active[outgoing.transfer] = active
        self._offer(active)
        self._carry_out(active, active.sender.start(now), now)

    def _offer(self, active: _Active) -> None:
        outgoing = active.outgoing
        self._events.frame(
            Offer(
                transport=self._settings.transport,
                transfer=outgoing.transfer,
                key=outgoing.key,
                kind=outgoing.kind,
                total_bytes=outgoing.plan.total_bytes,
                mode=outgoing.mode,
                grant=active.grant.grant,
                chunk_bytes=outgoing.plan.chunk_bytes,
                enable_bytes=outgoing.plan.enable_bytes,
            )
        )

    def _carry_out(self, active: _Active, actions: Iterable[Action], now: float) -> None:
        queue = deque(actions)
        while queue:
            action = queue.popleft()
            match action:
                case WriteChunk() | WriteHeader():
                    if not self._post(active, action, now):
                        return
                case ComputeDigest(chunk):
                    value = active.outgoing.payload.digest(chunk)
                    queue.extend(active.sender.on_digest(chunk.index, value))
                case SendFrame(frame):
                    self._events.frame(frame)
                case Finished():
                    self._end(active)
                    stats = TransferStats(now - active.started, active.sender.resent_bytes, active.writes)
                    self._events.sent(active.outgoing, stats)
                case Failed(code, reason):
                    self._end(active)
                    self._events.send_failed(active.outgoing, code, reason)
                case _:
                    raise RuntimeError(f"a sender cannot ask for {action}")

    def _post(self, active: _Active, action: WriteChunk | WriteHeader, now: float) -> bool:
        endpoint = self._endpoint
        if endpoint is None:
            active.sender.pause()
            return False
        self._next_work_request += 1
        request = self._next_work_request
        self._work_requests[request] = (active.outgoing.transfer, action.work_request)
        active.writes += 1
        try:
            if isinstance(action, WriteChunk):
                endpoint.post_write(request, active.outgoing.payload.part(action.chunk), active.target, action.at)
            else:
                immediate = active.grant.grant
                endpoint.post_bytes(request, action.header.encode(), active.target, action.at, immediate)
        except FedRDMAError as error:
            if error.code is ErrorCode.LINK_LOST:
                active.sender.pause()
                raise
            self._carry_out(active, active.sender.cancel(error.code, error.message), now)
            return False
        return True

    def _end(self, active: _Active) -> None:
        self._active.pop(active.outgoing.transfer, None)


def _progress(outgoing: Outgoing, state: str, done_bytes: int, started: float) -> TransferProgress:
    total = outgoing.plan.total_bytes
    return TransferProgress(outgoing.transfer, outgoing.key, "send", outgoing.mode, state, total, done_bytes, started)
