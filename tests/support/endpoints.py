"""A data path in memory: two endpoints without sockets, whose every step the test decides."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import os
import random
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence

from fedrdma_fate.core.digest import TAGGED
from fedrdma_fate.ports import (
    ChunkService,
    Completion,
    CompletionKind,
    Endpoint,
    EndpointAddress,
    LentRegion,
    Opener,
    RemoteSlot,
    Role,
    Sealer,
    Slot,
)
from fedrdma_fate.transport.endpoint_base import address_number
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from fedrdma_fate.wire.sealed import RECORD_OVERHEAD

_keys = itertools.count(1)


class HeapRegion:
    """A region on the heap; nobody else can map it."""

    def __init__(self, length: int, name: str = "heap") -> None:
        self._buffer = (ctypes.c_char * length)()
        self.name = name
        self.length = length
        self.address = ctypes.addressof(self._buffer)
        self.fileno = -1
        self.view = memoryview(self._buffer).cast("B")

    def slot(self, offset: int = 0, length: int | None = None) -> Slot:
        """A piece of it."""
        return Slot(self, offset, self.length - offset if length is None else length)


@dataclasses.dataclass(frozen=True)
class _Write:
    """Under way: the source is read when it lands, as a card does."""

    work_request: int
    source: Slot | bytes
    key: int
    offset: int
    immediate: int | None
    is_chunk: bool = False
    sealer: Sealer | None = None


class MemoryWire:
    """What connects two endpoints, until it breaks.

    Attributes:
        chunk_service: as both ends present it.
        sealed_by_poster: as both ends say.
        sees_writes: whether writes without immediate are seen to land.
        seals: whether what is written with a sealer is sealed on its way, as on a stream.
        has_datagrams: whether it carries them.
        landed_bytes: of chunks and headers, over both directions.
        lands_at_once: how many writes land in a turn.
        paddings: of every posted datagram or train, over both directions.
        lost_chunks: which chunks get lost, counted from 1 over both directions.
        trouble: where datagrams get lost, come twice, or are held back until a later one comes: decides which.
    """

    def __init__(self) -> None:
        self.chunk_service = ChunkService()
        self.sealed_by_poster = False
        self.seals = False
        self.sees_writes = True
        self.landed_bytes = 0
        self.lands_at_once = 1000
        self.paddings: list[int] = []
        self.has_datagrams = False
        self.lost_chunks: frozenset[int] = frozenset()
        self.trouble: random.Random | None = None
        self.chunks = 0
        self.lock = threading.RLock()
        self.broken = ""
        self.ends = (MemoryEndpoint(self, 0), MemoryEndpoint(self, 1))

    def break_down(self, reason: str) -> None:
        """Both ends learn of it when they are asked next."""
        with self.lock:
            self.broken = self.broken or reason
            for end in self.ends:
                end.wake()


class MemoryEndpoint:
    """One end. See `ports.Endpoint`."""

    transport = "memory"

    def __init__(self, wire: MemoryWire, side: int) -> None:
        self._wire = wire
        self._side = side
        self._signal = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # few tests close it, and one process runs thousands of them
        self._close_signal = weakref.finalize(self, os.close, self._signal)
        self._exposed: dict[int, tuple[int, Slot]] = {}
        self._arriving: deque[_Write] = deque()
        self._completions: list[Completion] = []
        self._held_back: list[Completion] = []
        self._opener: Opener | None = None
        self.closed = False
        self.moved = 0
        """Bytes that the peer's host has taken, as a test says."""
        self.stuck: set[int] = set()
        """Grants that cannot be closed to the peer."""

    @property
    def peer(self) -> MemoryEndpoint:
        """The other end."""
        return self._wire.ends[1 - self._side]

    @property
    def arriving(self) -> int:
        """Writes of the peer that have not landed."""
        return len(self._arriving)

    def wake(self) -> None:
        """Make the descriptor readable."""
        if not self.closed:
            os.eventfd_write(self._signal, 1)

    @property
    def sealed_by_poster(self) -> bool:
        """As the wire says."""
        return self._wire.sealed_by_poster

    @property
    def moved_bytes(self) -> int:
        """As the test says."""
        return self.moved

    @property
    def readiness_shows_all(self) -> bool:
        """Its descriptor is ready once for all that has come."""
        return False

    def open_with(self, opener: Opener) -> bool:
        """Where the wire seals, everything that lands."""
        self._opener = opener if self._wire.seals else None
        return self._wire.seals

    def expose(self, grant: int, slot: Slot) -> RemoteSlot:
        """Let the peer write into the slot."""
        self._check()
        key = next(_keys)
        self._exposed[key] = (grant, slot)
        return RemoteSlot(key, 0, slot.length)

    def withdraw(self, grant: int) -> None:
        """The peer may no longer write there."""
        self._check()
        self._exposed = {key: entry for key, entry in self._exposed.items() if entry[0] != grant}

    def drain(self, grant: int) -> None:
        """The same."""
        self.withdraw(grant)

    @property
    def still_open(self) -> Collection[int]:
        """As the test says."""
        return self.stuck

    @property
    def exposed(self) -> set[int]:
        """Grants whose keys are alive."""
        return set() if self.closed else {grant for grant, _ in self._exposed.values()}

    def post_write(self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int) -> None:
        """Queue a write at the peer."""
        self._post(_Write(work_request, source, target.key, target.address + target_offset, None, sealer=target.sealer))

    def post_bytes(
        self, work_request: int, data: bytes, target: RemoteSlot, target_offset: int, immediate: int
    ) -> None:
        """Queue a write with immediate at the peer."""
        at = target.address + target_offset
        self._post(_Write(work_request, data, target.key, at, immediate, sealer=target.sealer))

    @property
    def lent_region(self) -> LentRegion | None:
        return None

    def opens_at_peer(self, key: int) -> bool:
        """Whether the peer lets us write by this key now."""
        return key in self.peer._exposed

    @property
    def chunk_service(self) -> ChunkService:
        """As the wire says."""
        return self._wire.chunk_service

    def post_chunk(
        self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int, queue_pair: int, immediate: int
    ) -> None:
        """Queue a chunk at the peer, or lose it."""
        del queue_pair
        self._wire.chunks += 1
        if self._wire.chunks in self._wire.lost_chunks:
            self._completions.append(Completion(CompletionKind.WRITE_DONE, work_request))
        else:
            at = target.address + target_offset
            self._post(_Write(work_request, source, target.key, at, immediate, True, target.sealer))

    def post_datagram(self, data: bytes, copies: int = 1, padding: int = 0) -> bool:
        """Hand it to the peer, where the wire has datagrams so long."""
        if len(data) > DATAGRAM_BYTES or (padding and len(data) < DATAGRAM_BYTES):
            return False
        self._wire.paddings.append(padding)
        if self._wire.has_datagrams:
            for _ in range(copies):
                self.peer._take_datagram(Completion(CompletionKind.DATAGRAM, data=data), self._wire.trouble)
            self.peer.wake()
        return self._wire.has_datagrams

    def poll_set(self) -> Sequence[tuple[int, int]]:
        """One descriptor."""
        self._check()
        return [(self._signal, select.POLLIN)]

    def progress(self, most: int = 1000) -> Sequence[Completion]:
        """Let up to `most` writes of the peer land."""
        with self._wire.lock:
            self._check()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._signal)
            for _ in range(min(most, self._wire.lands_at_once, len(self._arriving))):
                self._land(self._arriving.popleft())
                self._check()
            completions, self._completions = self._completions, []
            return completions

    def close(self) -> None:
        """Break the wire."""
        with self._wire.lock:
            self._wire.break_down("an end was closed")
            if not self.closed:
                self.closed = True
                self._close_signal()

    def _take_datagram(self, datagram: Completion, trouble: random.Random | None) -> None:
        fates = ("comes", "comes", "is lost", "comes twice", "is held back")
        match "comes" if trouble is None else trouble.choice(fates):
            case "comes":
                self._completions.append(datagram)
            case "comes twice":
                self._completions += [datagram] * 2
            case "is held back":
                self._held_back.append(datagram)
        if trouble is not None and self._held_back and trouble.random() < 0.3:
            self._completions.append(self._held_back.pop(trouble.randrange(len(self._held_back))))

    def _post(self, write: _Write) -> None:
        with self._wire.lock:
            self._check()
            self.peer._arriving.append(write)
            self.peer.wake()

    def _land(self, write: _Write) -> None:
        entry = self._exposed.get(write.key)
        data = write.source if isinstance(write.source, bytes) else bytes(write.source.view)
        if entry is None and write.is_chunk and not self._wire.chunk_service.reliable:
            # a late copy: on an unreliable queue pair nobody is told
            self.peer._completions.append(Completion(CompletionKind.WRITE_DONE, write.work_request))
            return
        if entry is None or write.offset + len(data) > entry[1].length:
            self._wire.break_down("a write outside of what was granted")
            return
        grant, slot = entry
        self._wire.landed_bytes += len(data)
        into = slot.view[write.offset : write.offset + len(data)]
        place: dict[str, int] = {}
        if self._opener is None:
            into[:] = data
        else:
            assert write.sealer is not None
            about = b"%d %d" % (write.offset, len(data))
            sealed = memoryview(bytearray(len(data) + RECORD_OVERHEAD))
            write.sealer.seal(about, memoryview(data), sealed)
            self._opener.open(grant, write.sealer.introduction, about, sealed, into)
            place = {"digest": TAGGED}
        if write.immediate is None:
            landed = Completion(CompletionKind.LANDED, 0, grant, offset=write.offset, length=len(data), **place)
        else:
            kind = CompletionKind.CHUNK_IMMEDIATE if write.is_chunk else CompletionKind.IMMEDIATE
            landed = Completion(kind, immediate=write.immediate, **place)
        if write.immediate is not None or self._wire.sees_writes:
            self._completions.append(landed)
        self.peer._completions.append(Completion(CompletionKind.WRITE_DONE, write.work_request))
        self.peer.wake()

    def _check(self) -> None:
        if self._wire.broken:
            raise TransportError(ErrorCode.LINK_LOST, f"the memory data path is lost: {self._wire.broken}.")


