"""RDMA devices in memory, as `transport.verbs.interface` asks for them; every fault is for the test to decide."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import itertools
import os
from collections import deque
from collections.abc import Sequence

from fedrdma_fate.transport.verbs import interface as boundary
from fedrdma_fate.transport.verbs.interface import (
    DeviceEvent,
    DeviceInfo,
    GidEntry,
    LocalPort,
    Outcome,
    PairAddress,
    PairKind,
    Piece,
    PortInfo,
    RetrySettings,
    Target,
    VerbsError,
    WorkCompletion,
)

BAD_WORDS = {Outcome.FLUSHED: "flushed", Outcome.NO_ANSWER: "retry exceeded", Outcome.REFUSED: "remote access error"}


def device_info(name: str = "fake0", address: str = "10.0.0.1", **changes: object) -> DeviceInfo:
    """A device with one port that will do; changes are to the port."""
    gids = (GidEntry(0, "fe80::1", True), GidEntry(1, f"::ffff:{address}", True))
    port = PortInfo(number=1, active=True, mtu=4096, largest_message=1 << 31, gids=gids)
    return DeviceInfo(name, True, (dataclasses.replace(port, **changes),))  # type: ignore[arg-type]


class FakeNetwork:
    """Joins the queue pairs of all fake devices by their numbers."""

    def __init__(self) -> None:
        self.pairs: dict[int, FakePair] = {}
        self.numbers = itertools.count(17)
        self.keys = itertools.count(0x100)
        self.writes: list[tuple[int, int, bool]] = []
        """Number of the queue pair, bytes, whether signalled, of each write that was posted."""
        self.careless: set[str] = set()
        """Names of devices that do not check the bounds of windows."""


class FakeRegion:
    """Registered memory."""

    def __init__(self, domain: FakeDomain, address: int, length: int, *, remote_write: bool) -> None:
        device = domain.device
        self.local_key = self.remote_key = next(device.network.keys)
        self.address, self.length = address, length
        self.remote_write = remote_write
        self.device, self.domain = device, domain
        device.regions.append(self)

    def close(self) -> None:
        if self in self.device.regions:
            self.device.regions.remove(self)


class FakeWindow:
    """A part of a region that is open to peers."""

    def __init__(self, domain: FakeDomain, address: int, length: int, region: FakeRegion | None = None) -> None:
        device = domain.device
        self.key = next(device.network.keys)
        self.address, self.length, self.region = address, length, region
        self.device, self.domain = device, domain
        device.windows[self.key] = self

    def close(self) -> None:
        self.device.windows.pop(self.key, None)


class FakeQueue:
    """Completions, and a descriptor that tells of them once after it was armed."""

    def __init__(self) -> None:
        self.fileno = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.entries: deque[WorkCompletion] = deque()
        self.armed = True
        self.closed = False

    def push(self, done: WorkCompletion) -> None:
        self.entries.append(done)
        if self.armed and not self.closed:
            os.eventfd_write(self.fileno, 1)
            self.armed = False

    def arm(self) -> None:
        try:
            os.eventfd_read(self.fileno)
        except BlockingIOError:
            return
        self.armed = True

    def poll(self, most: int = 64) -> Sequence[WorkCompletion]:
        return [self.entries.popleft() for _ in range(min(most, len(self.entries)))]

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self.fileno)


class FakePair:
    """A queue pair; `held` keeps its writes from completing, `deaf` its peer from being reached."""

    def __init__(self, domain: FakeDomain, queue: FakeQueue, sends: int) -> None:
        device = domain.device
        self.domain, self.device, self.queue, self.sends = domain, device, queue, sends
        self.number = next(device.network.numbers)
        self.peer = 0
        self.mtu = 0
        self.held = self.deaf = self.failed = self.closed = False
        self.waiting: deque[WorkCompletion] = deque()
        self.receives: deque[tuple[int, tuple[Piece, ...]]] = deque()
        self.unsignalled = 0
        device.network.pairs[self.number] = self
        device.pairs.append(self)

    def connect(self, port: LocalPort, peer: PairAddress, first_packet: int, mtu: int, retry: RetrySettings) -> None:
        del port, first_packet, retry
        self.peer, self.mtu = peer.number, mtu

    def write(
        self, work_request: int, source: Piece, target: Target, *, signalled: bool, immediate: int | None = None
    ) -> None:
        self.device.network.writes.append((self.number, source.length, signalled))
        outcome = self._reach(target, source)
        if outcome is Outcome.DONE and immediate is not None:
            self._peer().consume_receive(source.length, immediate)
        self._finish(work_request, outcome, signalled)

    def send(self, work_request: int, *source: Piece, signalled: bool) -> None:
        outcome = self._reach(Target(0, 0), Piece(0, 0, 0))
        if outcome is Outcome.DONE:
            peer = self._peer()
            data = b"".join(ctypes.string_at(piece.address, piece.length) for piece in source)
            left = data
            for piece in peer.receives[0][1]:
                ctypes.memmove(piece.address, left, min(len(left), piece.length))
                left = left[piece.length :]
            assert not left, "longer than the receive"
            peer.consume_receive(len(data), None)
        self._finish(work_request, outcome, signalled)

    def receive(self, work_request: int, *into: Piece) -> None:
        self.receives.append((work_request, into))

    def bind(self, work_request: int, region: boundary.MemoryRegion, address: int, length: int) -> FakeWindow:
        assert isinstance(region, FakeRegion)
        assert region.domain is self.domain, "memory of another domain"
        outcome = Outcome.DONE if self.device.binds else Outcome.FAILED
        self.queue.push(WorkCompletion(work_request, self.number, outcome, "bind error"))
        return FakeWindow(self.domain, address, length, region)

    def fail(self) -> None:
        self.failed = True
        for work_request, _ in self.receives:
            self.queue.push(WorkCompletion(work_request, self.number, Outcome.FLUSHED, BAD_WORDS[Outcome.FLUSHED]))
        self.receives.clear()

    def close(self) -> None:
        self.closed = True
        self.device.network.pairs.pop(self.number, None)
        if self in self.device.pairs:
            self.device.pairs.remove(self)

    def release(self) -> None:
        """End `held`: what waited completes."""
        self.held = False
        while self.waiting:
            self.queue.push(self.waiting.popleft())

    def consume_receive(self, length: int, immediate: int | None) -> None:
        work_request, _ = self.receives.popleft()
        self.queue.push(WorkCompletion(work_request, self.number, Outcome.DONE, "", length, immediate))

    def _peer(self) -> FakePair:
        return self.device.network.pairs[self.peer]

    def _reach(self, target: Target, source: Piece) -> Outcome:
        if self.failed or self.closed:
            return Outcome.FLUSHED
        if self.deaf or self.peer not in self.device.network.pairs:
            return Outcome.NO_ANSWER
        if source.length == 0:
            return Outcome.DONE
        peer = self._peer()
        if not peer.domain.lets_in(target, source.length):
            peer.device.report(boundary.EventKind.ACCESS_ERROR)
            peer.fail()
            return Outcome.REFUSED
        ctypes.memmove(target.address, source.address, source.length)
        return Outcome.DONE

    def _finish(self, work_request: int, outcome: Outcome, signalled: bool) -> None:
        self.unsignalled = 0 if signalled else self.unsignalled + 1
        if self.unsignalled > self.sends:
            raise VerbsError("cannot post a write: Cannot allocate memory", 12)
        if signalled or outcome is not Outcome.DONE:
            done = WorkCompletion(work_request, self.number, outcome, BAD_WORDS.get(outcome, ""))
            if self.held:
                self.waiting.append(done)
            else:
                self.queue.push(done)
        if outcome is not Outcome.DONE:
            self.fail()


class FakeDomain:
    """A protection domain."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device

    def register(self, address: int, length: int, *, windows: bool = False, remote_write: bool = False) -> FakeRegion:
        del windows
        if self.device.registration_errno:
            raise VerbsError(f"cannot register {length} bytes of memory", self.device.registration_errno)
        return FakeRegion(self, address, length, remote_write=remote_write)

    def window(self) -> FakeWindow:
        return FakeWindow(self, 0, 0)

    def queue_pair(
        self,
        queue: boundary.CompletionQueue,
        port: int,
        *,
        kind: PairKind = PairKind.RELIABLE,
        sends: int,
        receives: int,
    ) -> FakePair:
        del port, kind, receives
        assert isinstance(queue, FakeQueue)
        if len(self.device.pairs) >= self.device.most_pairs:
            raise VerbsError("cannot make a queue pair: Cannot allocate memory", 12)
        return FakePair(self, queue, sends)

    def lets_in(self, target: Target, length: int) -> bool:
        """Whether a queue pair of this domain takes a write of the peer."""
        window = self.device.windows.get(target.key)
        if window is not None:
            whole = window if self.device.checks_windows or window.region is None else window.region
            return window.domain is self and _holds(whole, target.address, length)
        opened = (region for region in self.device.regions if region.remote_write and region.domain is self)
        return any(region.remote_key == target.key and _holds(region, target.address, length) for region in opened)

    def close(self) -> None:
        """Nothing that was made from it may be left."""
        left = [thing for thing in self.device.left if getattr(thing, "domain", None) is self]
        assert not left, f"made from the domain, and left: {left}"


