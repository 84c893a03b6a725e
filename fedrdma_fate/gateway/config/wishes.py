"""What a configuration wants of transports, for all who have to know: the gateway, its greetings, and the doctor."""

from __future__ import annotations

from fedrdma_fate.gateway.config.schema import GatewayConfig


def wished_transports(config: GatewayConfig) -> frozenset[str]:
    """What is configured for any peer, `auto` included."""
    return frozenset({config.transport, *(peer.transport for peer in config.gateways if peer.transport)})


def auto_takes_udp(config: GatewayConfig, site: str) -> bool:
    """Whether `auto` may take `udp` towards a peer: no other mode is faster by it."""
    return config.mode_for(site) == "fedrdma-x"


def may_use_udp(config: GatewayConfig) -> bool:
    """Whether `udp` is asked for, or `auto` may take it towards some peer."""
    wished = wished_transports(config)
    return "udp" in wished or ("auto" in wished and any(auto_takes_udp(config, peer.site) for peer in config.gateways))
