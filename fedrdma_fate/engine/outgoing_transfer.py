"""A sending transfer of a link that has its grant."""

from __future__ import annotations

import dataclasses
import math
from collections import deque

import msgspec

from fedrdma_fate.core.actions import Action, Failed
from fedrdma_fate.core.backoff import Backoff
from fedrdma_fate.core.digest import TAGGED
from fedrdma_fate.core.held import Ranges, chunks_within
from fedrdma_fate.core.plan import Chunk
from fedrdma_fate.core.state_machines import SendingMachine
from fedrdma_fate.core.x.bounded_loss import LossBound
from fedrdma_fate.core.x.chunking import TAGS, chunk_of_immediate
from fedrdma_fate.engine.events import TransferProgress, TransferStats
from fedrdma_fate.engine.payload import Outgoing, Payload
from fedrdma_fate.engine.repair_memory import RepairSums
from fedrdma_fate.engine.sealed_source import SealedSource
from fedrdma_fate.engine.sealing_ring import SealingRing
from fedrdma_fate.ports import ChunkService, RemoteSlot, Sealer
from fedrdma_fate.security.sealing import PathSealer, digest_of_offer
from fedrdma_fate.wire.datagrams import Datagram
from fedrdma_fate.wire.frames import ChunkTags, Grant, Offer, encode_frame


@dataclasses.dataclass(frozen=True, slots=True)
class Repeated:
    """A datagram that is sent again and again, and when."""

    datagram: Datagram
    backoff: Backoff


@dataclasses.dataclass(slots=True, eq=False)
class OutgoingTransfer:
    """A transfer that has a grant.

    Attributes:
        outgoing: the message.
        sender: its state machine.
        grant: where it is written.
        service: how the data path that it began on carries chunks.
        started: when it got the grant.
        writes: posted so far.
        chunks_in_flight: posted and not completed: as long, the transport may read the slot.
        outcome: how it ended.
        ended_at: when it ended.
        offering: the offer, until the first report.
        heading: the header, until the end.
        repairs: the repair chunks, where there are any.
        wished_bytes: the slot that it would have used best, 0: what it needs.
        bound: which chunks of it may be missing in the end, if any.
        tail: indices of those that go behind all others.
        sealer: seals what is written into the grant, on a data path that seals as it sends.
        sealed: the payload as it goes out, on a data path where it is sealed before it is posted.
        stalled: what is to be done when the ring has room again.
        counted: of what has arrived, and was lost, how much is counted among what has of all transfers; bytes.
        held: what of it lies in the slot already.
        tags_due: when the peer is to be told tags, seconds; infinite: not before the data path is gone.
        moved_bytes: of the data path, when that was last looked at because nothing had arrived.
    """

    outgoing: Outgoing
    sender: SendingMachine
    grant: Grant
    service: ChunkService
    started: float
    writes: int = 0
    chunks_in_flight: int = 0
    outcome: TransferStats | Failed | None = None
    ended_at: float = 0.0
    offering: Repeated | None = None
    heading: Repeated | None = None
    repairs: RepairSums | None = None
    wished_bytes: int = 0
    bound: LossBound | None = None
    tail: range = range(0)
    sealer: Sealer | None = None
    sealed: SealedSource | None = None
    stalled: deque[Action] = dataclasses.field(default_factory=deque)
    counted: tuple[int, int] = (0, 0)
    held: Ranges = ()
    tags_due: float = math.inf
    moved_bytes: int = 0

    @property
    def source(self) -> Payload | SealedSource:
        """What chunks are read from."""
        return self.outgoing.payload if self.sealed is None else self.sealed

    def digest(self, chunk: Chunk) -> int:
        """What stands for a chunk in the header."""
        # what is staged is copied once more before it is looked at
        if self.sealer is not None and self.outgoing.mode != "fedrdma":
            return TAGGED
        return self.source.digest(chunk)

    @property
    def target(self) -> RemoteSlot:
        """The slot as the data path addresses it."""
        return RemoteSlot(self.grant.key, self.grant.address, self.grant.length, self.sealer)

    @property
    def offer(self) -> Offer:
        """What announces it to the receiver."""
        outgoing, repairs = self.outgoing, None if self.repairs is None else self.repairs.plan
        return Offer(
            transport=self.grant.transport,
            transfer=outgoing.transfer,
            key=outgoing.key,
            kind=outgoing.kind,
            total_bytes=outgoing.plan.total_bytes,
            mode=outgoing.mode,
            grant=self.grant.grant,
            chunk_bytes=outgoing.plan.chunk_bytes,
            enable_bytes=outgoing.plan.enable_bytes,
            covered_chunks=repairs.covered if repairs else 0,
            repair_chunks=repairs.repairs if repairs else 0,
            wished_bytes=self.wished_bytes,
            loss_share=0.0 if self.bound is None else self.bound.share,
            whole_bytes=0 if self.bound is None else self.bound.whole_bytes,
            tail_from=self.tail.start,
        )

    def begin_attempt(self, sealer: PathSealer | None, ring: SealingRing | None) -> None:
        """Have what is written from now on sealed, where it is to be, with a key of its own.

        Args:
            sealer: of the data path; None: it goes as it is.
            ring: where it is sealed before it is posted; None: the data path seals as it sends.
        """
        if sealer is None:
            self.sealer = None
            return
        offer = self.offer
        attempt = sealer.begin(offer.transfer, offer.grant, digest_of_offer(encode_frame(offer)))
        if ring is None:
            self.sealer = attempt
        else:
            held = chunks_within(self.outgoing.plan, self.held)
            self.sealed = SealedSource(self.outgoing.payload, self.outgoing.plan, attempt, ring, held)

    def note_so_far(self) -> None:
        """The data path is gone: what has arrived, for the next.

        Sealed before it was posted, it lies there as sealed, and its tags are to tell the peer what it has.
        """
        if self.sealed is None:
            self.outgoing.so_far.at = (self.grant.grant, self.sender.arrived_ranges)
            return
        self.sealed.vouch_for_all()
        self.outgoing.so_far.at = (0, ())
        # it may be lost twice, before there is another
        self.outgoing.so_far.tags += self.take_untold()

    def take_untold(self) -> tuple[ChunkTags, ...]:
        """Tags that the peer was not told yet."""
        if self.sealed is None:
            return ()
        transfer, grant, about = self.outgoing.transfer, self.grant.grant, self.sealed.introduction
        return tuple(ChunkTags(transfer, grant, about, *run) for run in self.sealed.take_untold())

    @property
    def repeated(self) -> tuple[Repeated, ...]:
        """What is sent again and again."""
        return tuple(repeated for repeated in (self.offering, self.heading) if repeated is not None)

    def timer(self) -> float | None:
        """When the sender wants something done, or a datagram is to go again."""
        due = self.sender.timer()
        for repeated in (self.offering, self.heading):
            if repeated is not None and (again := repeated.backoff.timer()) is not None:
                due = again if due is None else min(due, again)
        if self.tags_due < math.inf:
            due = self.tags_due if due is None else min(due, self.tags_due)
        return due

    def progress(self) -> TransferProgress:
        """How far it is."""
        return progress_of(self.outgoing, self.sender.state.value, self.sender.arrived_bytes, self.started)


