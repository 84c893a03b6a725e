"""What every protocol has: a server that exchanges models with all silos, and a silo that receives and sends one."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from deploy.softroce.programs.meeting import PLACE

if TYPE_CHECKING:
    from fedrdma_fate.bench.protocols.running import RunningBroker
    from fedrdma_fate.bench.rabbitmq import Broker

MEETING = "TESTBED_MEETING"
"""Names the unix socket of the meeting, where the hosts are plain processes without a `/run` of their own."""
_BLOCK_BYTES = 65_537
"""Of an odd length: no two chunks of a model are equal."""


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """One host among those that take part.

    Attributes:
        number: of the host; 0 is the server.
        addresses: of all hosts, in the order of their numbers.
        meeting: where they agree on what comes next.
    """

    number: int
    addresses: tuple[str, ...]
    meeting: Path

    @property
    def address(self) -> str:
        """Its own."""
        return self.addresses[self.number]

    @property
    def silos(self) -> int:
        """How many there are beside the server."""
        return len(self.addresses) - 1


def host_of_environment() -> Host:
    """As the testbed, or whoever starts plain processes in its stead, tells it.

    Raises:
        SystemExit: nobody does.
    """
    told, number = os.environ.get("TESTBED_HOSTS", ""), os.environ.get("TESTBED_HOST", "")
    if not told or not number:
        raise SystemExit(
            "this is one host's part: run it by scripts/testbed run, or set TESTBED_HOST, TESTBED_HOSTS and"
            f" {MEETING} as docs/bench-protocols.md says"
        )
    return Host(int(number), tuple(told.split(",")), Path(os.environ.get(MEETING, str(PLACE))))


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What is asked for.

    Attributes:
        protocol: by its name.
        size: of a model, bytes.
        rounds: how many.
        down_bps: at which the server may send to each silo, where a protocol does not find a rate; bit/s, with headers.
        up_bps: at which each silo may send; bit/s.
        computing_seconds: between a silo's receiving and its sending.
        mtu: of the network, bytes of an IP packet.
        broker: at the server, where one serves several protocols; None: a protocol that needs one starts its own.
        train: `vgg5` or `vgg8`, which is trained, and so what is sent; None: bytes are made up.
        data: directory with the pictures that it is trained on; None: a stand-in, made from the seed.
        seed: of all that is drawn by chance in training.
        models: of this host in this protocol; None: as `models_of` makes them.
        flows: other TCP flows meanwhile: `silos`, between them, or `server`, from each silo into it; None: none.
        running: a broker that runs already, and is somebody else's; None: there is none.
    """

    protocol: str
    size: int
    rounds: int
    down_bps: float = 1e9
    up_bps: float = 1e9
    computing_seconds: float = 1.0
    mtu: int = 1500
    broker: Broker | None = None
    train: str | None = None
    data: Path | None = None
    seed: int = 1
    models: Models | None = None
    flows: str | None = None
    running: RunningBroker | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Received:
    """A model, as it came.

    Attributes:
        moment: when it was there, by `time.monotonic`.
        missing_bytes: of it, that never came.
        dropped: datagrams that were not believed: forged, cut, doubled, or of another round.
    """

    moment: float
    missing_bytes: int = 0
    dropped: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Exchanged:
    """A round, as the server saw it.

    Attributes:
        sent: when its sends had returned, by `time.monotonic`; FedComm's clock starts there.
        received: from each silo, in their order.
    """

    sent: float
    received: tuple[Received, ...]


class Models(Protocol):
    """What one host sends, and what becomes of what it receives. Protocols may call it from several threads."""

    @property
    def size(self) -> int:
        """Of a model, bytes."""
        ...

    @property
    def parts(self) -> tuple[int, ...]:
        """Lengths of a model's tensors, which FedComm's datagrams do not cross; bytes."""
        ...

    def prepare(self, number: int) -> None:
        """Have ready what a round needs before its clock starts."""
        ...

    def own(self, number: int) -> bytes:
        """What this host sends in a round."""
        ...

    def held(self, sender: int) -> bytes:
        """What stays where nothing of a sender's next model comes."""
        ...

    def take(self, got: bytes | bytearray | memoryview, sender: int, number: int, *, whole: bool = True) -> None:
        """A model has come from a host.

        Args:
            whole: by a protocol that loses nothing; else some of it may be missing or displaced.

        Raises:
            SystemExit: it should be whole, and is not what was sent.
        """
        ...

    def compute(self, number: int) -> None:
        """A silo's work, between receiving and sending."""
        ...

    def finish(self, number: int) -> dict[str, Any]:
        """The server's work after a round; what is to be told of it."""
        ...

    def cpu_seconds(self) -> float:
        """Of this process, that all rounds so far took beside the protocol."""
        ...


