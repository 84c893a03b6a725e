"""The data path to one peer, and every transfer on it, as turns without a thread: whoever drives it has the clock.

More than 500 lines: all that the owner of a link may want of it, one after the other.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.path_probe import JointAnswer
from fedrdma_fate.core.shares.share_sender import Arrivals
from fedrdma_fate.engine.events import (
    DatagramsDropped,
    Emit,
    FrameToSend,
    GrantRequested,
    PathConnected,
    PathLost,
    RecordsRefused,
    TransferAnnounced,
    TransferProgress,
)
from fedrdma_fate.engine.incoming import IncomingTransfers
from fedrdma_fate.engine.kept_slot import KeptSlot
from fedrdma_fate.engine.link_datagrams import LinkDatagrams
from fedrdma_fate.engine.outgoing import OutgoingTransfers
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.engine.path_probing import PathProbing
from fedrdma_fate.engine.path_watch import PathWatch
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.engine.sealing_ring import SEALING_RING_BYTES, SealingRing
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.ports import Completion, CompletionKind, Draft, Endpoint, EndpointAddress, Slot
from fedrdma_fate.security.datagram_tags import DatagramKeys
from fedrdma_fate.security.sealing import PathOpener, PathSealing
from fedrdma_fate.wire.datagrams import (
    Header,
    PathEcho,
    PathEchoAnswer,
    PathLongEcho,
    PathProbe,
    PathProbeAnswer,
    TrainWanted,
)
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, MemoryPoolError, error_from_code
from fedrdma_fate.wire.frames import (
    Abort,
    ChunkAck,
    ChunkDigests,
    ChunkTags,
    ControlFrame,
    Delivered,
    DigestRequest,
    DigestRun,
    Grant,
    GrantRecall,
    GrantRequest,
    GrantReturn,
    MessageKey,
    Offer,
    Reconcile,
    Refused,
    Report,
    ResendChunks,
    Restart,
    Share,
)

logger = logging.getLogger(__name__)

Clock = Callable[[], float]

Command = Callable[["Link"], None]
"""What the owner of a link wants done in its next turn."""

_SNAPSHOT_SECONDS = 0.1
"""How old the snapshot may be that other threads see."""

_FROM_ANYBODY = frozenset({CompletionKind.DATAGRAM, CompletionKind.CHUNK_NACK, CompletionKind.STRAY})
"""What says nothing of the peer before it was looked into."""


class Wait(NamedTuple):
    """When a link wants its next turn: at a time of its clock, or when one of these descriptors is ready.

    Attributes:
        until: when something is due; None: nothing is. In the past: at once.
        descriptors: (descriptor, select.POLL* mask) pairs.
        look_again: something has just completed, on a data path where more may complete without any descriptor becoming
            ready, so whoever waits for descriptors must look again before that.
    """

    until: float | None
    descriptors: Sequence[tuple[int, int]] = ()
    look_again: bool = False


class Link:
    """One link. Belongs to whoever gives it its turns: a `LinkThread`, or a test in virtual time.

    Nothing blocks but `connect`, which waits for the other half of the data path.

    Attributes:
        heard_at: when the data path last showed a sign of life.
        snapshot: what is under way, as it was some tenths of a second ago at most. Like `heard_at`, `known_path`,
            `arrivals`, `deliveries`, `bound`, `probed_rate`, `joint` and `wanted`, any thread may read it.
    """

    def __init__(self, peer: str, settings: LinkSettings, emit: Emit, clock: Clock) -> None:
        self._peer = peer
        self._settings = settings
        self._emit = emit
        self._clock = clock
        self._datagrams = LinkDatagrams(peer)
        self._outgoing = OutgoingTransfers(settings, emit, self._datagrams)
        self._incoming = IncomingTransfers(settings, emit, self._datagrams)
        self._probing = PathProbing(self._outgoing.memory, self._datagrams, self._outgoing.on_path_told)
        self._watch = PathWatch(self._datagrams, emit, self._outgoing.waiting_since)
        self._endpoint: Endpoint | None = None
        self._opener: PathOpener | None = None
        self._attempt = 0
        self._due_at: float | None = None
        self._ended = False
        self._snapshot_due_at = 0.0
        self._changed = False
        self.heard_at = 0.0
        self.snapshot: list[TransferProgress] = []

    @property
    def known_path(self) -> KnownPath | None:
        """What is known of the path to the peer, None while nothing is."""
        return self._outgoing.memory.known

    @property
    def arrivals(self) -> Arrivals:
        """What has come in mode `fedrdma-x` so far."""
        return self._incoming.arrivals

    @property
    def deliveries(self) -> Arrivals:
        """What has arrived at the peer in mode `fedrdma-x` so far, as it reports."""
        return self._outgoing.deliveries

    @property
    def bound(self) -> float:
        """What the peer lets through of all that is sent to it, bytes a second; infinite: no bound."""
        return self._outgoing.memory.told

    @property
    def probed_rate(self) -> float | None:
        """Bytes a second at which the peer's latest train came; None where that could not be told."""
        return self._probing.probed_rate

    @property
    def joint(self) -> JointAnswer | None:
        """What the latest train has told that went with those of other links; None while that is not known."""
        return self._probing.joint

    @property
    def wanted(self) -> JointAnswer | None:
        """How the latest train of the peer came that was wanted of it; None while that is not known."""
        return self._probing.wanted

    # -- commands -------------------------------------------------------------------------------------------------

    def connect(
        self,
        draft: Draft,
        peer: EndpointAddress,
        attempt: int,
        keys: DatagramKeys,
        sealing: PathSealing | None = None,
    ) -> None:
        """Connect the data path; the old one, if any, is dropped first. Events will name the attempt.

        Datagrams are taken under these keys alone, which serve for this connection and no other. With `sealing`, so are
        chunks and headers; a data path that does not seal is not used.

        Where the link has ended, the draft is closed, and nothing is told of it.
        """
        self._lose_path("the data path is being renewed", tell=False)
        if self._ended:
            draft.close()
            return
        self._attempt = attempt
        try:
            endpoint = draft.connect(peer, self._settings.connect_timeout)
        except FedRDMAError as error:
            draft.close()
            self._emit(PathLost(attempt, str(error), error.code))
            return
        ring, problem = None, ""
        if sealing is not None and endpoint.sealed_by_poster:
            ring, problem = self._make_ring()
        elif sealing is not None and not endpoint.open_with(sealing.opener):
            problem = f"{self._settings.transport} does not seal chunks, and `seal` is not off"
        if problem:
            endpoint.close()
            self._emit(PathLost(attempt, problem))
            return
        self._endpoint, self._opener = endpoint, None if sealing is None else sealing.opener
        self._emit(PathConnected(attempt, endpoint.lent_region))
        now = self._clock()
        self.heard_at = now
        self._datagrams.path_up(endpoint, keys)
        self._probing.path_up(endpoint, now)
        self._watch.path_up(endpoint, attempt)
        self._incoming.path_up(endpoint, now, self._opener)
        self._outgoing.path_up(endpoint, now, None if sealing is None else sealing.sealer, ring)

    def _make_ring(self) -> tuple[SealingRing | None, str]:
        """Memory for what is sealed before it is posted, or why there is none."""
        if self._settings.sealing_region is None:
            return None, "there is no memory to seal chunks in"
        try:
            return SealingRing(self._settings.sealing_region(SEALING_RING_BYTES)), ""
        except MemoryPoolError as error:
            return None, f"no memory to seal chunks in: {error}"

    def hint(self, rtt: float, rate: float | None) -> None:
        """What others know: the control channel's round trip in seconds, and a configured rate in bytes a second."""
        self._outgoing.memory.hint(rtt)
        if rate is not None:
            self._outgoing.memory.learn(PathState(rate, rtt, None), "configured")

    def suspend(self, reason: str) -> None:
        """Drop the data path and pause: the control channel is gone."""
        self._lose_path(reason, tell=False)
        self._outgoing.control_lost()

    def send(self, outgoing: Outgoing) -> None:
        """Send a message."""
        self._outgoing.submit(outgoing, self._clock())

    def written(self, transfer: int) -> None:
        """More of a message's payload lies in its slot, as `Payload.written_from` says."""
        self._outgoing.on_written(transfer, self._clock())

    def cancel(self, transfer: int, code: ErrorCode, reason: str) -> None:
        """Give a message up; SendFailed follows, unless it has ended before."""
        self._outgoing.cancel(transfer, code, reason, self._clock())

    def grant(self, grant: int, slot: Slot, transfer: int = 0, kept: KeptSlot | None = None) -> None:
        """Let the peer write into this slot, on what is kept there; without a data path it comes back at once."""
        self._incoming.grant(grant, slot, transfer, kept)

    def share(self, rate: float, place: float) -> None:
        """Tell the peer what is let through of all that it sends, bytes a second; see `Share`."""
        self._incoming.tell_share(rate, place)

    def limit(self, rate: float, place: float) -> None:
        """Send no more than this of all that goes to the peer, bytes a second; `place` as for `Share`."""
        self._outgoing.limit(rate, place, self._clock())

    def probe_jointly(self, began: float, count: int) -> None:
        """Send a short train now, which trains of other links go with, from a moment of this link's clock on."""
        self._probing.probe_jointly(began, count)

    def want_train(self, began: float, count: int) -> None:
        """Ask the peer for a short train, which others are wanted with, from a moment of this link's clock on."""
        self._probing.want_train(began, count)

    def begin_early(self, offer: Offer) -> None:
        """Begin to receive what a datagram has announced, if that can be; else its frame decides."""
        self._incoming.on_early_offer(offer, self._clock())

    def look_again(self, key: MessageKey) -> None:
        """Ask anew what may be missing of this message, and whether it is late."""
        self._incoming.look_again(key)

    def decline(self, offer: Offer, answer: ControlFrame) -> None:
        """Take the grant of an announced transfer back, and answer its sender."""
        self._incoming.decline(offer, answer)

    def recall_credits(self) -> None:
        """Ask the peer for all standing grants it has not used."""
        for grant in self._incoming.idle_credits():
            self._emit(FrameToSend(GrantRecall(self._settings.transport, grant)))

    # -- turns ----------------------------------------------------------------------------------------------------

    def turn(self, commands: deque[Command] | None = None, *, ready: bool = True) -> Wait:
        """Do what is due, carry these commands out, and take in what has completed. When to come again.

        A data path that breaks meanwhile is lost and told of. After a bug of ours, all that is under way fails.

        Args:
            commands: of the owner.
            ready: whether one of the descriptors was ready that the turn before has named, or nobody has looked.
        """
        try:
            try:
                return self._turn(deque() if commands is None else commands, ready)
            except FedRDMAError as error:
                if error.code is not ErrorCode.LINK_LOST:
                    raise
                self._lose_path(error.message, tell=True)
                self._due_at = self._due(self._clock())
        except Exception:
            self.fail()
        return Wait(None, (), look_again=True)

    def end(self, commands: deque[Command]) -> None:
        """The last turn: granted slots go back, messages on their way are dropped; their owner knows better.

        A data path that is still to be connected is not, and nothing is told of it.
        """
        self._ended = True
        try:
            self._lose_path("the link has ended", tell=False)
            self._carry_out(commands)
        finally:
            self._incoming.end()
            self.snapshot = []

    def fail(self) -> None:
        """After a bug of ours nothing under way can be trusted; what comes next begins on a new data path.

        To be called where the exception is handled. It is logged, once in each window: a peer that has found the bug
        can come back several times a second.
        """
        settings, message = self._settings, "link to %s over %s: internal error"
        about = (self._peer, settings.transport)
        settings.complaints.add(
            logger, "internal error", settings.site, message, *about, level=logging.ERROR, trace=True
        )
        reason = "internal error, see the gateway's log"
        self._lose_path(reason, tell=True)
        self._outgoing.fail_all(ErrorCode.UNEXPECTED_EVENT, reason)
        self._incoming.end()

    def progress(self) -> list[TransferProgress]:
        """What is under way just now."""
        return self._outgoing.progress() + self._incoming.progress()

    def _turn(self, commands: deque[Command], ready: bool) -> Wait:
        if commands:
            self._carry_out(commands)
        endpoint = self._endpoint
        completions: Sequence[Completion] = ()
        if endpoint is not None and (ready or not endpoint.readiness_shows_all):
            completions = endpoint.progress()
        if completions:
            self._take_in(completions)
        # after what has come, which a thread that was kept waiting would take for lost
        now = self._clock()
        if self._incoming.wants_polling() or (self._due_at is not None and now >= self._due_at):
            self._run_timers(now)
        if self._changed and not (self._outgoing.under_way or self._incoming.under_way):
            # what says so cannot become old: nobody has to wake for another
            self.snapshot, self._changed = [], False
        self._due_at = self._due(now)
        descriptors = endpoint.poll_set() if endpoint is not None and self._endpoint is endpoint else ()
        look_again = bool(completions) and not (endpoint is not None and endpoint.readiness_shows_all)
        return Wait(self._due_at, descriptors, look_again)

    def _carry_out(self, commands: deque[Command]) -> None:
        while commands:
            self._changed = True
            commands.popleft()(self)

    def _due(self, now: float) -> float | None:
        """When something is due."""
        if self._incoming.wants_polling():
            return now + self._settings.poll_interval
        due = self._outgoing.timer()
        for other in (self._incoming.timer(), self._probing.timer(), self._watch.timer()):
            if other is not None and (due is None or other < due):
                due = other
        if self._changed and (due is None or self._snapshot_due_at < due):
            due = self._snapshot_due_at
        return due

    def _run_timers(self, now: float) -> None:
        due = self._outgoing.timer()
        if due is not None and now >= due:
            self._outgoing.on_timer(now)
        self._incoming.on_timer(now)
        self._probing.on_timer(now)
        self._watch.on_timer(now)
        # a payload that is opened a slice at a time ends by a timer, and nothing else may happen behind it
        self._changed = True
        if self._incoming.wants_polling():
            self._incoming.look_for_headers(now)
        self._take_snapshot(now)

    def _take_snapshot(self, now: float) -> None:
        if self._changed and now >= self._snapshot_due_at:
            self.snapshot = self.progress()
            self._snapshot_due_at = now + _SNAPSHOT_SECONDS
            self._changed = False

    def _lose_path(self, reason: str, *, tell: bool) -> None:
        endpoint, self._endpoint = self._endpoint, None
        still_open: Collection[int] = ()
        if endpoint is not None:
            # first, so that no slot is written or read any more when its owner gets it back
            endpoint.close()
            still_open = endpoint.still_open
        wiped = frozenset[int]() if self._opener is None else frozenset(self._opener.wiped)
        self._tell_refused()
        self._opener = None
        self._datagrams.path_lost()
        self._probing.path_lost()
        self._watch.path_lost()
        self._outgoing.path_lost()
        self._incoming.path_lost(self._clock(), still_open, wiped)
        if tell:
            self._emit(PathLost(self._attempt, reason))

    def _tell_refused(self) -> None:
        if self._opener is not None and (refused := self._opener.take_refused()):
            self._emit(RecordsRefused(refused))

    # -- from the peer --------------------------------------------------------------------------------------------

    def _take_in(self, completions: Sequence[Completion]) -> None:
        now = self._clock()
        if any(completion.kind not in _FROM_ANYBODY for completion in completions):
            self.heard_at = now
        self._changed = True
        for completion in completions:
            self._on_completion(completion, now)
        if dropped := self._datagrams.take_dropped():
            self._emit(DatagramsDropped(dropped))
        self._tell_refused()

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
            case CompletionKind.CHUNK_NACK:
                self._outgoing.on_chunk_nack(completion.immediate, completion.length)
            case CompletionKind.DATAGRAM:
                self._on_datagram(completion.data, now)
            case CompletionKind.STRAY:
                self._datagrams.note_strays(completion.length)

    def _on_datagram(self, data: bytes, now: float) -> None:
        datagram = self._datagrams.open(data)
        if datagram is None:
            # somebody else's must not make a dead peer look alive either
            return
        self.heard_at = now
        if not self._settings.admits(datagram):
            # where it is sent as a frame as well, that one is answered
            return
        match datagram:
            case Report():
                self._outgoing.on_report(datagram, now)
            case Delivered(transfer=transfer):
                self._outgoing.on_delivered(transfer, now)
            case DigestRun():
                self._incoming.on_digest_run(datagram)
            case Header():
                self._incoming.on_header(datagram, now)
            case Offer() if datagram.transport == self._settings.transport:
                self._emit(TransferAnnounced(datagram))
            case Grant() if datagram.transport == self._settings.transport:
                self._outgoing.on_early_grant(datagram, now)
            case GrantRequest() if datagram.transport == self._settings.transport:
                self._incoming.on_early_request(datagram)
            case GrantReturn(transport=transport, grant=grant) if transport == self._settings.transport:
                self._incoming.on_return(grant)
            case Share() if datagram.transport == self._settings.transport:
                self._outgoing.on_share(datagram, now)
            case PathProbe() | PathProbeAnswer() | TrainWanted():
                self._probing.on_datagram(datagram, now)
            case PathEcho() | PathLongEcho() | PathEchoAnswer():
                self._watch.on_datagram(datagram)

    def frame(self, frame: ControlFrame) -> None:
        """A control frame about transfers came from the peer."""
        now = self._clock()
        match frame:
            case Grant():
                self._outgoing.on_grant(frame, now)
            case Share():
                self._outgoing.on_share(frame, now)
            case GrantRecall(grant=grant):
                self._outgoing.on_recall(grant)
            case GrantRequest():
                self._emit(GrantRequested(frame))
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
            case DigestRequest(transfer=transfer):
                self._outgoing.on_digest_request(transfer, now)
            case ChunkDigests(transfer=transfer, digests=digests):
                self._incoming.on_chunk_digests(transfer, digests, now)
            case DigestRun():
                self._incoming.on_digest_run(frame)
            case ChunkTags():
                self._incoming.on_chunk_tags(frame)
            case Delivered(transfer=transfer):
                self._outgoing.on_delivered(transfer, now)
            case Refused(transfer=transfer, code=code, reason=reason):
                self._outgoing.on_refused(transfer, error_from_code(code, reason).code, reason, now)
            case Abort(transfer=transfer, code=code, reason=reason):
                self._incoming.on_abort(transfer, error_from_code(code, reason).code, reason, now)
            case _:
                raise RuntimeError(f"a link has no use for {type(frame).__name__}")
