"""What the protocol asks of the world, as Protocols. Implementations meet here and nowhere else."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

EndpointAddress = Mapping[str, str | int]
"""What one end of a data path tells the other so that it can connect; travels in a `Connect` frame."""

Role = Literal["active", "passive"]
"""Who dials: the active side of a link connects, the passive side listens."""


class Region(Protocol):
    """A memory region: one file in memory, mapped once, faulted in, registered once."""

    @property
    def name(self) -> str:
        """What to call it, such as `receive`."""
        ...

    @property
    def length(self) -> int:
        """Bytes."""
        ...

    @property
    def address(self) -> int:
        """Virtual address of the first byte in this process."""
        ...

    @property
    def fileno(self) -> int:
        """Open descriptor of the file, for sendfile, and for other processes of this host."""
        ...

    @property
    def view(self) -> memoryview:
        """The whole region, writable."""
        ...


class Slot(msgspec.Struct, frozen=True):
    """A page-aligned piece of a region, leased to one message."""

    region: Region
    offset: int
    length: int

    @property
    def view(self) -> memoryview:
        return self.region.view[self.offset : self.offset + self.length]

    def part(self, offset: int, length: int) -> Slot:
        """The piece [offset, offset + length) of this slot.

        Raises:
            ValueError: it does not lie inside the slot.
        """
        if offset < 0 or length < 0 or offset + length > self.length:
            raise ValueError(f"[{offset}, {offset + length}) is outside a slot of {self.length} bytes")
        return Slot(self.region, self.offset + offset, length)


class SealBrokenError(Exception):
    """What came is not what the peer has sealed for this place: nothing of it may be used."""


class WrongTagError(SealBrokenError):
    """Bytes that travel as they are (`seal: integrity`) have a wrong tag: changed on their way, or as they went.

    It says nothing against the peer, whose task may have written on into what it had handed over.
    """


class Sealer(Protocol):
    """Seals what is written into one grant, record by record (`wire/sealed.py`). Belongs to its link's thread."""

    @property
    def introduction(self) -> bytes:
        """What the other side needs besides the keys: INTRODUCTION_BYTES, to be sent before records."""
        ...

    def seal(self, place: bytes, data: memoryview, into: memoryview) -> None:
        """Seal one record into exactly RECORD_OVERHEAD bytes more than it has; never twice with one nonce.

        `place` is authenticated with it: what the transport is about to do with the bytes.
        """
        ...

    def seal_in_place(self, place: bytes, data: memoryview) -> tuple[bytes, bytes] | None:
        """What travels before and behind the bytes of one record, which travel as they are; never twice with one nonce.

        None where they do not travel as they are. Where they change before they have gone, the peer finds the tag wrong
        (`WrongTagError`), and asks for them again.
        """
        ...

    def is_acknowledged(self, write: int, tag: bytes) -> bool:
        """Whether it is the peer that says, by this tag, that it has the write of this number of the connection."""
        ...


class Opener(Protocol):
    """Opens what the peer has sealed. Belongs to its link's thread."""

    def open(self, grant: int, introduction: bytes, place: bytes, sealed: memoryview, into: memoryview) -> None:
        """Open one record of what goes into a grant that is exposed.

        Raises:
            WrongTagError: bytes that travel as they are have a wrong tag; `into` holds nothing of them.
            SealBrokenError: the peer has not sealed it for this grant and place; `into` holds nothing of it.
        """
        ...

    def open_apart(self, grant: int, introduction: bytes, place: bytes, sealed: memoryview) -> bytes:
        """As `open`, for a short record: its bytes, which are not yet where they belong."""
        ...

    def lands_in_place(self, grant: int) -> bool:
        """Whether records for this grant may be received where they belong, and looked at there (`check`).

        They are readable as they travel, and nothing that has come over an earlier connection can lie there.
        """
        ...

    def check(self, grant: int, introduction: bytes, place: bytes, apart: memoryview, data: memoryview) -> None:
        """As `open`, for bytes that lie where they belong; `apart` is what comes before and behind them.

        Raises:
            WrongTagError: their tag is wrong; they were wiped.
            SealBrokenError: the peer has not sealed them for this grant and place; they were wiped.
        """
        ...

    def acknowledgement(self, write: int) -> bytes:
        """The tag, TAG_BYTES bytes, by which the peer knows that we have its write of this number of the connection."""
        ...

    def note_replay(self) -> None:
        """What came before came again, and was refused."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class RemoteSlot:
    """A peer's receive slot as a sender addresses it.

    Attributes:
        key: remote key.
        address: of the first byte.
        length: bytes.
        sealer: seals what is written there, on a data path that seals; None: it goes as it is.
    """

    key: int
    address: int
    length: int
    sealer: Sealer | None = None


class CompletionKind(enum.Enum):
    """What a completion reports."""

    WRITE_DONE = "write-done"
    """One of our writes is whole at the peer (its ACK came)."""
    IMMEDIATE = "immediate"
    """The peer's write with immediate has landed, and everything it posted before it."""
    LANDED = "landed"
    """A hint, from transports that see it: a peer's write without immediate has landed."""
    CHUNK_IMMEDIATE = "chunk-immediate"
    """The peer's chunk (`post_chunk`) has landed whole; it says nothing of any other write."""
    DATAGRAM = "datagram"
    """A datagram of the peer has come."""
    CHUNK_NACK = "chunk-nack"
    """Of a chunk of ours (`post_chunk`) the peer has some pieces: only the others go when it is posted again."""
    STRAY = "stray"
    """Packets came that belong to nothing of this data path, and were dropped; from transports that see them."""


