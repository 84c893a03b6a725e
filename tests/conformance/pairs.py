"""Two connected endpoints in one process, driven by one loop: what every conformance test stands on."""

from __future__ import annotations

import contextlib
import dataclasses
import select
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.memory.shared_slots import PresentedRegion
from fedrdma_fate.ports import Completion, CompletionKind, Endpoint, Region, RemoteSlot, Slot, Transport
from fedrdma_fate.security.ciphers import CHACHA
from fedrdma_fate.transport.grpc import GrpcSettings, GrpcTransport
from fedrdma_fate.transport.shm import ShmTransport
from fedrdma_fate.transport.tcp import TcpSettings, TcpTransport
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from tests.support.faulty import FaultyTransport
from tests.support.one_port import OnePortTransport
from tests.support.rdma import verbs_transport
from tests.support.sealed import SealedTransport
from tests.support.udp import udp_transport


@dataclasses.dataclass(frozen=True)
class Site:
    """What one side's transport is made from."""

    directory: Path
    region: Region


MakeTransport = Callable[[Site], Transport]

TRANSPORTS: dict[str, MakeTransport] = {
    "tcp-1": lambda _: TcpTransport(TcpSettings(streams=1)),
    "tcp-2": lambda _: TcpTransport(TcpSettings(streams=2)),
    "tcp-2-one-port": lambda _: OnePortTransport(TcpSettings(streams=2)),
    "tcp-5-zero-copy": lambda _: TcpTransport(TcpSettings(streams=5, zero_copy=True)),
    "shm": lambda site: ShmTransport(site.directory, site.region, SharedRegion.attach, PresentedRegion, site.region),
    "grpc": lambda _: GrpcTransport(GrpcSettings()),
    "tcp-1-sealed": lambda _: SealedTransport(TcpTransport(TcpSettings(streams=1))),
    "tcp-3-sealed": lambda _: SealedTransport(TcpTransport(TcpSettings(streams=3)), cipher=CHACHA),
    "tcp-2-integrity": lambda _: SealedTransport(TcpTransport(TcpSettings(streams=2)), "integrity"),
    "grpc-sealed": lambda _: SealedTransport(GrpcTransport(GrpcSettings())),
    "grpc-integrity": lambda _: SealedTransport(GrpcTransport(GrpcSettings()), "integrity"),
    "udp": lambda _: udp_transport(),
    "udp-1500": lambda _: udp_transport(longest_datagram=1472),
    "udp-1500-one-by-one": lambda _: udp_transport(longest_datagram=1472, segments=False),
    "verbs-1": lambda site: verbs_transport(site, queue_pairs=1),
    "verbs-3": lambda site: verbs_transport(site, queue_pairs=3),
    "verbs-rc": lambda site: verbs_transport(site, chunk_service="rc"),
    "verbs-busy": lambda site: verbs_transport(site, poll="busy"),
}
"""Every transport that has to conform; a new one is one line."""

PARAMETERS = [
    pytest.param(name, marks=[pytest.mark.nic] if name.startswith("verbs") else []) for name in sorted(TRANSPORTS)
]
"""Their names, for tests to run over each."""

LIKE_ANOTHER = frozenset({"tcp-1", "tcp-1-sealed", "grpc-integrity", "udp-1500", "verbs-1"})
"""Which differ from another one in how many streams, queue pairs or packets there are, or have a seal that another
stream has as well. What a write does is tried over these too in every run; how links come about and end, and what
state machines make of them, in sweeps alone."""

ONE_OF_EACH = [
    pytest.param(*each.values, marks=[*each.marks, *([pytest.mark.sweep] if each.values[0] in LIKE_ANOTHER else [])])
    for each in PARAMETERS
]
"""The same, those that are like another one in sweeps alone."""

WITHOUT_HINTS = frozenset({"verbs"})
"""Names of transports that cannot see a write without immediate land, and so report no LANDED."""

PATIENCE = 10.0
"""Seconds after which a test that still waits has failed."""

RANDOM_BLOCK = 5 * 1024 * 1024 + 4099


class ImpatientError(AssertionError):
    """What a test waits for has not come about."""


