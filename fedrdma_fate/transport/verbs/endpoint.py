"""One end of a `verbs` link."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections.abc import Callable, Collection, Sequence

from fedrdma_fate.core.x.chunking import TAGS, chunk_of_immediate
from fedrdma_fate.ports import ChunkService, Completion, CompletionKind, Opener, RemoteSlot, Slot
from fedrdma_fate.timerfd import Timer
from fedrdma_fate.transport.endpoint_base import EndpointHealth
from fedrdma_fate.transport.exposure import ProtocolViolation, check_target
from fedrdma_fate.transport.verbs.chunks import CHUNK_SENDS, ChunkOutbound
from fedrdma_fate.transport.verbs.device_selection import NAME
from fedrdma_fate.transport.verbs.interface import (
    MemoryWindow,
    Outcome,
    PairKind,
    Piece,
    Target,
    VerbsError,
    WorkCompletion,
)
from fedrdma_fate.transport.verbs.link_messages import LinkMessage, LinkMessageKind, try_to_send
from fedrdma_fate.transport.verbs.outbound import VerbsOutbound, Write
from fedrdma_fate.transport.verbs.queue_pairs import EMPTY, SENDS, STAGE_BYTES, LinkQueuePairs

logger = logging.getLogger(__name__)

KEEPALIVE_SECONDS = 1.0
"""A silent peer is asked for life so often; with the queue pairs' retries, a dead one is known 2.9 s later at most."""

GOODBYE_SECONDS = 0.5
"""How long closing waits for the peer to have heard of it."""

_MOST_KEY = 1 << 32
_BAD_KEY = "a write named a key that was never granted or was withdrawn, or reached beyond its slot"


class _LinkBroken(Exception):  # noqa: N818 - turned into LINK_LOST
    pass


