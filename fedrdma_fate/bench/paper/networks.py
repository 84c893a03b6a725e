"""Where the paper's measurements are repeated: links of the testbed, behind two kinds of network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedrdma_fate.bench.paper.published import column_for
from fedrdma_fate.bench.selection import find_by_name
from fedrdma_fate.bench.wan.results import WanMeasurement
from fedrdma_fate.bench.wan.rows import ResentBy, select_wan_rows
from fedrdma_fate.bench.wan.runner import Hosts, Tell, run_wan_rows
from fedrdma_fate.bench.wan.testbed import HostRun
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.quantities import parse_size

HostsOn = Callable[[WanLink, tuple[str, ...]], Hosts]
"""Makes hosts with a link between them, and further options of `scripts/testbed run`."""

NETEM_DEFAULT_PACKETS = 1000
"""What netem holds unless it is told otherwise (tc-netem(8))."""
PAPER_CHUNK_BYTES = 4_000_000
"""The best chunk of the paper's Table 2 from 4 Gbit/s on."""


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """What lies between the hosts besides the link's rate and round trip.

    Attributes:
        name: as on the command line.
        about: for people.
        limits_cards: cards send no faster than the link, else ten times as fast.
        more: further options of the testbed.
        more_for_tcp: the same, for rows that go by TCP.
        carries_whole: up to the rate to which the paper's Table 2 sends a payload at once, it does so here too.
    """

    name: str
    about: str
    limits_cards: bool = False
    more: tuple[str, ...] = ()
    more_for_tcp: tuple[str, ...] = ()
    carries_whole: bool = False

    def chunk_bytes(self, link: WanLink, payload_bytes: int) -> int:
        """For the paper's modes: the best of its Table 2, or 4 MB where a whole payload overflows the bottleneck."""
        column = column_for(link.rate_bps)
        whole = self.carries_whole and column is not None and parse_size(column.best_chunk) > PAPER_CHUNK_BYTES
        return payload_bytes if whole else min(PAPER_CHUNK_BYTES, payload_bytes)

    def options(self, link: WanLink, *, by_tcp: bool) -> tuple[str, ...]:
        """For the testbed."""
        cards = ("--nic-rate", f"{link.rate_bps}bit") if self.limits_cards else ()
        return (*cards, *self.more, *(self.more_for_tcp if by_tcp else ()))


NETWORKS = (
    Network(
        "emulated",
        f"cards as fast as the link, a delay line that holds {NETEM_DEFAULT_PACKETS} packets; TCP with an MTU of 1500",
        limits_cards=True,
        more=("--delay-packets", str(NETEM_DEFAULT_PACKETS)),
        more_for_tcp=("--mtu", "1500"),
        carries_whole=True,
    ),
    Network("buffered", "cards ten times as fast as the link, whose bottleneck holds 4 MB"),
)
"""What the paper's own network must have been like, and that of `bench wan`."""
PAPER_MODES = ("fedrdma", "fedrdma-e")


def network_named(name: str) -> Network:
    """The network of this name.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when there is none.
    """
    return find_by_name(NETWORKS, name, "network")


@dataclasses.dataclass(frozen=True, slots=True)
class _WithChunk:
    """Hosts whose gateways are told the chunk size, which the paper's modes do not find out by themselves."""

    hosts: Hosts
    chunk_bytes: int

    def run(self, program: Sequence[str], memory_bytes: int) -> HostRun:
        return self.hosts.run([*program, "auto", str(self.chunk_bytes)], memory_bytes)


@dataclasses.dataclass(frozen=True, slots=True)
class Experiment:
    """Measures on links, and keeps what failed.

    Attributes:
        hosts_on: where.
        network: what kind.
        tell: is called with what is being done.
        failures: by what was to be measured, why it was not.
    """

    hosts_on: HostsOn
    network: Network
    tell: Tell
    failures: dict[str, str] = dataclasses.field(default_factory=dict)

    def where(self, link: WanLink) -> str:
        """Such as `10 Gbit/s, RTT 20 ms, network emulated`."""
        return f"{link.rate_text}, RTT {link.rtt_ns / 1e6:g} ms, network {self.network.name}"

    def hosts(self, link: WanLink, *, by_tcp: bool = False) -> Hosts:
        """Two hosts in this network."""
        return self.hosts_on(link, self.network.options(link, by_tcp=by_tcp))

    def measure(
        self, names: Sequence[str], link: WanLink, payload_bytes: int, repeats: int
    ) -> Mapping[str, WanMeasurement]:
        """Those rows of `bench wan` that could be measured.

        Raises:
            ConfigError: CONFIG_BAD_VALUE: there is no row of a name.
        """
        found: dict[str, WanMeasurement] = {}
        for row in select_wan_rows(names):
            what = f"{row.name}, {payload_bytes:,} bytes, {self.where(link)}"
            self.tell(what)
            hosts = self.hosts(link, by_tcp=row.resent_by is ResentBy.TCP)
            if row.name in PAPER_MODES:
                hosts = _WithChunk(hosts, self.network.chunk_bytes(link, payload_bytes))
            measurements, failures = run_wan_rows([row], hosts, payload_bytes, repeats, lambda _: None)
            found.update((one.name, one) for one in measurements)
            self.failures.update((what, reason) for reason in failures.values())
        return found

    def to_document(self) -> dict[str, Any]:
        """Of the network, for `--json`."""
        return {"network": self.network.name, "network_is": self.network.about}
