"""Both links of one `fedrdma-x` transfer in one thread, in virtual time, over a device that costs nothing."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import mmap
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from types import MappingProxyType

from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import Chunk, ChunkPlan, SlotLayout
from fedrdma_fate.engine.events import FrameToSend, LinkEvent, PayloadSent, ReceiveFailed, SendFailed
from fedrdma_fate.engine.link import Command, Link
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.engine.payload import Outgoing, Payload
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.ports import ChunkService, Completion, CompletionKind, EndpointAddress, Opener, RemoteSlot, Slot
from fedrdma_fate.security.datagram_tags import DatagramKeys, new_datagram_key
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import ControlFrame, MessageKey, Party

RTT_SECONDS = 0.02
"""Round trip of the path: the paper's, and that of `bench wan` unless told otherwise."""
TURN_SECONDS = 0.0002
"""How often the link's thread looks: what the token bucket wants."""

# the only ones there are
_GRANT = 1
_TRANSFER = 1
_ANY_DIGEST = 1
"""Of every chunk: what digests cost is measured apart."""
_MOST_TURNS = 1_000_000
"""200 s of virtual time: a transfer that takes longer does not end."""


class SparseRegion:
    """A region whose pages nobody touches, but those with headers: gigabytes cost nothing."""

    def __init__(self, length: int) -> None:
        self._map = mmap.mmap(-1, length)
        self.length = length
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.name = "sparse"
        self.fileno = -1


class FreeDevice:
    """An endpoint whose writes cost nothing and arrive half a round trip later; its own draft, for it is there already.

    Attributes:
        peer: the other end.
    """

    transport = "verbs"
    address: EndpointAddress = MappingProxyType({})

    def __init__(self, service: ChunkService, region: SparseRegion, clock: Callable[[], float]) -> None:
        self.chunk_service = service
        self.lent_region = None
        self.peer = self
        self._region = region
        self._clock = clock
        self._done: list[Completion] = []
        self._arriving: deque[tuple[float, Completion]] = deque()

    def connect(self, peer: EndpointAddress, timeout: float) -> FreeDevice:
        """Both ends have met."""
        del peer, timeout
        return self

    def abandon(self) -> None:
        """Nobody waits."""

    @property
    def sealed_by_poster(self) -> bool:
        """Nothing is sealed."""
        return False

    @property
    def moved_bytes(self) -> int:
        """Nothing takes time."""
        return 0

    @property
    def readiness_shows_all(self) -> bool:
        """It has no descriptor."""
        return False

    def open_with(self, opener: Opener) -> bool:
        """Nothing is sealed."""
        del opener
        return False

    def expose(self, grant: int, slot: Slot) -> RemoteSlot:
        """The slot's offset serves as its address."""
        return RemoteSlot(grant, slot.offset, slot.length)

    def withdraw(self, grant: int) -> None:
        """Nothing to do."""

    def drain(self, grant: int) -> None:
        """Nothing to do."""

    @property
    def still_open(self) -> Collection[int]:
        """Nothing is written."""
        return ()

    def post_write(self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int) -> None:
        """Not used by this mode."""
        raise NotImplementedError

    def post_bytes(
        self, work_request: int, data: bytes, target: RemoteSlot, target_offset: int, immediate: int
    ) -> None:
        """The header: the one thing that is really written."""
        at = target.address + target_offset
        self._region.view[at : at + len(data)] = data
        self._send(Completion(CompletionKind.IMMEDIATE, immediate=immediate))
        self._done.append(Completion(CompletionKind.WRITE_DONE, work_request))

    def post_chunk(
        self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int, queue_pair: int, immediate: int
    ) -> None:
        """It arrives, with a digest that somebody else has computed."""
        del source, target, target_offset, queue_pair
        self._send(Completion(CompletionKind.CHUNK_IMMEDIATE, immediate=immediate, digest=_ANY_DIGEST))
        self._done.append(Completion(CompletionKind.WRITE_DONE, work_request))

    def post_datagram(self, data: bytes, copies: int = 1, padding: int = 0) -> bool:
        """It arrives."""
        del copies, padding
        self._send(Completion(CompletionKind.DATAGRAM, data=data))
        return True

    def poll_set(self) -> Sequence[tuple[int, int]]:
        """Nothing to wait for."""
        return []

    @property
    def is_ready(self) -> bool:
        """Whether there are completions."""
        return bool(self._done) or bool(self._arriving and self._arriving[0][0] <= self._clock())

    def progress(self) -> Sequence[Completion]:
        """Completions of our own writes, and what has arrived."""
        completions, self._done = self._done, []
        now = self._clock()
        while self._arriving and self._arriving[0][0] <= now:
            completions.append(self._arriving.popleft()[1])
        return completions

    def close(self) -> None:
        """Nothing to do."""

    def _send(self, completion: Completion) -> None:
        self.peer._arriving.append((self._clock() + RTT_SECONDS / 2, completion))


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkCost:
    """Processor seconds for one chunk: of the sender's link thread, and of the receiver's."""

    send_seconds: float
    receive_seconds: float


