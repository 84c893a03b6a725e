"""Our chunks and messages that the kernel has not taken yet, and how they are cut into datagrams."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence

from fedrdma_fate.transport.udp.cuts import Cut, cut_for, recut
from fedrdma_fate.transport.udp.nacks import NackedChunk, NackedChunks, encode_nacks
from fedrdma_fate.transport.udp.packets import (
    CHUNK,
    CHUNK_HEAD,
    CONNECTION_HEAD,
    MESSAGE,
    MESSAGE_HEAD,
    MOST_PIECES,
    PADDING,
    PATH_HEAD,
    PING,
    PING_HEAD,
    PONG,
    PONG_HEAD,
    VERSION,
)
from fedrdma_fate.transport.udp.path_mtu import LongSent
from fedrdma_fate.transport.udp.path_validation import Address
from fedrdma_fate.transport.udp.socket_options import LARGEST_DATAGRAM, UDP_SEGMENT

MOST_SEGMENTS = 64
"""Datagrams of one `sendmsg`: UDP_MAX_SEGMENTS of Linux before 6.9."""

BYTES_PER_TURN = 512 * 1024
"""Handed to the kernel in one go, so that what comes is looked at in between: 0.2 ms at 20 Gbit/s."""

MOST_MESSAGES = 256
"""That wait: four trains of datagrams."""

MOST_COPIES = 128
"""Of one message: two trains."""

MOST_CUTS = 16
"""Ways to cut chunks that are remembered: a path's MTU has fewer steps (`meeting.py`, PATH_MTUS)."""

_NO_SEGMENTS = frozenset({errno.EIO, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOPROTOOPT})
"""What a kernel, or a device that computes no checksums, answers to UDP_SEGMENT (udp(7))."""

_SEGMENTS_TOO_LONG = errno.EINVAL
"""The same where the datagrams of a batch are longer than the device's MTU, as shows when one goes by itself."""

_LATER = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS, errno.ENOMEM})
"""No room just now."""

_NO_MEMORY = frozenset({errno.ENOBUFS, errno.ENOMEM})
"""Of these, what a socket's being writable says nothing of: a device's queue, or the host's memory."""

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
    cut: Cut
    to_send: Sequence[int]
    sent: int = 0

    def recut(self, size: int) -> None:
        """What has not been sent goes in pieces of this size."""
        cut = cut_for(len(self.view), size)
        unsent = sum(1 << piece for piece in self.to_send[self.sent :])
        missing = cut.all & ~recut(self.cut.all & ~unsent, self.cut, cut)
        self.cut, self.sent = cut, 0
        self.to_send = [piece for piece in range(cut.pieces) if missing >> piece & 1]


@dataclasses.dataclass(slots=True)
class _Message:
    data: memoryview
    number: int
    cut: Cut
    sent: int = 0

    @property
    def to_send(self) -> Sequence[int]:
        """All of them: a message is not repaired."""
        return range(self.cut.pieces)