class ActiveTransfers(dict[int, OutgoingTransfer]):
    """Those of a link that have a grant, by their ids, and by the tags that their immediates carry."""

    def __init__(self) -> None:
        super().__init__()
        self._tagged: dict[int, OutgoingTransfer] = {}

    def add(self, active: OutgoingTransfer) -> None:
        """One has begun."""
        self[active.outgoing.transfer] = self._tagged[active.grant.grant % TAGS] = active

    def take(self, transfer: int) -> OutgoingTransfer | None:
        """One is over; None where it was before."""
        active = self.pop(transfer, None)
        if active is not None and self._tagged.get(active.grant.grant % TAGS) is active:
            del self._tagged[active.grant.grant % TAGS]
        return active

    def of_immediate(self, immediate: int) -> OutgoingTransfer | None:
        """The one that this immediate is of, however many there are: a datagram of the peer's may name six thousand."""
        return self._tagged.get(chunk_of_immediate(immediate)[0])

    def clear(self) -> None:
        """All are over."""
        super().clear()
        self._tagged.clear()


class Posted(msgspec.Struct, frozen=True):
    """A write under way: of which transfer, its number there, whether it reads the slot, and which chunk it is."""

    transfer: OutgoingTransfer
    own_request: int
    is_chunk: bool
    chunk: Chunk | None = None


def progress_of(outgoing: Outgoing, state: str, done_bytes: int, started: float) -> TransferProgress:
    """How far a message is."""
    total = outgoing.plan.total_bytes
    # a table of tags is sent besides
    done = min(done_bytes, total)
    return TransferProgress(outgoing.transfer, outgoing.key, "send", outgoing.mode, state, total, done, started)
