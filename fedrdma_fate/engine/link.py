"""One thread per peer and transport: waits for completions and commands, and feeds them to the state machines."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from fedrdma_fate.core.path import PathState
from fedrdma_fate.engine.events import KnownPath, LinkEvents, LinkSettings, Outgoing, TransferProgress
from fedrdma_fate.engine.incoming import IncomingTransfers
from fedrdma_fate.engine.outgoing import OutgoingTransfers
from fedrdma_fate.engine.path_probing import PathProbing
from fedrdma_fate.ports import Completion, CompletionKind, Draft, Endpoint, Slot
from fedrdma_fate.ports import Offer as TransportOffer
from fedrdma_fate.timerfd import Timer
from fedrdma_fate.wire.datagrams import Header, PathProbe, PathProbeAnswer, decode_datagram
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, WireError, error_from_code
from fedrdma_fate.wire.frames import (
    Abort,
    ChunkAck,
    ControlFrame,
    Delivered,
    Grant,
    GrantRecall,
    GrantRequest,
    GrantReturn,
    Offer,
    Reconcile,
    Refused,
    Report,
    ResendChunks,
    Restart,
)

logger = logging.getLogger(__name__)

Clock = Callable[[], float]

_COARSE_SECONDS = 0.02
"""For what is due later than this, a millisecond more or less is nothing."""

_PUBLISH_SECONDS = 0.1
"""How old the snapshot may be that other threads see."""


class Link:
    """The data path to one peer over one transport, and every transfer on it.

    The public methods may be called from any thread; they only leave a command for the link's own thread.
    """

    def __init__(self, peer: str, settings: LinkSettings, events: LinkEvents, clock: Clock = time.monotonic) -> None:
        self._peer = peer
        self._settings = settings
        self._events = events
        self._clock = clock
        self._outgoing = OutgoingTransfers(settings, events)
        self._incoming = IncomingTransfers(settings, events)
        self._probing = PathProbing(self._outgoing.memory)
        self._endpoint: Endpoint | None = None
        self._commands: deque[Callable[[float], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wake_lock = threading.Lock()
        self._timer = Timer()
        self._closing = False
        self._attempt = 0
        self._heard_at = 0.0
        self._snapshot: list[TransferProgress] = []
        self._snapshot_at = 0.0
        self._changed = False
        self._thread = threading.Thread(target=self._run, name=f"link-{peer}-{settings.transport}", daemon=True)
        self._thread.start()

    @property
    def heard_at(self) -> float:
        """When the data path last showed a sign of life; safe from any thread."""
        return self._heard_at

    @property
    def known_path(self) -> KnownPath | None:
        """What is known of the path to the peer, None while nothing is; safe from any thread."""
        return self._outgoing.memory.known

    # -- commands -------------------------------------------------------------------------------------------------

    def connect(self, draft: Draft, peer: TransportOffer, attempt: int) -> None:
        """Connect the data path; the old one, if any, is dropped first. Events will name the attempt."""
        if not self._command(lambda _: self._connect(draft, peer, attempt)):
            draft.close()

    def hint(self, rtt: float, rate: float | None) -> None:
        """What others know: the control channel's round trip in seconds, and a configured rate in bytes a second."""

        def hint(_: float) -> None:
            self._outgoing.memory.rtt_hint = rtt
            if rate is not None:
                self._outgoing.memory.learn(PathState(rate, rtt, None), "configured")

        self._command(hint)

    def suspend(self, reason: str) -> None:
        """Drop the data path and pause: the control channel is gone."""

        def suspend(_: float) -> None:
            self._lose_path(reason, tell=False)
            self._outgoing.control_lost()

        self._command(suspend)

    def send(self, outgoing: Outgoing) -> None:
        """Send a message."""
        self._command(lambda now: self._outgoing.submit(outgoing, now))

    def written(self, transfer: int) -> None:
        """More of a message's payload lies in its slot, as `Payload.written_from` says."""
        self._command(lambda now: self._outgoing.on_written(transfer, now))

    def cancel(self, transfer: int, code: ErrorCode, reason: str) -> None:
        """Give a message up; `send_failed` follows, unless it has ended before."""
        self._command(lambda now: self._outgoing.cancel(transfer, code, reason, now))

    def grant(self, grant: int, slot: Slot, transfer: int = 0) -> None:
        """Let the peer write into this slot; without a data path it comes back at once."""
        if not self._command(lambda _: self._incoming.grant(grant, slot, transfer)):
            self._events.slots_returned([slot])

    def begin_early(self, offer: Offer) -> None:
        """Begin to receive what a datagram has announced, if that can be; else its frame decides."""
        self._command(lambda now: self._incoming.on_early_offer(offer, now))

    def decline(self, offer: Offer, answer: ControlFrame) -> None:
        """Take the grant of an announced transfer back, and answer its sender."""
        self._command(lambda _: self._incoming.decline(offer, answer))

    def recall_credits(self) -> None:
        """Ask the peer for all standing grants it has not used."""

        def recall(_: float) -> None:
            for grant in self._incoming.idle_credits():
                self._events.frame(GrantRecall(self._settings.transport, grant))

        self._command(recall)

    def frame(self, frame: ControlFrame) -> None:
        """A control frame about transfers came from the peer."""
        self._command(lambda now: self._on_frame(frame, now))

    def retire(self) -> None:
        """End the link without waiting for its thread: granted slots come back, messages on their way are dropped."""
        with self._wake_lock:
            if not self._closing:
                self._closing = True
                os.eventfd_write(self._wake, 1)

    def close(self, timeout: float = 5.0) -> None:
        """Retire the link, and wait for its thread; whether it has ended can be seen in `alive`."""
        self.retire()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def progress(self) -> list[TransferProgress]:
        """What is under way, as it was some tenths of a second ago at most; safe from any thread."""
        return self._snapshot

    # -- the thread -----------------------------------------------------------------------------------------------

    def _command(self, command: Callable[[float], None]) -> bool:
        """Leave a command; False when the link has ended."""
        with self._wake_lock:
            if self._closing:
                return False
            self._commands.append(command)
            os.eventfd_write(self._wake, 1)
            return True

    def _run(self) -> None:
        try:
            while not self._closing:
                try:
                    self._turn()
                except Exception:
                    logger.exception("link to %s over %s: internal error", self._peer, self._settings.transport)
                    self._fail_everything()
            self._finish()
        finally:
            with self._wake_lock:
                self._closing = True
                os.close(self._wake)
            self._timer.close()

    def _finish(self) -> None:
        self._lose_path("the link has ended", tell=False)
        self._run_commands()
        self._incoming.end()
        self._snapshot = []

    def _fail_everything(self) -> None:
        """After a bug of ours nothing under way can be trusted; what comes next begins on a new data path."""
        reason = "internal error, see the gateway's log"
        self._lose_path(reason, tell=True)
        self._outgoing.fail_all(ErrorCode.UNEXPECTED_EVENT, reason)
        self._incoming.end()

    def _turn(self) -> None:
        try:
            self._run_commands()
            self._wait_and_progress()
            now = self._clock()
            self._run_timers(now)
        except FedRDMAError as error:
            if error.code is not ErrorCode.LINK_LOST:
                raise
            self._lose_path(error.message, tell=True)
            now = self._clock()
        self._publish(now)

    def _run_commands(self) -> None:
        while self._commands:
            self._changed = True
            self._commands.popleft()(self._clock())

    def _wait_and_progress(self) -> None:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        poller.register(self._timer.fileno, select.POLLIN)
        endpoint = self._endpoint
        completions: Sequence[Completion] = ()
        if endpoint is not None:
            completions = endpoint.progress()
            self._dispatch(completions)
        if endpoint is not None and self._endpoint is endpoint:
            for descriptor, mask in endpoint.poll_set():
                poller.register(descriptor, mask)
        # what was just posted may complete without any descriptor becoming ready, so look again before waiting
        ready = poller.poll(0 if completions else self._set_timer())
        if any(descriptor == self._wake for descriptor, _ in ready):
            os.eventfd_read(self._wake)
        if any(descriptor == self._timer.fileno for descriptor, _ in ready):
            self._timer.expired()

    def _set_timer(self) -> float | None:
        """Milliseconds to wait at most: for what is due after less than poll can tell apart, the timer is set."""
        patience = self._patience()
        if patience is None or patience <= 0:
            return patience
        if patience < _COARSE_SECONDS:
            self._timer.set(patience)
        return patience * 1000 + 1

    def _patience(self) -> float | None:
        """Seconds until something is due."""
        if self._commands or self._closing:
            return 0
        if self._incoming.wants_polling():
            return self._settings.poll_interval
        timers = (self._outgoing.timer(), self._incoming.timer(), self._probing.timer(), self._publish_due())
        times = [due for due in timers if due is not None]
        return max(0.0, min(times) - self._clock()) if times else None

    def _run_timers(self, now: float) -> None:
        due = self._outgoing.timer()
        if due is not None and now >= due:
            self._outgoing.on_timer(now)
        self._incoming.on_timer(now)
        self._probing.on_timer(now)
        if self._incoming.wants_polling():
            self._changed = True
            self._incoming.look_for_headers(now)

    def _publish_due(self) -> float | None:
        """When the snapshot is to be taken again, None while it is right."""
        return self._snapshot_at + _PUBLISH_SECONDS if self._changed else None

    def _publish(self, now: float) -> None:
        due = self._publish_due()
        if due is not None and now >= due:
            self._snapshot = self._outgoing.progress() + self._incoming.progress()
            self._snapshot_at = now
            self._changed = False

    def _dispatch(self, completions: Sequence[Completion]) -> None:
        if not completions:
            return
        now = self._clock()
        self._heard_at = now
        self._changed = True
        for completion in completions:
            self._on_completion(completion, now)

    def _on_completion(self, completion: Completion, now: float) -> None:
        match completion.kind:
            case CompletionKind.WRITE_DONE:
                self._outgoing.on_write_done(completion.work_request, now)
            case CompletionKind.IMMEDIATE:
                self._incoming.on_immediate(completion.immediate, now)
            case CompletionKind.LANDED:
                self._incoming.on_landed(completion, now)
            case CompletionKind.CHUNK_IMMEDIATE:
                self._incoming.on_chunk(completion, now)
            case CompletionKind.DATAGRAM:
                self._on_datagram(completion.data, now)

    def _on_datagram(self, data: bytes, now: float) -> None:
        try:
            datagram = decode_datagram(data)
        except WireError as error:
            logger.warning("link to %s: ignored a datagram: %s", self._peer, error)
            return
        match datagram:
            case Report():
                self._outgoing.on_report(datagram, now)
            case Delivered(transfer=transfer):
                self._outgoing.on_delivered(transfer, now)
            case Header():
                self._incoming.on_header(datagram, now)
            case Offer() if datagram.transport == self._settings.transport:
                self._events.offered(datagram)
            case Grant() if datagram.transport == self._settings.transport:
                self._outgoing.on_early_grant(datagram, now)
            case PathProbe() | PathProbeAnswer():
                self._probing.on_datagram(datagram, now)

    def _on_frame(self, frame: ControlFrame, now: float) -> None:
        match frame:
            case Grant():
                self._outgoing.on_grant(frame, now)
            case GrantRecall(grant=grant):
                self._outgoing.on_recall(grant)
            case GrantRequest():
                self._events.grant_wanted(frame)
            case GrantReturn(grant=grant):
                self._incoming.on_return(grant)
            case Offer():
                self._incoming.on_offer(frame, now)
            case Reconcile(transfers=transfers):
                self._incoming.on_reconcile(transfers)
            case Restart(transfer=transfer):
                self._outgoing.on_restart(transfer, now)
            case ChunkAck(transfer=transfer, index=index):
                self._outgoing.on_chunk_ack(transfer, index, now)
            case Report():
                self._outgoing.on_report(frame, now)
            case ResendChunks(transfer=transfer, chunks=chunks):
                self._outgoing.on_resend(transfer, chunks, now)
            case Delivered(transfer=transfer):
                self._outgoing.on_delivered(transfer, now)
            case Refused(transfer=transfer, code=code, reason=reason):
                self._outgoing.on_refused(transfer, error_from_code(code, reason).code, reason, now)
            case Abort(transfer=transfer, code=code, reason=reason):
                self._incoming.on_abort(transfer, error_from_code(code, reason).code, reason, now)
            case _:
                raise RuntimeError(f"a link has no use for {type(frame).__name__}")

    def _connect(self, draft: Draft, peer: TransportOffer, attempt: int) -> None:
        self._lose_path("the data path is being renewed", tell=False)
        if self._closing:
            draft.close()
            return
        self._attempt = attempt
        try:
            endpoint = draft.connect(peer, self._settings.connect_timeout)
        except FedRDMAError as error:
            draft.close()
            self._events.path_lost(attempt, str(error))
            return
        self._endpoint = endpoint
        self._events.path_up(attempt)
        now = self._clock()
        self._heard_at = now
        self._probing.path_up(endpoint, now)
        self._incoming.path_up(endpoint, now)
        self._outgoing.path_up(endpoint, now)

    def _lose_path(self, reason: str, *, tell: bool) -> None:
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            # first, so that no slot is written or read any more when its owner gets it back
            endpoint.close()
        self._probing.path_lost()
        self._outgoing.path_lost()
        self._incoming.path_lost(self._clock())
        if tell:
            self._events.path_lost(self._attempt, reason)