class Completion(msgspec.Struct, frozen=True):
    """An entry of the completion queue.

    Attributes:
        kind: what happened.
        work_request: WRITE_DONE: the id given to post_write, post_bytes or post_chunk.
        immediate: IMMEDIATE and LANDED: the grant's id. CHUNK_IMMEDIATE, CHUNK_NACK: the value given to post_chunk.
        grant: CHUNK_IMMEDIATE: into which it was written, from transports that see it.
        offset: LANDED: where in the granted slot, bytes. CHUNK_IMMEDIATE too, from transports that see it.
        length: the same: how many bytes; 0 where it was not seen. CHUNK_NACK: how many are missing. STRAY: packets.
        digest: the same: `chunk_digest` of the bytes as they came, from transports that have seen them all; else None.
        data: DATAGRAM: what it brought.
        received_bytes: CHUNK_IMMEDIATE: of all that has come for this slot by then, chunks that are not whole included,
            from transports that see it; else None.
    """

    kind: CompletionKind
    work_request: int = 0
    immediate: int = 0
    grant: int = 0
    offset: int = 0
    length: int = 0
    digest: int | None = None
    data: bytes = b""
    received_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkService:
    """How an endpoint carries chunks (`post_chunk`).

    Attributes:
        reliable: WRITE_DONE says that the chunk is whole at the peer. Else it says only that the source may change: the
            chunk may have been lost, and nobody is told.
        self_paced: the transport finds the rate of the path itself; else whoever posts has to.
        queue_pairs: to spread chunks over; each keeps their order.
        mtu_bytes: what is lost at once where something is lost.
        repairs_packets: what has come of a chunk stays, and posted again it is only the packets that are missing.
        depth: chunks that a queue pair has under way at most, others wait behind them; None where that is no matter.
        largest_chunk_bytes: `post_chunk` takes no longer ones; None: as long as any.
        drains: a grant may be closed while the peer still writes there, which costs it nothing; see `Endpoint.drain`.
    """

    reliable: bool = True
    self_paced: bool = True
    queue_pairs: int = 1
    mtu_bytes: int = 4096
    depth: int | None = None
    repairs_packets: bool = False
    largest_chunk_bytes: int | None = None
    drains: bool = False

    @property
    def most_chunks(self) -> int | None:
        """Chunks that all queue pairs together have under way at most; None where that is no matter."""
        return None if self.depth is None else self.depth * self.queue_pairs


class LentRegion(Protocol):
    """The send region of a gateway of this host, of which it may lend messages; see `Endpoint.lent_region`."""

    @property
    def length(self) -> int:
        """Bytes."""
        ...

    def open_for_reading(self) -> int:
        """A descriptor of an opening of its own, to read, map and lock; whoever asked closes it. From any thread.

        Raises:
            OSError: there is none to be had, as after the data path was lost.
        """
        ...


