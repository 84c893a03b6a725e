"""What `fedrdma bench incast` is asked to measure: many silos, one arbiter, the link between, the payload of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fedrdma_fate.bench.wan.rows import PACKET_HEADER_BYTES
from fedrdma_fate.bench.wan.settings import Peculiarities, format_payload, parse_settings
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

MOST_SILOS = 64
"""As many as the testbed has hosts beside the arbiter."""
NIC_SPEEDUP = 10
"""How much faster than the link a card of the testbed is when nobody says."""


@dataclasses.dataclass(frozen=True, slots=True)
class IncastSetting:
    """Silos, and what they send over which link.

    Attributes:
        link: the bottleneck in front of the arbiter, and the same in front of every silo.
        silos: how many send.
        payload_bytes: that each sends.
        down: the arbiter then sends as much to all of them.
    """

    link: WanLink
    silos: int
    payload_bytes: int
    down: bool = False

    @property
    def wire_bytes(self) -> int:
        """Of a payload with the headers of its RDMA packets."""
        packets = -(-self.payload_bytes // self.link.rdma_packet_bytes)
        return self.payload_bytes + packets * PACKET_HEADER_BYTES

    @property
    def least_seconds(self) -> float:
        """A round takes no less: all payloads with their headers at the link's rate, and half a round trip.

        On the way down, every silo has a link of its own, and all come out of the arbiter's card; half a round trip
        more.
        """
        wire_bits, link = self.wire_bytes * 8, self.link
        up = self.silos * wire_bits / link.rate_bps + link.rtt_seconds / 2
        if not self.down:
            return up
        card_bps = link.nic_rate_bps or NIC_SPEEDUP * link.rate_bps
        return up + max(wire_bits / link.rate_bps, self.silos * wire_bits / card_bps) + link.rtt_seconds / 2

    @property
    def payloads_bytes(self) -> int:
        """All that a round carries."""
        return self.silos * self.payload_bytes * (2 if self.down else 1)

    def __str__(self) -> str:
        ways = " up and down" if self.down else ""
        return f"{self.silos} silos with {format_payload(self.payload_bytes)} each{ways} over {self.link}"


def parse_incast_settings(
    silos: str, rates: str, rtts: str, buffers: str, losses: str, sizes: str, down: bool, common: Peculiarities
) -> list[IncastSetting]:
    """All combinations of what the options list, with commas between: silos outermost, sizes innermost.

    Raises:
        ConfigError: CONFIG_BAD_VALUE for a value that cannot be read, or is given twice; names the option.
    """
    links = parse_settings(rates, rtts, buffers, losses, sizes, common=common)
    return [IncastSetting(one.link, count, one.payload_bytes, down) for count in parse_silos(silos) for one in links]


def parse_silos(text: str) -> Sequence[int]:
    """How many silos, as `--silos` lists it.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: it is no list of numbers that the testbed has hosts for.
    """
    counts = [_count(part.strip()) for part in text.split(",")]
    if len(set(counts)) < len(counts):
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--silos: {text!r} has a value twice.")
    return counts


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:4]) <= MOST_SILOS or len(text) > 2:
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--silos: {text!r} is no number from 1 to {MOST_SILOS}.")
    return int(text)
