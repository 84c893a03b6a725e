"""What the verbs transport asks of an RDMA device. `easy` gives it by pyverbs, tests by a fake; neither is needed here.

The words are those of the verbs: queue pair, completion queue, memory region, memory window, work request.
"""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
from collections.abc import Sequence
from typing import NamedTuple, Protocol

MTUS = (256, 512, 1024, 2048, 4096)
"""Path MTUs that a queue pair can have, bytes."""


class VerbsError(Exception):
    """A verb failed.

    Attributes:
        number: its errno, 0 when there is none.
    """

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.number = number


class PairKind(enum.Enum):
    """How a queue pair delivers."""

    RELIABLE = "rc"
    """Reliable connected: acknowledged, sent again, in order."""
    UNRELIABLE = "uc"
    """Unreliable connected: a message that loses a packet is lost whole, and nobody is told."""


class Outcome(enum.Enum):
    """How a work request ended."""

    DONE = "done"
    FLUSHED = "flushed"
    """It was not carried out: the queue pair is in the error state."""
    NO_ANSWER = "no-answer"
    """The peer did not acknowledge, however often it was sent."""
    REFUSED = "refused"
    """The peer's device refused the access: wrong key, withdrawn, or out of range; or ours refused the peer's."""
    FAILED = "failed"
    """Anything else; see the text."""


class EventKind(enum.Enum):
    """What a device reports without being asked."""

    ACCESS_ERROR = "access-error"
    """A peer's write was refused; its queue pair is in the error state."""
    PORT_DOWN = "port-down"
    DEVICE_GONE = "device-gone"
    OTHER = "other"


@dataclasses.dataclass(frozen=True, slots=True)
class GidEntry:
    """An entry of a port's GID table: one address of the port.

    Attributes:
        index: its place in the table.
        address: the GID, spelt as an IPv6 address.
        roce_v2: whether packets from it are RoCE v2 (over UDP), not RoCE v1 or InfiniBand.
    """

    index: int
    address: str
    roce_v2: bool

    @property
    def ipv4(self) -> str | None:
        """The IPv4 address that it stands for, if it does."""
        mapped = ipaddress.IPv6Address(self.address).ipv4_mapped
        return None if mapped is None else str(mapped)


