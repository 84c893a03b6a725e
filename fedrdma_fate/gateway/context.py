"""What tasks, messages and peers of a gateway share."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import secrets
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

from fedrdma_fate.engine.link_thread import LinkThread, MakeLink
from fedrdma_fate.gateway.coming_updates import ComingUpdates
from fedrdma_fate.gateway.config.schema import GatewayConfig
from fedrdma_fate.gateway.journal.journal import Journal
from fedrdma_fate.gateway.link_sharing import Direction, ToldShare
from fedrdma_fate.gateway.messages.mailbox import Mailbox
from fedrdma_fate.gateway.messages.unspilled import Unspilled
from fedrdma_fate.gateway.path_store import PathStore
from fedrdma_fate.gateway.receive_sharing import ReceiveSharing
from fedrdma_fate.gateway.routing import Routes
from fedrdma_fate.gateway.send_sharing import SendSharing
from fedrdma_fate.gateway.sum_orders import StandingSumOrders
from fedrdma_fate.gateway.summand_grants import SummandGrants
from fedrdma_fate.gateway.trace_events import TraceEvents
from fedrdma_fate.gateway.transports import TransportSet
from fedrdma_fate.memory.payload_copies import PayloadCopies
from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.memory.spill import SpillStore
from fedrdma_fate.obs.complaints import Complaints
from fedrdma_fate.ports import Region
from fedrdma_fate.wire.site_sum import is_site_sum


class MetricsSink(Protocol):
    """Where counts of the gateway go."""

    def payload_moved(self, direction: str, peer: str, mode: str, transport: str, payload_bytes: int) -> None:
        """A payload was sent (`sent`) or received (`received`)."""
        ...

    def transfer_ended(self, outcome: str, peer: str, mode: str, seconds: float, resent_bytes: int) -> None:
        """A transfer ended: delivered, received, failed."""
        ...

    def inline_moved(self, direction: str, peer: str) -> None:
        """A small message was sent or received."""
        ...

    def spilled(self, payload_bytes: int) -> None:
        """A message was moved to disk."""
        ...

    def update_added(self, order: str, update_bytes: int, seconds: float) -> None:
        """An update was added to a sum."""
        ...

    def update_waited(self, order: str, seconds: float) -> None:
        """An addition has begun, so long after its update was here whole."""
        ...

    def notice_taken(self, way: str, seconds: float) -> None:
        """An addition has begun, so long after its worker was told by this way."""
        ...

    def sum_worker_restarted(self) -> None:
        """The process that adds has ended over a job, and is started again."""
        ...

    def tolerant(self, peer: str, name: str, payload_bytes: int, missing_bytes: int) -> None:
        """A message is here of which its sender let something be missing; so much of it did not come."""
        ...

    def call_ended(self, direction: str, peer: str, outcome: str, seconds: float) -> None:
        """A scheduling call of FATE Flow's was `answered`, or ended with a code."""
        ...

    def datagrams_dropped(self, peer: str, reason: str, count: int) -> None:
        """Datagrams in a peer's name were dropped."""
        ...

    def records_refused(self, peer: str, reason: str, count: int) -> None:
        """Sealed records in a peer's name were refused."""
        ...

    def share_told(self, direction: Direction, peer: str, share: float) -> None:
        """A peer has another share of the link, bytes a second; infinite: no bound."""
        ...

    def link_up(self, peer: str, transport: str, up: bool) -> None:
        """A data path came or went."""
        ...


def _first_transfer() -> int:
    """A random beginning: peers remember what earlier runs sent. Below 2**52, so that every program reads it right."""
    return secrets.randbits(31) << 20