def _holds(memory: FakeRegion | FakeWindow, address: int, length: int) -> bool:
    return memory.address <= address <= memory.address + memory.length - length


class FakeDevice(FakeDomain):
    """An open device, a domain of its own.

    Attributes:
        checks_windows: whether it keeps writes inside a window, and not only inside its region.
        domains: further ones that were made.
    """

    def __init__(self, info: DeviceInfo, network: FakeNetwork) -> None:
        super().__init__(self)
        self.checks_windows = info.name not in network.careless
        self.domains: list[FakeDomain] = []
        self.info, self.network = info, network
        self.events_fileno = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self.events: deque[DeviceEvent] = deque()
        self.regions: list[FakeRegion] = []
        self.windows: dict[int, FakeWindow] = {}
        self.pairs: list[FakePair] = []
        self.queues: list[FakeQueue] = []
        self.binds = True
        self.registration_errno = 0
        self.most_pairs = 1000
        self.most_completions = 32767
        self.closed = False

    def report(self, kind: boundary.EventKind) -> None:
        """Something happens to the device."""
        self.events.append(DeviceEvent(kind, kind.value))
        os.eventfd_write(self.events_fileno, 1)

    def next_event(self) -> DeviceEvent | None:
        assert not self.closed, "the real one would end the process"
        if not self.events:
            return None
        os.eventfd_read(self.events_fileno)
        return self.events.popleft()

    def domain(self) -> FakeDomain:
        self.domains.append(FakeDomain(self))
        return self.domains[-1]

    def completion_queue(self, depth: int) -> FakeQueue:
        if depth > self.most_completions:
            raise VerbsError(f"cannot make a completion queue of {depth} entries", errno.EINVAL)
        self.queues.append(FakeQueue())
        return self.queues[-1]

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self.events_fileno)

    @property
    def left(self) -> list[object]:
        """What has not been given back."""
        return [
            *self.regions,
            *self.windows.values(),
            *self.pairs,
            *(queue for queue in self.queues if not queue.closed),
        ]


class FakeVerbs:
    """The devices of one host."""

    def __init__(self, *infos: DeviceInfo, network: FakeNetwork | None = None) -> None:
        self.infos = list(infos)
        self.network = network or FakeNetwork()
        self.opened: list[FakeDevice] = []

    def devices(self) -> Sequence[DeviceInfo]:
        return self.infos

    def open(self, name: str) -> FakeDevice:
        info = next(info for info in self.infos if info.name == name)
        self.opened.append(FakeDevice(info, self.network))
        return self.opened[-1]