@dataclasses.dataclass(frozen=True, slots=True)
class PortInfo:
    """A port of a device.

    Attributes:
        number: counts from 1.
        active: whether it can carry traffic.
        mtu: the largest path MTU it carries now, bytes.
        largest_message: bytes.
        gids: its addresses.
    """

    number: int
    active: bool
    mtu: int
    largest_message: int
    gids: tuple[GidEntry, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as it presents itself.

    Attributes:
        name: as `ibv_devices` prints it.
        windows: whether it has memory windows.
        ports: its ports.
    """

    name: str
    windows: bool
    ports: tuple[PortInfo, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LocalPort:
    """The port and address that queue pairs use."""

    device: str
    port: int
    gid_index: int
    gid: str
    mtu: int
    largest_message: int


@dataclasses.dataclass(frozen=True, slots=True)
class PairAddress:
    """Where a queue pair of the peer is found.

    Attributes:
        number: of the queue pair.
        first_packet: sequence number of the first packet that it sends (PSN), 24 bits.
        gid: address of its port.
    """

    number: int
    first_packet: int
    gid: str


@dataclasses.dataclass(frozen=True, slots=True)
class RetrySettings:
    """How long a reliable queue pair tries.

    Attributes:
        timeout_exponent: it waits 4.096 µs × 2^exponent for an acknowledgement.
        retries: how often it sends again before it gives up, at most 7; Soft-RoCE takes 7 for "for ever".
        receiver_retries: the same for a peer without a posted receive; 7 is for ever.
    """

    timeout_exponent: int = 16
    retries: int = 6
    receiver_retries: int = 7

    @property
    def seconds(self) -> float:
        """After so long a dead peer is noticed; a device may take up to four times as long for each turn."""
        return float(4.096e-6 * 2**self.timeout_exponent * (self.retries + 1))


class Piece(NamedTuple):
    """Registered local memory that a work request reads or fills: address, bytes and local key."""

    address: int
    length: int
    key: int


class Target(NamedTuple):
    """Memory of the peer that a write goes to: address and remote key."""

    address: int
    key: int


class WorkCompletion(NamedTuple):
    """How a work request ended.

    Attributes:
        work_request: its id.
        pair: number of its queue pair.
        outcome: how.
        text: the same for people.
        length: received bytes.
        immediate: of a receive that a write with immediate consumed, else None.
    """

    work_request: int
    pair: int
    outcome: Outcome
    text: str
    length: int = 0
    immediate: int | None = None


class MemoryRegion(Protocol):
    """Memory that the device may use."""

    @property
    def local_key(self) -> int:
        """What our own work requests name it by."""
        ...

    @property
    def remote_key(self) -> int:
        """What a peer's writes name it by, if they may."""
        ...

    def close(self) -> None:
        """Deregister it."""
        ...


class MemoryWindow(Protocol):
    """A part of a region that peers may write into, under a key of its own."""

    @property
    def key(self) -> int:
        """What a peer's writes name it by."""
        ...

    def close(self) -> None:
        """From now on no write gets in; writes that are arriving stop."""
        ...


class CompletionQueue(Protocol):
    """Where work requests of any number of queue pairs report how they ended."""

    @property
    def fileno(self) -> int:
        """Descriptor that becomes readable with the next completion after `arm`."""
        ...

    def arm(self) -> None:
        """Take in events, and ask for one at the next completion."""
        ...

    def poll(self, most: int = 64) -> Sequence[WorkCompletion]:
        """Completions that are there; never waits."""
        ...

    def close(self) -> None:
        """Destroy it; after its queue pairs."""
        ...


class QueuePair(Protocol):
    """One end of a connection."""

    @property
    def number(self) -> int:
        """What the peer's `PairAddress` says."""
        ...

    def connect(self, port: LocalPort, peer: PairAddress, first_packet: int, mtu: int, retry: RetrySettings) -> None:
        """INIT was reached when it was made; go to RTR and RTS."""
        ...

    def write(
        self, work_request: int, source: Piece, target: Target, *, signalled: bool, immediate: int | None = None
    ) -> None:
        """RDMA WRITE, or WRITE WITH IMMEDIATE."""
        ...

    def send(self, work_request: int, *source: Piece, signalled: bool) -> None:
        """SEND of one piece or two, one after the other: fills the peer's next receive."""
        ...

    def receive(self, work_request: int, *into: Piece) -> None:
        """Post a receive of one piece or two, filled one after the other, for a SEND or an immediate."""
        ...

    def bind(self, work_request: int, region: MemoryRegion, address: int, length: int) -> MemoryWindow:
        """Open [address, address + length) of a region to writes of peers; it is open when the request completes."""
        ...

    def fail(self) -> None:
        """Force it into the error state: everything posted is flushed."""
        ...

    def close(self) -> None:
        """Destroy it: the device touches no memory on its behalf any more."""
        ...


class DeviceEvent(NamedTuple):
    """What a device reports without being asked."""

    kind: EventKind
    text: str


class ProtectionDomain(Protocol):
    """Keeps apart what belongs to different peers: a key opens its memory to queue pairs of the same domain alone."""

    def register(self, address: int, length: int, *, windows: bool = False, remote_write: bool = False) -> MemoryRegion:
        """Register memory of this process."""
        ...

    def window(self) -> MemoryWindow:
        """A window that is bound to nothing: only writes of no bytes get in."""
        ...

    def queue_pair(
        self, queue: CompletionQueue, port: int, *, kind: PairKind = PairKind.RELIABLE, sends: int, receives: int
    ) -> QueuePair:
        """A queue pair in the state INIT."""
        ...

    def close(self) -> None:
        """Give it back; after everything that was made from it."""
        ...


class Device(ProtectionDomain, Protocol):
    """An open device, with a protection domain of its own."""

    @property
    def info(self) -> DeviceInfo:
        """As it was when it was opened."""
        ...

    @property
    def events_fileno(self) -> int:
        """Readable when there are events."""
        ...

    def next_event(self) -> DeviceEvent | None:
        """The next event, or None; never waits."""
        ...

    def domain(self) -> ProtectionDomain:
        """A further protection domain."""
        ...

    def completion_queue(self, depth: int) -> CompletionQueue:
        """A completion queue, armed; any domain's queue pairs may use it."""
        ...


class Verbs(Protocol):
    """The devices of this host."""

    def devices(self) -> Sequence[DeviceInfo]:
        """Every device; empty where there is none."""
        ...

    def open(self, name: str) -> Device:
        """Open one."""
        ...
