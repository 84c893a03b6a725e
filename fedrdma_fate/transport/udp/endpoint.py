"""One end of a `udp` link: chunks and datagrams over a UDP socket, all other writes over TCP streams beside it.

More than 500 lines: whatever a datagram may be, and what it does to the link, is to be seen in one place.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Callable, Collection, Sequence

from fedrdma_fate.late_numpy import is_loaded, prepare
from fedrdma_fate.ports import ChunkService, Completion, CompletionKind, Opener, RemoteSlot, Slot
from fedrdma_fate.timerfd import Timer
from fedrdma_fate.transport.exposure import check_target
from fedrdma_fate.transport.tcp import TcpEndpoint
from fedrdma_fate.transport.udp.cuts import Cut
from fedrdma_fate.transport.udp.listening import Followed
from fedrdma_fate.transport.udp.liveness import TICK_SECONDS, Liveness
from fedrdma_fate.transport.udp.nacks import decode_nacks
from fedrdma_fate.transport.udp.outbound import DatagramOutbound
from fedrdma_fate.transport.udp.packets import (
    CHUNK,
    CHUNK_HEAD,
    CONNECTION_HEAD,
    KEY_MASK,
    LEAST_BYTES,
    MESSAGE,
    MESSAGE_HEAD,
    NACK,
    PATH_CHALLENGE,
    PATH_HEAD,
    PATH_RESPONSE,
    PING,
    PING_HEAD,
    PONG,
    PONG_HEAD,
    PROBE,
    VERSION,
)
from fedrdma_fate.transport.udp.path_mtu import PathMtu, State
from fedrdma_fate.transport.udp.path_validation import Address, PathTags, PathValidation
from fedrdma_fate.transport.udp.piece_runs import PieceRuns
from fedrdma_fate.transport.udp.reassembly import ChunkAssembly, MessageAssembly
from fedrdma_fate.transport.udp.receiving import DatagramReceiver
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES, PADDED_DATAGRAM_BYTES

NAME = "udp"

RECEIVE_SECONDS = 0.002
"""How long a turn may read: what arrives meanwhile fits the socket's buffer, and acknowledgements are sent as often."""

LOOK_SECONDS = 0.001
"""From one look for missing pieces to the next that counts as another: reports go every 2 ms (`core/x/receiver.py`), on
fast paths ten times as often, and what is late there by a few packets is not missing for that."""

RETRY_SECONDS = 0.001
"""Until the kernel is asked again that had no memory for a datagram: a queue of 1,000 full packets is empty in 12 ms at
1 Gbit/s."""

_MOST_PADDING = PADDED_DATAGRAM_BYTES - DATAGRAM_BYTES
_HARMLESS = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN})
_CLOCK = time.monotonic


