"""Puts a gateway together from its configuration."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from fedrdma_fate.client.address import socket_path
from fedrdma_fate.engine.link_thread import LinkThread, MakeLink
from fedrdma_fate.gateway.accepting import complain_of_no_room
from fedrdma_fate.gateway.config.schema import GatewayConfig, split_address
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.flow.call_watch import CallWatch
from fedrdma_fate.gateway.flow.calls import FlowCalls
from fedrdma_fate.gateway.flow.front import FlowFront
from fedrdma_fate.gateway.flow.osx_front import OsxFront, OwnScheduling
from fedrdma_fate.gateway.flow.server import FlowServer
from fedrdma_fate.gateway.kept_memory import KeptMemory, boot_identity
from fedrdma_fate.gateway.messages.budget import Budget, Limits
from fedrdma_fate.gateway.messages.late_messages import PARTY_HAD_LEFT, LateMessage
from fedrdma_fate.gateway.messages.mailbox import Mailbox
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.messages.stragglers import Stragglers
from fedrdma_fate.gateway.osx.broker_front import BrokerScheduling, BrokerService
from fedrdma_fate.gateway.osx.brokers import Broker, BrokerSites
from fedrdma_fate.gateway.osx.queues import Queues
from fedrdma_fate.gateway.osx.transport import QueueTransport
from fedrdma_fate.gateway.path_store import PathStore
from fedrdma_fate.gateway.peers.channel_security import IdentityWatch, TlsChannel, credentials_of
from fedrdma_fate.gateway.peers.control_channel import ControlServer
from fedrdma_fate.gateway.peers.dialling import Dialler
from fedrdma_fate.gateway.peers.entitlement import why_not_admitted
from fedrdma_fate.gateway.peers.peer import Peer
from fedrdma_fate.gateway.peers.probing import Probing
from fedrdma_fate.gateway.peers.receiving import pool_owner
from fedrdma_fate.gateway.peers.refused_channels import RefusedChannels
from fedrdma_fate.gateway.restoring import restore
from fedrdma_fate.gateway.routing import Routes
from fedrdma_fate.gateway.tasks.port import TaskPort
from fedrdma_fate.gateway.tasks.server import MakeStatus, TaskServer
from fedrdma_fate.gateway.tasks.session_ends import SessionEnds
from fedrdma_fate.gateway.tasks.socket import TaskSocket
from fedrdma_fate.gateway.tasks.sums import Sums
from fedrdma_fate.gateway.tasks.users import TaskUsers
from fedrdma_fate.gateway.trace_events import TraceEvents
from fedrdma_fate.gateway.transports import make_transports, udp_port_strays
from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.memory.region_directory import RECEIVE_REGION, SEND_REGION, RegionDirectory
from fedrdma_fate.obs.complaints import Complaints
from fedrdma_fate.obs.metrics import GatewayMetrics, Occupancy, PoolUse
from fedrdma_fate.obs.trace import Trace
from fedrdma_fate.security.grpc_credentials import GrpcCredentials
from fedrdma_fate.security.plain import is_loopback
from fedrdma_fate.security.reloading import SiteCredentials
from fedrdma_fate.security.scraping import ScrapeSecurity
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import MessageKey, Party

logger = logging.getLogger(__name__)


def host_identity(memory_directory: Path) -> str:
    """Equal for two gateways on one running kernel that see the same directory and run as the same user."""
    directory = memory_directory.stat()
    return f"{boot_identity()}/{directory.st_dev}/{directory.st_ino}/{os.getuid()}"


@dataclasses.dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of a gateway.

    Attributes:
        context: what they share.
        transports: closes all transports; afterwards, nobody waits any more to be connected.
        peers: the other sites, by name.
        dialler: dials and greets them.
        control: accepts control channels.
        identity_watch: keeps an eye on certificates; None with `security: off`.
        tasks: answers this site's tasks.
        socket: accepts them.
        port: accepts those on other hosts; None without `listen.tasks`.
        kept: what outlives a gateway that is killed.
        calls: FATE Flow's scheduling calls.
        fronts: take them from the own server, and from brokers.
        brokers: OSX brokers of peers, by site.
    """

    context: GatewayContext
    kept: KeptMemory
    transports: contextlib.ExitStack
    peers: dict[str, Peer]
    dialler: Dialler
    control: ControlServer
    identity_watch: IdentityWatch | None
    tasks: TaskServer
    socket: TaskSocket
    port: TaskPort | None
    calls: FlowCalls
    fronts: tuple[FlowFront | OsxFront, ...]
    brokers: dict[str, Broker]


