"""A sending transfer of a link that has its grant."""

from __future__ import annotations

import dataclasses

from fedrdma_fate.core.actions import Failed
from fedrdma_fate.core.backoff import Backoff
from fedrdma_fate.core.state_machines import SendingMachine
from fedrdma_fate.engine.events import TransferProgress, TransferStats
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.engine.repair_memory import RepairSums
from fedrdma_fate.ports import ChunkService, RemoteSlot, Sealer
from fedrdma_fate.wire.datagrams import Datagram
from fedrdma_fate.wire.frames import Grant, Offer


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
        sealer: seals what is written into the grant, on a data path that is sealed.
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
    sealer: Sealer | None = None

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
        )

    @property
    def repeated(self) -> tuple[Repeated, ...]:
        """What is sent again and again."""
        return tuple(repeated for repeated in (self.offering, self.heading) if repeated is not None)

    def timer(self) -> float | None:
        """When the sender wants something done, or a datagram is to go again."""
        times = [self.sender.timer(), *(repeated.backoff.timer() for repeated in self.repeated)]
        return min((due for due in times if due is not None), default=None)

    def progress(self) -> TransferProgress:
        """How far it is."""
        return progress_of(self.outgoing, self.sender.state.value, self.sender.arrived_bytes, self.started)


@dataclasses.dataclass(frozen=True, slots=True)
class Posted:
    """A write under way: of which transfer, its number there, and whether it reads the slot."""

    transfer: OutgoingTransfer
    own_request: int
    is_chunk: bool


def progress_of(outgoing: Outgoing, state: str, done_bytes: int, started: float) -> TransferProgress:
    """How far a message is."""
    total = outgoing.plan.total_bytes
    return TransferProgress(outgoing.transfer, outgoing.key, "send", outgoing.mode, state, total, done_bytes, started)