class _Side:
    """One end: its link, the frames on their way to it, and the processor time of its turns."""

    def __init__(self, device: FreeDevice, known: KnownPath, clock: Callable[[], float]) -> None:
        self.link = Link("loopback", LinkSettings("verbs", known=known), self._on_event, clock)
        self.seconds = 0.0
        self.frames: deque[tuple[float, ControlFrame]] = deque()
        self.peer = self
        self.is_sent = False
        self.failure: FedRDMAError | None = None
        self._device = device
        self._clock = clock
        self._due: float | None = 0.0

    def connect(self, keys: DatagramKeys) -> None:
        """The data path is there."""
        self.link.connect(self._device, self._device.address, 1, keys)

    def turn(self) -> None:
        """Take in what has arrived, and do what is due; a thread would sleep until there is something."""
        commands: deque[Command] = deque()
        while self.frames and self.frames[0][0] <= self._clock():
            commands.append(functools.partial(Link.frame, frame=self.frames.popleft()[1]))
        is_due = self._due is not None and self._clock() >= self._due
        if commands or is_due or self._device.is_ready:
            began = time.thread_time()
            self._due = self.link.turn(commands).until
            self.seconds += time.thread_time() - began

    def _on_event(self, event: LinkEvent) -> None:
        match event:
            case FrameToSend(frame):
                self.peer.frames.append((self._clock() + RTT_SECONDS / 2, frame))
            case PayloadSent():
                self.is_sent = True
            case SendFailed(_, code, reason) | ReceiveFailed(_, _, code, reason):
                self.failure = FedRDMAError(code, reason)
            case _:
                pass


class Loopback:
    """One transfer of `count` chunks over a path of known rate."""

    def __init__(self, chunk_bytes: int, count: int, rate: float) -> None:
        """
        Args:
            chunk_bytes: size of a chunk.
            count: how many.
            rate: of the path, bytes a second.
        """
        plan = ChunkPlan(chunk_bytes * count, chunk_bytes)
        service = ChunkService(reliable=False, self_paced=False, queue_pairs=4)
        region = SparseRegion(SlotLayout(plan, "fedrdma-x").slot_bytes)
        known = KnownPath(PathState(rate, RTT_SECONDS, 0.0), "measured")
        self._count = count
        self._now = 0.0
        device, other = (FreeDevice(service, region, self._clock) for _ in range(2))
        device.peer, other.peer = other, device
        self._sender, self._receiver = _Side(device, known, self._clock), _Side(other, known, self._clock)
        self._sender.peer, self._receiver.peer = self._receiver, self._sender
        self._outgoing = _outgoing(plan, region)
        self._granted = Slot(region, 0, region.length)

    def run(self) -> ChunkCost:
        """Send it; what a chunk cost each side.

        Raises:
            FedRDMAError: the transfer failed.
        """
        keys = DatagramKeys(new_datagram_key(), new_datagram_key())
        self._sender.connect(keys)
        self._receiver.connect(keys.reversed)
        self._receiver.link.grant(_GRANT, self._granted, _TRANSFER)
        self._sender.link.send(self._outgoing)
        for _ in range(_MOST_TURNS):
            for side in (self._sender, self._receiver):
                side.turn()
                if side.failure is not None:
                    raise side.failure
            if self._sender.is_sent:
                return ChunkCost(self._sender.seconds / self._count, self._receiver.seconds / self._count)
            self._now += TURN_SECONDS
        raise FedRDMAError(ErrorCode.UNEXPECTED_EVENT, "the transfer does not end.")

    def _clock(self) -> float:
        return self._now


class _DigestedPayload(Payload):
    """One whose digests are known, as after a put."""

    def digest(self, chunk: Chunk) -> int:
        """The same for every chunk, as the device says it."""
        del chunk
        return _ANY_DIGEST


def _outgoing(plan: ChunkPlan, region: SparseRegion) -> Outgoing:
    payload = _DigestedPayload(Slot(region, 0, region.length), plan.total_bytes)
    key = MessageKey("bench", "payload", "t", Party("guest", "1"), Party("host", "2"))
    return Outgoing(_TRANSFER, key, "object", payload, plan, "fedrdma-x")