def assemble(
    config: GatewayConfig, undo: contextlib.ExitStack, status: MakeStatus, make_link: MakeLink = LinkThread
) -> Assembly:
    """Allocate memory and open what can be opened without waiting.

    Args:
        config: the configuration.
        undo: gets what gives everything back, also where this function fails.
        status: makes the status document.
        make_link: makes the links to the peers.

    Raises:
        FedRDMAError: something cannot be had.
    """
    credentials = credentials_of(config)
    metrics = GatewayMetrics()
    transports = contextlib.ExitStack()
    context, kept = _make_context(config, undo, transports, metrics, credentials, make_link)
    peers = {peer.site: Peer(peer, context) for peer in config.gateways}
    security: Callable[[], TlsChannel | None] = (
        (lambda: None) if credentials is None else functools.partial(TlsChannel, credentials)
    )
    refused = RefusedChannels(context.complaints)
    dialler = Dialler(config.site, peers, config.timeouts.connect, security, refused.note)
    sending = {site: peer.sending for site, peer in peers.items()}
    users = TaskUsers.of_config(config)
    sessions = SessionEnds(context, peers)
    tasks = TaskServer(context, sending, status, Probing(context, peers).measure, users, sessions)
    for peer in peers.values():
        peer.site_sums = peer.sending.site_sums = tasks.site_sums
    undo.callback(tasks.close)
    context.mailbox.on_lost = lambda message, error: _tell_dropped(context, peers, message, error)
    context.mailbox.on_turned_away = lambda message: _turn_away(context, peers, message)
    context.mailbox.on_rejoined = functools.partial(on_rejoined, context, peers)
    context.mailbox.on_back = lambda late: _party_is_back(context, peers, late)
    context.mailbox.on_wanted_whole = lambda message: _tell_wanted_whole(peers, message)
    Stragglers(context.mailbox.tolerances, lambda key: _look_again(context, peers, key))
    if kept.earlier is not None:
        tasks.has_new_memory = kept.send_region is None
        tasks.why_unknown = kept.earlier.why_unknown
        tasks.expect(restore(context, kept.earlier, peers))
    _serve_metrics(config, undo, metrics, context, credentials, tasks.sums)
    server = None if config.flow.server is None else FlowServer(*split_address("flow.server", config.flow.server))
    brokers = _brokers(config, credentials, undo)
    calls = FlowCalls(context, peers, server, brokers)
    return Assembly(
        context=context,
        kept=kept,
        transports=transports,
        peers=peers,
        dialler=dialler,
        control=ControlServer(
            config.listen.control,
            security,
            dialler.accept,
            refused.note,
            context.complaints,
            context.transports.on_control_port,
        ),
        identity_watch=None if credentials is None else IdentityWatch(credentials, peers, context.complaints),
        tasks=tasks,
        socket=TaskSocket(socket_path(config.listen.socket), tasks, context.complaints, shared=not users.only_own),
        port=_task_port(context, tasks, credentials),
        calls=calls,
        fronts=_fronts(context, calls, peers, tasks, brokers, credentials),
        brokers=brokers,
    )


def _task_port(context: GatewayContext, tasks: TaskServer, credentials: SiteCredentials | None) -> TaskPort | None:
    config = context.config
    if config.listen.tasks is None or config.tasks_access is None or credentials is None:
        return None
    return TaskPort(
        config.listen.tasks,
        config.tasks_access,
        config.site,
        lambda: credentials.current.tasks,
        tasks,
        context.complaints,
    )


def _brokers(
    config: GatewayConfig, credentials: SiteCredentials | None, undo: contextlib.ExitStack
) -> dict[str, Broker]:
    made = {}
    for peer in config.brokers:
        address, secure = peer.address or "", None
        if credentials is not None and config.brokers_use_tls:
            host, port = split_address("peers.address", address)
            grpc_credentials = GrpcCredentials(lambda: credentials.current)
            secure = functools.partial(grpc_credentials.for_site, peer.site, host, port, config.timeouts.connect)
        broker = made[peer.site] = Broker(peer.site, address, secure)
        undo.callback(broker.close)
    return made


