"""The data transports that a gateway offers, made from its configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedrdma_fate.core.held import Ranges
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.engine.repair_memory import MakeRegion
from fedrdma_fate.engine.settings import Kept, LinkSettings
from fedrdma_fate.gateway.config.schema import GatewayConfig, PeerConfig, split_address
from fedrdma_fate.gateway.config.wishes import may_use_udp, wished_transports
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.memory.shared_slots import PresentedRegion
from fedrdma_fate.obs.complaints import Complaints
from fedrdma_fate.ports import Draft, Region, Role, Transport
from fedrdma_fate.security.identity import PeerIdentity
from fedrdma_fate.transport.grpc import GrpcSecurity, GrpcSettings, GrpcTransport
from fedrdma_fate.transport.shm import ShmTransport
from fedrdma_fate.transport.tcp import TcpSettings, TcpTransport
from fedrdma_fate.transport.udp.transport import UdpSettings, UdpTransport
from fedrdma_fate.transport.verbs.device_selection import PortPreference
from fedrdma_fate.transport.verbs.transport import VerbsSettings, VerbsTransport
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from fedrdma_fate.wire.frames import Frame, MessageKey

logger = logging.getLogger(__name__)


class TransportSet(dict[str, Transport]):
    """The transports of a gateway, by name.

    Attributes:
        absent: a transport that was wanted, not required, and is not there, and why.
        on_control_port: gets the data paths' connections to the port of the control channel; None where they have one
            of their own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.absent: dict[str, str] = {}
        self.on_control_port: TcpTransport | None = None

    def open(self, name: str, role: Role, site: str, identity: PeerIdentity | None = None) -> Draft:
        """Start one data path to a site.

        Args:
            name: of the transport.
            role: which side dials.
            site: the peer.
            identity: of the peer by its control channel; None without TLS.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when it cannot be.
        """
        transport = self[name]
        if isinstance(transport, GrpcTransport):
            return transport.open(role, None if identity is None else identity.certificate)
        # where a device enforces what a peer may write into, it has to know which links are whose
        return transport.open(role, site) if isinstance(transport, VerbsTransport) else transport.open(role)


def make_transports(
    config: GatewayConfig,
    directory: Path,
    receive_region: Region,
    send_region: Region,
    grpc_security: GrpcSecurity | None = None,
) -> TransportSet:
    """Every transport, listening, by name; `verbs` and `udp` where they are wanted and to be had.

    Args:
        config: the configuration.
        directory: the gateway's own directory, where sockets may be made.
        receive_region: the region whose slots peers write into.
        send_region: the region that payloads are sent from.
        grpc_security: makes the data path of mode `grpc` one of TLS; None does without.

    Raises:
        TransportError: TRANSPORT_UNAVAILABLE when an address cannot be had, or `transport: verbs` is configured and
            this host has no device that will do; none is left listening.
    """
    made = TransportSet()
    own = config.listen.data is not None
    host, port = split_address("listen.data" if own else "listen.control", config.listen.data or config.listen.control)
    grpc_host, grpc_port = split_address("listen.grpc", config.listen.grpc)
    advertised = config.listen.advertise
    try:
        streams = TcpSettings(host, port, advertised, config.tcp.streams, on_control_port=not own)
        made["tcp"] = tcp = TcpTransport(streams)
        made.on_control_port = None if own else tcp
        _add_udp(made, config, tcp, streams)
        made["shm"] = _make_shm(config, directory, receive_region, send_region)
        made["grpc"] = GrpcTransport(GrpcSettings(grpc_host, grpc_port, advertised), grpc_security)
        _add_verbs(made, config, (receive_region, send_region))
    except BaseException:
        for transport in made.values():
            transport.close()
        raise
    return made


