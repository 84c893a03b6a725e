"""The streams of a `tcp` link: pieces straight from the sender's region to the socket, and from there into the slot."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import termios

from fedrdma_fate.core.digest import BLOCK_BYTES
from fedrdma_fate.ports import Slot
from fedrdma_fate.transport.inbound import Arrival, Inbound, PeerClosed, PeerReportsViolation, room_to_drain
from fedrdma_fate.transport.outbound import Outbound, Piece
from fedrdma_fate.transport.sealed_pieces import LARGEST_RECORD, SealedPiece, introduction_bytes
from fedrdma_fate.transport.stream_frames import HEAD_BYTES, Head, Op, unpack_head, violation_frame
from fedrdma_fate.wire.sealed import COUNTER_BYTES, INTRODUCTION_BYTES, RECORD_OVERHEAD

RECEIVE_BUDGET = 4 * 1024 * 1024
"""Bytes a stream reads in one `progress`, so that a fast sender cannot keep this side from sending."""

_NO_SENDFILE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSOCK})


class StreamReader:
    """Reads one stream.

    While a fenced write waits for writes on other streams, nothing more is read from its own (`parked`): everything
    behind it was sent later, so nothing that the fence waits for can be there.
    """

    def __init__(self, connection: socket.socket, inbound: Inbound) -> None:
        self._connection = connection
        self._inbound = inbound
        self._raw_head = bytearray(HEAD_BYTES)
        self._scratch = bytearray()
        self._fenced = memoryview(b"")
        self._head = Head(0)
        self._arrival: Arrival | None = None
        self._in_head = True
        self._rest = memoryview(self._raw_head)
        self._body = memoryview(b"")
        self._block_at = 0
        self._introduction = b""
        self._introduced = True
        self._record = memoryview(b"")
        self._behind: list[memoryview] = []
        self._in_place = False
        self._drains = False
        self.parked = False

    def release(self) -> bool:
        """Surface the fenced write that the stream is parked at, if its fence is down; whether it was.

        Raises:
            ProtocolViolation: its grant was withdrawn meanwhile.
        """
        if not self.parked or not self._inbound.fence_is_down(self._head.sequence):
            return False
        self.parked = False
        arrival = self._arrival
        assert arrival is not None
        self._expect_head()
        self._inbound.surface(arrival, self._fenced)
        return True

    def receive(self) -> None:
        """Read what is there, up to the budget.

        Raises:
            ProtocolViolation: the peer may not write that.
            PeerClosed: there will be no more; PeerReportsViolation when it said why.
            OSError: the connection broke.
        """
        budget = RECEIVE_BUDGET
        self._require_connected()
        while budget > 0 and (self.release() or not self.parked):
            if self._arrival is not None:
                self._inbound.require_live(self._arrival)
                if self._arrival.exposure.drains and not self._drains:
                    self._leave_slot()
            wanted = len(self._rest) + sum(map(len, self._behind))
            try:
                received = self._receive_some()
            except BlockingIOError:
                return
            if not received:
                raise PeerClosed("the peer closed the connection")
            budget -= received
            self._advance(received)
            if received == wanted:
                self._turn_over()
            elif not self._in_head:
                # a short read has emptied the socket; another call would only say so
                return

    def _receive_some(self) -> int:
        if self._behind:
            return self._connection.recvmsg_into([self._rest, *self._behind])[0]
        return self._connection.recv_into(self._rest)

    def _advance(self, received: int) -> None:
        while self._behind and received >= len(self._rest):
            received -= len(self._rest)
            self._rest = self._behind.pop(0)
        self._rest = self._rest[received:]

    def _turn_over(self) -> None:
        """What was being read, a head or what follows it, is complete."""
        if self._in_head:
            self._on_head(unpack_head(self._raw_head))
            return
        head, arrival = self._head, self._arrival
        if head.op == Op.VIOLATION:
            raise PeerReportsViolation(f"the peer says: {self._scratch.decode(errors='replace')}")
        if head.op == Op.FENCED:
            assert arrival is not None
            self._fenced = self._inbound.open_fenced(arrival, memoryview(self._scratch))
            self.parked = True
            return
        assert arrival is not None
        if self._introduced:
            self._on_block(head, arrival)
        else:
            self._on_introduction(head, arrival)

    def _on_introduction(self, head: Head, arrival: Arrival) -> None:
        """What says who has sealed a piece, and that its head is as it was sent, is there."""
        self._introduced = True
        self._introduction = bytes(self._scratch[:INTRODUCTION_BYTES])
        self._inbound.admit(arrival, head, self._introduction, memoryview(self._scratch)[INTRODUCTION_BYTES:])
        self._in_place = self._inbound.lands_in_place(arrival)
        self._expect_block()

    def _on_block(self, head: Head, arrival: Arrival) -> None:
        """A block of a piece, or the part of a block that the piece has, lies in place, or is there as sealed."""
        block, rest = self._next_block()
        is_right = self._inbound.opener is None or self._open_record(head, arrival, block)
        arrival.note(head.piece_at + self._block_at, block, tag_is_right=is_right)
        if rest:
            self._block_at += len(block)
            self._body = rest
            self._expect_block()
            return
        self._expect_head()
        self._inbound.landed(arrival, head.piece_length)

    def _on_head(self, head: Head) -> None:
        self._head = head
        if head.op == Op.ACK:
            self._expect_head()
            self._inbound.acknowledged(head)
            return
        if head.op in (Op.WRITE, Op.CHUNK):
            self._arrival = self._inbound.begin(head)
            self._body = self._inbound.target(self._arrival, head)
            self._block_at = 0
            if self._inbound.opener is None:
                self._expect_block()
            else:
                self._introduced = False
                self._scratch = bytearray(introduction_bytes(head))
                self._expect(memoryview(self._scratch))
            return
        length = head.piece_length
        if head.op == Op.FENCED:
            self._arrival = self._inbound.begin(head)
            length += INTRODUCTION_BYTES + RECORD_OVERHEAD if self._inbound.opener is not None else 0
        self._scratch = bytearray(length)
        self._expect(memoryview(self._scratch))

    def _expect(self, target: memoryview) -> None:
        self._in_head = False
        self._rest = target
        if not target:
            self._turn_over()

    def _expect_block(self) -> None:
        """Read no further than to the end of a block, so that it is digested while it lies in the cache.

        As sealed, it is read to where nobody looks at it before it has been opened, or it is checked where it lies.
        """
        block = self._next_block()[0]
        if self._inbound.opener is None:
            self._expect(block)
            return
        if not self._record:
            self._record = memoryview(bytearray(LARGEST_RECORD))
        if self._in_place:
            self._expect(self._record[:COUNTER_BYTES])
            self._behind = [block, self._record[COUNTER_BYTES:RECORD_OVERHEAD]]
            return
        self._expect(self._record[: len(block) + RECORD_OVERHEAD])

    def _open_record(self, head: Head, arrival: Arrival, block: memoryview) -> bool:
        at = head.piece_at + self._block_at
        if self._in_place:
            apart = self._record[:RECORD_OVERHEAD]
            return self._inbound.check_record(arrival, at, self._introduction, apart, block)
        sealed = self._record[: len(block) + RECORD_OVERHEAD]
        return self._inbound.open_record(arrival, at, self._introduction, sealed, block)

    def _next_block(self) -> tuple[memoryview, memoryview]:
        """What of the piece's body is left: up to the end of a block of the write, and behind it."""
        length = BLOCK_BYTES - (self._head.piece_at + self._block_at) % BLOCK_BYTES
        return self._body[:length], self._body[length:]

    def _leave_slot(self) -> None:
        """The grant of the write that is being read was closed: the rest of its piece goes where nobody looks."""
        self._drains = True
        block = self._next_block()[0]
        self._body = room_to_drain(len(self._body))
        if not self._introduced or not self._body:
            return
        elsewhere = self._next_block()[0]
        if self._inbound.opener is None:
            self._rest = elsewhere[len(block) - len(self._rest) :]
        elif self._in_place and len(self._behind) == 2:
            self._behind[0] = elsewhere
        elif self._in_place and len(self._behind) == 1:
            self._rest = elsewhere[len(block) - len(self._rest) :]

    def _expect_head(self) -> None:
        self._in_head = True
        self._arrival = None
        self._drains = False
        self._rest = memoryview(self._raw_head)

    def _require_connected(self) -> None:
        if self.parked:
            # nothing is read that would show it
            error = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error))


