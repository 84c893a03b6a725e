"""The two ends of a simulated transfer: they carry out what the state machines ask for, on simulated memory."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable
from typing import Literal

from fedrdma_fate.core.actions import (
    Action,
    ClearHeader,
    ComputeDigest,
    CopyStaged,
    Failed,
    Finished,
    SendFrame,
    WriteChunk,
    WriteHeader,
)
from fedrdma_fate.core.receiver import Receiver
from fedrdma_fate.core.sender import Sender, SenderState
from fedrdma_fate.wire.errors import ErrorCode, WireError, error_from_code
from fedrdma_fate.wire.frames import Abort, ChunkAck, ControlFrame, Delivered, Refused, ResendChunks
from fedrdma_fate.wire.header import HEADER_BYTES, decode_header, header_present
from tests.support.sim.clock import VirtualClock
from tests.support.sim.link import ControlChannel, DataPath, Write
from tests.support.sim.memory import Memory

_BAD_LOOKS = 3
"""A polled header may be half landed: one that does not parse so many times running is damaged."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hosts:
    """How the ends behave.

    Attributes:
        notify: whether headers are announced, or looked for.
        poll_interval: seconds between two looks.
        hints: whether the receiving transport sees each chunk land.
        digest_seconds: a digest takes up to so long.
    """

    notify: Literal["event", "poll"] = "event"
    poll_interval: float = 0.001
    hints: bool = False
    digest_seconds: float = 0.0


class DigestWorkers:
    """Computes digests in some random time each, so that answers come late and out of order."""

    def __init__(self, clock: VirtualClock, chance: random.Random, longest: float) -> None:
        self._clock = clock
        self._chance = chance
        self._longest = longest

    def compute(self, memory: Memory, offset: int, length: int, answer: Callable[[int], None]) -> None:
        """Answer with the digest of the bytes as they were at the beginning, or are at the end: nobody knows."""
        delay = self._chance.uniform(0, self._longest)
        if self._chance.random() < 0.5:
            value = memory.digest(offset, length)
            self._clock.after(delay, lambda: answer(value))
        else:
            self._clock.after(delay, lambda: answer(memory.digest(offset, length)))


class SendingEnd:
    """Drives a Sender."""

    def __init__(self, clock: VirtualClock, sender: Sender, payload: Memory, digests: DigestWorkers) -> None:
        self._clock = clock
        self._payload = payload
        self._digests = digests
        self._timer: float | None = None
        self.sender = sender
        self.control: ControlChannel | None = None
        self.path: DataPath | None = None
        self.writes = 0
        self.ended: list[Finished | Failed] = []
        self.ended_at: float | None = None

    def start(self, path: DataPath) -> None:
        """Begin to send over this path."""
        self.path = path
        self._carry_out(self.sender.start(self._clock.now))

    def on_write_done(self, path: DataPath, work_request: int) -> None:
        """A completion; one of a path that is no longer ours was flushed."""
        if path is self.path:
            self._carry_out(self.sender.on_write_done(work_request, self._clock.now))

    def on_path_lost(self, path: DataPath) -> None:
        """The path has broken, as far as this end has not noticed yet."""
        if path is self.path:
            self.path = None
            self.sender.pause()

    def on_path_renewed(self, path: DataPath, *, same_slot: bool) -> None:
        """There is a new path; perhaps before this end has noticed that the old one broke."""
        self.sender.pause()
        self.path = path
        if self.sender.state is SenderState.PAUSED:
            self._carry_out(self.sender.resume(self._clock.now, same_slot=same_slot))

    def on_frame(self, frame: ControlFrame) -> None:
        """A control frame of the receiver."""
        now = self._clock.now
        match frame:
            case ChunkAck(index=index):
                self._carry_out(self.sender.on_chunk_ack(index, now))
            case ResendChunks(chunks=chunks):
                self._carry_out(self.sender.on_resend(chunks, now))
            case Delivered():
                self._carry_out(self.sender.on_delivered(now))
            case Refused(code=code, reason=reason):
                self._carry_out(self.sender.on_refused(error_from_code(code, reason).code, reason))
            case _:
                raise RuntimeError(f"a sender has no use for {frame}")

    def peer_silent(self) -> None:
        """The peer cannot be reached any more."""
        self._carry_out(self.sender.cancel(ErrorCode.PEER_UNREACHABLE, "the peer is silent"))

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._do(action)
        self._set_timer()

    def _do(self, action: Action) -> None:
        match action:
            case WriteChunk(work_request, chunk, at):
                self._post(Write(work_request, at, chunk.length, self._payload.read(chunk.offset, chunk.length), False))
            case WriteHeader(work_request, header, at):
                self._post(Write(work_request, at, HEADER_BYTES, header.encode(), True))
            case ComputeDigest(chunk):
                index = chunk.index
                self._digests.compute(
                    self._payload,
                    chunk.offset,
                    chunk.length,
                    lambda value: self._carry_out(self.sender.on_digest(index, value)),
                )
            case SendFrame(frame):
                assert self.control is not None
                self.control.send(frame)
            case Finished() | Failed():
                self.ended.append(action)
                self.ended_at = self._clock.now
            case _:
                raise RuntimeError(f"a sender cannot ask for {action}")

    def _post(self, write: Write) -> None:
        if self.path is not None:
            self.writes += 1
            self.path.post(write)

    def _set_timer(self) -> None:
        due = self.sender.timer()
        if due is not None and self._timer is None:
            self._timer = due
            self._clock.at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._carry_out(self.sender.on_timer(self._clock.now))


