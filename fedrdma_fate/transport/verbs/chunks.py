"""Chunks on queue pairs of their own, which may be unreliable, and datagrams: what `post_chunk` and reports go by."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import deque
from collections.abc import Sequence

from fedrdma_fate.transport.verbs.interface import (
    CompletionQueue,
    LocalPort,
    PairAddress,
    PairKind,
    Piece,
    ProtectionDomain,
    QueuePair,
    RetrySettings,
    VerbsError,
    WorkCompletion,
)
from fedrdma_fate.transport.verbs.link_messages import Scratch
from fedrdma_fate.transport.verbs.outbound import Lane, Write
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES, PADDED_DATAGRAM_BYTES

CHUNK_SENDS = 128
"""Chunks that may be under way on a queue pair, as its device sees it."""
CHUNK_RECEIVES = 256
"""Receives posted on each; a chunk that finds none is lost (UC) or has to wait (RC)."""

_RECEIVES = 64
"""Datagrams that may come at once."""
_SENDS = 32
"""Different ones that may be under way."""
_PADDING_BYTES = PADDED_DATAGRAM_BYTES - DATAGRAM_BYTES
_ARRIVAL = 0
"""Work request of the receives that wait for chunks, which bring no bytes of their own."""


@dataclasses.dataclass(frozen=True, slots=True)
class KindNumbers:
    """Numbers of one side's queue pairs of one kind: those for chunks, and the one for datagrams."""

    chunks: tuple[int, ...] = ()
    datagrams: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkNumbers:
    """Of both kinds. There are no unreliable ones where the device has none or is not to use them."""

    reliable: KindNumbers
    unreliable: KindNumbers = KindNumbers()


class DatagramChannel:
    """Short messages on a queue pair of their own; on an unreliable one they may be lost."""

    BYTES = (_RECEIVES + _SENDS) * DATAGRAM_BYTES + _PADDING_BYTES
    """Of scratch memory: a place for each, and one for the padding of all, which nobody looks at."""

    def __init__(self, pair: QueuePair, scratch: Scratch, offset: int) -> None:
        self.pair = pair
        self._scratch = scratch
        self._offset = offset
        self._copies = dict.fromkeys(range(_RECEIVES, _RECEIVES + _SENDS), 0)

    def post_receives(self) -> None:
        """Make ready to hear the peer.

        Raises:
            VerbsError: the device does not take it.
        """
        for place in range(_RECEIVES):
            self._receive(place)

    def send(self, data: bytes, copies: int = 1, padding: int = 0) -> bool:
        """Send it, as often as asked, back to back; False when it is too long or too many are under way.

        Raises:
            VerbsError: the device does not take it.
        """
        place = next((place for place, under_way in self._copies.items() if not under_way), None)
        full = sum(self._copies.values()) + copies > CHUNK_SENDS
        # behind a shorter one the padding would land in its place
        misfit = padding > _PADDING_BYTES or (padding and len(data) < DATAGRAM_BYTES)
        if place is None or full or misfit or len(data) > DATAGRAM_BYTES:
            return False
        self._copies[place] = copies
        pieces = [self._scratch.put(self._offset + place * DATAGRAM_BYTES, data)]
        if padding:
            pieces.append(self._padding(padding))
        for copy in range(copies):
            self.pair.send(place, *pieces, signalled=copy == copies - 1)
        return True

    def on_completion(self, done: WorkCompletion) -> bytes | None:
        """Take in a successful completion of this queue pair; what came, if something did.

        Raises:
            VerbsError: the device takes no new receive.
        """
        place = done.work_request
        if place >= _RECEIVES:
            self._copies[place] = 0
            return None
        data = self._scratch.get(self._offset + place * DATAGRAM_BYTES, min(done.length, DATAGRAM_BYTES))
        self._receive(place)
        return data

    def _receive(self, place: int) -> None:
        own = self._scratch.piece(self._offset + place * DATAGRAM_BYTES, DATAGRAM_BYTES)
        self.pair.receive(place, own, self._padding(_PADDING_BYTES))

    def _padding(self, length: int) -> Piece:
        return self._scratch.piece(self._offset + (_RECEIVES + _SENDS) * DATAGRAM_BYTES, length)