class Server(Protocol):
    """The server's end of a protocol."""

    def exchange(self, number: int) -> Exchanged:
        """Send the round's model to all silos, and take one of each.

        Raises:
            SystemExit: a silo left, or what came was not its model.
        """
        ...

    def resent(self, number: int) -> int:
        """Bytes of the round's models that were sent again, where this protocol counts them; else 0."""
        ...


class Silo(Protocol):
    """A silo's end."""

    def prepare(self, number: int) -> None:
        """Have ready what the round needs before its clock starts."""
        ...

    def receive(self, number: int) -> Received:
        """Wait for the server's model."""
        ...

    def send(self, number: int) -> None:
        """Send the silo's model; returns when it is under way, or there."""
        ...

    def resent(self, number: int) -> int:
        """Bytes of it that were sent again, where this protocol counts them; else 0. Waits until the server has it."""
        ...


class ResentByKernel:
    """For a server or a silo whose protocol goes over TCP: what is sent again, the kernel counts."""

    def resent(self, number: int) -> int:
        """As in `Server` and `Silo`: this protocol counts nothing."""
        del number
        return 0


class PlainSilo(ResentByKernel):
    """A silo of such a protocol that has nothing to prepare beside its models."""

    def prepare(self, number: int) -> None:
        """Nothing."""


def model_of(sender: int, number: int, size: int) -> bytes:
    """What a host sends in a round: different for each, so that what is stale or another's shows."""
    block = hashlib.shake_128(f"{sender}/{number}".encode()).digest(_BLOCK_BYTES)
    return (block * -(-size // _BLOCK_BYTES))[:size]


@dataclasses.dataclass(slots=True)
class MadeModels:
    """Bytes that are made up, and compared with what they should be.

    Attributes:
        host: whose they are.
        size: of each, bytes.
    """

    host: int
    size: int
    _ready: tuple[int, bytes] = (-1, b"")
    _seconds: float = 0.0
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def parts(self) -> tuple[int, ...]:
        return (self.size,)

    def prepare(self, number: int) -> None:
        with self._timed():
            self._ready = number, model_of(self.host, number, self.size)

    def own(self, number: int) -> bytes:
        ready, model = self._ready
        if ready == number:
            return model
        with self._timed():
            return model_of(self.host, number, self.size)

    def held(self, sender: int) -> bytes:
        del sender
        return bytes(self.size)

    def take(self, got: bytes | bytearray | memoryview, sender: int, number: int, *, whole: bool = True) -> None:
        if not whole:
            return
        # a copy of what is not in memory of its own: that is what the protocol has handed over, and counts as its
        came = bytes(got)
        with self._timed():
            require_whole(came, sender, number, self.size)

    def compute(self, number: int) -> None:
        """Nothing."""

    def finish(self, number: int) -> dict[str, Any]:
        """Nothing."""
        del number
        return {}

    def cpu_seconds(self) -> float:
        """What it took to make and to compare them."""
        return self._seconds

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.thread_time()
        try:
            yield
        finally:
            with self._lock:
                self._seconds += time.thread_time() - began


def models_of(host: int, options: Options) -> Models:
    """Of a host: those that were made for it, or such as are made up."""
    return options.models if options.models is not None else MadeModels(host, options.size)


def differing_bytes(got: bytes | bytearray | memoryview, sender: int, number: int, size: int) -> int:
    """How many bytes of a model are not what its sender had sent; all where its length is another."""
    wanted = model_of(sender, number, size)
    if len(got) != size:
        return size
    if bytes(got) == wanted:
        return 0
    return int(np.count_nonzero(np.frombuffer(got, np.uint8) != np.frombuffer(wanted, np.uint8)))


def require_whole(got: bytes | bytearray | memoryview, sender: int, number: int, size: int) -> None:
    """Of a reliable protocol.

    Raises:
        SystemExit: something else came than was sent; names the host and how much of it.
    """
    if wrong := differing_bytes(got, sender, number, size):
        raise SystemExit(f"of what host {sender} sent in round {number + 1}, {wrong} bytes came as something else")