class UdpEndpoint:
    """One end of a link. See `ports.Endpoint`. The streams also tell when the peer is gone."""

    def __init__(
        self,
        streams: TcpEndpoint,
        udp: socket.socket,
        datagram_bytes: int,
        lengths: Callable[[], Sequence[int]],
        own: int,
        peer: int,
        tags: PathTags,
        followed: Followed | None,
        *,
        segments: bool,
    ) -> None:
        """
        Args:
            streams: for writes that are not chunks.
            udp: connected to the peer, non-blocking.
            datagram_bytes: longest datagram that passes both ways.
            lengths: says which ones the path may have, now.
            own: what the peer calls this connection.
            peer: what the peer wants it to be called.
            tags: that pings have.
            followed: on the listening side, what comes from elsewhere; the other side's address may change.
            segments: whether to have the kernel cut batches into datagrams.
        """
        self._streams = streams
        self._udp = udp
        self._own = own
        self._completions: list[Completion] = []
        self._lengths = lengths
        self._path_mtu = PathMtu(datagram_bytes, min(lengths()), lengths(), _CLOCK())
        self._outbound = DatagramOutbound(
            udp,
            datagram_bytes,
            peer,
            self._on_sent,
            segments=segments,
            least_bytes=self._path_mtu.base,
            too_long=self._on_too_long,
        )
        self._longest = 0
        self._latest_cut = Cut(0, 0)
        self._peer = peer
        self._tags = tags
        self._followed = followed
        self._validation = PathValidation(own, tags)
        self._receiver = DatagramReceiver(udp)
        self._chunks = ChunkAssembly()
        self._messages = MessageAssembly()
        self._liveness = Liveness(dials=followed is None)
        self._tick = Timer(TICK_SECONDS)
        self._retry = Timer()
        self._retries = False
        self._tick_due = 0.0
        self._ready = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._strays = 0
        self._used = False
        self._looked_at = 0.0
        self._open = True
        self._runs: PieceRuns | None = None
        prepare()

    @property
    def transport(self) -> str:
        return NAME

    def open_with(self, opener: Opener) -> bool:
        """Not here: what comes goes to its place as it is."""
        del opener
        return False

    @property
    def sealed_by_poster(self) -> bool:
        """What is posted has to be sealed, and what came is opened in its slot."""
        return True

    @property
    def moved_bytes(self) -> int:
        """By the streams: what chunks do, their receiver tells."""
        return self._streams.moved_bytes

    @property
    def readiness_shows_all(self) -> bool:
        """What waits for its time, or for room, is in no socket."""
        return False

    def expose(self, grant: int, slot: Slot) -> RemoteSlot:
        """Let the peer write into the slot, by chunks and by other writes."""
        remote = self._streams.expose(grant, slot)
        while self._chunks.has(remote.key & KEY_MASK):
            self._streams.withdraw(grant)
            remote = self._streams.expose(grant, slot)
        self._chunks.open(remote.key & KEY_MASK, grant, slot)
        return remote

    def withdraw(self, grant: int) -> None:
        """Close the slot to the peer: chunks for it are dropped, other writes break the link."""
        self._streams.withdraw(grant)
        self._chunks.close(grant)

    def drain(self, grant: int) -> None:
        """The same: chunks that come late are dropped anyway."""
        self.withdraw(grant)

    @property
    def still_open(self) -> Collection[int]:
        """None: it is this side that puts what comes into the slots."""
        return ()

    def post_write(self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int) -> None:
        """Over the streams."""
        self._streams.post_write(work_request, source, target, target_offset)

    def post_bytes(
        self, work_request: int, data: bytes, target: RemoteSlot, target_offset: int, immediate: int
    ) -> None:
        """Over the streams."""
        self._streams.post_bytes(work_request, data, target, target_offset, immediate)

    @property
    def lent_region(self) -> None:
        """None: the peer's memory is its own."""
        return None

    @property
    def chunk_service(self) -> ChunkService:
        """In datagrams, of which any may be lost."""
        return ChunkService(
            reliable=False,
            self_paced=False,
            queue_pairs=1,
            mtu_bytes=self._outbound.piece_bytes,
            repairs_packets=True,
            largest_chunk_bytes=self._outbound.most_chunk_bytes,
        )

    def post_chunk(
        self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int, queue_pair: int, immediate: int
    ) -> None:
        """Queue the chunk; the next `progress` or `poll_set` sends it."""
        del queue_pair
        self._streams.check()
        check_target(target, target_offset, source.length)
        offset = target.address + target_offset
        self._outbound.add_chunk(work_request, source.view, target.key & KEY_MASK, immediate, offset)

    def post_datagram(self, data: bytes, copies: int = 1, padding: int = 0) -> bool:
        """Queue the datagram, ahead of chunks; one that is longer than the path's goes in pieces."""
        self._streams.check()
        # behind a shorter one the padding would be taken for data
        misfit = padding > _MOST_PADDING or (padding and len(data) < DATAGRAM_BYTES)
        if misfit or len(data) > DATAGRAM_BYTES:
            return False
        self._guarded(self._nack)
        self._streams.check()
        return self._outbound.add_message(data, len(data) + padding, copies)

    def poll_set(self) -> Sequence[tuple[int, int]]:
        """The streams, the socket, the timer; sends what waits first."""
        streams = self._streams.poll_set()
        self._guarded(self._send)
        self._streams.check()
        waits = self._outbound.waiting and not self._outbound.no_room
        mask = select.POLLIN | (select.POLLOUT if waits else 0)
        own = [(self._udp.fileno(), mask), (self._tick.fileno, select.POLLIN), (self._retry.fileno, select.POLLIN)]
        if self._followed is not None and self._followed.fileno >= 0 and self._validation.is_pending(_CLOCK()):
            own.append((self._followed.fileno, select.POLLIN))
        if self._completions:
            # what has just been sent completes with the next turn, which has to come at once
            own.append((self._ready, select.POLLIN))
        return [*streams, *own]

    def progress(self) -> Sequence[Completion]:
        """Take in what has come, and send what the kernel takes."""
        self._tell_nacks()
        if not self._streams.lost:
            self._guarded(self._work)
        if self._strays:
            self._completions.append(Completion(CompletionKind.STRAY, length=self._strays))
            self._strays = 0
        completions, self._completions = self._completions, []
        if completions and self._streams.lost:
            return completions
        return [*completions, *self._progress_of_streams(bool(completions))]

    def close(self) -> None:
        """Close socket and streams."""
        self._drop("it was closed here")
        self._streams.close()
        self._completions.clear()

    def _progress_of_streams(self, may_fail_later: bool) -> Sequence[Completion]:
        try:
            return self._streams.progress()
        except Exception:
            # what completed before is told first
            if not may_fail_later:
                raise
            return ()

    def _work(self) -> None:
        self._receive()
        self._send()
        now = _CLOCK()
        if self._retries:
            self._retries = not self._retry.expired()
        # to ask the kernel in every turn costs more than what is to be done in most
        is_tick = now >= self._tick_due and self._tick.expired()
        if is_tick:
            self._tick_due = now + TICK_SECONDS / 2
        if self._followed is not None and (is_tick or self._validation.is_pending(now)):
            self._look_elsewhere(self._followed, now)
        if is_tick:
            self._on_tick(now)

    def _look_elsewhere(self, followed: Followed, now: float) -> None:
        """Whether the peer is at another address now. What else comes from there is dropped before that is sure."""
        for data, address in followed.take():
            if not self._takes_elsewhere(memoryview(data), address, now):
                self._strays += 1
        new = self._validation.take_new_address(now)
        if new is not None:
            self._udp.connect(new)
            self._liveness.on_message()
            # another way may carry other lengths
            self._path_mtu.doubt()

    def _takes_elsewhere(self, datagram: memoryview, address: Address, now: float) -> bool:
        kind = datagram[0]
        if len(datagram) < LEAST_BYTES.get(kind, len(datagram) + 1):
            return False
        if kind == PATH_RESPONSE:
            return self._validation.on_response(PATH_HEAD.unpack_from(datagram)[3], address, now)
        _, _, _, number, tag = PING_HEAD.unpack_from(datagram)
        if not self._tags.is_of_ping(tag, self._own, number):
            return False
        challenge = self._validation.on_ping_elsewhere(number, address, now)
        if challenge is not None:
            self._liveness.on_message()
            self._outbound.validate(PATH_CHALLENGE, challenge, address)
            self._outbound.validate(PATH_CHALLENGE, challenge)
        return True

    def _on_tick(self, now: float) -> None:
        mtu = self._path_mtu
        if mtu.state is State.ERROR:
            self._drop(f"datagrams of {mtu.length} bytes do not come through any more, only shorter ones")
            return
        if mtu.wants_search(now):
            mtu.search(self._lengths(), now)
        if self._used:
            self._liveness.on_used()
        self._used = False
        number = self._liveness.tick(mtu.wants_ping(now))
        if self._liveness.lost and not self._validation.is_pending(now):
            self._drop("datagrams are not answered any more")
        elif number:
            self._outbound.pad(*mtu.on_ping(number, self._outbound.take_long_sent(), now))
            self._outbound.ping(number, self._tags.of_ping(self._peer, number))

    def _on_too_long(self) -> None:
        if self._path_mtu.refuse():
            self._outbound.set_length(self._path_mtu.length)

    def _send(self) -> None:
        if self._outbound.waiting and self._outbound.flush():
            self._used = True
        if self._outbound.no_room:
            self._retry.set(RETRY_SECONDS)
            self._retries = True

    def _nack(self) -> None:
        """Ahead of each report, for what it makes the peer send again to be no more than is missing."""
        now = _CLOCK()
        counts = now >= self._looked_at + LOOK_SECONDS
        if counts:
            self._looked_at = now
        self._outbound.nack(self._chunks.take_nacks(counts=counts))

    def _tell_nacks(self) -> None:
        """What is missing of chunks, ahead of the report that came behind it: by that they go again."""
        for immediate, missing_bytes in self._outbound.take_nacks().items():
            told = Completion(CompletionKind.CHUNK_NACK, immediate=immediate, length=missing_bytes)
            self._completions.append(told)

    def _receive(self) -> None:
        ends_at = _CLOCK() + RECEIVE_SECONDS
        while True:
            try:
                batch, datagram_bytes = self._receiver.read()
                if datagram_bytes < len(batch):
                    self._on_batch(batch, datagram_bytes)
                elif batch:
                    self._on_datagram(batch)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    # a router has said so, or somebody in its name
                    self._path_mtu.doubt()
                elif error.errno not in _HARMLESS:
                    raise
            if _CLOCK() >= ends_at:
                return

    def _on_batch(self, batch: memoryview, datagram_bytes: int) -> None:
        while batch:
            taken = 0
            # of a batch of one nothing is gained
            if len(batch) >= 2 * datagram_bytes and batch[0] == CHUNK:
                taken = self._takes_run(batch, datagram_bytes)
            if not taken:
                self._on_datagram(batch[:datagram_bytes])
                taken = 1
            batch = batch[taken * datagram_bytes :]

    def _takes_run(self, batch: memoryview, datagram_bytes: int) -> int:
        """Take several pieces of a chunk in at once: how many; 0 where the first has to be looked at by itself."""
        if datagram_bytes < LEAST_BYTES[CHUNK]:
            return 0
        _, version, connection, piece, pieces, size, key, immediate, offset = CHUNK_HEAD.unpack_from(batch)
        if version != VERSION or connection != self._own:
            return 0
        if self._runs is None:
            if not is_loaded():
                return 0
            self._runs = PieceRuns()
        run = self._runs.run_of(batch, datagram_bytes)
        whole = self._chunks.take_run(piece, Cut(pieces, size), key, immediate, offset, run)
        if whole is None:
            return 0
        self._longest = max(self._longest, datagram_bytes)
        if whole:
            self._on_whole(key, immediate)
        return len(run)

    def _on_datagram(self, datagram: memoryview) -> None:
        if not self._takes(datagram):
            self._strays += 1

    def _takes(self, datagram: memoryview) -> bool:
        """Take a datagram in; False when it is none of the peer's, or belongs to nothing."""
        if len(datagram) < 2 or datagram[1] != VERSION:
            return False
        kind = datagram[0]
        if kind == CHUNK:
            # of these there are most
            return self._takes_piece(datagram)
        if kind not in LEAST_BYTES or len(datagram) < LEAST_BYTES[kind]:
            return False
        if kind == PROBE:
            # the other side's meeting ended a little later than ours
            return True
        if CONNECTION_HEAD.unpack_from(datagram)[2] != self._own:
            return False
        self._longest = max(self._longest, len(datagram))
        if kind == MESSAGE:
            return self._takes_message(datagram)
        if kind == NACK:
            return self._takes_nacks(datagram)
        if kind == PING:
            return self._takes_ping(datagram)
        if kind == PATH_CHALLENGE:
            return self._takes_challenge(datagram)
        if kind == PATH_RESPONSE:
            return self._validation.on_response(PATH_HEAD.unpack_from(datagram)[3], None, _CLOCK())
        if kind == PONG:
            _, _, _, number, longest = PONG_HEAD.unpack_from(datagram)
            self._liveness.on_pong(number)
            self._path_mtu.on_pong(number, longest, _CLOCK())
            self._outbound.set_length(self._path_mtu.length)
        return True

    def _takes_ping(self, datagram: memoryview) -> bool:
        _, _, _, number, tag = PING_HEAD.unpack_from(datagram)
        if not self._tags.is_of_ping(tag, self._own, number):
            return False
        self._validation.on_ping(number)
        longest, self._longest = self._longest, 0
        self._outbound.pong(number, longest)
        return True

    def _takes_challenge(self, datagram: memoryview) -> bool:
        if self._followed is not None:
            # the listening side stays where it is
            return False
        self._liveness.on_message()
        challenge = PATH_HEAD.unpack_from(datagram)[3]
        self._outbound.validate(PATH_RESPONSE, self._tags.of_response(self._peer, challenge))
        return True

    def _takes_piece(self, datagram: memoryview) -> bool:
        length = len(datagram)
        if length < LEAST_BYTES[CHUNK]:
            return False
        _, _, connection, piece, pieces, size, key, immediate, offset = CHUNK_HEAD.unpack_from(datagram)
        if connection != self._own:
            return False
        if length > self._longest:
            self._longest = length
        cut = self._latest_cut
        if cut.pieces != pieces or cut.size != size:
            # the same for most, and made for each it would take as long as to look at it
            cut = self._latest_cut = Cut(pieces, size)
        whole = self._chunks.take(piece, cut, key, immediate, offset, datagram[CHUNK_HEAD.size :])
        if whole:
            self._on_whole(key, immediate)
        return whole is not None

    def _on_whole(self, key: int, immediate: int) -> None:
        received = self._chunks.received_bytes(key)
        landed = Completion(CompletionKind.CHUNK_IMMEDIATE, immediate=immediate, received_bytes=received)
        self._completions.append(landed)
        self._used = True

    def _takes_message(self, datagram: memoryview) -> bool:
        _, _, _, piece, pieces, size, number = MESSAGE_HEAD.unpack_from(datagram)
        if piece >= pieces:
            return False
        data = self._messages.take(piece, Cut(pieces, size), number, datagram[MESSAGE_HEAD.size :])
        if data is not None:
            self._liveness.on_message()
            self._completions.append(Completion(CompletionKind.DATAGRAM, data=data))
        return True

    def _takes_nacks(self, datagram: memoryview) -> bool:
        try:
            for chunk in decode_nacks(datagram[CONNECTION_HEAD.size :]):
                self._outbound.on_nack(chunk)
        except ValueError:
            return False
        finally:
            self._tell_nacks()
        return True

    def _on_sent(self, work_request: int) -> None:
        self._completions.append(Completion(CompletionKind.WRITE_DONE, work_request))

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            self._drop(f"UDP: {error.strerror}")

    def _drop(self, reason: str) -> None:
        """Nothing is written or read any more."""
        if not self._open:
            return
        self._open = False
        self._outbound.clear()
        self._chunks.clear()
        self._udp.close()
        if self._followed is not None:
            self._followed.close()
        self._tick.close()
        self._retry.close()
        os.close(self._ready)
        self._streams.lose(reason)
