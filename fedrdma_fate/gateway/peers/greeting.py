"""What a gateway says of itself to a peer, and which transports it allows there."""

from __future__ import annotations

from collections.abc import Mapping

from fedrdma_fate import __version__
from fedrdma_fate.gateway.config.schema import GatewayConfig, PeerConfig
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.peers.path_keys import PeerKeys
from fedrdma_fate.wire.frames import Hello
from fedrdma_fate.wire.header import PROTOCOL_VERSION


def allowed_transports(peer: PeerConfig, context: GatewayContext) -> tuple[str, ...]:
    """What the configuration allows towards a peer, best first; `grpc` is always the last resort."""
    wanted = peer.transport or context.config.transport
    if wanted == "auto" or (wanted in unsealed_transports(context.config)):
        return ("shm", "verbs", "tcp", "grpc") if wanted == "auto" else (wanted, "tcp", "grpc")
    return (wanted, "grpc")


def unsealed_transports(config: GatewayConfig) -> Mapping[str, str]:
    """Transports that leave the host and do not seal, where chunks have to be sealed, and why they are not used."""
    return {} if config.sealing == "off" else {"verbs": f"does not seal chunks yet, and `seal` is {config.sealing}"}


def own_hello(peer: PeerConfig, context: GatewayContext, keys: PeerKeys) -> Hello:
    """Our greeting to a peer, with our half of the key exchange."""
    config = context.config
    absent = unsealed_transports(config)
    allowed = allowed_transports(peer, context)
    return Hello(
        site=config.site,
        incarnation=context.incarnation,
        protocol=PROTOCOL_VERSION,
        version=__version__,
        host=context.host,
        parties=config.parties,
        transports=tuple(name for name in allowed if name in context.transports and name not in absent),
        receive_bytes=context.receive_pool.most_bytes,
        borrows=config.shm.lend,
        exchange_key=keys.exchange_key,
        seal=config.sealing,
        ciphers=keys.ciphers,
    )
