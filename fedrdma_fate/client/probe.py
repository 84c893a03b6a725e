"""Asks the own gateway for a probe of a peer."""

from __future__ import annotations

import msgspec

from fedrdma_fate.client.address import socket_path
from fedrdma_fate.client.protocol import AskProbe, Error, ProbeReport
from fedrdma_fate.client.rpc import ask_once, expect
from fedrdma_fate.wire.errors import ErrorCode, GatewayError

_ANSWER_SECONDS = 30.0
"""What a gateway may take beyond the bound, to connect a data path anew and to answer."""


def ask_probe(address: str, peer: str, total_bytes: int, seconds: float) -> dict[str, object]:
    """Have the gateway at `unix:///path` measure the path to a peer; its report, see `gateway.peers.probing`.

    Args:
        address: of the gateway's socket.
        peer: name of the peer's site.
        total_bytes: most bytes to send.
        seconds: most time to take.

    Raises:
        GatewayError: GATEWAY_UNREACHABLE; CLIENT_PROTOCOL when it is of a version that knows no probes.
        FedRDMAError: why there are no measurements, see `Probing.measure`.
    """
    reply = ask_once(socket_path(address), AskProbe(peer, total_bytes, seconds), seconds + _ANSWER_SECONDS)
    if isinstance(reply, Error) and reply.code == ErrorCode.MALFORMED_FRAME:
        raise GatewayError(
            ErrorCode.CLIENT_PROTOCOL,
            f"the gateway at {address} knows no probes: {reply.message.rstrip('.')}.",
            "Restart it, so that it is of the installed version.",
        )
    return msgspec.json.decode(expect(reply, ProbeReport).document, type=dict[str, object])
