"""The network of the testbed as a plan: which commands make the hosts, their RDMA devices and the WAN between them.

The way of a packet from one host to another:

    host 0, eth0: tbf at the NIC's rate, with room enough never to drop (the sender is held back, as by a send queue)
    wan, delay0:  netem: half the round-trip time, loss (a queue that never drops for want of room, unless one asks)
    wan, police1: where a policer is asked for, a token bucket that drops what it has no tokens for
    wan, down1:   where host 1 has a round-trip time or a loss of its own: netem, what that is more than others'
    wan, port1:   tbf at the link's rate, with a drop-tail buffer: the bottleneck in front of host 1

Where host 0 has a rate of its own, a tbf with a drop-tail buffer lies inside the netem of delay0 besides: what was
delayed leaves at that rate.

The kernel's own policer (act_police) is not in the testbed's kernels. Instead a tbf polices whose queue holds one
packet of the largest size: it lets pass what the bucket has tokens for, and drops what comes while that packet waits
for its own. So the rate comes out exact, and nothing waits for longer than that packet takes at it.

The WAN itself is the guest's first network namespace, with a bridge; each host is a namespace of its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from deploy.softroce.host_links import HostLink
from deploy.softroce.netem import ENDLESS_PACKETS, DelayLine
from deploy.softroce.rate_trace import TracedBottlenecks
from fedrdma_fate.bench.wan.shaping import Policer, RateTrace

MAX_HOSTS = 65
"""An arbiter and 64 silos, as many as UniFL's evaluation has (section 4.1)."""
_SEEDS = 8
"""Hosts whose seeds follow each other."""
DEFAULT_MTU = 4200
"""Bytes of one IP packet: room for RoCE's largest payload, 4096 B, and its headers."""
DEFAULT_BUFFER_BYTES = 4_000_000
NIC_SPEEDUP = 10
"""How much faster than the link a NIC is when nobody says."""
UNLIMITED_QUEUE_BYTES = 1 << 30
REAL_TIME_BURST_SECONDS = 0.001
EXACT_BURST_SECONDS = 0.000_001
"""`tc` counts a burst in whole microseconds, rounded down."""
_LINK_HEADER_BYTES = 14