class Side:
    """An endpoint, its region, and everything that has completed there."""

    def __init__(self, endpoint: Endpoint, region: SharedRegion) -> None:
        self.endpoint = endpoint
        self.region = region
        self.completions: list[Completion] = []

    def progress(self) -> None:
        self.completions += self.endpoint.progress()

    def expose(self, grant: int, offset: int, length: int) -> RemoteSlot:
        return self.endpoint.expose(grant, Slot(self.region, offset, length))

    def write(self, work_request: int, offset: int, length: int, target: RemoteSlot, at: int = 0) -> None:
        self.endpoint.post_write(work_request, Slot(self.region, offset, length), target, at)

    def write_chunk(
        self, work_request: int, offset: int, length: int, target: RemoteSlot, at: int, immediate: int
    ) -> None:
        source = Slot(self.region, offset, length)
        queue_pair = work_request % self.endpoint.chunk_service.queue_pairs
        self.endpoint.post_chunk(work_request, source, target, at, queue_pair, immediate)

    def bytes_at(self, offset: int, length: int) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.region.view[offset : offset + length], np.uint8)

    def fill(self, offset: int, length: int, seed: int) -> None:
        block = np.frombuffer(np.random.default_rng(seed).bytes(min(length, RANDOM_BLOCK)), np.uint8)
        # the block's odd length keeps equal bytes from lying at equal places of two chunks
        self.bytes_at(offset, length)[:] = np.resize(block, length)

    def of(self, kind: CompletionKind) -> list[Completion]:
        return [completion for completion in self.completions if completion.kind is kind]

    @property
    def done(self) -> list[int]:
        return [completion.work_request for completion in self.of(CompletionKind.WRITE_DONE)]

    @property
    def chunks(self) -> list[int]:
        return [completion.immediate for completion in self.of(CompletionKind.CHUNK_IMMEDIATE)]

    @property
    def immediates(self) -> list[int]:
        return [completion.immediate for completion in self.of(CompletionKind.IMMEDIATE)]


@dataclasses.dataclass
class Pair:
    """The active and the passive end of one link, and the transports they came from."""

    active: Side
    passive: Side
    transports: tuple[Transport, Transport]

    @property
    def hints(self) -> bool:
        """Whether LANDED is reported."""
        return self.transports[0].name not in WITHOUT_HINTS

    @property
    def is_sealed(self) -> bool:
        """Whether tags stand for digests."""
        transport = self.transports[0]
        return isinstance(transport.inner if isinstance(transport, FaultyTransport) else transport, SealedTransport)

    def pump(self, until: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Drive both ends, in turns, until the condition holds."""
        deadline = time.monotonic() + patience
        while not until():
            # no short time-outs: an endpoint that forgets to ask for a wake-up has to show
            wait_for(self.active.endpoint, self.passive.endpoint, timeout=deadline - time.monotonic())
            if time.monotonic() >= deadline:
                raise ImpatientError(f"{self.active.completions[-3:]}, {self.passive.completions[-3:]}")
            self.active.progress()
            self.passive.progress()

    def close(self) -> None:
        self.active.endpoint.close()
        self.passive.endpoint.close()
        for transport in self.transports:
            transport.close()


def is_ready(endpoint: Endpoint) -> bool:
    """Whether one of its descriptors says that it can progress."""
    return bool(wait_for(endpoint, timeout=0))


def wait_for(*endpoints: Endpoint, timeout: float = 0.1) -> list[tuple[int, int]]:
    """Sleep until one of them can progress; what is ready then."""
    poller = select.poll()
    for endpoint in endpoints:
        for descriptor, mask in endpoint.poll_set():
            poller.register(descriptor, mask)
    return poller.poll(max(0.0, timeout) * 1000)


def await_loss(step: Callable[[], None], patience: float = PATIENCE) -> str:
    """Repeat the step until it raises LINK_LOST; the reason."""
    deadline = time.monotonic() + patience

    def repeat() -> None:
        while time.monotonic() < deadline:
            step()

    with pytest.raises(TransportError) as error:
        repeat()
    assert error.value.code is ErrorCode.LINK_LOST
    return error.value.message


def connect(active: Transport, passive: Transport, timeout: float = 5.0) -> tuple[Endpoint, Endpoint]:
    """Connect two transports as two gateways would."""
    dialling, waiting = active.open("active"), passive.open("passive")
    with ThreadPoolExecutor(1) as executor:
        answered = executor.submit(waiting.connect, dialling.address, timeout)
        dialled = dialling.connect(waiting.address, timeout)
        return dialled, answered.result()


@contextlib.contextmanager
def connected(make: MakeTransport, directory: Path, regions: tuple[SharedRegion, SharedRegion]) -> Iterator[Pair]:
    """A pair for the length of a test."""
    transports = make(Site(directory, regions[0])), make(Site(directory, regions[1]))
    active, passive = connect(*transports)
    pair = Pair(Side(active, regions[0]), Side(passive, regions[1]), transports)
    try:
        yield pair
    finally:
        pair.close()
