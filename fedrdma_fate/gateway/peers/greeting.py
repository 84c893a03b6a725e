"""What a gateway says of itself to a peer, and which transports it allows there."""

from __future__ import annotations

from fedrdma_fate import __version__
from fedrdma_fate.gateway.config.schema import PeerConfig
from fedrdma_fate.gateway.context import Hub
from fedrdma_fate.wire.frames import Hello
from fedrdma_fate.wire.header import PROTOCOL_VERSION


def allowed_transports(peer: PeerConfig, hub: Hub) -> tuple[str, ...]:
    """What the configuration allows towards a peer, best first; `grpc` is always the last resort."""
    wanted = peer.transport or hub.config.transport
    return ("shm", "verbs", "tcp", "grpc") if wanted == "auto" else (wanted, "grpc")


def own_hello(peer: PeerConfig, hub: Hub) -> Hello:
    """Our greeting to a peer."""
    config = hub.config
    return Hello(
        site=config.site,
        incarnation=hub.incarnation,
        protocol=PROTOCOL_VERSION,
        version=__version__,
        host=hub.host,
        parties=config.parties,
        transports=tuple(name for name in allowed_transports(peer, hub) if name in hub.transports),
        receive_bytes=hub.receive_pool.region.length,
        borrows=config.shm.lend,
    )