@dataclasses.dataclass(frozen=True, slots=True)
class Wan:
    """What the WAN does to packets.

    Attributes:
        rate: of the bottleneck in front of each host, bit/s; None: no limit.
        nic_rate: at which a host sends, bit/s; None: no limit.
        rtt_ns: round-trip time of an empty WAN between any two hosts, nanoseconds.
        loss: share of packets lost in each direction.
        buffer_bytes: of the bottleneck's queue.
        mtu: largest IP packet, bytes.
        seed: of the losses; equal seeds lose the same packets of the same traffic.
        exact: timers are exact (virtual time), so that rates need no burst to be reached.
        delay_packets: that a delay line holds before it drops.
        jitter_ns: by how much a packet may be earlier or later, each way, nanoseconds.
        reorders: with jitter, packets overtake each other.
        slot_ns: packets go on every so often, as a radio's schedule has it, each way, nanoseconds; 0: as they come.
        back_slot_ns: the same of what the others send to host 0; None: as of host 0's.
        burst_packets: lost one after the other, on average.
        policer: in front of each host, before the bottleneck; None: none.
        back_rate: of the bottleneck in front of host 0, bit/s; None: as in front of the others.
        back_loss: share of packets lost of what the others send; None: as of host 0's.
        trace: that the bottlenecks' rate follows, but for one of `back_rate`; `rate` is then the trace's highest.
        own: links of single hosts that differ from the others'.
    """

    rate: int | None = None
    nic_rate: int | None = None
    rtt_ns: int = 0
    loss: float = 0.0
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    mtu: int = DEFAULT_MTU
    seed: int = 1
    exact: bool = False
    delay_packets: int = ENDLESS_PACKETS
    jitter_ns: int = 0
    reorders: bool = False
    slot_ns: int = 0
    back_slot_ns: int | None = None
    burst_packets: float = 1.0
    policer: Policer | None = None
    back_rate: int | None = None
    back_loss: float | None = None
    trace: RateTrace | None = None
    own: tuple[HostLink, ...] = ()

    def link_of(self, host: Host) -> HostLink:
        """What is different at a host; most often nothing."""
        return next((link for link in self.own if link.host == host.index), HostLink(host.index))

    def rate_to(self, host: Host) -> int | None:
        """Of the bottleneck in front of a host, to begin with."""
        if (own := self.link_of(host).rate) is not None:
            return own
        if self.follows_trace(host):
            assert self.trace is not None
            return self.trace.points[0][1]
        return self.back_rate if host.index == 0 and self.back_rate is not None else self.rate

    def follows_trace(self, host: Host) -> bool:
        """Whether the rate of the bottleneck in front of a host changes by itself."""
        if self.link_of(host).rate is not None:
            return False
        return self.trace is not None and (host.index > 0 or self.back_rate is None)

    def nic_rate_of(self, host: Host) -> int | None:
        """At which a host sends."""
        own = self.link_of(host).nic_rate
        return self.nic_rate if own is None else own

    def buffer_of(self, host: Host) -> int:
        """Bytes that the bottlenecks at a host hold."""
        own = self.link_of(host).buffer_bytes
        return self.buffer_bytes if own is None else own

    def loss_from(self, host: Host) -> float:
        """Share of a host's packets that is lost."""
        if (own := self.link_of(host).loss) is not None:
            return own
        return self.back_loss if host.index and self.back_loss is not None else self.loss

    def slot_from_ns(self, host: Host) -> int:
        """How often a host's packets go on."""
        return self.back_slot_ns if host.index and self.back_slot_ns is not None else self.slot_ns

    def loss_to(self, host: Host) -> float:
        """Share of the packets to a host that is lost on a way of its own, of those that others' ways have left."""
        own = self.link_of(host).loss
        return 0.0 if own is None else 1 - (1 - own) / (1 - self.loss)

    def delay_to_ns(self, host: Host) -> int:
        """Of packets to a host on a way of its own, beside what they had behind their senders.

        A longer round trip is longer by the same on both ways; one that is shorter than the others' can be shorter on
        the way from the host alone.
        """
        own = self.link_of(host).rtt_ns
        return 0 if own is None else max(0, (own - self.rtt_ns) // 2)

    def delay_from_ns(self, host: Host) -> int:
        """Of packets that a host sends."""
        own = self.link_of(host).rtt_ns
        return self.rtt_ns // 2 if own is None else own - self.rtt_ns // 2 - self.delay_to_ns(host)

    @property
    def packet_bytes(self) -> int:
        """The largest packet, with the header of its link."""
        return self.mtu + _LINK_HEADER_BYTES

    def burst_bytes(self, rate: int) -> int:
        """Bytes that tbf may send at once: two packets, or a millisecond where timers are late."""
        if self.exact:
            return self.least_burst_bytes + math.ceil(rate / 8 * EXACT_BURST_SECONDS)
        return max(self.least_burst_bytes, math.ceil(rate / 8 * REAL_TIME_BURST_SECONDS))

    @property
    def least_burst_bytes(self) -> int:
        """Bytes that tbf may send at once at any rate."""
        return 2 * self.packet_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """One host of the testbed, by its number from 0."""

    index: int

    @property
    def address(self) -> str:
        return f"10.77.0.{self.index + 1}"

    @property
    def mac(self) -> str:
        return f"02:77:00:00:00:{self.index + 1:02x}"

    @property
    def namespace(self) -> str:
        return f"host{self.index}"

    @property
    def device(self) -> str:
        return f"rxe{self.index}"

    @property
    def port(self) -> str:
        """The WAN's end of the host's cable."""
        return f"port{self.index}"

    @property
    def delay_line(self) -> str:
        """Where the WAN delays and loses what the host sends."""
        return f"delay{self.index}"

    @property
    def policer(self) -> str:
        """Where the WAN polices what is sent to the host."""
        return f"police{self.index}"

    @property
    def way_down(self) -> str:
        """Where the WAN delays and loses what is sent to the host, where that is different from the others'."""
        return f"down{self.index}"


DROPPERS = {
    ("delay", "netem"): "lost",
    ("delay", "tbf"): "overflowed",
    ("down", "netem"): "lost",
    ("port", "tbf"): "overflowed",
    ("police", "tbf"): "policed",
}
"""What it means when a queue drops a packet; by what its interface's name begins with, and its kind."""

NETDEV = "eth0"
"""The network interface of a host, by its name inside the host."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """Commands in order; the delay lines are set after them.

    Attributes:
        at_ns: nanoseconds after the programs were started.
    """

    commands: tuple[tuple[str, ...], ...]
    delay_lines: tuple[DelayLine, ...]
    at_ns: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Commands in order; the delay lines are set after them; steps and rates of a trace when it is time for them."""

    commands: tuple[tuple[str, ...], ...]
    delay_lines: tuple[DelayLine, ...]
    steps: tuple[Step, ...] = ()
    traced: TracedBottlenecks | None = None


def plan(wan: Wan, count: int) -> Plan:
    """How to build the network of `count` hosts.

    Raises:
        ValueError: fewer than two hosts or too many, an MTU that no IP or RoCE packet fits, a buffer or
            a delay line below one packet, a link of a host that there is not.
    """
    _check(wan, count)
    hosts = [Host(index) for index in range(count)]
    commands = [*_bridge(wan)]
    for host in hosts:
        commands += [*_cable(host, wan), *_inside(host, hosts, wan), *_shape(host, wan)]
    # the devices last: they take their MTU and their GIDs from interfaces that are up
    commands += [_inside_command(host, f"rdma link add {host.device} type rxe netdev {NETDEV}") for host in hosts]
    commands += [f"rdma dev set {host.device} netns {host.namespace}" for host in hosts]
    lines = _delay_lines(hosts, wan)
    return Plan(tuple(tuple(command.split()) for command in commands), lines, traced=_traced(hosts, wan))


def reshape(wan: Wan, count: int) -> Step:
    """How the WAN between `count` hosts becomes this one while packets are in its queues: they stay.

    The NICs, the MTU and the exactness of timers are as they were.

    Raises:
        ValueError: as `plan` does.
    """
    _check(wan, count)
    hosts = [Host(index) for index in range(count)]
    shaped = [host for host in hosts if wan.rate_to(host) is not None and not wan.follows_trace(host)]
    commands = (f"tc qdisc change dev {host.port} root {_bottleneck(host, wan)}" for host in shaped)
    return Step(tuple(tuple(command.split()) for command in commands), _delay_lines(hosts, wan))


def _delay_lines(hosts: list[Host], wan: Wan) -> tuple[DelayLine, ...]:
    return tuple(line for host in hosts for line in (_line_from(host, wan), *_lines_to(host, wan)))


def _line_from(host: Host, wan: Wan) -> DelayLine:
    rate = wan.link_of(host).rate
    return DelayLine(
        netdev=host.delay_line,
        delay_ns=wan.delay_from_ns(host),
        loss=wan.loss_from(host),
        seed=_seed(host, wan),
        packets=wan.delay_packets,
        jitter_ns=wan.jitter_ns,
        reorders=wan.reorders,
        slot_ns=wan.slot_from_ns(host),
        burst_packets=wan.burst_packets if wan.loss_from(host) else 1.0,
        rate_bps=rate,
        buffer_bytes=0 if rate is None else wan.buffer_of(host),
        tokens_bytes=0 if rate is None else wan.burst_bytes(rate),
    )


def _lines_to(host: Host, wan: Wan) -> Iterator[DelayLine]:
    if wan.link_of(host).has_a_way_of_its_own:
        loss = wan.loss_to(host)
        yield DelayLine(
            netdev=host.way_down,
            delay_ns=wan.delay_to_ns(host),
            loss=loss,
            seed=_seed(host, wan, down=True),
            burst_packets=wan.burst_packets if loss else 1.0,
        )


def _seed(host: Host, wan: Wan, *, down: bool = False) -> int:
    """Of a way, in 64 bits. No two ways share one; those of the first hosts are what they have always been."""
    block, place = divmod(host.index, _SEEDS)
    return wan.seed * _SEEDS + place + (block << 48) + (down << 56)


def _traced(hosts: list[Host], wan: Wan) -> TracedBottlenecks | None:
    if wan.trace is None:
        return None
    return TracedBottlenecks(
        netdevs=tuple(host.port for host in hosts if wan.follows_trace(host)),
        trace=wan.trace,
        limit_bytes=wan.buffer_bytes,
        packets_bytes=wan.least_burst_bytes,
        burst_seconds=EXACT_BURST_SECONDS if wan.exact else REAL_TIME_BURST_SECONDS,
    )


def _check_own(wan: Wan, count: int) -> None:
    numbers = [link.host for link in wan.own]
    for link in wan.own:
        host, where = Host(link.host), f"the link of host {link.host}"
        if link.host >= count:
            raise ValueError(f"{where}: there are hosts 0 to {count - 1}")
        if numbers.count(link.host) > 1:
            raise ValueError(f"{where} is given twice")
        if link.rtt_ns is not None and link.rtt_ns < wan.rtt_ns // 2:
            raise ValueError(
                f"{where}: rtt={link.rtt_ns}ns is shorter than the others' way to it, {wan.rtt_ns // 2} ns"
            )
        if link.loss is not None and link.loss < wan.loss:
            raise ValueError(f"{where}: loss={link.loss * 100:g}% is less than all packets suffer, {wan.loss * 100:g}%")
        if link.buffer_bytes is not None and wan.rate_to(host) is None:
            raise ValueError(f"{where}: buffer={link.buffer_bytes}B without a rate has no bottleneck to be before")
        if link.buffer_bytes is not None and link.buffer_bytes < wan.packet_bytes:
            raise ValueError(f"{where}: buffer={link.buffer_bytes}B does not hold one packet of {wan.mtu} bytes")
        if wan.policer is not None and link.has_a_way_of_its_own:
            raise ValueError(f"{where}: an rtt or a loss of its own goes with no policer")
        if wan.jitter_ns > wan.delay_from_ns(host):
            raise ValueError(f"{where}: rtt={link.rtt_ns}ns leaves no room for a jitter of {wan.jitter_ns} ns")


def _check(wan: Wan, count: int) -> None:
    if not 2 <= count <= MAX_HOSTS:
        raise ValueError(f"{count} hosts: the testbed has 2 to {MAX_HOSTS}")
    _check_own(wan, count)
    if wan.delay_packets < 1:
        raise ValueError(f"a delay line of {wan.delay_packets} packets: it must hold at least one")
    if wan.jitter_ns > wan.rtt_ns // 2:
        raise ValueError(f"a jitter of {wan.jitter_ns} ns: it may not be longer than a way, {wan.rtt_ns // 2} ns")
    if wan.burst_packets < 1 or (wan.burst_packets > 1 and not (wan.loss or wan.back_loss)):
        raise ValueError(f"bursts of {wan.burst_packets:g} packets: of at least one, and only where packets are lost")
    if not 576 <= wan.mtu <= 65_535:
        raise ValueError(f"an MTU of {wan.mtu} bytes: it must be between 576 and 65535")
    if wan.trace is not None and wan.rate != wan.trace.highest_bps:
        raise ValueError(f"a rate of {wan.rate} bit/s is not the highest of the trace, {wan.trace.highest_bps}")
    if wan.back_rate is not None and wan.rate is None:
        raise ValueError("a rate of the way back alone: give --rate as well")
    if wan.policer is not None and wan.policer.burst_bytes < wan.packet_bytes:
        raise ValueError(
            f"a policer's burst of {wan.policer.burst_bytes} bytes does not hold one packet of {wan.mtu} bytes"
        )
    if wan.rate is not None and wan.buffer_bytes < wan.packet_bytes:
        raise ValueError(f"a buffer of {wan.buffer_bytes} bytes does not hold one packet of {wan.mtu} bytes")


def _bridge(wan: Wan) -> Iterator[str]:
    # each host is to see its own RDMA device only; must precede the namespaces
    yield "rdma system set netns exclusive"
    yield f"ip link add wan mtu {wan.mtu} type bridge stp_state 0 mcast_snooping 0"
    yield "ip link set wan up"


def _cable(host: Host, wan: Wan) -> Iterator[str]:
    yield f"ip netns add {host.namespace}"
    yield (
        f"ip link add {host.port} mtu {wan.mtu} gso_max_segs 1 type veth "
        f"peer name {NETDEV} mtu {wan.mtu} address {host.mac} gso_max_segs 1 netns {host.namespace}"
    )
    yield f"ip link set {host.port} master wan up"
    # nothing is learned or asked for on the wire, so that two boots see the same packets
    yield f"bridge fdb add {host.mac} dev {host.port} master static"


def _inside(host: Host, hosts: list[Host], wan: Wan) -> Iterator[str]:
    ip = f"ip -n {host.namespace}"
    yield f"{ip} link set lo up"
    yield f"{ip} addr add {host.address}/24 dev {NETDEV}"
    yield f"{ip} link set {NETDEV} up"
    for other in hosts:
        if other is not host:
            yield f"{ip} neigh add {other.address} lladdr {other.mac} nud permanent dev {NETDEV}"
    if (nic_rate := wan.nic_rate_of(host)) is not None:
        yield f"tc -n {host.namespace} qdisc add dev {NETDEV} root {_tbf(wan, nic_rate, UNLIMITED_QUEUE_BYTES)}"


def _shape(host: Host, wan: Wan) -> Iterator[str]:
    yield f"ip link add {host.delay_line} mtu {wan.mtu} type ifb"
    yield f"ip link set {host.delay_line} up"
    yield f"tc qdisc add dev {host.port} clsact"
    yield _redirect(host, "ingress", host.delay_line)
    if wan.policer is not None:
        yield f"ip link add {host.policer} mtu {wan.mtu} type ifb"
        yield f"ip link set {host.policer} up"
        bucket = f"rate {wan.policer.rate_bps}bit burst {wan.policer.burst_bytes}b"
        yield f"tc qdisc add dev {host.policer} root tbf {bucket} limit {wan.packet_bytes}b"
        yield _redirect(host, "egress", host.policer)
    if wan.link_of(host).has_a_way_of_its_own:
        yield f"ip link add {host.way_down} mtu {wan.mtu} type ifb"
        yield f"ip link set {host.way_down} up"
        yield _redirect(host, "egress", host.way_down)
    if wan.rate_to(host) is not None:
        yield f"tc qdisc add dev {host.port} root {_bottleneck(host, wan)}"


def _redirect(host: Host, way: str, to: str) -> str:
    """Packets that come from a host, or go to it, pass another interface's queue on their way."""
    return f"tc filter add dev {host.port} {way} protocol all matchall action mirred egress redirect dev {to}"


def _bottleneck(host: Host, wan: Wan) -> str:
    rate = wan.rate_to(host)
    assert rate is not None
    return _tbf(wan, rate, wan.buffer_of(host))


def _tbf(wan: Wan, rate: int, limit: int) -> str:
    return f"tbf rate {rate}bit burst {wan.burst_bytes(rate)}b limit {limit}b"


def _inside_command(host: Host, command: str) -> str:
    return f"ip netns exec {host.namespace} {command}"
