"""One thread per peer and transport: waits for completions and commands, and feeds them to the state machines."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from fedrdma_fate.engine.events import LinkEvents, LinkSettings, Outgoing, TransferProgress
from fedrdma_fate.engine.incoming import IncomingTransfers
from fedrdma_fate.engine.outgoing import OutgoingTransfers
from fedrdma_fate.ports import Completion, CompletionKind, Draft, Endpoint, Slot
from fedrdma_fate.ports import Offer as TransportOffer
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, error_from_code
from fedrdma_fate.wire.frames import (
    Abort,
    ChunkAck,
    ControlFrame,
    Delivered,
    Grant,
    GrantRecall,
    GrantReturn,
    Offer,
    Reconcile,
    Refused,
    ResendChunks,
    Restart,
)

logger = logging.getLogger(__name__)

Clock = Callable[[], float]


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
        self._endpoint: Endpoint | None = None
        self._commands: deque[Callable[[float], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wake_lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"link-{peer}-{settings.transport}", daemon=True)
        self._thread.start()

    # -- commands -------------------------------------------------------------------------------------------------

    def connect(self, draft: Draft, peer: TransportOffer) -> None:
        """Connect the data path; the old one, if any, is dropped first."""
        self._command(lambda _: self._connect(draft, peer))

    def suspend(self, reason: str) -> None:
        """Drop the data path and pause: the control channel is gone."""
        self._command(lambda _: self._lose_path(reason, tell=False))

    def peer_restarted(self) -> None:
        """The peer came back as a new incarnation, without any memory of what was under way."""

        def forget(_: float) -> None:
            self._lose_path("the peer restarted", tell=False)
            self._outgoing.peer_restarted()
            self._incoming.peer_restarted()

        self._command(forget)

    def send(self, outgoing: Outgoing) -> None:
        """Send a message."""
        self._command(lambda now: self._outgoing.submit(outgoing, now))

    def cancel(self, transfer: int, code: ErrorCode, reason: str) -> None:
        """Give a sending transfer up."""
        self._command(lambda now: self._outgoing.cancel(transfer, code, reason, now))

    def grant(self, grant: int, slot: Slot, transfer: int = 0) -> None:
        """Let the peer write into this slot."""
        self._command(lambda _: self._incoming.grant(grant, slot, transfer))

    def reject(self, offer: Offer, code: ErrorCode, reason: str) -> None:
        """Refuse an announced transfer, and take its grant back."""
        self._command(lambda _: self._incoming.reject(offer, code, reason))

    def recall_credits(self) -> None:
        """Ask the peer for all standing grants it has not used."""

        def recall(_: float) -> None:
            for grant in self._incoming.idle_credits():
                self._events.frame(GrantRecall(self._settings.transport, grant))

        self._command(recall)

    def frame(self, frame: ControlFrame) -> None:
        """A control frame about transfers came from the peer."""
        self._command(lambda now: self._on_frame(frame, now))

    def close(self, timeout: float = 5.0) -> None:
        """End the thread and give the data path back; transfers still under way are forgotten."""
        with self._wake_lock:
            if self._closing:
                return
            self._closing = True
            os.eventfd_write(self._wake, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def progress(self) -> list[TransferProgress]:
        """A snapshot of what is under way; safe from any thread, exact only between two events."""
        return self._outgoing.progress() + self._incoming.progress()

    # -- the thread -----------------------------------------------------------------------------------------------

    def _command(self, command: Callable[[float], None]) -> None:
        with self._wake_lock:
            if self._closing:
                return
            self._commands.append(command)
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except Exception:
            logger.exception("link to %s over %s died", self._peer, self._settings.transport)
            self._events.path_lost(self._settings.transport, "internal error, see the log")
        finally:
            if self._endpoint is not None:
                self._endpoint.close()
            with self._wake_lock:
                self._closing = True
                os.close(self._wake)

    def _turn(self) -> None:
        try:
            self._run_commands()
            self._wait_and_progress()
            self._run_timers()
        except FedRDMAError as error:
            if error.code is not ErrorCode.LINK_LOST:
                raise
            self._lose_path(error.message, tell=True)

    def _run_commands(self) -> None:
        while self._commands:
            self._commands.popleft()(self._clock())

    def _wait_and_progress(self) -> None:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        endpoint = self._endpoint
        completions: Sequence[Completion] = ()
        if endpoint is not None:
            completions = endpoint.progress()
            self._dispatch(completions)
        if endpoint is not None and self._endpoint is endpoint:
            for descriptor, mask in endpoint.poll_set():
                poller.register(descriptor, mask)
        # what was just posted may complete without any descriptor becoming ready, so look again before waiting
        ready = poller.poll(0 if completions else self._patience_ms())
        if any(descriptor == self._wake for descriptor, _ in ready):
            os.eventfd_read(self._wake)

    def _patience_ms(self) -> float | None:
        if self._commands:
            return 0
        if self._incoming.wants_polling():
            return self._settings.poll_interval * 1000
        due = self._outgoing.timer()
        return None if due is None else max(0.0, due - self._clock()) * 1000 + 1

    def _run_timers(self) -> None:
        now = self._clock()
        due = self._outgoing.timer()
        if due is not None and now >= due:
            self._outgoing.on_timer(now)
        if self._incoming.wants_polling():
            self._incoming.look_for_headers(now)

    def _dispatch(self, completions: Sequence[Completion]) -> None:
        now = self._clock()
        for completion in completions:
            self._on_completion(completion, now)

    def _on_completion(self, completion: Completion, now: float) -> None:
        match completion.kind:
            case CompletionKind.WRITE_DONE:
                self._outgoing.on_write_done(completion.work_request, now)
            case CompletionKind.IMMEDIATE:
                self._incoming.on_immediate(completion.immediate, now)
            case CompletionKind.LANDED:
                self._incoming.on_landed(completion.immediate, completion.offset, completion.length, now)

    def _on_frame(self, frame: ControlFrame, now: float) -> None:
        match frame:
            case Grant():
                self._outgoing.on_grant(frame, now)
            case GrantRecall(grant=grant):
                self._outgoing.on_recall(grant)
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

    def _connect(self, draft: Draft, peer: TransportOffer) -> None:
        self._lose_path("the data path is being renewed", tell=False)
        try:
            endpoint = draft.connect(peer, self._settings.connect_timeout)
        except FedRDMAError as error:
            draft.close()
            self._events.path_lost(self._settings.transport, str(error))
            return
        self._endpoint = endpoint
        self._events.path_up(self._settings.transport)
        self._incoming.path_up(endpoint)
        self._outgoing.path_up(endpoint, self._clock())

    def _lose_path(self, reason: str, *, tell: bool) -> None:
        endpoint, self._endpoint = self._endpoint, None
        self._outgoing.path_lost()
        self._incoming.path_lost()
        if endpoint is not None:
            endpoint.close()
        if tell:
            self._events.path_lost(self._settings.transport, reason)