def link_settings(
    config: GatewayConfig,
    peer: PeerConfig,
    transport: str,
    known: KnownPath | None,
    repair_region: MakeRegion | None = None,
    sealing_region: MakeRegion | None = None,
    *,
    admits: Callable[[Frame], bool],
    kept: Kept = lambda _offer, _slot, _payload_at, _missing: True,
    complaints: Complaints,
    tells_digests: Callable[[], bool] = lambda: False,
    continues: Callable[[], bool] = lambda: False,
    knows_tags: Callable[[], bool] = lambda: False,
    leaves_room_for_tags: Callable[[int], bool] = lambda _slot_bytes: False,
    notes_arrivals: bool = False,
    bounds_loss: Callable[[], bool] = lambda: False,
    loss_share: Callable[[MessageKey], float] = lambda _key: 0.0,
    spend_holes: Callable[[MessageKey, int, int, Ranges], bool] = lambda _key, _whole, _total, _ranges: True,
    is_late: Callable[[MessageKey], bool] = lambda _key: False,
) -> LinkSettings:
    """Parameters of the link to a peer over one of them.

    Args:
        config: the configuration.
        peer: the peer's part of it.
        transport: name of the transport.
        known: of the path, from an earlier run.
        repair_region: makes memory for repair chunks.
        sealing_region: makes memory for what is sealed before it is posted.
        admits: whether a datagram of the peer may be acted upon.
        kept: takes down that a payload is whole, on the link's thread; whether it had not been so in another slot.
        complaints: about what the peer sends.
        tells_digests: whether it tells the digests of chunks when it is asked.
        continues: whether it knows grants that continue others.
        knows_tags: whether it knows ChunkTags.
        leaves_room_for_tags: whether another data path to it wants a table of tags in the slot, which may be so long.
        notes_arrivals: whether to tell from time to time what has come.
        bounds_loss: whether it knows offers of which something may be missing.
        loss_share: how much of what may be missing of a message our task lets be so.
        spend_holes: whether it may be, besides what is missing of others.
        is_late: whether it is not waited for any more, once what is missing may be.
    """
    return LinkSettings(
        transport=transport,
        poll_headers=config.notify == "poll",
        idle_timeout=config.timeouts.idle,
        connect_timeout=config.timeouts.connect,
        known=known,
        window_bytes=peer.window or config.window,
        repair_region=repair_region if config.repair_chunks else None,
        sealing_region=sealing_region,
        admits=admits,
        kept=kept,
        tells_digests=tells_digests,
        continues=continues,
        knows_tags=knows_tags,
        leaves_room_for_tags=leaves_room_for_tags,
        notes_arrivals=notes_arrivals,
        bounds_loss=bounds_loss,
        loss_share=loss_share,
        spend_holes=spend_holes,
        is_late=is_late,
        tells_landed=config.durable or (config.aggregate.sums and config.aggregate.order == "exact"),
        confirms=not config.durable,
        complaints=complaints,
        site=peer.site,
    )


def _make_shm(config: GatewayConfig, directory: Path, receive_region: Region, send_region: Region) -> Transport:
    lends = send_region if config.shm.lend else None
    return ShmTransport(directory, receive_region, SharedRegion.attach, PresentedRegion, lends)


def _add_udp(made: TransportSet, config: GatewayConfig, tcp: TcpTransport, streams: TcpSettings) -> None:
    if not may_use_udp(config):
        return
    try:
        made["udp"] = UdpTransport(UdpSettings(streams.host, tcp.port), tcp, streams)
    except TransportError as error:
        if "udp" in wished_transports(config):
            raise
        logger.info("%s", error)
        made.absent["udp"] = f"{error.message.rstrip('.')} ({config.site})"


def udp_port_strays(transports: Mapping[str, Transport]) -> int | None:
    """Datagrams that came to the UDP port for no link; None without such a port. Safe to use from any thread."""
    udp = transports.get("udp")
    return udp.strays if isinstance(udp, UdpTransport) else None


def _add_verbs(made: TransportSet, config: GatewayConfig, regions: Sequence[Region]) -> None:
    wishes = wished_transports(config)
    if not wishes & {"auto", "verbs"}:
        return
    try:
        made["verbs"] = _make_verbs(config, regions)
    except TransportError as error:
        if "verbs" in wishes:
            raise
        logger.info("%s", error)
        # the peer is told this too, so it says whose host it is
        made.absent["verbs"] = f"{error.message.removeprefix('no verbs data path: ').rstrip('.')} ({config.site})"


def _make_verbs(config: GatewayConfig, regions: Sequence[Region]) -> Transport:
    if not config.memory.warm:
        raise TransportError(
            ErrorCode.TRANSPORT_UNAVAILABLE,
            "no verbs data path: memory that is taken slot by slot cannot stay registered.",
            "Set memory.warm to true.",
        )
    verbs = config.verbs
    preference = PortPreference(verbs.device, verbs.port, verbs.gid_index, verbs.mtu)
    settings = VerbsSettings(preference, verbs.queue_pairs, verbs.chunk_queue_pairs, verbs.chunk_service, verbs.poll)
    return VerbsTransport(settings, regions)
