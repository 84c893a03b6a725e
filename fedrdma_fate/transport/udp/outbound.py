"""Our chunks and messages that the kernel has not taken yet, and how they are cut into datagrams."""

from __future__ import annotations

import dataclasses
import errno
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence

from fedrdma_fate.transport.udp.nacks import NackedChunk, NackedChunks, encode_nacks
from fedrdma_fate.transport.udp.packets import (
    CHUNK,
    CHUNK_HEAD,
    LIFE_HEAD,
    MESSAGE,
    MESSAGE_HEAD,
    MOST_PIECES,
    PING,
    PONG,
    VERSION,
)
from fedrdma_fate.transport.udp.socket_options import LARGEST_DATAGRAM, UDP_SEGMENT

MOST_SEGMENTS = 64
"""Datagrams of one `sendmsg`: UDP_MAX_SEGMENTS of Linux before 6.9."""

BYTES_PER_TURN = 256 * 1024
"""Handed to the kernel in one go, so that what comes is looked at in between: 25 Gbit/s with a turn of 80 us."""

MOST_MESSAGES = 256
"""That wait: four trains of datagrams."""

MOST_COPIES = 128
"""Of one message: two trains."""

_NO_SEGMENTS = frozenset({errno.EIO, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOPROTOOPT})
"""What a kernel, or a device that computes no checksums, answers to UDP_SEGMENT (udp(7))."""

_LATER = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS, errno.ENOMEM})
"""No room just now."""

_AS_GOOD_AS_LOST = frozenset(
    {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EPERM, errno.EACCES}
)
"""What a router, the peer's host or a filter of ours does not let through, now: whether it stays so, pings tell."""

_SEGMENT = struct.Struct("=H")


Buffers = list[bytes | memoryview]
"""What `sendmsg` is to gather."""


@dataclasses.dataclass(slots=True)
class _Chunk:
    work_request: int
    view: memoryview
    key: int
    immediate: int
    offset: int
    pieces: int
    to_send: Sequence[int]
    sent: int = 0


@dataclasses.dataclass(slots=True)
class _Message:
    data: memoryview
    number: int
    pieces: int
    sent: int = 0

    @property
    def to_send(self) -> Sequence[int]:
        """All of them: a message is not repaired."""
        return range(self.pieces)


