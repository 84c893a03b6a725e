"""The WAN link that a benchmark runs over."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from fedrdma_fate.bench.report import format_bytes
from fedrdma_fate.bench.wan.shaping import CrossTraffic, Policer, RateTrace

LARGEST_RDMA_PACKET_BYTES = 4096
"""RDMA's largest path MTU: that of the testbed's devices, unless its packets are smaller."""

_RDMA_PACKET_BYTES = (256, 512, 1024, 2048, LARGEST_RDMA_PACKET_BYTES)
_RDMA_HEADERS_BYTES = 80
"""What Soft-RoCE leaves for them of the interface's MTU (RXE_MAX_HDR_LENGTH)."""

_RATE_UNITS = ((10**9, "Gbit/s"), (10**6, "Mbit/s"), (10**3, "kbit/s"), (1, "bit/s"))


@dataclasses.dataclass(frozen=True, slots=True)
class WanLink:
    """What a link does to packets, each way.

    Attributes:
        rate_bps: of its bottleneck; where that follows a trace, the mean.
        rtt_ns: round trip while nothing is sent.
        buffer_bytes: what the bottleneck holds before it drops.
        loss: share of packets lost besides.
        jitter_ns: by which packets are earlier or later.
        reorders: with jitter, packets overtake each other; else they keep their order.
        slot_ns: packets go on every so often, as a radio's schedule has it.
        back_slot_ns: the same of those on the way from host 1 to host 0; None: as on the way out.
        burst_packets: lost one after the other, on average.
        delay_packets: that may be on their way before further ones are dropped; None: as many as there are.
        mtu_bytes: of an IP packet; None: the testbed's default.
        policer: what drops packets before the bottleneck; None: nothing.
        nic_rate_bps: at which the hosts' cards send; None: ten times the bottleneck's rate.
        back_rate_bps: of the bottleneck on the way from host 1 to host 0; None: as on the way out.
        back_loss: share of packets lost on the way from host 1 to host 0; None: as on the way out.
        rate_trace: that the bottleneck's rate follows; None: it stays.
        cross: flows that share the way out; None: none.
    """

    rate_bps: int
    rtt_ns: int
    buffer_bytes: int
    loss: float
    jitter_ns: int = 0
    reorders: bool = False
    slot_ns: int = 0
    back_slot_ns: int | None = None
    burst_packets: float = 1.0
    delay_packets: int | None = None
    mtu_bytes: int | None = None
    policer: Policer | None = None
    nic_rate_bps: int | None = None
    back_rate_bps: int | None = None
    back_loss: float | None = None
    rate_trace: RateTrace | None = None
    cross: CrossTraffic | None = None

    @property
    def rtt_seconds(self) -> float:
        return self.rtt_ns / 1e9

    @property
    def rdma_packet_bytes(self) -> int:
        """Of payload that an RDMA packet carries: the path MTU of its devices."""
        if self.mtu_bytes is None:
            return LARGEST_RDMA_PACKET_BYTES
        return max(size for size in _RDMA_PACKET_BYTES if size + _RDMA_HEADERS_BYTES <= self.mtu_bytes)

    def share(self, payload_bytes: int, seconds: float) -> float:
        """Of the link's rate, what a payload in this time made use of."""
        return payload_bytes * 8 / seconds / self.rate_bps

    def to_document(self) -> dict[str, object]:
        """For `--json`."""
        document: dict[str, object] = {
            "rate_bps": self.rate_bps,
            "rtt_s": self.rtt_seconds,
            "buffer_bytes": self.buffer_bytes,
            "loss": self.loss,
        }
        if self.jitter_ns:
            document |= {"jitter_s": self.jitter_ns / 1e9, "reorders": self.reorders}
        if self.slot_ns:
            document["slot_s"] = self.slot_ns / 1e9
        if self.back_slot_ns is not None:
            document["back_slot_s"] = self.back_slot_ns / 1e9
        if self.burst_packets > 1:
            document["burst_packets"] = self.burst_packets
        if self.delay_packets is not None:
            document["delay_packets"] = self.delay_packets
        if self.mtu_bytes is not None:
            document["mtu_bytes"] = self.mtu_bytes
        if self.policer is not None:
            document |= {"policer_bps": self.policer.rate_bps, "policer_burst_bytes": self.policer.burst_bytes}
        if self.nic_rate_bps is not None:
            document["nic_rate_bps"] = self.nic_rate_bps
        if self.back_rate_bps is not None:
            document["back_rate_bps"] = self.back_rate_bps
        if self.back_loss is not None:
            document["back_loss"] = self.back_loss
        if self.cross is not None:
            times = {"cross_on_s": self.cross.on_ns / 1e9, "cross_off_s": self.cross.off_ns / 1e9}
            document |= {"cross_flows": self.cross.flows, **times}
        if self.rate_trace is not None:
            document["rate_trace"] = [[at / 1e9, rate] for at, rate in self.rate_trace.points]
            repeats = self.rate_trace.repeat_ns
            document["rate_trace_repeat_s"] = None if repeats is None else repeats / 1e9
        return document

    @property
    def rate_text(self) -> str:
        """Such as `10 Gbit/s`."""
        return format_rate(self.rate_bps)

    def __str__(self) -> str:
        rate, rtt = self.rate_text, f"RTT {self.rtt_ns / 1e6:g} ms"
        usual = f"{rate}, {rtt}, buffer {format_bytes(self.buffer_bytes)}, loss {self.loss * 100:g} %"
        return ", ".join((usual, *self._peculiarities()))

    def _peculiarities(self) -> Iterator[str]:
        if self.burst_packets > 1:
            yield f"in bursts of {self.burst_packets:g}"
        if self.jitter_ns:
            order = "packets overtake" if self.reorders else "in order"
            yield f"jitter {self.jitter_ns / 1e6:g} ms, {order}"
        if self.slot_ns:
            yield f"in slots of {self.slot_ns / 1e6:g} ms"
        if self.back_slot_ns is not None:
            yield f"back in slots of {self.back_slot_ns / 1e6:g} ms"
        if self.delay_packets is not None:
            yield f"{self.delay_packets} packets on their way"
        if self.mtu_bytes is not None:
            yield f"MTU {self.mtu_bytes}"
        if self.rate_trace is not None:
            ends = self.rate_trace.lowest_bps, self.rate_trace.highest_bps
            yield f"the rate varies from {format_rate(ends[0])} to {format_rate(ends[1])}"
        if self.policer is not None:
            burst = format_bytes(self.policer.burst_bytes)
            yield f"policed to {format_rate(self.policer.rate_bps)} after {burst}"
        if self.nic_rate_bps is not None:
            yield f"cards of {format_rate(self.nic_rate_bps)}"
        if self.back_rate_bps is not None:
            yield f"back {format_rate(self.back_rate_bps)}"
        if self.back_loss is not None:
            yield f"back loss {self.back_loss * 100:g} %"
        if self.cross is not None:
            on, off = (f"{time / 1e6:g} ms" for time in (self.cross.on_ns, self.cross.off_ns))
            yield f"beside {self.cross.flows} TCP flows, on for {on}, off for {off}"


def format_rate(rate_bps: int) -> str:
    """Such as `10 Gbit/s`."""
    scale, unit = next((scale, unit) for scale, unit in _RATE_UNITS if rate_bps >= scale)
    return f"{rate_bps / scale:g} {unit}"
