"""The `udp` transport for tests: with streams of its own, which it closes."""

from __future__ import annotations

from typing import Any

from fedrdma_fate.transport.tcp import TcpSettings, TcpTransport
from fedrdma_fate.transport.udp.transport import UdpSettings, UdpTransport


class OwnStreams(UdpTransport):
    """Closes its streams' listener, which a gateway shares between transports."""

    def close(self) -> None:
        super().close()
        self._streams.close()


def udp_transport(**settings: Any) -> UdpTransport:
    """One that listens on loopback."""
    return OwnStreams(UdpSettings(**settings), TcpTransport(TcpSettings()), TcpSettings())