def _fronts(
    context: GatewayContext,
    calls: FlowCalls,
    peers: dict[str, Peer],
    tasks: TaskServer,
    brokers: dict[str, Broker],
    credentials: SiteCredentials | None,
) -> tuple[FlowFront | OsxFront, ...]:
    listen, complaints = context.config.listen, context.complaints
    fronts: list[FlowFront | OsxFront] = [] if listen.flow is None else [FlowFront(listen.flow, calls, complaints)]
    if listen.osx is None and listen.brokers is None:
        return tuple(fronts)
    watch = CallWatch(complaints)
    queues = Queues(tasks, lambda message, error: _tell_dropped(context, peers, message, error))
    transport = QueueTransport(queues, watch, brokers)
    if listen.osx is not None:
        fronts.append(OsxFront("listen.osx", listen.osx, OwnScheduling(calls), watch, [transport]))
    if listen.brokers is not None and brokers:
        sites = BrokerSites(brokers, tls=context.config.brokers_use_tls)
        watch = CallWatch(complaints, "listen.brokers")
        secure = None
        if credentials is not None and context.config.brokers_use_tls:
            secure = GrpcCredentials(lambda: credentials.current).for_server
        scheduling, service = BrokerScheduling(calls, sites), BrokerService(transport, sites, watch)
        fronts.append(OsxFront("listen.brokers", listen.brokers, scheduling, watch, [service], secure))
    return tuple(fronts)


def _tell_dropped(context: GatewayContext, peers: dict[str, Peer], message: Message, error: FedRDMAError) -> None:
    """Nobody will get a message that is here: its sender is told by its next push."""
    if (peer := peers.get(message.origin)) is not None:
        peer.receiving.drop(message, error.code, error.message)
    elif not message.origin:
        context.mailbox.sessions.push_failed(message.key, error)


def _tell_wanted_whole(peers: dict[str, Peer], message: Message) -> None:
    if (peer := peers.get(message.origin)) is not None:
        peer.tell_wanted_whole(message.key)


def _look_again(context: GatewayContext, peers: dict[str, Peer], key: MessageKey) -> None:
    if (peer := peers.get(context.routes.site_of(key.source))) is not None:
        peer.look_again(key)


def _make_context(
    config: GatewayConfig,
    undo: contextlib.ExitStack,
    opened: contextlib.ExitStack,
    metrics: GatewayMetrics,
    credentials: SiteCredentials | None,
    make_link: MakeLink,
) -> tuple[GatewayContext, KeptMemory]:
    memory = config.memory
    regions = RegionDirectory.open(memory.directory, config.site)
    undo.callback(regions.close)
    kept = KeptMemory.open(config, regions, undo)
    send_region = kept.send_region or regions.create_region(SEND_REGION, memory.send_bytes, warm=memory.warm)
    receive_region = kept.receive_region or regions.create_region(
        RECEIVE_REGION, memory.receive_bytes, warm=memory.warm
    )
    spill, journal = kept.begin(receive_region, send_region, undo)
    trace = Trace(config.trace, most_bytes=None if config.trace_bytes is None else int(config.trace_bytes))
    undo.callback(trace.close)
    undo.callback(opened.close)
    transports = make_transports(
        config,
        regions.path,
        receive_region,
        send_region,
        None if credentials is None else GrpcCredentials(lambda: credentials.current),
    )
    for transport in transports.values():
        opened.callback(transport.close)
    sharers = [pool_owner(peer.site) for peer in config.gateways]
    complaints = Complaints(count=metrics.complained)
    context = GatewayContext(
        config=config,
        incarnation=secrets.token_hex(8),
        host=host_identity(memory.directory),
        send_pool=SlotPool(send_region, "send", None if memory.warm else send_region),
        receive_pool=SlotPool(receive_region, "receive", None if memory.warm else receive_region, sharers),
        spill=spill,
        mailbox=Mailbox(
            Budget(limits_of(config)), complaints, None if kept.earlier is None else kept.earlier.state.sessions
        ),
        routes=Routes(config),
        transports=transports,
        make_region=regions.create_region,
        trace=TraceEvents(trace, trace.reopen),
        metrics=metrics,
        journal=journal,
        copies=kept.copies,
        resumes=kept.resumes,
        journal_identity=kept.journal_identity,
        path_store=PathStore(config.state_directory or memory.spill_directory, config.site),
        complaints=complaints,
        make_link=make_link,
    )
    undo.callback(context.complaints.sum_up, all_of_them=True)
    undo.callback(context.send_pool.close)
    undo.callback(context.receive_pool.close)
    return context, kept