class DatagramOutbound:
    """Sends over a connected UDP socket, messages before chunks.

    Attributes:
        piece_bytes: of a chunk in each datagram, but for the last.
        message_bytes: the same of a message.
        segments: whether the kernel cuts batches into datagrams.
        blocked: whether the socket has to be writable first.
    """

    def __init__(
        self, udp: socket.socket, datagram_bytes: int, connection: int, done: Callable[[int], None], *, segments: bool
    ) -> None:
        """
        Args:
            udp: the socket.
            datagram_bytes: longest datagram that the path takes.
            connection: what the peer knows it by.
            done: told of each chunk that the kernel has taken whole.
            segments: whether to try UDP_SEGMENT.
        """
        self.piece_bytes = datagram_bytes - CHUNK_HEAD.size
        self.message_bytes = datagram_bytes - MESSAGE_HEAD.size
        self.segments = segments
        self.blocked = False
        self._udp = udp
        self._datagram_bytes = datagram_bytes
        self._connection = connection
        self._done = done
        self._most_segments = max(1, min(MOST_SEGMENTS, LARGEST_DATAGRAM // datagram_bytes))
        self._segment = _SEGMENT.pack(datagram_bytes)
        self._chunks: deque[_Chunk] = deque()
        self._messages: deque[_Message] = deque()
        self._next_message = 0
        self._nacked = NackedChunks()

    @property
    def waiting(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._messages or self._chunks)

    def add_chunk(self, work_request: int, view: memoryview, key: int, immediate: int, offset: int) -> None:
        """Queue a chunk; `flush` sends it, or the pieces of it that the peer has said it lacks.

        Raises:
            ValueError: it has more pieces than can be counted.
        """
        if len(view) > MOST_PIECES * self.piece_bytes:
            raise ValueError(f"a chunk of {len(view)} bytes is too long for datagrams of {self._datagram_bytes}")
        pieces = -(-len(view) // self.piece_bytes)
        to_send = self._nacked.missing_pieces(key, immediate, pieces)
        self._chunks.append(_Chunk(work_request, view, key, immediate, offset, pieces, to_send))

    def add_message(self, data: bytes, length: int, copies: int) -> bool:
        """Queue a message, stretched to this length, so many times; False when there is no room."""
        if copies > MOST_COPIES or len(self._messages) + copies > MOST_MESSAGES:
            return False
        body = memoryview(data.ljust(length, b"\0"))
        pieces = max(1, -(-length // self.message_bytes))
        for _ in range(copies):
            self._next_message = (self._next_message + 1) & 0xFFFFFFFF
            self._messages.append(_Message(body, self._next_message, pieces))
        return True

    def on_nack(self, chunk: NackedChunk) -> int:
        """The peer lacks these pieces of a chunk. About how many bytes they are."""
        self._nacked.note(chunk)
        return chunk.missing.bit_count() * self.piece_bytes

    def nack(self, chunks: list[NackedChunk]) -> None:
        """Tell the peer what has not come of its chunks; what cannot go is as good as lost."""
        while chunks:
            datagram, named = encode_nacks(self._connection, chunks, self._datagram_bytes)
            # a chunk of so many pieces that they do not fit a datagram is sent again whole
            chunks = chunks[max(1, named) :]
            if named:
                self._gave([datagram], 1)

    def ping(self, number: int) -> None:
        """Send a ping, as long as a piece of a chunk; one that cannot go is as good as lost."""
        self._gave([LIFE_HEAD.pack(PING, VERSION, self._connection, number).ljust(self._datagram_bytes, b"\0")], 1)

    def pong(self, number: int) -> None:
        """Answer one."""
        self._gave([LIFE_HEAD.pack(PONG, VERSION, self._connection, number)], 1)

    def flush(self) -> bool:
        """Send what the kernel takes, BYTES_PER_TURN at most; whether a piece of a chunk went.

        Raises:
            OSError: it will take nothing any more.
        """
        self.blocked = False
        left = BYTES_PER_TURN
        any_chunk = False
        while left > 0 and self.waiting and not self.blocked:
            waiting = self._messages or self._chunks
            item = waiting[0]
            count = min(len(item.to_send) - item.sent, self._most_segments if self.segments else 1)
            buffers = self._message_buffers(item, count) if isinstance(item, _Message) else self._buffers(item, count)
            if not self._gave(buffers, count):
                continue
            item.sent += count
            left -= count * self._datagram_bytes
            any_chunk = any_chunk or isinstance(item, _Chunk)
            if item.sent == len(item.to_send):
                waiting.popleft()
                if isinstance(item, _Chunk):
                    self._done(item.work_request)
        return any_chunk

    def clear(self) -> None:
        """Forget what waits."""
        self._chunks.clear()
        self._messages.clear()

    def _buffers(self, chunk: _Chunk, count: int) -> Buffers:
        size, view, pack = self.piece_bytes, chunk.view, CHUNK_HEAD.pack
        pieces, key, immediate, offset, connection = (
            chunk.pieces,
            chunk.key,
            chunk.immediate,
            chunk.offset,
            self._connection,
        )
        buffers: Buffers = []
        for piece in chunk.to_send[chunk.sent : chunk.sent + count]:
            start = piece * size
            buffers.append(pack(CHUNK, VERSION, piece, pieces, key, immediate, connection, offset + start))
            buffers.append(view[start : start + size])
        return buffers

    def _message_buffers(self, message: _Message, count: int) -> Buffers:
        size, buffers = self.message_bytes, Buffers()
        for piece in message.to_send[message.sent : message.sent + count]:
            head = MESSAGE_HEAD.pack(MESSAGE, VERSION, piece, message.pieces, message.number, self._connection)
            buffers += (head, message.data[piece * size : (piece + 1) * size])
        return buffers

    def _gave(self, buffers: Buffers, datagrams: int) -> bool:
        """Whether the kernel has taken them."""
        options = [(socket.IPPROTO_UDP, UDP_SEGMENT, self._segment)] if datagrams > 1 else []
        try:
            self._udp.sendmsg(buffers, options)
        except OSError as error:
            if error.errno in _LATER:
                self.blocked = True
            elif datagrams > 1 and error.errno in _NO_SEGMENTS:
                self.segments = False
            elif error.errno in _AS_GOOD_AS_LOST:
                return True
            else:
                raise
            return False
        return True