class Endpoint(Protocol):
    """One end of the data path to one peer: its queue pairs and completion queue.

    Belongs to one thread. Nothing blocks: `post_*` queue work, `progress` does as much as can be done now.
    Every method may raise TransportError LINK_LOST when the data path is gone; it stays gone.
    """

    @property
    def transport(self) -> str:
        """Name of the transport."""
        ...

    def open_with(self, opener: Opener) -> bool:
        """From now on take nothing but what this opens, and send nothing but by the sealer of its `RemoteSlot`.

        To be called before anything is exposed or posted. False: this data path does not seal.
        """
        ...

    @property
    def sealed_by_poster(self) -> bool:
        """Whether bytes go from memory to memory as they are, so that whoever posts seals before, and opens after.

        Such a data path has no use for `open_with`.
        """
        ...

    @property
    def readiness_shows_all(self) -> bool:
        """Whether a descriptor of `poll_set` is ready as long as `progress` has anything to do, so that it need not be
        called while none is.

        Else more may complete without any becoming ready: whoever waits for them looks again first.
        """
        ...

    def expose(self, grant: int, slot: Slot) -> RemoteSlot:
        """Let the peer write into the slot, and nowhere else; `grant` is what completions will name."""
        ...

    def withdraw(self, grant: int) -> None:
        """The peer may no longer write there; unknown grants are ignored.

        When it returns, and where it raises, nothing is written there any more, unless `still_open` says otherwise.
        """
        ...

    def drain(self, grant: int) -> None:
        """The same in the middle of a transfer: what is still on its way there is read, and thrown away.

        Where `chunk_service.drains` is not set, it is `withdraw`, and a peer that writes there may lose the link.
        """
        ...

    @property
    def still_open(self) -> Collection[int]:
        """Grants that could not be closed to the peer: it may write there even now. Never raises, not after `close`."""
        ...

    def post_write(self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int) -> None:
        """RDMA WRITE of the whole source to target_offset in the target.

        The source must not change before its WRITE_DONE.

        Raises:
            TransferError: GRANT_VIOLATION when it would not lie inside the target.
        """
        ...

    def post_bytes(
        self, work_request: int, data: bytes, target: RemoteSlot, target_offset: int, immediate: int
    ) -> None:
        """RDMA WRITE WITH IMMEDIATE of a few inline bytes, fenced: it lands after every `post_write` before it.

        Raises:
            TransferError: GRANT_VIOLATION when it would not lie inside the target.
        """
        ...

    @property
    def lent_region(self) -> LentRegion | None:
        """The peer's send region, where it is on this host and has presented it; the same as long as the path lives."""
        ...

    @property
    def moved_bytes(self) -> int:
        """Of all that was posted, what the peer's host has taken, from data paths that see it; else 0 for ever.

        It says whether a write moves that is not whole yet, and no more than that. Never raises.
        """
        ...

    @property
    def chunk_service(self) -> ChunkService:
        """How `post_chunk` carries chunks; the same at both ends for as long as the data path lives.

        `mtu_bytes` alone may follow the path.
        """
        ...

    def post_chunk(
        self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int, queue_pair: int, immediate: int
    ) -> None:
        """RDMA WRITE WITH IMMEDIATE of the whole source, on this chunk queue pair; it is ordered with nothing else.

        The source has a byte at least, for a peer may refuse an empty chunk, which no payload has. It must not change
        before its WRITE_DONE.

        Raises:
            TransferError: GRANT_VIOLATION when it would not lie inside the target.
        """
        ...

    def post_datagram(self, data: bytes, copies: int = 1, padding: int = 0) -> bool:
        """Send a few bytes that may be lost; False when this data path has none, or none so long, or not now.

        Args:
            data: the bytes.
            copies: how often to send them, back to back.
            padding: bytes that each takes along behind the longest data there may be, and that nobody gets.
        """
        ...

    def poll_set(self) -> Sequence[tuple[int, int]]:
        """(descriptor, select.POLL* mask) pairs to wait on before the next `progress`; asked anew each time."""
        ...

    def progress(self) -> Sequence[Completion]:
        """Do what can be done without blocking, and return what completed."""
        ...

    def close(self) -> None:
        """Give everything back. Further calls raise LINK_LOST, but close may be repeated.

        When it returns, no slot is read or written any more, but those of `still_open`.
        """
        ...


class Draft(Protocol):
    """A data path about to be connected: this side's half."""

    @property
    def address(self) -> EndpointAddress:
        """What the peer's `connect` needs of this side."""
        ...

    def connect(self, peer: EndpointAddress, timeout: float) -> Endpoint:
        """Meet the other half; blocks for `timeout` seconds at most.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the two cannot meet.
        """
        ...

    def abandon(self) -> None:
        """Have `connect`, in which another thread is, fail soon where it waits for the peer; may be repeated.

        Where it does not wait, or has ended, nothing happens.
        """
        ...

    def close(self) -> None:
        """Drop a draft that will not be connected."""
        ...


class Transport(Protocol):
    """A way to move bytes between two gateways."""

    @property
    def name(self) -> str:
        """As spelt in the configuration: `tcp`, `shm`, `grpc`, `verbs`."""
        ...

    def open(self, role: Role) -> Draft:
        """Start one data path.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when this side cannot.
        """
        ...

    def close(self) -> None:
        """Stop listening and give everything back."""
        ...