def _turn_away(context: GatewayContext, peers: dict[str, Peer], message: Message) -> None:
    key = message.key
    if message.origin:
        # one of an earlier run may be of a site that is a peer no more
        if (peer := peers.get(message.origin)) is not None:
            peer.receiving.turned_away(message)
        return
    # of this site: its task hears of it at its next call
    error = why_not_admitted(context.mailbox.sessions, key)
    told = "dropped %s: [%s] %s"
    context.complaints.add(
        logger, "turned away", message.counts_as, told, key, error.code.value, error.message, level=logging.ERROR
    )
    context.mailbox.sessions.push_not_delivered(key, error.code, error.message)


def on_rejoined(context: GatewayContext, peers: Mapping[str, Peer], session: str, party: Party) -> None:
    """A party of this site is in a session again that it had left: see `Mailbox`."""
    sessions = context.mailbox.sessions
    # others need not know of it
    sites = {context.routes.find(other) for other in sessions.others(session)}
    for site, peer in peers.items():
        peer.sending.forget_notices(session, party)
        if site in sites or sessions.admits_all(session):
            peer.ask_for_notices(session, party)


def _party_is_back(context: GatewayContext, peers: dict[str, Peer], late: LateMessage) -> None:
    if late.origin:
        if (peer := peers.get(late.origin)) is not None:
            peer.receiving.party_is_back(late)
        return
    # of this site
    sessions = context.mailbox.sessions
    if (push := sessions.pushed(late.key)) is not None:
        context.mailbox.fail(late.key, ErrorCode.MESSAGE_LOST.value, PARTY_HAD_LEFT)
        if not push.failed:
            sessions.push_not_delivered(late.key, ErrorCode.MESSAGE_LOST, PARTY_HAD_LEFT)


def limits_of(config: GatewayConfig) -> Limits:
    """What may wait of one peer, as the configuration says."""
    limits, receive = config.limits, int(config.memory.receive_bytes)
    return Limits(
        messages=limits.messages,
        total_bytes=64 * receive if limits.bytes is None else int(limits.bytes),
        session_messages=limits.session_messages,
        session_bytes=32 * receive if limits.session_bytes is None else int(limits.session_bytes),
    )


def _serve_metrics(
    config: GatewayConfig,
    undo: contextlib.ExitStack,
    metrics: GatewayMetrics,
    context: GatewayContext,
    credentials: SiteCredentials | None,
    sums: Sums,
) -> None:
    metrics.watch(lambda: _occupancy(context, credentials, sums))
    if config.listen.metrics is not None:
        host, port = split_address("listen.metrics", config.listen.metrics)
        secure = None if credentials is None or is_loopback(host) else ScrapeSecurity(credentials).secure
        server = metrics.start_http(host, port, secure, _scrape_refused(context.complaints))
        undo.callback(server.close)


def _scrape_refused(complaints: Complaints) -> Callable[[str, Exception], object]:
    message = "refused to show the metrics to %s: %s"

    def tell(host: str, error: Exception) -> None:
        if not host and isinstance(error, OSError):
            complain_of_no_room(complaints, "listen.metrics", error)
        else:
            complaints.add(logger, "refused scrape", host, message, host, error)

    return tell


def _occupancy(context: GatewayContext, credentials: SiteCredentials | None, sums: Sums) -> Occupancy:
    """Read by the thread that serves the metrics: only single numbers; what is walked through never changes length."""
    pools = {stats.name: stats for stats in (context.send_pool.stats(), context.receive_pool.stats())}
    use = {
        name: PoolUse(stats.leased_bytes, stats.length - stats.leased_bytes, stats.slots)
        for name, stats in pools.items()
    }
    end = None if credentials is None else credentials.current.certificate.not_valid_after_utc.timestamp()
    waiting = {"put": pools["send"].waiting, "get": context.mailbox.waiting_pulls}
    under_way = sums.progress()
    updates = {
        "in": sum(each.added for each in under_way),
        "waiting": sum(each.waiting + (each.adding is not None) for each in under_way),
        "missing": sum(len(each.missing) for each in under_way),
    }
    longest = max((each.seconds for each in under_way), default=0.0)
    return Occupancy(use, waiting, end, udp_port_strays(context.transports), len(under_way), updates, longest)
