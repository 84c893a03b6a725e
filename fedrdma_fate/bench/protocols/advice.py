"""What a round would take on a path, by federation and transport: formulas, with factors that were measured.

A round is `fedrdma bench protocols`'s: a model down to each silo at once, and one up from each at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

MODEL = "docs/protocols.md#the-model"
"""Where the formulas are explained."""
MEASURED = "docs/results/protocols.md"
"""Where the factors were measured."""
ETHERNET_BYTES = 14
"""Of a frame, before the IP packet."""
TCP_HEADERS_BYTES = 52
"""IPv4's 20, TCP's 20 and 12 of its time stamps."""
FIRST_WINDOW_PACKETS = 10
"""With which TCP begins (RFC 6928)."""
RETRANSMIT_SECONDS = 0.2
"""Linux's least retransmission timeout, beside the round trip."""
TIMEOUTS_SHARE = 0.47
"""Of the timeouts that the formula of Padhye and others (1998) expects: selective acknowledgements and tail probes save
the others. Fitted to one silo at 20 Mbit/s, 20 ms and 5 % (19.2 s) and 10 % (41.5 s); at 2 ms too much."""
HIGHEST_LOSS = 0.5
"""Beyond which no formula says anything; measured up to 20 %."""
BBR_LOSS = 0.15
"""From which on BBR, too, takes losses for a smaller link: at 20 % it was seen to, at 10 % not."""
BITS = 8
"""Of a byte."""

UDP_FACTOR = 1.012
"""`fedrdma-x` over UDP to plain TCP, without loss: 4.951 s to 4.891 s."""
HEXADECIMAL_FACTOR = 2.06
"""FATE's RabbitMQ backend to plain TCP: slices are hexadecimal digits; 4.037 s to 1.956 s."""


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
    """Between a server and its silos.

    Attributes:
        rate_bps: of each silo's link, and, where not told otherwise, of the server's.
        rtt_seconds: round trip while nothing is sent.
        loss: share of packets lost, each way.
        mtu_bytes: of an IP packet.
        server_sends_bps: of the server's link; None: as `rate_bps`.
        server_receives_bps: of the server's link; None: as `rate_bps`.
    """

    rate_bps: float
    rtt_seconds: float
    loss: float = 0.0
    mtu_bytes: int = 1500
    server_sends_bps: float | None = None
    server_receives_bps: float | None = None

    def down_bps(self, silos: int) -> float:
        """For each silo, when the server sends to all at once."""
        return min(self.rate_bps, (self.server_sends_bps or self.rate_bps) / silos)

    def up_bps(self, silos: int) -> float:
        """For each silo, when all send at once."""
        return min(self.rate_bps, (self.server_receives_bps or self.rate_bps) / silos)


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """One way to take.

    Attributes:
        name: of the federation and the transport.
        setting: what to write in FATE's or the gateway's configuration; empty for what FATE has not.
        seconds: of communication of a round.
        reason: why it is that fast, or that slow.
        source: where the number comes from.
    """

    name: str
    setting: str
    seconds: float
    reason: str
    source: str


def rate_with_headers(goodput_bps: float, mtu_bytes: int) -> float:
    """What a link carries, with all headers, that carries so much payload by TCP."""
    return goodput_bps * (mtu_bytes + ETHERNET_BYTES) / (mtu_bytes - TCP_HEADERS_BYTES)


