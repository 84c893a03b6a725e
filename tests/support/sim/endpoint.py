"""Endpoints of data paths in virtual time: what `ports.Endpoint` asks for, and nothing below it."""

from __future__ import annotations

import ctypes
import functools
import mmap
import random
from collections.abc import Callable, Collection, Sequence

from fedrdma_fate.core.digest import chunk_digest
from fedrdma_fate.core.plan import Chunk
from fedrdma_fate.engine.payload import Payload
from fedrdma_fate.ports import ChunkService, Completion, CompletionKind, Endpoint, EndpointAddress, RemoteSlot, Slot
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from tests.support.sim.bottleneck import Bottleneck, Nic
from tests.support.sim.clock import VirtualClock
from tests.support.sim.link import DataPath, Faults, LinkProfile, Write

_MOST_COPIES = 2
"""Of a datagram that is not a train."""

_SLOT_SPACING = 1 << 40
"""Between the addresses of two exposed slots: more than any slot is long."""


class SparseRegion:
    """A region of zeros whose pages cost nothing until somebody writes there."""

    def __init__(self, length: int) -> None:
        self._map = mmap.mmap(-1, max(length, 1))
        self.name = "sparse"
        self.length = max(length, 1)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.fileno = -1
        self.view = memoryview(self._map)

    def slot(self) -> Slot:
        """The whole of it."""
        return Slot(self, 0, self.length)


@functools.cache
def digest_of_zeros(length: int) -> int:
    """The digest of a chunk of zeros."""
    return chunk_digest(memoryview(bytes(length)))


class PayloadOfZeros(Payload):
    """A payload of which only the length matters: gigabytes of it cost nothing."""

    def __init__(self, total_bytes: int) -> None:
        super().__init__(SparseRegion(total_bytes).slot(), total_bytes)

    def digest(self, chunk: Chunk) -> int:
        """Known without a look."""
        return digest_of_zeros(chunk.length)


