"""What the kernel of a host has counted of its traffic."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

_IP_AND_TCP_HEADERS_BYTES = 52


@dataclasses.dataclass(frozen=True, slots=True)
class Counters:
    """Since the host's start, or between two readings.

    Attributes:
        sent_bytes: that left the host's interface, with all headers.
        tcp_resent_bytes: of full segments that TCP sent again.
        received_bytes: that came to the host's interface, with all headers.
    """

    sent_bytes: int
    tcp_resent_bytes: int
    received_bytes: int = 0

    def since(self, before: Counters) -> Counters:
        """What came after an earlier reading."""
        return Counters(
            self.sent_bytes - before.sent_bytes,
            self.tcp_resent_bytes - before.tcp_resent_bytes,
            self.received_bytes - before.received_bytes,
        )


def read_counters() -> Counters:
    """Those of this host, now."""
    netdev = os.environ["TESTBED_NETDEV"]
    statistics = Path("/proc/self/net/dev").read_text()
    columns = next(line.split(":")[1] for line in statistics.splitlines() if line.strip().startswith(f"{netdev}:"))
    names, values = (line.split() for line in Path("/proc/self/net/snmp").read_text().splitlines() if "Tcp:" in line)
    mtu = int(Path("/sys/class/net", netdev, "mtu").read_text())
    segments = int(values[names.index("RetransSegs")])
    received, sent = (int(columns.split()[column]) for column in (0, 8))
    return Counters(sent, segments * (mtu - _IP_AND_TCP_HEADERS_BYTES), received)
