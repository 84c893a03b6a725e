"""One end of a `grpc` link: the frames of the `tcp` transport, packed into messages of one call."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Protocol

from fedrdma_fate.ports import Completion, CompletionKind, Opener, RemoteSlot, Slot
from fedrdma_fate.transport.endpoint_base import EndpointHealth, ReliableEndpoint
from fedrdma_fate.transport.exposure import ExposureTable, ProtocolViolation
from fedrdma_fate.transport.grpc_pipe import QUEUED_MESSAGES, MessagePipe
from fedrdma_fate.transport.inbound import Arrival, Inbound, PeerReportsViolation
from fedrdma_fate.transport.outbound import Outbound, Piece
from fedrdma_fate.transport.sealed_pieces import introduction_bytes, records_of, sealed_length
from fedrdma_fate.transport.stream_frames import (
    HEAD_BYTES,
    SEQUENCE_WINDOW,
    Head,
    Op,
    unpack_head,
    violation_frame,
)
from fedrdma_fate.wire.sealed import INTRODUCTION_BYTES, RECORD_OVERHEAD

NAME = "grpc"

MESSAGE_BYTES = 1024 * 1024
"""Payload of a message."""

LARGEST_MESSAGE = sealed_length(Head(Op.WRITE, piece_length=MESSAGE_BYTES)) + (SEQUENCE_WINDOW + 1) * HEAD_BYTES
"""Bytes of a message with every ACK that can be due at once: the longest piece, as sealed."""

LINGER_SECONDS = 0.5
"""How long `close` lets the peer end the call in order before it is cut."""


class Closable(Protocol):
    """The channel of a call that was made from here."""

    def close(self) -> None:
        """Give it back."""
        ...


class GrpcEndpoint(ReliableEndpoint):
    """One end of a link. See `ports.Endpoint`."""

    def __init__(self, pipe: MessagePipe, channel: Closable | None = None) -> None:
        self._health = EndpointHealth(NAME)
        self._pipe = pipe
        self._channel = channel
        self._closed = False
        self._violation_reported = False
        self._exposures = ExposureTable()
        self._completions: list[Completion] = []
        self._outbound = Outbound(streams=1, largest_piece=MESSAGE_BYTES)
        self._inbound = Inbound(self._exposures, self._complete, self._outbound.acknowledge, self._on_acknowledged)

    @property
    def transport(self) -> str:
        return NAME

    def open_with(self, opener: Opener) -> bool:
        """Seal each block as it is copied into a message, and open it out of one."""
        self._inbound.opener = opener
        return True

    def expose(self, grant: int, slot: Slot) -> RemoteSlot:
        """Let the peer write into the slot; its addresses count from 0."""
        self._health.check()
        return self._exposures.expose(grant, slot)

    def withdraw(self, grant: int) -> None:
        """Close the slot to the peer. If it is still writing there, that breaks the link, and writes nothing."""
        self._health.check()
        self._exposures.withdraw(grant)

    def post_write(self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int) -> None:
        """Queue the write."""
        self._health.check()
        self._inbound.require_sealer(target)
        self._outbound.post_write(work_request, source, target, target_offset)
        self._send()

    def post_bytes(
        self, work_request: int, data: bytes, target: RemoteSlot, target_offset: int, immediate: int
    ) -> None:
        """Queue the fenced write; the one stream keeps the order. At most `frames.INLINE_BYTES` bytes."""
        self._health.check()
        self._inbound.require_sealer(target)
        self._outbound.post_bytes(work_request, data, target, target_offset, immediate)
        self._send()

    def post_chunk(
        self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int, queue_pair: int, immediate: int
    ) -> None:
        """Queue the write."""
        del queue_pair
        self._health.check()
        self._inbound.require_sealer(target)
        self._outbound.post_chunk(work_request, source, target, target_offset, immediate)
        self._send()

    def poll_set(self) -> Sequence[tuple[int, int]]:
        """One descriptor, which grpcio's threads make readable."""
        self._health.check()
        return [(self._pipe.fileno(), select.POLLIN)]

    def progress(self) -> Sequence[Completion]:
        """Place what came, and send what there is room for."""
        if not self._health.lost:
            self._pipe.clear_signal()
            self._receive()
            self._send()
        completions, self._completions = self._completions, []
        if not completions:
            self._health.check()
        return completions

    def close(self) -> None:
        """End the call and its threads."""
        self._lose("it was closed here")
        self._completions.clear()
        if self._closed:
            return
        self._closed = True
        in_order = self._violation_reported or not self._outbound.unacknowledged
        self._pipe.close(LINGER_SECONDS if in_order else 0)
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _receive(self) -> None:
        # read first: what came before the end is still there to take
        ended = self._pipe.ended
        try:
            for _ in range(2 * QUEUED_MESSAGES):
                message = self._pipe.take()
                if message is None:
                    break
                self._on_message(memoryview(message))
        except PeerReportsViolation as reported:
            self._lose(str(reported))
        except ProtocolViolation as violation:
            self._pipe.put(violation_frame(str(violation)))
            self._pipe.finish()
            self._violation_reported = True
            self._lose(f"the peer broke the protocol: {violation}")
        if ended is not None:
            self._lose(ended)

    def _on_message(self, message: memoryview) -> None:
        at = 0
        while at < len(message):
            if len(message) - at < HEAD_BYTES:
                raise ProtocolViolation(f"a message ends {len(message) - at} bytes into a frame")
            head = unpack_head(message[at : at + HEAD_BYTES])
            at += HEAD_BYTES
            is_sealed = self._inbound.opener is not None and head.op in (Op.WRITE, Op.CHUNK, Op.FENCED)
            length = sealed_length(head) if is_sealed else head.piece_length
            body = message[at : at + length]
            if len(body) != length:
                raise ProtocolViolation(f"a message holds {len(body)} of a frame's {length} bytes")
            at += length
            self._on_frame(head, body)

    def _on_frame(self, head: Head, body: memoryview) -> None:
        match head.op:
            case Op.ACK:
                self._inbound.acknowledged(head)
            case Op.VIOLATION:
                raise PeerReportsViolation(f"the peer says: {bytes(body).decode(errors='replace')}")
            case Op.WRITE | Op.CHUNK:
                arrival = self._inbound.begin(head)
                target = self._inbound.target(arrival, head)
                if self._inbound.opener is None:
                    target[:] = body
                else:
                    self._open(arrival, head, body, target)
                self._inbound.landed(arrival, head.piece_length)
            case Op.FENCED:
                arrival = self._inbound.begin(head)
                if not self._inbound.fence_is_down(head.sequence):
                    raise ProtocolViolation("a fenced write came before what it waits for")
                self._inbound.surface(arrival, self._inbound.open_fenced(arrival, body))

    def _open(self, arrival: Arrival, head: Head, body: memoryview, target: memoryview) -> None:
        first = introduction_bytes(head)
        introduction, rest = bytes(body[:INTRODUCTION_BYTES]), body[first:]
        self._inbound.admit(arrival, head, introduction, body[INTRODUCTION_BYTES:first])
        for at, length in records_of(head):
            sealed, rest = rest[: length + RECORD_OVERHEAD], rest[length + RECORD_OVERHEAD :]
            start = at - head.piece_at
            block = target[start : start + length]
            is_right = self._inbound.open_record(arrival, at, introduction, sealed, block)
            arrival.note(at, block, tag_is_right=is_right)

    def _send(self) -> None:
        while self._outbound.waiting and self._pipe.has_room():
            piece = self._outbound.take()
            if piece is None:
                return
            self._pipe.put(b"".join((piece.head, _body(piece))))
            self._outbound.sent(piece)

    def _lose(self, reason: str) -> None:
        if not self._health.lost:
            self._health.lose(reason)
            self._exposures.clear()

    def _complete(self, completion: Completion) -> None:
        self._completions.append(completion)

    def _on_acknowledged(self, ack: Head) -> None:
        self._complete(Completion(CompletionKind.WRITE_DONE, self._outbound.acknowledged(ack)))


def _body(piece: Piece) -> bytes | memoryview:
    """What follows the head of a piece."""
    if piece.sealed is not None:
        return piece.sealed.seal_all()
    return b"" if piece.source is None else piece.source.view