class StreamWriter:
    """Sends one stream; with `zero_copy` by `sendfile` from the source's region, where the kernel does that."""

    def __init__(self, connection: socket.socket, outbound: Outbound, *, zero_copy: bool) -> None:
        self._connection = connection
        self._outbound = outbound
        self._head = memoryview(b"")
        self._piece: Piece | None = None
        self._room = memoryview(b"")
        self._record: list[memoryview] = []
        self._sent = 0
        self._given_bytes = 0
        self._sendfile = zero_copy

    @property
    def moved_bytes(self) -> int:
        """Of what the kernel was given, as much as its peer has; all of it where it does not say."""
        waiting = bytearray(struct.calcsize("i"))
        try:
            # SIOCOUTQ of Linux (tcp(7))
            fcntl.ioctl(self._connection, termios.TIOCOUTQ, waiting)
        except (OSError, ValueError):
            return self._given_bytes
        return self._given_bytes - int(struct.unpack("i", waiting)[0])

    @property
    def wants_to_send(self) -> bool:
        return self._piece is not None or self._outbound.waiting

    def send(self) -> bool:
        """Finish the piece under way, or send the next one; False when the socket takes no more, or nothing is left.

        Raises:
            OSError: the connection broke.
        """
        piece = self._piece
        if piece is None:
            piece = self._piece = self._outbound.take()
            if piece is None:
                return False
            self._head = memoryview(piece.head)
            self._sent = 0
        try:
            if not (self._send_head(piece) and self._send_body(piece)):
                return False
        except BlockingIOError:
            return False
        self._outbound.sent(piece)
        self._piece = None
        return True

    def report_violation(self, reason: str) -> bool:
        """Send last words, if the stream stands between two frames; whether it did."""
        if self._piece is not None:
            return False
        try:
            self._connection.send(violation_frame(reason))
        except OSError:
            return False
        return True

    def _send_head(self, piece: Piece) -> bool:
        if not self._head:
            return True
        flags = socket.MSG_MORE if piece.sequence is not None else 0
        sent = self._connection.send(self._head, flags)
        self._given_bytes += sent
        self._head = self._head[sent:]
        return not self._head

    def _send_body(self, piece: Piece) -> bool:
        if piece.sealed is not None:
            return self._send_records(piece.sealed)
        if piece.source is None:
            return True
        sent = self._send_some(piece.source)
        self._given_bytes += sent
        self._sent += sent
        return self._sent >= piece.source.length

    def _send_records(self, sealed: SealedPiece) -> bool:
        """One after the other: what the kernel has taken makes room for the next."""
        if not self._room:
            self._room = memoryview(bytearray(LARGEST_RECORD))
        while True:
            if not self._record:
                record = sealed.next_record(self._room)
                if record is None:
                    return True
                self._record = record
            sent = self._connection.sendmsg(self._record)
            self._given_bytes += sent
            while self._record and sent >= len(self._record[0]):
                sent -= len(self._record.pop(0))
            if self._record:
                self._record[0] = self._record[0][sent:]
                return False

    def _send_some(self, source: Slot) -> int:
        rest = source.length - self._sent
        if self._sendfile and rest:
            try:
                sent = os.sendfile(self._connection.fileno(), source.region.fileno, source.offset + self._sent, rest)
                if not sent:
                    raise OSError(errno.EIO, f"the {source.region.name} region is shorter than its slots")
                return sent
            except OSError as error:
                if error.errno not in _NO_SENDFILE:
                    raise
                self._sendfile = False
        return self._connection.send(source.view[self._sent :])
