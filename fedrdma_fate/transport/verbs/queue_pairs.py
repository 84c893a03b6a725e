"""The queue pairs of one link, and what they need; made before the peer is known, destroyed when the link ends."""

from __future__ import annotations

import contextlib
import dataclasses

from fedrdma_fate.transport.verbs.chunks import ChunkNumbers, ChunkPairs, DatagramChannel
from fedrdma_fate.transport.verbs.device import DeviceContext
from fedrdma_fate.transport.verbs.domains import PeerDomain
from fedrdma_fate.transport.verbs.interface import (
    CompletionQueue,
    PairAddress,
    Piece,
    QueuePair,
    RetrySettings,
    VerbsError,
)
from fedrdma_fate.transport.verbs.link_messages import RECEIVES, WORK_REQUESTS, LinkMessageChannel, Scratch

SENDS = 128
"""Messages that may be under way on a queue pair."""
IMMEDIATES = 128
"""Receives posted on each; a peer with more immediates under way has to wait."""
STAGES = 64
"""Places for fenced writes, so many may be under way; further ones wait."""
STAGE_BYTES = 4096
"""Most bytes of a fenced write."""

EMPTY = 0
"""Work request of the receives that wait for immediates, which bring no bytes."""


@dataclasses.dataclass(frozen=True, slots=True)
class PeerAddress:
    """What the other side said of its half.

    Attributes:
        gid: address of its port.
        first_packet: first packet sequence number of all its queue pairs.
        mtu: the largest path MTU it can use, bytes.
        signal: number of its queue pair for messages.
        data: numbers of those for writes.
        chunks: numbers of those for chunks.
    """

    gid: str
    first_packet: int
    mtu: int
    signal: int
    data: tuple[int, ...]
    chunks: ChunkNumbers


class StagingArea:
    """Places in scratch memory for the bytes of fenced writes. See `outbound.Staging`."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._places = [LinkMessageChannel.BYTES + place * STAGE_BYTES for place in range(STAGES)]

    def put(self, data: bytes) -> Piece | None:
        """Copy them to where the device can read them; None while every place is in use."""
        return self._scratch.put(self._places.pop(), data) if self._places else None

    def free(self, piece: Piece) -> None:
        """The place may be used again."""
        self._places.append(piece.address - self._scratch.address)


class LinkQueuePairs:
    """One completion queue, a queue pair for messages, one or more for writes, and one or more for chunks."""

    def __init__(
        self, context: DeviceContext, peer: PeerDomain, queue_pairs: int, chunk_queue_pairs: int, *, unreliable: bool
    ) -> None:
        """Make them, in the state INIT, with receives posted.

        Args:
            context: the device.
            peer: the protection domain of the peer.
            queue_pairs: for writes.
            chunk_queue_pairs: for chunks.
            unreliable: whether chunks may go by unreliable ones.

        Raises:
            VerbsError: the device has no more of something.
            TransportError: TRANSPORT_UNAVAILABLE when memory for messages cannot be registered.
        """
        self.context = context
        self.peer = peer
        self.mtu = context.port.mtu
        context.join()
        with contextlib.ExitStack() as undo:
            undo.callback(context.leave)
            domain, port = peer.domain, context.port.port
            self.scratch = Scratch(domain, LinkMessageChannel.BYTES + STAGES * STAGE_BYTES + DatagramChannel.BYTES)
            undo.callback(self.scratch.close)
            self.staging = StagingArea(self.scratch)
            depth = RECEIVES + WORK_REQUESTS + queue_pairs * (SENDS + IMMEDIATES)
            depth += ChunkPairs.completions(chunk_queue_pairs)
            self.queue: CompletionQueue = context.device.completion_queue(depth)
            undo.callback(self.queue.close)
            signal = domain.queue_pair(self.queue, port, sends=WORK_REQUESTS, receives=RECEIVES)
            undo.callback(signal.close)
            self.messages = LinkMessageChannel(signal, self.scratch)
            self.messages.post_receives()
            self.data: list[QueuePair] = []
            undo.callback(self._close_writes)
            for _ in range(queue_pairs):
                self.data.append(domain.queue_pair(self.queue, port, sends=SENDS, receives=IMMEDIATES))
                for _ in range(IMMEDIATES):
                    self.receive_immediate(self.data[-1])
            self.chunks = ChunkPairs(domain, self.queue, port, self.scratch, chunk_queue_pairs, unreliable=unreliable)
            undo.callback(self.chunks.close)
            self._undo = undo.pop_all()

    def connect(self, peer: PeerAddress, first_packet: int, retry: RetrySettings) -> None:
        """Bring every queue pair to RTS. Of unequal numbers of queue pairs the smaller is used, as is the smaller MTU.

        Raises:
            VerbsError: the device cannot reach the peer's address, or does not take the attributes.
        """
        for spare in self.data[len(peer.data) :]:
            spare.close()
        del self.data[len(peer.data) :]
        port = self.context.port
        mtu = min(port.mtu, peer.mtu)
        for pair, number in zip(
            [*self.data, self.messages.pair], [*peer.data[: len(self.data)], peer.signal], strict=True
        ):
            pair.connect(port, PairAddress(number, peer.first_packet, peer.gid), first_packet, mtu, retry)
        packets = (first_packet, peer.first_packet)
        self.chunks.connect(port, peer.chunks, peer.gid, packets, mtu, retry)
        self.mtu = mtu

    def receive_immediate(self, pair: QueuePair) -> None:
        """Post a receive for a write with immediate.

        Raises:
            VerbsError: the device does not take it.
        """
        pair.receive(EMPTY, self.scratch.piece(0, 0))

    def close_data(self) -> None:
        """Destroy the queue pairs for writes and chunks: no region is read or written through this link any more."""
        self.chunks.close()
        self._close_writes()

    def _close_writes(self) -> None:
        while self.data:
            with contextlib.suppress(VerbsError):
                self.data.pop().close()

    def close_all(self) -> None:
        """Destroy every queue pair, and keep the device: keys can still be ended. May be repeated."""
        self.close_data()
        with contextlib.suppress(VerbsError):
            self.messages.pair.close()

    def close(self) -> None:
        """Destroy everything, and let go of the device, which others may close from then on; may be repeated."""
        self._undo.close()