class ExposedSlots:
    """The slots that a peer may write into, at addresses of their own. What is written elsewhere is lost."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[int, Slot]] = {}
        self._next = _SLOT_SPACING

    def expose(self, grant: int, slot: Slot) -> RemoteSlot:
        """Open a slot under a new address, which is its key, too."""
        address, self._next = self._next, self._next + _SLOT_SPACING
        self._slots[address] = (grant, slot)
        return RemoteSlot(address, address, slot.length)

    def withdraw(self, grant: int) -> None:
        """Close a slot, however often it was opened."""
        self._slots = {address: entry for address, entry in self._slots.items() if entry[0] != grant}

    def find(self, at: int) -> tuple[int, int, Slot] | None:
        """The grant, the offset in its slot and the slot at an address; None where nothing is open."""
        base = at - at % _SLOT_SPACING
        entry = self._slots.get(base)
        return None if entry is None else (entry[0], at - base, entry[1])

    def write(self, at: int, data: bytes) -> None:
        """Bytes land at an address.

        Raises:
            ValueError: beyond the end of a slot.
        """
        found = self.find(at)
        if found is not None and data:
            _, offset, slot = found
            slot.part(offset, len(data)).view[:] = data


class SimEndpoint:
    """What all endpoints of virtual time share: exposed slots, completions, and being broken. See `ports.Endpoint`."""

    transport = "sim"

    def __init__(self, service: ChunkService) -> None:
        self.chunk_service = service
        self.lent_region = None
        self.exposed = ExposedSlots()
        self.wake: Callable[[], None] = lambda: None
        self._completions: list[Completion] = []
        self._broken = ""

    def expose(self, grant: int, slot: Slot) -> RemoteSlot:
        """Let the peer write into the slot."""
        self._check()
        return self.exposed.expose(grant, slot)

    def withdraw(self, grant: int) -> None:
        """The peer may no longer write there."""
        self._check()
        self.exposed.withdraw(grant)

    def drain(self, grant: int) -> None:
        """The same."""
        self.withdraw(grant)

    @property
    def moved_bytes(self) -> int:
        """Not seen."""
        return 0

    @property
    def readiness_shows_all(self) -> bool:
        """It has no descriptors."""
        return False

    @property
    def still_open(self) -> Collection[int]:
        """None ever is."""
        return ()

    def post_datagram(self, data: bytes, copies: int = 1, padding: int = 0) -> bool:
        """There are none."""
        del data, copies, padding
        return False

    def poll_set(self) -> Sequence[tuple[int, int]]:
        """No descriptors: whoever drives the link is woken."""
        self._check()
        return ()

    def progress(self) -> Sequence[Completion]:
        """What has completed."""
        self._check()
        completions, self._completions = self._completions, []
        return completions

    def complete(self, completion: Completion) -> None:
        """The completion queue shows this, unless the data path is gone."""
        if not self._broken:
            self._completions.append(completion)
            self.wake()

    def break_down(self, reason: str) -> None:
        """This end notices that the data path is gone."""
        self._broken = self._broken or reason
        self.wake()

    def close(self) -> None:
        """Nothing lands or completes here any more."""
        self._broken = self._broken or "closed"
        self.exposed = ExposedSlots()

    def _check(self) -> None:
        if self._broken:
            raise TransportError(ErrorCode.LINK_LOST, f"the simulated data path is lost: {self._broken}.")


class ReliableEndpoint(SimEndpoint):
    """The sending or the receiving end of a `DataPath`: a reliably connected queue pair over a WAN.

    Attributes:
        writes: posted so far, headers included.
        chunk_bytes: of the payload posted so far, what was sent again included.
    """

    def __init__(self, *, hints: bool = False) -> None:
        """
        Args:
            hints: whether the receiving end sees each chunk land.
        """
        super().__init__(ChunkService())
        self.path: DataPath | None = None
        self.writes = 0
        self.chunk_bytes = 0
        self._hints = hints
        self._immediates: dict[int, int] = {}

    def post_write(self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int) -> None:
        """A chunk; zeros that nobody has written are not carried, only their time."""
        self.chunk_bytes += source.length
        data = b"" if isinstance(source.region, SparseRegion) else bytes(source.view)
        assert 0 <= target_offset <= target_offset + source.length <= target.length, "outside of what was granted"
        self._post(Write(work_request, target.address + target_offset, source.length, data, False))

    def post_bytes(
        self, work_request: int, data: bytes, target: RemoteSlot, target_offset: int, immediate: int
    ) -> None:
        """A header."""
        self._immediates[work_request] = immediate
        self._post(Write(work_request, target.address + target_offset, len(data), data, True))

    def post_chunk(
        self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int, queue_pair: int, immediate: int
    ) -> None:
        """Of another mode."""
        raise NotImplementedError

    def on_landed(self, write: Write, immediate: int) -> None:
        """A write of the peer has landed here."""
        if write.announce:
            self.complete(Completion(CompletionKind.IMMEDIATE, immediate=immediate))
            return
        found = self.exposed.find(write.at)
        if self._hints and found is not None:
            grant, offset, _ = found
            digest = None if write.data else digest_of_zeros(write.length)
            hint = Completion(CompletionKind.LANDED, immediate=grant, offset=offset, length=write.length, digest=digest)
            self.complete(hint)

    def immediate_of(self, write: Write) -> int:
        """The immediate value that a write was posted with."""
        return self._immediates.get(write.work_request, 0)

    def _post(self, write: Write) -> None:
        self._check()
        self.writes += 1
        if self.path is not None:
            self.path.post(write)


class ReliablePath:
    """One connection from a sender to a receiver: two ends, joined by a `DataPath`. Its events are for `on_lost`."""

    def __init__(
        self,
        clock: VirtualClock,
        profile: LinkProfile,
        faults: Faults,
        chance: random.Random,
        *,
        hints: bool,
        on_lost: Callable[[ReliablePath], None],
    ) -> None:
        self.sender, self.receiver = ReliableEndpoint(), ReliableEndpoint(hints=hints)
        self.data = DataPath(clock, profile, faults, chance, self.receiver.exposed, self)
        self.sender.path = self.data
        self._on_lost = on_lost

    def write_done(self, path: DataPath, work_request: int) -> None:
        """A write is whole at the peer."""
        del path
        self.sender.complete(Completion(CompletionKind.WRITE_DONE, work_request))

    def landed(self, path: DataPath, write: Write) -> None:
        """A write has landed, perhaps announced twice."""
        del path
        self.receiver.on_landed(write, self.sender.immediate_of(write))

    def lost(self, path: DataPath) -> None:
        """It has broken by itself."""
        del path
        self._on_lost(self)


class BottleneckEndpoint(SimEndpoint):
    """One end of a data path whose chunks go through a shared bottleneck; all that is short goes beside it, unlost.

    Payloads are zeros: only time and arrivals count.

    Attributes:
        peer: the other end.
        on_arrival: called with the length of each chunk of ours that landed.
        carries_trains: whether trains of datagrams, for the path probe, get through.
    """

    def __init__(
        self,
        clock: VirtualClock,
        link: Bottleneck,
        service: ChunkService,
        half_trip: Callable[[], float],
        nic: Nic | None = None,
    ) -> None:
        super().__init__(service)
        self.peer = self
        self.on_arrival: Callable[[int], None] = lambda _: None
        self.carries_trains = False
        self._clock = clock
        self._link = link
        self._nic = nic or Nic()
        self._half_trip = half_trip
        self._sent: list[Completion] = []

    def post_write(self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int) -> None:
        """Of other modes."""
        raise NotImplementedError

    def post_bytes(
        self, work_request: int, data: bytes, target: RemoteSlot, target_offset: int, immediate: int
    ) -> None:
        """Of other modes: a header of this one goes by datagram."""
        raise NotImplementedError

    def post_chunk(
        self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int, queue_pair: int, immediate: int
    ) -> None:
        """Through the bottleneck, or lost there."""
        del target, target_offset, queue_pair
        self._check()
        length = source.length
        self._link.post(self._nic, length, functools.partial(self._landed, work_request, length, immediate))
        if not self.chunk_service.reliable:
            # the source may change: nobody is told of a loss, and nobody is woken for it
            self._sent.append(Completion(CompletionKind.WRITE_DONE, work_request))

    def post_datagram(self, data: bytes, copies: int = 1, padding: int = 0) -> bool:
        """Half a round trip, however many copies; trains go through the bottleneck."""
        self._check()
        come = functools.partial(self.peer.complete, Completion(CompletionKind.DATAGRAM, data=data))
        is_train = len(data) == DATAGRAM_BYTES and self.carries_trains
        if copies <= _MOST_COPIES and not is_train:
            self._clock.after(self._half_trip(), come)
            return True
        if self.carries_trains:
            for _ in range(copies):
                self._link.post(self._nic, DATAGRAM_BYTES + padding, come)
        return self.carries_trains

    def progress(self) -> Sequence[Completion]:
        """What has completed, and which chunks have left."""
        if not self._completions:
            return super().progress()
        sent, self._sent = self._sent, []
        return [*sent, *super().progress()]

    def _landed(self, work_request: int, length: int, immediate: int) -> None:
        self.on_arrival(length)
        landed = Completion(CompletionKind.CHUNK_IMMEDIATE, immediate=immediate, digest=digest_of_zeros(length))
        self.peer.complete(landed)
        if self.chunk_service.reliable:
            done = Completion(CompletionKind.WRITE_DONE, work_request)
            self._clock.after(self._half_trip(), lambda: self.complete(done))


class SimDraft:
    """Half of a data path that is there already."""

    address: EndpointAddress = {}  # noqa: RUF012

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def connect(self, peer: EndpointAddress, timeout: float) -> Endpoint:
        """Nothing is waited for."""
        del peer, timeout
        return self._endpoint

    def abandon(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing is held."""