class DatagramOutbound:
    """Sends over a connected UDP socket, messages before chunks.

    Attributes:
        piece_bytes: of a chunk in each datagram, but for the last.
        most_chunk_bytes: of a chunk, however short the path's datagrams become.
        segments: whether the kernel cuts batches into datagrams.
        blocked: whether the kernel takes nothing just now.
        no_room: it is so because of memory (ENOBUFS), and the socket is writable all the same: worth another try soon.
    """

    def __init__(
        self,
        udp: socket.socket,
        datagram_bytes: int,
        connection: int,
        done: Callable[[int], None],
        *,
        segments: bool,
        least_bytes: int | None = None,
        too_long: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            udp: the socket.
            datagram_bytes: longest datagram that the path takes.
            connection: what the peer knows it by.
            done: told of each chunk that the kernel has taken whole.
            segments: whether to try UDP_SEGMENT.
            least_bytes: shortest that `datagram_bytes` may become (`set_length`); None: it stays.
            too_long: told when a device takes no datagrams of this length any more; it may call `set_length`.
        """
        self.segments = segments
        self.blocked = False
        self.no_room = False
        self._long_sent = LongSent()
        self._udp = udp
        self._connection = connection
        self._done = done
        self._too_long = too_long
        self._may_segment = segments
        self.most_chunk_bytes = MOST_PIECES * ((least_bytes or datagram_bytes) - CHUNK_HEAD.size)
        self._least_bytes = least_bytes or datagram_bytes
        self._chunks: deque[_Chunk] = deque()
        self._messages: deque[_Message] = deque()
        self._next_message = 0
        self.nacks: dict[int, int] = {}
        self._nacked = NackedChunks()
        self._earlier_sizes: deque[int] = deque(maxlen=MOST_CUTS)
        self._use(datagram_bytes)

    @property
    def waiting(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._messages or self._chunks)

    def set_length(self, datagram_bytes: int) -> None:
        """From now on datagrams have this length; what waits is cut anew, a message that has begun begins anew."""
        if datagram_bytes == self._datagram_bytes:
            return
        if self.piece_bytes not in self._earlier_sizes:
            self._earlier_sizes.append(self.piece_bytes)
        self._use(datagram_bytes)
        # what was refused may have been the length
        self.segments = self._may_segment
        for chunk in self._chunks:
            chunk.recut(self.piece_bytes)
        for message in self._messages:
            if message.sent:
                message.number, message.sent = self._new_number(), 0
            message.cut = self._message_cut(message.data)

    def add_chunk(self, work_request: int, view: memoryview, key: int, immediate: int, offset: int) -> None:
        """Queue a chunk; `flush` sends it, or the pieces of it that the peer has said it lacks.

        Raises:
            ValueError: it has more pieces than can be counted.
        """
        length, size = len(view), self.piece_bytes
        if length > self.most_chunk_bytes:
            raise ValueError(f"a chunk of {length} bytes is too long for datagrams of {self._least_bytes}")
        to_send = self._nacked.missing_pieces(key, immediate, length, size)
        forgotten = self._nacked.on_sent(key, immediate, length)
        if forgotten is not None:
            self.nacks[forgotten] = self.most_chunk_bytes
        self._chunks.append(_Chunk(work_request, view, key, immediate, offset, cut_for(length, size), to_send))

    def add_message(self, data: bytes, length: int, copies: int) -> bool:
        """Queue a message, stretched to this length, so many times; False when there is no room."""
        if copies > MOST_COPIES or len(self._messages) + copies > MOST_MESSAGES:
            return False
        body = memoryview(data.ljust(length, b"\0"))
        cut = self._message_cut(body)
        for _ in range(copies):
            self._messages.append(_Message(body, self._new_number(), cut))
        return True

    def on_nack(self, chunk: NackedChunk) -> None:
        """The peer says that it lacks these pieces of a chunk."""
        missing_bytes = self._nacked.note(chunk, self.piece_bytes, self._earlier_sizes)
        if missing_bytes:
            self.nacks[chunk.immediate] = missing_bytes

    def take_nacks(self) -> dict[int, int]:
        """Bytes that would go of chunks that were posted again, by their immediates: what has become known of that."""
        for immediate in self._nacked.take_repeated():
            self.nacks[immediate] = self.most_chunk_bytes
        taken, self.nacks = self.nacks, {}
        return taken

    def nack(self, chunks: list[NackedChunk]) -> None:
        """Tell the peer what has not come of its chunks; what cannot go is as good as lost."""
        while chunks:
            # of a length that passes whatever becomes of the path's
            datagram, named = encode_nacks(self._connection, chunks, self._least_bytes)
            # a chunk of so many pieces that they do not fit a datagram is sent again whole
            chunks = chunks[max(1, named) :]
            if named:
                self._offer(datagram)

    def ping(self, number: int, tag: bytes) -> None:
        """Send a ping; one that cannot go is as good as lost."""
        self._offer(PING_HEAD.pack(PING, VERSION, self._connection, number, tag))

    def pong(self, number: int, longest: int) -> None:
        """Answer one."""
        self._offer(PONG_HEAD.pack(PONG, VERSION, self._connection, number, longest))

    def validate(self, kind: int, said: bytes, address: Address | None = None) -> None:
        """Send a PATH_CHALLENGE or PATH_RESPONSE, to the peer's address or another one."""
        datagram = PATH_HEAD.pack(kind, VERSION, self._connection, said)
        if address is None:
            self._offer(datagram)
            return
        # nobody knows what is there
        with contextlib.suppress(OSError):
            self._udp.sendto(datagram, address)

    def pad(self, count: int, length: int) -> None:
        """Send so many datagrams of this length that say nothing."""
        for _ in range(count):
            self._offer(CONNECTION_HEAD.pack(PADDING, VERSION, self._connection).ljust(length, b"\0"))

    def take_long_sent(self) -> LongSent:
        """How many datagrams of chunks and messages that the path may not carry were sent since it was asked last."""
        taken, self._long_sent = self._long_sent, LongSent()
        return taken

    def flush(self) -> bool:
        """Send what the kernel takes, BYTES_PER_TURN at most; whether a piece of a chunk went.

        Raises:
            OSError: it will take nothing any more.
        """
        self.blocked = self.no_room = False
        left = BYTES_PER_TURN
        any_chunk = refused = False
        while left > 0 and not self.blocked:
            waiting = self._messages or self._chunks
            if not waiting:
                break
            item = waiting[0]
            before, last_bytes, is_too_long = item.sent, 0, False
            try:
                last_bytes = self._send(item, left)
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise
                is_too_long = True
            count, is_whole = item.sent - before, item.sent == len(item.to_send)
            if count:
                refused = False
                left -= count * self._datagram_bytes
                any_chunk = any_chunk or isinstance(item, _Chunk)
                # the last piece may be shorter
                if count > is_whole:
                    self._note(count - is_whole, self._datagram_bytes)
            if is_too_long:
                # the first may be what an ICMP message has left on the socket
                if refused:
                    self._shorten()
                refused = not refused
            elif is_whole:
                self._note(1, last_bytes)
                waiting.popleft()
                if isinstance(item, _Chunk):
                    self._done(item.work_request)
        return any_chunk

    def _send(self, item: _Chunk | _Message, most_bytes: int) -> int:
        """Send pieces of one until all are sent, so many bytes are, or the kernel takes no more.

        The length of the last datagram, 0 where it was not taken.

        Raises:
            OSError: EMSGSIZE, or the kernel will take nothing any more.
        """
        total, at_once = len(item.to_send), self._most_segments if self.segments else 1
        most_pieces = -(-most_bytes // self._datagram_bytes)
        buffers: Buffers = []
        # on loopback each datagram is a call of its own, and what is done besides costs as much as that
        while item.sent < total and most_pieces > 0:
            count = min(total - item.sent, at_once)
            buffers = self._buffers(item, count) if isinstance(item, _Chunk) else self._message_buffers(item, count)
            if not self._gave(buffers, count):
                return 0
            item.sent += count
            most_pieces -= count
        return len(buffers[-2]) + len(buffers[-1])

    def clear(self) -> None:
        """Forget what waits."""
        self._chunks.clear()
        self._messages.clear()

    def _use(self, datagram_bytes: int) -> None:
        self._datagram_bytes = datagram_bytes
        self.piece_bytes = datagram_bytes - CHUNK_HEAD.size
        self._most_segments = max(1, min(MOST_SEGMENTS, LARGEST_DATAGRAM // datagram_bytes))
        self._segment = _SEGMENT.pack(datagram_bytes)

    def _note(self, datagrams: int, length: int) -> None:
        if length >= self._least_bytes:
            before, shortest = self._long_sent
            self._long_sent = LongSent(before + datagrams, min(shortest or length, length))

    def _new_number(self) -> int:
        self._next_message = (self._next_message + 1) & 0xFFFFFFFF
        return self._next_message

    def _message_cut(self, data: memoryview) -> Cut:
        return cut_for(max(1, len(data)), self._datagram_bytes - MESSAGE_HEAD.size)

    def _shorten(self) -> None:
        before = self._datagram_bytes
        self._too_long()
        if self._datagram_bytes >= before:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))

    def _buffers(self, chunk: _Chunk, count: int) -> Buffers:
        (pieces, size), view, pack = chunk.cut, chunk.view, CHUNK_HEAD.pack
        key, immediate, offset, connection = chunk.key, chunk.immediate, chunk.offset, self._connection
        buffers: Buffers = []
        if count == 1:
            piece = chunk.to_send[chunk.sent]
            start = piece * size
            head = pack(CHUNK, VERSION, connection, piece, pieces, size, key, immediate, offset + start)
            return [head, view[start : start + size]]
        for piece in chunk.to_send[chunk.sent : chunk.sent + count]:
            start = piece * size
            buffers.append(pack(CHUNK, VERSION, connection, piece, pieces, size, key, immediate, offset + start))
            buffers.append(view[start : start + size])
        return buffers

    def _message_buffers(self, message: _Message, count: int) -> Buffers:
        (pieces, size), buffers = message.cut, Buffers()
        for piece in message.to_send[message.sent : message.sent + count]:
            head = MESSAGE_HEAD.pack(MESSAGE, VERSION, self._connection, piece, pieces, size, message.number)
            buffers += (head, message.data[piece * size : (piece + 1) * size])
        return buffers

    def _offer(self, datagram: bytes) -> None:
        """Send one datagram; what cannot go now, or is too long, is as good as lost."""
        try:
            self._gave([datagram], 1)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise

    def _gave(self, buffers: Buffers, datagrams: int) -> bool:
        """Whether the kernel has taken them."""
        options = [(socket.IPPROTO_UDP, UDP_SEGMENT, self._segment)] if datagrams > 1 else []
        try:
            self._udp.sendmsg(buffers, options)
        except OSError as error:
            if error.errno in _LATER:
                self.blocked = True
                self.no_room = error.errno in _NO_MEMORY
            elif datagrams > 1 and error.errno in _NO_SEGMENTS:
                self.segments = False
                self._may_segment = self._may_segment and error.errno == _SEGMENTS_TOO_LONG
            elif error.errno in _AS_GOOD_AS_LOST:
                return True
            else:
                raise
            return False
        return True