class MemoryTransport:
    """Makes wires between transports of one test, which share `wires`."""

    def __init__(self, name: str, wires: dict[int, MemoryWire]) -> None:
        self.name = name
        self.wires = wires
        self.refusing = False
        self.make_wire: Callable[[], MemoryWire] = MemoryWire

    def open(self, role: Role) -> MemoryDraft:
        """Start one data path; the passive side makes the wire."""
        if role == "active":
            return MemoryDraft(self, None)
        token = len(self.wires) + 1
        self.wires[token] = self.make_wire()
        return MemoryDraft(self, token)

    def close(self) -> None:
        """Nothing is held."""


class MemoryDraft:
    """One half of a wire."""

    def __init__(self, transport: MemoryTransport, token: int | None) -> None:
        self._transport = transport
        self._token = token

    @property
    def address(self) -> EndpointAddress:
        return {} if self._token is None else {"token": self._token}

    def connect(self, peer: EndpointAddress, timeout: float) -> Endpoint:
        """Take our end of the wire; nothing is waited for."""
        if self._transport.refusing:
            raise TransportError(ErrorCode.TRANSPORT_UNAVAILABLE, f"no way through within {timeout:g} s.")
        if self._token is not None:
            return self._transport.wires[self._token].ends[0]
        token = address_number(self._transport.name, peer, "token", max(1, len(self._transport.wires)))
        return self._transport.wires[token].ends[1]

    def abandon(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing is held."""
