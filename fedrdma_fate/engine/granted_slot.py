"""A slot that the peer may write into, and what comes through it."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import NamedTuple

from fedrdma_fate.core.held import Held, Ranges
from fedrdma_fate.core.state_machines import ReceivingMachine
from fedrdma_fate.engine.arrival_notes import ArrivalNotes
from fedrdma_fate.engine.events import TransferProgress
from fedrdma_fate.engine.kept_slot import KeptSlot
from fedrdma_fate.engine.landing import Landing
from fedrdma_fate.ports import Completion, Slot
from fedrdma_fate.security.sealing import PathOpener, digest_of_offer
from fedrdma_fate.wire.errors import WireError
from fedrdma_fate.wire.frames import Grant, Offer, encode_frame
from fedrdma_fate.wire.header import HEADER_BYTES, ChunkHeader, decode_header

MOST_EARLY_CHUNKS = 1 << 16
"""Chunks of one link that are kept before their offers come: 1 GiB in the smallest chunks of fast paths, 8 s on slow
ones (`MOST_CHUNKS_PER_SECOND`): more than a control channel falls behind its data path, and some 23 MB of notes."""


class EarlyChunk(NamedTuple):
    """A chunk that came before its offer.

    Attributes:
        arrived_at: when, seconds.
        digest: of its bytes, where the transport knows it.
        place: where in the slot they were written, and how many, where the transport has seen it.
        received_bytes: of all that had come by then, where the transport has seen it.
    """

    arrived_at: float
    digest: int | None
    place: tuple[int, int] | None
    received_bytes: int | None


@dataclasses.dataclass(slots=True)
class Granted:
    """A slot the peer may write into, and what it is used for.

    Attributes:
        slot: the slot.
        asked_by: the transfer that asked for it, 0 for a credit.
        told: what has told the peer of it, on this data path.
        offer: the transfer that comes through it, once announced.
        receiver: its state machine.
        announced: an immediate came before the offer.
        early: immediates of chunks that did, each with when: seen all at once, they would look like a burst. No more
            than the slot has bytes, nor than MOST_EARLY_CHUNKS on the link.
        early_writes: chunks without immediate that did, of which a tag has spoken, and so they count; or hints.
        header: came by a datagram before the offer.
        looks: how often polling has seen a header here that does not parse.
        started: when the offer came.
        kept: what lies there of the transfer that asked, from another data path.
        counted: arrived and overtaken bytes of it that were counted for its link.
        notes: of what has come, where they are wanted.
        tags: what was told of its table of tags.
        landing: how far its payload lies there, where that is wanted.
    """

    slot: Slot
    asked_by: int
    told: Grant | None = None
    offer: Offer | None = None
    receiver: ReceivingMachine | None = None
    announced: bool = False
    early: dict[int, EarlyChunk] = dataclasses.field(default_factory=dict)
    early_writes: list[Completion] = dataclasses.field(default_factory=list)
    header: bytes = b""
    looks: int = 0
    started: float = 0.0
    kept: KeptSlot | None = None
    counted: tuple[int, int] = (0, 0)
    notes: ArrivalNotes | None = None
    tags: bytearray | None = None
    landing: Landing | None = None

    def to_keep(self, opener: PathOpener | None = None) -> KeptSlot | None:
        """For another data path to go on in, where it can.

        Args:
            opener: of the data path, where chunks lie sealed in the slot that anybody may have written into.
        """
        if self.offer is None:
            if self.kept is None or opener is None:
                return self.kept
            return dataclasses.replace(self.kept, held=dataclasses.replace(self.kept.held, tagged=False))
        if self.receiver is None or (self.is_sealed and opener is None):
            return None
        if self.is_sealed:
            return KeptSlot(self.offer, self.slot, Held(), opener, self.adopted)
        return KeptSlot(self.offer, self.slot, self.receiver.held)

    @property
    def adopted(self) -> Ranges:
        """What of the transfer lay there open when it began on this data path."""
        return () if self.kept is None else self.kept.held.ranges

    @property
    def is_sealed(self) -> bool:
        """Whether what comes through it lies there sealed, until all of it has come."""
        return self.receiver is not None and self.receiver.plan.trailer_bytes > 0

    def progress(self) -> TransferProgress | None:
        """How far the transfer is that comes through it, once announced."""
        offer, receiver = self.offer, self.receiver
        if offer is None or receiver is None:
            return None
        return TransferProgress(
            offer.transfer,
            offer.key,
            "receive",
            offer.mode,
            receiver.state.value,
            offer.total_bytes,
            min(receiver.placed_bytes, offer.total_bytes),
            self.started,
        )

    def header_bytes(self, receiver: ReceivingMachine) -> memoryview:
        """Where the peer writes headers."""
        at = receiver.layout.header_at
        return self.slot.view[at : at + HEADER_BYTES]


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """A transfer that has ended, and whether it was delivered."""

    transfer: int
    delivered: bool


def offer_digest(offer: Offer) -> bytes:
    """Of what announces a transfer, as what is sealed for it names it."""
    return digest_of_offer(encode_frame(offer))


def clear_stale_header(granted: Granted, receiver: ReceivingMachine) -> None:
    """A slot used before may show the header of an earlier transfer at the place that is looked at."""
    raw = granted.header_bytes(receiver)
    header = parsed(raw)
    if header is not None and header.transfer != receiver.transfer:
        raw[:] = bytes(HEADER_BYTES)


def wipe(slot: Slot, payload_at: int, ranges: Ranges) -> None:
    """Zero what is missing of a payload that starts at `payload_at`: what lies there may be of another session."""
    for start, end in ranges:
        part = slot.part(payload_at + start, end - start)
        # unlike a memoryview assignment, memset lets other threads run
        ctypes.memset(part.region.address + part.offset, 0, end - start)


def parsed(raw: memoryview | bytes) -> ChunkHeader | None:
    """The header in these bytes, None when there is none."""
    try:
        return decode_header(raw)
    except WireError:
        return None
