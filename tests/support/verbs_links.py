"""Links of the verbs transport over fake devices: two sides, no kernel, every fault for the test to decide."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from fedrdma_fate.ports import Completion, CompletionKind, Endpoint, EndpointAddress, RemoteSlot
from fedrdma_fate.transport.verbs.device_selection import PortPreference
from fedrdma_fate.transport.verbs.transport import VerbsSettings, VerbsTransport
from tests.support.endpoints import HeapRegion
from tests.support.fake_verbs import FakeDevice, FakeNetwork, FakePair, FakeVerbs, device_info

REGION_BYTES = 64 * 1024
UNTOUCHED = 0xEE


class FakeSide:
    """A transport over one fake device, with one region."""

    def __init__(
        self, network: FakeNetwork, name: str, *, queue_pairs: int = 2, chunk_queue_pairs: int = 4, **port: object
    ) -> None:
        self.verbs = FakeVerbs(device_info(name, "127.0.0.1", **port), network=network)
        self.region = HeapRegion(REGION_BYTES)
        self.region.view[:] = bytes([UNTOUCHED]) * REGION_BYTES
        self.transport = VerbsTransport(
            VerbsSettings(PortPreference(), queue_pairs, chunk_queue_pairs), [self.region], self.verbs
        )
        self.endpoint: Endpoint | None = None
        self.completions: list[Completion] = []

    @property
    def device(self) -> FakeDevice:
        """The device as it was opened last."""
        return self.verbs.opened[-1]

    @property
    def end(self) -> Endpoint:
        """Its end of the link."""
        assert self.endpoint is not None
        return self.endpoint

    @property
    def data_pairs(self) -> list[FakePair]:
        """The queue pairs for writes: behind that which binds windows, and that for notices."""
        return self.device.pairs[2:]

    @property
    def untouched(self) -> bool:
        """Whether nobody wrote anything."""
        return bytes(self.region.view) == bytes([UNTOUCHED]) * REGION_BYTES

    def expose(self, grant: int, offset: int, length: int) -> RemoteSlot:
        """Grant a slot."""
        return self.end.expose(grant, self.region.slot(offset, length))

    def write(self, request: int, data: bytes, target: RemoteSlot, at: int = 0) -> None:
        """Write some bytes from the start of the region."""
        self.region.view[: len(data)] = data
        self.end.post_write(request, self.region.slot(0, len(data)), target, at)

    def of(self, kind: CompletionKind) -> Sequence[int]:
        """Numbers of what has completed: work requests, or immediates."""
        found = [completion for completion in self.completions if completion.kind is kind]
        return [entry.work_request if kind is CompletionKind.WRITE_DONE else entry.immediate for entry in found]

    def progress(self) -> None:
        """Take in what there is."""
        self.completions += self.end.progress()


@dataclasses.dataclass
class FakeLink:
    """Both sides, connected."""

    network: FakeNetwork
    active: FakeSide
    passive: FakeSide

    def settle(self, turns: int = 5) -> None:
        """Let everything happen that can."""
        for _ in range(turns):
            self.active.progress()
            self.passive.progress()

    def connect(
        self,
        timeout: float = 20.0,
        spoil: Callable[[EndpointAddress], EndpointAddress] = lambda address: address,
        peer: str = "",
    ) -> None:
        """Connect both sides anew, by addresses of which the passive side's may be spoiled on its way.

        To the passive side, the active one is the peer of that name.
        """
        dialling, waiting = self.active.transport.open("active"), self.passive.transport.open("passive", peer)
        with ThreadPoolExecutor(1) as executor:
            answered = executor.submit(waiting.connect, dialling.address, timeout)
            try:
                self.active.endpoint = dialling.connect(spoil(waiting.address), timeout)
            finally:
                # whoever cannot meet must not hang
                if answered.exception(timeout + 1) is None:
                    self.passive.endpoint = answered.result()
            answered.result()

    def close(self) -> None:
        """End the link and both transports."""
        for side in (self.active, self.passive):
            if side.endpoint is not None:
                side.endpoint.close()
                side.endpoint = None
            side.transport.close()


def unconnected(
    active: Mapping[str, object] | None = None, passive: Mapping[str, object] | None = None, *, careless: bool = False
) -> FakeLink:
    """Two sides that have not met; the arguments change their ports, or their numbers of queue pairs.

    Careless devices do not check the bounds of windows.
    """
    network = FakeNetwork()
    network.careless = {"fake0", "fake1"} if careless else set()
    sides = FakeSide(network, "fake0", **(active or {})), FakeSide(network, "fake1", **(passive or {}))  # type: ignore[arg-type]
    return FakeLink(network, *sides)