def estimate_ways(path: Path, silos: int, model_bytes: int) -> list[Estimate]:
    """Every way that was measured, fastest first; of equal ones that which needs less.

    Args:
        path: to the silos.
        silos: that take part.
        model_bytes: that go to each, and come back.
    """
    cubic, bbr, paced = (_round(path, silos, model_bytes, one) for one in (_cubic_bps, _bbr_bps, _paced_bps))
    slow = _cubic_bps(path, math.inf) < path.up_bps(silos)
    held = (
        f"{'losses hold' if slow else 'losses do not hold'} a flow of TCP with CUBIC back" if path.loss else "no loss"
    )
    by_cubic = f"formula: {'Padhye and others (1998), fitted' if path.loss else 'bytes with headers over the rate'}"
    by_bbr = "bytes with headers over the rate" if path.loss < BBR_LOSS else "that of CUBIC, for want of its own"
    found = [
        Estimate("fedrdma-x over tcp", "mode: fedrdma-x, transport: tcp", cubic, held, f"{by_cubic}; {MODEL}"),
        Estimate(
            "MQTT, AMQP, ZeroMQ or gRPC over TCP",
            "",
            cubic,
            f"as TCP that serves all at once: {held}",
            f"{by_cubic}; {MODEL}",
        ),
        Estimate(
            "fedrdma-x over tcp, BBR",
            "as fedrdma-x over tcp; net.ipv4.tcp_congestion_control=bbr at all hosts",
            bbr,
            "BBR goes by what arrives" if path.loss < BBR_LOSS else "BBR, too, slows down at such a loss",
            f"formula: {by_bbr}; {MODEL}",
        ),
        Estimate(
            "fedrdma-x over udp",
            "mode: fedrdma-x, transport: udp",
            paced * UDP_FACTOR,
            "sends what is lost again, and nothing else" if path.loss else "no loss",
            f"formula, times {UDP_FACTOR} measured; {MEASURED}",
        ),
        Estimate(
            "FATE's rabbitmq",
            "federation: rabbitmq, mode: client",
            cubic * HEXADECIMAL_FACTOR,
            f"hexadecimal digits over TCP: {held}",
            f"{by_cubic}, times {HEXADECIMAL_FACTOR} measured; {MEASURED}",
        ),
    ]
    return sorted(found, key=lambda one: one.seconds)


def _round(path: Path, silos: int, model_bytes: int, flow_bps: Callable[[Path, float], float]) -> float:
    """Seconds: down to all silos, and up from all."""
    each = [path.down_bps(silos), path.up_bps(silos)]
    return sum(_way(path, model_bytes, share, flow_bps(path, share)) for share in each)


def _way(path: Path, model_bytes: int, share_bps: float, flow_bps: float) -> float:
    wire_bits = rate_with_headers(model_bytes * BITS, path.mtu_bytes)
    return wire_bits / flow_bps + path.rtt_seconds / 2 + _starting(path, model_bytes, share_bps)


def _starting(path: Path, model_bytes: int, share_bps: float) -> float:
    """Seconds in which a flow waits for acknowledgements, until its window holds what the path does."""
    window: float = FIRST_WINDOW_PACKETS * (path.mtu_bytes - TCP_HEADERS_BYTES)
    left, waited = float(model_bytes), 0.0
    while window < left and window * BITS < share_bps * path.rtt_seconds:
        waited += path.rtt_seconds - window * BITS / share_bps
        left -= window
        window *= 2
    return waited


def _cubic_bps(path: Path, share_bps: float) -> float:
    """With frames' headers: what losses leave of a flow's share. At a few packets a round trip CUBIC does as Reno."""
    if not path.loss:
        return share_bps
    loss, trip = path.loss, path.rtt_seconds
    halving = trip * math.sqrt(2 * loss / 3)
    waiting = (RETRANSMIT_SECONDS + trip) * min(1.0, 3 * math.sqrt(3 * loss / 8)) * loss * (1 + 32 * loss**2)
    packet_bits = (path.mtu_bytes + ETHERNET_BYTES) * BITS
    return min(_paced_bps(path, share_bps), packet_bits / (halving + TIMEOUTS_SHARE * waiting))


def _bbr_bps(path: Path, share_bps: float) -> float:
    return _paced_bps(path, share_bps) if path.loss < BBR_LOSS else _cubic_bps(path, share_bps)


def _paced_bps(path: Path, share_bps: float) -> float:
    return share_bps * (1 - path.loss)
