"""What a gateway says of itself to a peer, and which transports it allows there."""

from __future__ import annotations

from fedrdma_fate import __version__
from fedrdma_fate.gateway.config.schema import PeerConfig
from fedrdma_fate.gateway.config.wishes import auto_takes_udp
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.peers.path_keys import PeerKeys
from fedrdma_fate.wire.frames import Hello
from fedrdma_fate.wire.header import PROTOCOL_VERSION


def allowed_transports(peer: PeerConfig, context: GatewayContext) -> tuple[str, ...]:
    """What the configuration allows towards a peer, best first; `grpc` is always the last resort."""
    wanted = peer.transport or context.config.transport
    if wanted == "auto":
        udp = ("udp",) if auto_takes_udp(context.config, peer.site) else ()
        return ("shm", "verbs", *udp, "tcp", "grpc")
    # a firewall may drop UDP at any time
    return ("udp", "tcp", "grpc") if wanted == "udp" else (wanted, "grpc")


def own_hello(peer: PeerConfig, context: GatewayContext, keys: PeerKeys) -> Hello:
    """Our greeting to a peer, with our half of the key exchange."""
    config = context.config
    allowed = allowed_transports(peer, context)
    return Hello(
        site=config.site,
        incarnation=context.incarnation,
        protocol=PROTOCOL_VERSION,
        version=__version__,
        host=context.host,
        parties=config.parties,
        transports=tuple(name for name in allowed if name in context.transports),
        receive_bytes=context.receive_pool.most_bytes,
        borrows=config.borrows,
        exchange_key=keys.exchange_key,
        seal=config.sealing,
        ciphers=keys.ciphers,
        frames_per_second=config.limits.frames_per_second,
        sessions=True,
        memory_held=True,
        obeys_shares=True,
        resumes=context.resumes,
        chunk_digests=True,
        continues=True,
        chunk_tags=True,
        bounded_loss=True,
        journal=context.journal_identity,
        flow_calls=True,
        site_sums=config.aggregate.site_sums,
        same_payload=True,
        party_back=True,
        sends_trains=True,
        sum_parent=(config.aggregate.parent or "") if config.aggregate.site_sums else "",
        sum_fan_in=config.aggregate.fan_in if config.aggregate.site_sums else 0,
    )