@dataclasses.dataclass(slots=True)
class GatewayContext:
    """What is there once in a gateway, for all that uses it. Belongs to the event loop's thread.

    Attributes:
        config: the configuration.
        incarnation: random id of this run.
        host: identity of this host.
        send_pool: slots of the send region.
        receive_pool: slots of the receive region.
        spill: files of messages that had to leave memory.
        mailbox: messages that are here.
        routes: which site serves which party.
        transports: the data transports, by name.
        make_region: makes another region in shared memory, of a name and length; safe from any thread.
        trace: the trace.
        metrics: the metrics.
        recalls: for each pool, what asks a peer to give back slots of it that it was granted or lent; called with the
            owner whose slots alone would help, or None.
        making_room: pools that room is being made in.
        small_bytes: of small messages that are on their way to disk.
        unspilled: small messages that disk and memory have no room for.
        tasks: background tasks, kept alive here and cancelled at the end.
        next_transfer: id of the latest transfer.
        journal: what outlives this run.
        leaves_to_next: it is stopping, and the next run will go on with what tasks have.
        copies: payloads on disk that outlive this machine's running, where there is a journal.
        journal_identity: of the journal that this run goes on with, of the run itself where none is kept.
        resumes: this run goes on with what an earlier one was to send, or says that it will not come.
        path_store: what was learnt of the paths to the peers.
        complaints: what peers and tasks can give cause for again and again is logged through these.
        make_link: makes the links to the peers.
        sharing: the link by which the peers send to this site.
        send_sharing: the link by which this site sends to them.
        summand_grants: which updates of sums may come now.
        sum_orders: what sites were asked to sum.
        coming_updates: how far messages lie in their slots.
    """

    config: GatewayConfig
    incarnation: str
    host: str
    send_pool: SlotPool
    receive_pool: SlotPool
    spill: SpillStore
    mailbox: Mailbox
    routes: Routes
    transports: TransportSet
    make_region: Callable[[str, int], Region]
    trace: TraceEvents
    metrics: MetricsSink
    recalls: defaultdict[SlotPool, list[Callable[[str | None], None]]] = dataclasses.field(
        default_factory=lambda: defaultdict(list)
    )
    small_bytes: int = 0
    unspilled: Unspilled = dataclasses.field(default_factory=Unspilled)
    making_room: set[SlotPool] = dataclasses.field(default_factory=set)
    tasks: set[asyncio.Task[None]] = dataclasses.field(default_factory=set)
    next_transfer: int = dataclasses.field(default_factory=_first_transfer)
    journal_identity: str = ""
    resumes: bool = False
    leaves_to_next: bool = False
    journal: Journal = dataclasses.field(default_factory=Journal)
    copies: PayloadCopies | None = None
    path_store: PathStore = dataclasses.field(default_factory=PathStore)
    complaints: Complaints = dataclasses.field(default_factory=Complaints)
    make_link: MakeLink = LinkThread
    sharing: ReceiveSharing = dataclasses.field(init=False)
    send_sharing: SendSharing = dataclasses.field(init=False)
    summand_grants: SummandGrants = dataclasses.field(default_factory=SummandGrants)
    sum_orders: StandingSumOrders = dataclasses.field(default_factory=StandingSumOrders)
    coming_updates: ComingUpdates = dataclasses.field(default_factory=ComingUpdates)

    def __post_init__(self) -> None:
        """What follows from the rest."""
        self.journal_identity = self.journal_identity or self.incarnation
        self.mailbox.is_passed_on = lambda key: is_site_sum(key) and not self.routes.is_local(key.destination)
        self.sharing = ReceiveSharing(self.config.receive, functools.partial(self._note_share, "receive"))
        self.send_sharing = SendSharing(self.config.send, functools.partial(self._note_share, "send"))
        self.mailbox.sessions.open.on_change = self._expect_senders
        # an earlier run may have left some
        self._expect_senders()

    def _expect_senders(self) -> None:
        """Who may begin to send is known from who is in the sessions of the tasks that are here."""
        named = self.mailbox.sessions.open.others
        sites = (self.routes.find(party) for party in named or ())
        self.sharing.expect({site for site in sites if site is not None and site != self.config.site})

    def _note_share(self, direction: Direction, told: ToldShare) -> None:
        self.metrics.share_told(direction, told.site, told.share)
        self.trace.share(direction, told.site, told.share, told.link_rate, told.found_by)

    def new_transfer(self) -> int:
        """An id that no transfer of this run has had, nor (as good as) one of an earlier run."""
        self.next_transfer += 1
        return self.next_transfer