class VerbsEndpoint:
    """One end of a link. See `ports.Endpoint`.

    What is posted while every queue pair is busy goes to the device with the next `progress` or `poll_set`, so that a
    batch shares its completions.
    """

    def __init__(self, pairs: LinkQueuePairs, early: Sequence[WorkCompletion], *, busy: bool) -> None:
        """Take over connected queue pairs.

        Args:
            pairs: the queue pairs.
            early: completions that came while the link was being tested.
            busy: never wait for completions: `poll_set` is always ready.
        """
        self._health = EndpointHealth(NAME)
        self._pairs = pairs
        self._early = list(early)
        self._busy = busy
        self._ready = os.eventfd(1 if busy or early else 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._outbound = VerbsOutbound(pairs.data, SENDS, pairs.context.port.largest_message, pairs.staging)
        self._chunk_outbound = ChunkOutbound(pairs.chunks.pairs, pairs.context.port.largest_message)
        self._data = {pair.number: pair for pair in pairs.data}
        self._chunks = {pair.number: pair for pair in pairs.chunks.pairs}
        self._windows: dict[int, MemoryWindow] = {}
        # by the tag of their immediates: the grant, and how many bytes have come by it
        self._came: dict[int, tuple[int, int]] = {}
        self._completions: list[Completion] = []
        self._access_errors = pairs.context.events.access_errors
        self._keepalive = Timer(KEEPALIVE_SECONDS)
        self._open = True

    @property
    def transport(self) -> str:
        return NAME

    def open_with(self, opener: Opener) -> bool:
        """Not here: the device reads and writes memory itself."""
        del opener
        return False

    @property
    def sealed_by_poster(self) -> bool:
        """What is posted has to be sealed, and what came is opened in its slot."""
        return True

    @property
    def moved_bytes(self) -> int:
        """The device tells of whole writes alone."""
        return 0

    @property
    def readiness_shows_all(self) -> bool:
        """Completions are told of once, by an event for all that have come by then."""
        return False

    def expose(self, grant: int, slot: Slot) -> RemoteSlot:
        """Open the slot, by a key that opens it to this peer and nothing else.

        Raises:
            ValueError: the grant is exposed already.
            TransportError: LINK_LOST also when the device does not bind it.
        """
        self._health.check()
        if grant in self._windows:
            raise ValueError(f"grant {grant} is exposed already")
        try:
            window = self._pairs.peer.open_slot(slot)
        except VerbsError as error:
            self._drop(str(error))
            self._health.check()
            raise
        self._windows[grant] = window
        self._came.setdefault(grant % TAGS, (grant, 0))
        return RemoteSlot(window.key, slot.region.address + slot.offset, slot.length)

    def withdraw(self, grant: int) -> None:
        """End the key of the slot. A write that is arriving breaks the link, and writes nothing more.

        Where the device does not do it, the link is dropped, which tries again without queue pairs.
        """
        self._health.check()
        window = self._windows.get(grant)
        if window is not None:
            self._guarded(window.close)
            if not self._health.lost:
                del self._windows[grant]
                if self._came[grant % TAGS][0] == grant:
                    del self._came[grant % TAGS]

    def drain(self, grant: int) -> None:
        """The same: chunks that come late are dropped anyway."""
        self.withdraw(grant)

    @property
    def still_open(self) -> Collection[int]:
        """Grants of a lost link whose keys the device did not end: another link of the same peer could use them."""
        return self._windows.keys() if self._health.lost else ()

    def post_write(self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int) -> None:
        """Queue the write."""
        self._health.check()
        check_target(target, target_offset, source.length)
        piece = self._pairs.peer.regions.piece(source)
        self._post(Write(work_request, piece, Target(target.address + target_offset, target.key)))

    def post_bytes(
        self, work_request: int, data: bytes, target: RemoteSlot, target_offset: int, immediate: int
    ) -> None:
        """Queue the fenced write; at most STAGE_BYTES bytes."""
        self._health.check()
        check_target(target, target_offset, len(data))
        if len(data) > STAGE_BYTES:
            raise ValueError(f"{len(data)} bytes do not go inline, {STAGE_BYTES} do")
        place = Target(target.address + target_offset, target.key)
        self._post(Write(work_request, Piece(0, len(data), 0), place, immediate, data))

    @property
    def lent_region(self) -> None:
        """None: the peer's memory is its own."""
        return None

    @property
    def chunk_service(self) -> ChunkService:
        """By queue pairs of the better kind that both devices have."""
        chunks = self._pairs.chunks
        reliable = chunks.kind is PairKind.RELIABLE
        # of a reliable queue pair, work is under way until the peer has acknowledged it
        depth = CHUNK_SENDS if reliable else None
        # so each is one message, and its completion at the receiver says how many bytes came
        largest = self._pairs.context.port.largest_message
        return ChunkService(
            reliable, False, max(1, len(self._chunks)), self._pairs.mtu, depth, largest_chunk_bytes=largest
        )

    def post_chunk(
        self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int, queue_pair: int, immediate: int
    ) -> None:
        """Queue the write; the next `progress` or `poll_set` hands it to the device."""
        self._health.check()
        check_target(target, target_offset, source.length)
        piece = self._pairs.peer.regions.piece(source)
        write = Write(work_request, piece, Target(target.address + target_offset, target.key), immediate)
        if self._key_is_possible(target):
            self._chunk_outbound.add(queue_pair, write)

    def post_datagram(self, data: bytes, copies: int = 1, padding: int = 0) -> bool:
        """Send it by the queue pair for datagrams."""
        self._health.check()
        channel = self._pairs.chunks.datagrams
        if channel is None:
            return False
        sent = False

        def send() -> None:
            nonlocal sent
            sent = channel.send(data, copies, padding)

        self._guarded(send)
        return sent

    def poll_set(self) -> Sequence[tuple[int, int]]:
        """Completion events, the device's events, the keepalive timer; hands what was posted to the device first."""
        self._health.check()
        self._guarded(self._flush)
        self._health.check()
        events = (
            () if self._busy else (self._pairs.queue.fileno, self._pairs.context.events.fileno, self._keepalive.fileno)
        )
        return [(descriptor, select.POLLIN) for descriptor in (self._ready, *events)]

    def progress(self) -> Sequence[Completion]:
        """Post what waits, and take in what has completed."""
        if not self._health.lost:
            self._guarded(self._work)
        completions, self._completions = self._completions, []
        if not completions:
            self._health.check()
        return completions

    def close(self) -> None:
        """Tell the peer, and destroy the queue pairs; waits GOODBYE_SECONDS at most for a peer that does not answer."""
        if not self._open:
            return
        self._open = False
        if not self._health.lost:
            # a peer that has closed before us would not answer
            self._guarded(self._take_in_completions)
        if not self._health.lost:
            try_to_send(self._pairs.messages, LinkMessageKind.CLOSED, "the peer closed the link")
        self._drop("it was closed here")
        self._completions.clear()
        self._wait_until_heard()
        self._pairs.close_all()
        # with all queue pairs gone, what was in use before may not be now; and after it, the device may be closed
        self._end_keys()
        self._pairs.close()
        self._keepalive.close()
        os.close(self._ready)

    def _post(self, write: Write) -> None:
        if not self._key_is_possible(write.target):
            return
        self._outbound.add(write)
        if self._outbound.has_idle_lane:
            self._guarded(self._outbound.flush)

    def _key_is_possible(self, target: RemoteSlot | Target) -> bool:
        possible = 0 < target.key < _MOST_KEY
        if not possible:
            self._guarded(
                lambda: _raise_violation(f"the peer granted the key {target.key:#x}, which no device can have")
            )
        return possible

    def _flush(self) -> None:
        self._outbound.flush()
        self._chunk_outbound.flush()

    def _work(self) -> None:
        self._flush()
        events = self._pairs.context.events
        if self._keepalive.expired():
            self._pairs.messages.ask_for_life()
        self._take_in_completions()
        # completions first: a refused write explains itself better than the device does
        reason = events.look()
        if reason is not None:
            raise _LinkBroken(reason)
        self._flush()

    def _take_in_completions(self) -> None:
        if self._early:
            early, self._early = self._early, []
            if not self._busy:
                os.eventfd_read(self._ready)
            for done in early:
                self._on_completion(done)
        queue = self._pairs.queue
        if not self._busy:
            # before looking: what comes after is announced, what came before is found
            queue.arm()
        while found := queue.poll():
            for done in found:
                self._on_completion(done)

    def _on_completion(self, done: WorkCompletion) -> None:
        if done.outcome is not Outcome.DONE:
            raise self._broken(done)
        if done.pair in self._chunks:
            self._on_chunk_completion(done)
            return
        datagrams = self._pairs.chunks.datagrams
        if datagrams is not None and done.pair == datagrams.pair.number:
            data = datagrams.on_completion(done)
            if data is not None:
                self._completions.append(Completion(CompletionKind.DATAGRAM, data=data))
            return
        pair = self._data.get(done.pair)
        if pair is None:
            message = self._pairs.messages.on_completion(done)
            if message is not None:
                self._on_message(message)
        elif done.work_request == EMPTY:
            self._pairs.receive_immediate(pair)
            if done.immediate is not None:
                self._completions.append(Completion(CompletionKind.IMMEDIATE, immediate=done.immediate))
        else:
            for write in self._outbound.completed(done.pair, done.work_request):
                self._completions.append(Completion(CompletionKind.WRITE_DONE, write.work_request))

    def _on_chunk_completion(self, done: WorkCompletion) -> None:
        if done.work_request == EMPTY:
            self._pairs.chunks.post_receive(self._chunks[done.pair])
            if done.immediate is not None:
                self._on_chunk(done.immediate, done.length)
            return
        for write in self._chunk_outbound.completed(done.pair, done.work_request):
            self._completions.append(Completion(CompletionKind.WRITE_DONE, write.work_request))

    def _on_chunk(self, immediate: int, length: int) -> None:
        """A write with the immediate of a chunk landed: what it brought is counted, and not what it claims to be."""
        tag, received = chunk_of_immediate(immediate)[0], None
        if (came := self._came.get(tag)) is not None:
            received = came[1] + length
            self._came[tag] = came[0], received
        self._completions.append(
            Completion(CompletionKind.CHUNK_IMMEDIATE, immediate=immediate, received_bytes=received)
        )

    def _on_message(self, message: LinkMessage) -> None:
        match message.kind:
            case LinkMessageKind.CLOSED:
                raise _LinkBroken(message.text)
            case LinkMessageKind.VIOLATION:
                raise _LinkBroken(f"the peer says: {message.text}")
            case _:
                raise ProtocolViolation(f"a notice of unknown kind {message.kind}")

    def _broken(self, done: WorkCompletion) -> Exception:
        """Why a work request failed, as far as its end, and the device, can tell."""
        ours = done.work_request != EMPTY or (done.pair not in self._data and done.pair not in self._chunks)
        match done.outcome:
            case Outcome.NO_ANSWER:
                return _LinkBroken("the peer is gone: it acknowledges nothing")
            case Outcome.REFUSED if ours:
                return _LinkBroken(f"the peer's device refused us: {_BAD_KEY}")
            case Outcome.REFUSED:
                return ProtocolViolation(_BAD_KEY)
        with contextlib.suppress(VerbsError):
            self._pairs.context.events.look()
        if self._pairs.context.events.access_errors > self._access_errors:
            return ProtocolViolation(_BAD_KEY)
        return _LinkBroken(f"queue pair {done.pair} is in the error state ({done.text})")

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run it; whatever shows the link to be broken is remembered for the next call."""
        try:
            action()
        except ProtocolViolation as violation:
            try_to_send(self._pairs.messages, LinkMessageKind.VIOLATION, str(violation))
            self._drop(f"the peer broke the protocol: {violation}")
        except (_LinkBroken, VerbsError) as broken:
            self._drop(str(broken))

    def _drop(self, reason: str) -> None:
        """Nothing is written or read any more; last words may still be on their way."""
        if self._health.lost:
            return
        self._health.lose(reason)
        self._pairs.close_data()
        self._end_keys()

    def _end_keys(self) -> None:
        """Of a device that is gone, keys open nothing."""
        gone = self._pairs.context.events.device_is_gone()
        for grant, window in list(self._windows.items()):
            try:
                window.close()
            except VerbsError as error:
                if not gone:
                    logger.error("verbs: the key of grant %d is still open: %s", grant, error)
                    continue
            del self._windows[grant]

    def _wait_until_heard(self) -> None:
        queue, messages = self._pairs.queue, self._pairs.messages
        poller = select.poll()
        poller.register(queue.fileno, select.POLLIN)
        deadline = time.monotonic() + GOODBYE_SECONDS
        with contextlib.suppress(VerbsError):
            while not messages.quiet and (left := deadline - time.monotonic()) > 0:
                queue.arm()
                for done in queue.poll():
                    ours = done.pair == messages.pair.number
                    if ours and (done.outcome is not Outcome.DONE or messages.on_completion(done) is not None):
                        return
                if not messages.quiet:
                    poller.poll(left * 1000)


def _raise_violation(what: str) -> None:
    raise ProtocolViolation(what)
