"""How long the phases of a cycle take, and what delivery rates are taken of. Seconds, and bytes a second."""

from __future__ import annotations

import dataclasses

from fedrdma_fate.core.x.controller import LEAST_RATE
from fedrdma_fate.core.x.estimators import DELIVERY_WINDOW_SECONDS
from fedrdma_fate.core.x.phases import Phase
from fedrdma_fate.core.x.probe_queue import MOST_QUEUE_BYTES

CRUISE_ROUNDS = 6
"""A CRUISE lasts so many round trips: with the two phases around it the eight of BBR's cycle (ACM Queue 2016)."""

LEAST_CRUISE_ROUND_SECONDS = 0.005
"""But a round trip counts for no less than this: a CRUISE of 30 ms has 15 reports, which come every 2 ms."""

CRUISE_CHUNKS = 12
"""But it is no shorter than so many chunks take: of fewer, half of which count, round trips tell nothing of others
(`LEAST_SAMPLES`). At 20 Mbit/s that is 7 ms, at 1 Mbit/s 0.14 s."""

PROBE_SECONDS = 0.008
"""Of a PROBE_UP; BBR's is a round trip. At 1.25 this queues 2 ms of the bottleneck: what half of a 0.5 MB buffer holds
at 1 Gbit/s."""

TRIAL_QUEUE_BYTES = 1_250_000
"""What the first probe queues at most of a rate that no transfer has proved, but for PROBE_SECONDS / 2 at least: what
the path has room for is not known yet, and 8 ms at 10 Gbit/s overran a buffer of 0.5 MB for six of them. Ours."""

PROBE_CHUNKS = 6
"""But it is no shorter than so many chunks take: of fewer nobody can tell at which rate they arrive."""

PROBE_DIVISOR = 2
"""A PROBE_UP is no shorter than this part of such a sample takes: what it sends beyond the rate is to show as a queue,
and not in a token bucket. Where it finds all that it tries for, the rate rises by an eighth."""

MAX_RATE_ROUNDS = 10
"""Round trips that the largest delivery rate counts for, as in BBR (ACM Queue 2016: six to ten)."""

LEAST_MAX_RATE_SECONDS = 0.1
"""But no shorter than this, two cycles of a path with a short round trip, as BBR.MaxBwFilterLen (draft, section 2.10):
in less a busy host does not look at packets often enough, and the rate would fall from one such time to the next."""

LEAST_ROUND_SECONDS = 0.001
"""What else is counted in rounds takes a round trip for no shorter than this, half of what is between two reports."""

LEAST_SAMPLE_BYTES = 64 * 1024
"""Of which a delivery rate is taken at least: a shaper's token bucket lets two packets of an idle link pass at once,
which are half of what a link of 5 Mbit/s carries in 8 ms, and a twentieth of this."""

LOSSLESS = 0.005
"""Not so where a larger share of the packets is lost, or it is not known: what is lost does not show in samples, only
half of it is added back, and that the largest of many short ones counts makes up for the rest."""

LONG_SAMPLE_SECONDS = 2 * DELIVERY_WINDOW_SECONDS
"""Below 33 Mbit/s such a sample, and the probe for it, take longer than this, and the probe's queue more than a drain.
On faster paths our own queue must be gone after one."""

SHAPER_PACKETS = 4
"""By so many packets may a sample be too large: two of the MTU, headers and all, are three of RDMA's, whose sizes are
powers of two, and a sample begins and ends with a whole one."""

UNCERTAIN_ROUNDS = 2 * CRUISE_ROUNDS
"""So many round trips after a reduction a queue may be what that has left, or after the rate has risen what an outlier
does: until the next CRUISE has shown it."""

FIRST_BURST_SECONDS = 0.25
"""And so long after a transfer has begun with 1 ms of its rate at once: at 0.99 of the rate what that queues lasts for
0.1 s, and shows for 0.13 s more in a mean of many round trips."""

MIN_RTT_SECONDS = 10.0
"""For which the least round trip counts: BBR.MinRTTFilterLen."""

MIN_RTT_COMPETING_FACTOR = 3
"""Times as long among competitors, whose queue may hide it for a while; we have no PROBE_RTT that would show it."""

IGNORE_CONGESTION_AFTER_STARTUP_ROUNDS = 3
"""Round trips after STARTUP whose queue and losses are those of the packet train, which went unpaced."""

IGNORE_CONGESTION_AFTER_REDUCTION_ROUNDS = 2
"""Round trips after a reduction: one until it shows at the receiver's, one while the queue drains."""

WINDOW_GAIN = 2
"""Bandwidth-delay products that may be in flight: BBR.DefaultCwndGain."""

REPORT_ALLOWANCE_SECONDS = 0.01
"""And what is sent in this time: reports come every 2 ms, and later from a busy host, and a window that is too small
for that looks like a slow path."""


@dataclasses.dataclass(frozen=True, slots=True)
class CycleTimes:
    """Of a flow as it is now.

    Attributes:
        rate: of the path, as far as it is known.
        min_rtt: least round trip, 0 when unknown.
        chunk_bytes: size of the flow's chunks.
        least_sample_bytes: of how much, at least, delivery rates are taken.
    """

    rate: float
    min_rtt: float
    chunk_bytes: int
    least_sample_bytes: int

    @property
    def round(self) -> float:
        """A round trip, of a path that has any to speak of."""
        return max(self.min_rtt, LEAST_ROUND_SECONDS)

    @property
    def cruise(self) -> float:
        """How long a CRUISE lasts: long enough for some reports, and chunks that these tell of."""
        return max(CRUISE_ROUNDS * max(self.min_rtt, LEAST_CRUISE_ROUND_SECONDS), CRUISE_CHUNKS * self.chunk)

    @property
    def max_rate(self) -> float:
        """What the largest delivery rate is taken of: a whole cycle at least, or what PROBE_UP finds is forgotten."""
        return max(MAX_RATE_ROUNDS * self.round, LEAST_MAX_RATE_SECONDS, self.cruise + 2 * self.probe)

    @property
    def drain(self) -> float:
        """How long we drain after a reduction.

        Not for as long as the queue takes to go: of two flows, who saw it first would leave the other more than half.
        """
        return max(self.min_rtt, PROBE_SECONDS)

    @property
    def chunk(self) -> float:
        """What a chunk takes at our rate."""
        return self.chunk_bytes / max(self.rate, LEAST_RATE)

    @property
    def probe(self) -> float:
        """Of PROBE_UP: long enough for some chunks, and short enough for a buffer."""
        return self._probe(MOST_QUEUE_BYTES)

    @property
    def trial(self) -> float:
        """The same, of the first one, at a rate that no transfer has proved."""
        return self._probe(TRIAL_QUEUE_BYTES)

    def _probe(self, queue_bytes: float) -> float:
        bearable = queue_bytes / (Phase.PROBE_UP.pacing_gain - 1) / max(self.rate, LEAST_RATE)
        return max(
            min(PROBE_SECONDS, bearable),
            PROBE_SECONDS / 2,
            PROBE_CHUNKS * self.chunk,
            self.least_sample_bytes / PROBE_DIVISOR / max(self.rate, LEAST_RATE),
        )

    @property
    def sample(self) -> float:
        """What a delivery rate is taken of."""
        return max(DELIVERY_WINDOW_SECONDS, self.least_sample_bytes / max(self.rate, LEAST_RATE))
