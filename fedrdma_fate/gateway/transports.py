"""The data transports that a gateway offers, made from its configuration."""

from __future__ import annotations

from pathlib import Path

from fedrdma_fate.gateway.config import GatewayConfig, split_address
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import Region, Transport
from fedrdma_fate.transport.grpc import GrpcSettings, GrpcTransport
from fedrdma_fate.transport.shm import ShmTransport
from fedrdma_fate.transport.tcp import TcpSettings, TcpTransport


def make_transports(config: GatewayConfig, directory: Path, receive_region: Region) -> dict[str, Transport]:
    """Every transport, listening, by name.

    Args:
        config: the configuration.
        directory: the gateway's own directory in shared memory, where sockets may be made.
        receive_region: the region whose slots peers write into.

    Raises:
        TransportError: TRANSPORT_UNAVAILABLE when an address cannot be had; none is left listening.
    """
    made: dict[str, Transport] = {}
    host, port = split_address("listen.data", config.listen.data)
    grpc_host, grpc_port = split_address("listen.grpc", config.listen.grpc)
    advertised = config.listen.advertise
    try:
        made["tcp"] = TcpTransport(TcpSettings(host, port, advertised, config.tcp.streams))
        made["shm"] = ShmTransport(directory, receive_region, SharedRegion.attach)
        made["grpc"] = GrpcTransport(GrpcSettings(grpc_host, grpc_port, advertised))
    except BaseException:
        for transport in made.values():
            transport.close()
        raise
    return made