class ReceivingEnd:
    """Drives a Receiver."""

    def __init__(self, clock: VirtualClock, receiver: Receiver, hosts: Hosts, digests: DigestWorkers) -> None:
        self._clock = clock
        self._hosts = hosts
        self._digests = digests
        self._looks = 0
        self.receiver = receiver
        self.slot: Memory | None = None
        self.control: ControlChannel | None = None
        self.path: DataPath | None = None
        self.delivered: list[bytes] = []
        self.ended: list[Finished | Failed] = []
        self.ended_at: float | None = None

    def start(self, path: DataPath, slot: Memory) -> None:
        """Receive by this path into this slot."""
        self.path, self.slot = path, slot
        if self._hosts.notify == "poll":
            self._look()

    def restart(self, path: DataPath, slot: Memory, *, same_slot: bool) -> None:
        """The path is new: forget what the old one left half done."""
        self.path, self.slot = path, slot
        self._looks = 0
        self._carry_out(self.receiver.restart(same_slot=same_slot))
        if self.receiver.finished:
            path.withdraw()

    def on_landed(self, path: DataPath, write: Write) -> None:
        """The completion queue shows a write."""
        if path is not self.path:
            return
        if not write.announce:
            if self._hosts.hints:
                self._carry_out(self.receiver.on_landed(write.at, write.length))
        elif self._hosts.notify == "event":
            self._carry_out(self.receiver.on_announced(self._header_bytes()))

    def on_frame(self, frame: ControlFrame) -> None:
        """A control frame of the sender."""
        match frame:
            case Abort(code=code, reason=reason):
                self._carry_out(self.receiver.on_abort(error_from_code(code, reason).code, reason))
            case _:
                raise RuntimeError(f"a receiver has no use for {frame}")

    def peer_silent(self) -> None:
        """The peer cannot be reached any more."""
        self._carry_out(self.receiver.on_abort(ErrorCode.PEER_UNREACHABLE, "the peer is silent"))

    def _memory(self) -> Memory:
        assert self.slot is not None
        return self.slot

    def _header_bytes(self) -> bytes:
        return self._memory().read(self.receiver.layout.header_at, HEADER_BYTES)

    def _look(self) -> None:
        """`notify: poll`: look at the first bytes again and again."""
        if self.receiver.finished:
            return
        raw = self._header_bytes()
        self._looks = self._looks + 1 if header_present(raw) else 0
        if header_present(raw) and (_parses(raw) or self._looks >= _BAD_LOOKS):
            self._looks = 0
            self._carry_out(self.receiver.on_announced(raw))
        self._clock.after(self._hosts.poll_interval, self._look)

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._do(action)

    def _do(self, action: Action) -> None:
        slot = self._memory()
        match action:
            case ComputeDigest(chunk):
                index, at = chunk.index, self.receiver.layout.payload_at + chunk.offset
                self._digests.compute(
                    slot, at, chunk.length, lambda value: self._carry_out(self.receiver.on_digest(index, value))
                )
            case CopyStaged(source, target, length):
                slot.copy(source, target, length)
            case ClearHeader(at):
                slot.write(at, bytes(HEADER_BYTES))
            case SendFrame(frame):
                assert self.control is not None
                self.control.send(frame)
            case Finished() | Failed():
                self._end(action)
            case _:
                raise RuntimeError(f"a receiver cannot ask for {action}")

    def _end(self, end: Finished | Failed) -> None:
        self.ended.append(end)
        self.ended_at = self._clock.now
        assert self.path is not None
        self.path.withdraw()
        if isinstance(end, Finished):
            self.delivered.append(self._memory().read(self.receiver.layout.payload_at, self.receiver.plan.total_bytes))


def _parses(raw: bytes) -> bool:
    try:
        decode_header(raw)
    except WireError:
        return False
    return True