class ChunkPairs:
    """The chunk queue pairs of one side. Both kinds are made, as the peer may not have both; one kind is kept."""

    def __init__(
        self,
        domain: ProtectionDomain,
        queue: CompletionQueue,
        port: int,
        scratch: Scratch,
        count: int,
        *,
        unreliable: bool,
    ) -> None:
        """Make them, in the state INIT. Where the device has no unreliable ones, it makes do without.

        Raises:
            VerbsError: the device has no more of something.
        """
        self._scratch = scratch
        self.kind = PairKind.RELIABLE
        self.pairs: list[QueuePair] = []
        self.datagrams: DatagramChannel | None = None
        self._made: dict[PairKind, list[QueuePair]] = {PairKind.RELIABLE: [], PairKind.UNRELIABLE: []}
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            # one more for datagrams
            self._make(PairKind.RELIABLE, count + 1, domain, queue, port)
            if unreliable:
                # a device that has none says so with the first
                with contextlib.suppress(VerbsError):
                    self._make(PairKind.UNRELIABLE, count + 1, domain, queue, port)
            undo.pop_all()

    @staticmethod
    def completions(count: int) -> int:
        """Entries of a completion queue that they need; work is posted to the kind that is kept alone."""
        return (count + 1) * (CHUNK_SENDS + CHUNK_RECEIVES)

    @property
    def numbers(self) -> ChunkNumbers:
        """For the peer to know."""
        reliable, unreliable = (tuple(pair.number for pair in pairs) for pairs in self._made.values())
        return ChunkNumbers(
            KindNumbers(reliable[1:], reliable[0]),
            KindNumbers(unreliable[1:], unreliable[0]) if unreliable else KindNumbers(),
        )

    def connect(
        self, port: LocalPort, peer: ChunkNumbers, gid: str, packets: tuple[int, int], mtu: int, retry: RetrySettings
    ) -> None:
        """Bring those of the better kind that both have to RTS, with receives posted; the others are destroyed.

        Args:
            port: ours.
            peer: the other side's queue pairs.
            gid: address of its port.
            packets: first packet sequence number of ours, and of the peer's.
            mtu: path MTU in bytes.
            retry: of reliable ones.

        Raises:
            VerbsError: the device does not take it.
        """
        own, first = packets
        theirs = peer.reliable
        if len(self._made[PairKind.UNRELIABLE]) > 1 and peer.unreliable.chunks:
            self.kind, theirs = PairKind.UNRELIABLE, peer.unreliable
        mine = self._made[self.kind]
        self.datagrams = DatagramChannel(mine.pop(0), self._scratch, self._offset)
        self.datagrams.post_receives()
        self.datagrams.pair.connect(port, PairAddress(theirs.datagrams, first, gid), own, mtu, retry)
        self.pairs = mine[: len(theirs.chunks)]
        for pair in itertools.chain(*self._made.values()):
            if pair not in self.pairs:
                pair.close()
        for pair, number in zip(self.pairs, theirs.chunks, strict=False):
            for _ in range(CHUNK_RECEIVES):
                self.post_receive(pair)
            pair.connect(port, PairAddress(number, first, gid), own, mtu, retry)

    def post_receive(self, pair: QueuePair) -> None:
        """Post a receive for a chunk's immediate.

        Raises:
            VerbsError: the device does not take it.
        """
        pair.receive(_ARRIVAL, self._scratch.piece(0, 0))

    def close(self) -> None:
        """Destroy all of them; may be repeated."""
        kept = [] if self.datagrams is None else [self.datagrams.pair]
        self.datagrams = None
        self.pairs = []
        for pairs in (kept, *self._made.values()):
            while pairs:
                with contextlib.suppress(VerbsError):
                    pairs.pop().close()

    @property
    def _offset(self) -> int:
        return self._scratch.length - DatagramChannel.BYTES

    def _make(self, kind: PairKind, count: int, domain: ProtectionDomain, queue: CompletionQueue, port: int) -> None:
        for _ in range(count):
            made = domain.queue_pair(queue, port, kind=kind, sends=CHUNK_SENDS, receives=CHUNK_RECEIVES)
            self._made[kind].append(made)


class ChunkOutbound:
    """Our chunks that have not completed. Each goes by the queue pair that it was posted to, in order."""

    def __init__(self, pairs: Sequence[QueuePair], largest_message: int) -> None:
        self._lanes = [Lane(pair, CHUNK_SENDS, largest_message) for pair in pairs]
        self._by_number = {lane.pair.number: lane for lane in self._lanes}
        self._waiting: list[deque[Write]] = [deque() for _ in pairs]
        self._sequence = 0

    def add(self, queue_pair: int, write: Write) -> None:
        """Queue it; `flush` posts it."""
        self._sequence += 1
        write.sequence = self._sequence
        self._waiting[queue_pair % len(self._waiting)].append(write)

    def flush(self) -> None:
        """Hand what there is room for to the device.

        Raises:
            VerbsError: the device does not take it.
        """
        for lane, waiting in zip(self._lanes, self._waiting, strict=True):
            if waiting:
                while waiting and lane.room_for(waiting[0]):
                    lane.add(waiting.popleft())
                lane.post()

    def completed(self, pair: int, sequence: int) -> list[Write]:
        """The chunks that a completion covers."""
        return self._by_number[pair].completed(sequence)
