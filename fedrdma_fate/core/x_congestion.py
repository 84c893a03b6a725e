"""The rate of a path, found from what arrives, how long it takes and what is lost."""

from __future__ import annotations

import dataclasses
import enum
from collections import deque

PROBE_GAIN = 1.25
DRAIN_GAIN = 0.75
CRUISE_GAIN = 0.99

PROBE_SECONDS = 0.008
"""At 1.25 this queues 2 ms of the bottleneck: what half of a 0.5 MB buffer holds at 1 Gbit/s."""

HOLD_ROUNDS = 6

PROVING_GAIN = 1.1
"""A rate that no transfer has proved is probed again at once, as long as a probe finds so much more."""

FILTER_ROUNDS = 10
MIN_RTT_SECONDS = 10.0

QUEUE_SECONDS = 0.003
QUEUE_SHARE = 0.15
"""A queue is standing when it adds both this much and this share of the least round trip."""

HEAVY_LOSS = 0.4
"""Share of a round's chunks lost at which the buffer is overrun: no random loss worth the name does that."""

FOREIGN_QUEUE_SECONDS = 0.0008
FOREIGN_SHARE = 0.3
"""A queue in this share of the samples late in CRUISE, when our own probe's has drained, is someone else's."""

YIELD_GAIN = 0.8

LOSS_COMPENSATION = 0.5
"""Chunks that are lost do not show in the delivery rate. All of them added back, the filter's taste for the largest
sample would overrate the link, which fills the buffer, which loses more."""

LEAST_RATE = 125_000.0
LARGEST_PATIENCE_ROUNDS = 4


class Phase(enum.Enum):
    """What the rate is being used for."""

    TRAIN = "train"
    CRUISE = "cruise"
    PROBE = "probe"
    DRAIN = "drain"


@dataclasses.dataclass(frozen=True, slots=True)
class PathState:
    """What is remembered of a path between transfers.

    Attributes:
        rate: of the bottleneck, payload bytes a second.
        min_rtt: least round trip seen, seconds.
        loss: probability that a packet is lost, None while nothing is known of it.
    """

    rate: float
    min_rtt: float
    loss: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """What one report taught.

    Attributes:
        rtt: round trip, seconds; None when it cannot be told.
        delivery_rate: bytes a second at which chunks arrived lately; None when too few did.
        arrived: chunks newly known to have arrived.
        lost: chunks newly known to be lost.
        packets_per_chunk: packets a chunk has.
    """

    rtt: float | None
    delivery_rate: float | None
    arrived: int
    lost: int
    packets_per_chunk: int


class RateController:
    """Paces one flow of one path. Times in seconds, rates in payload bytes a second.

    With nothing known it begins in TRAIN: the first bytes go unpaced, and the rate at which they arrive is the rate.
    With a rate that no transfer has proved it begins in PROBE.
    """

    def __init__(
        self, remembered: PathState | None = None, *, fixed_rate: float | None = None, proved: bool = True
    ) -> None:
        self.phase = Phase.TRAIN if remembered is None else Phase.CRUISE if proved else Phase.PROBE
        self._proved = proved
        self._proving_from = 0.0 if remembered is None else remembered.rate
        self._fixed = fixed_rate
        self._bandwidth = 0.0 if remembered is None else remembered.rate
        self._min_rtt = 0.0 if remembered is None else remembered.min_rtt
        self._min_rtt_at = -1.0
        self._last_rtt = self._min_rtt
        self._chunk_loss = 0.0
        self._loss = None if remembered is None else remembered.loss
        self._samples: deque[tuple[float, float]] = deque()
        self._phase_ends = 0.0
        self._round_ends = 0.0
        self._round_arrived = 0
        self._round_lost = 0
        self._delivered = 0.0
        self._blind_until = 0.0
        self._standing_since: float | None = None
        self._patience_over = False
        self._foreign = False
        self._capacity = self._bandwidth
        self._cruise_samples = 0
        self._cruise_queued = 0

    @property
    def known(self) -> bool:
        """Whether a rate is known."""
        return self._fixed is not None or self._bandwidth > 0

    @property
    def min_rtt(self) -> float:
        """Least round trip, 0 when unknown."""
        return self._min_rtt

    @property
    def rtt(self) -> float:
        """Latest round trip, 0 when unknown."""
        return self._last_rtt

    @property
    def loss(self) -> float:
        """Probability that a packet is lost."""
        return self._loss or 0.0

    @property
    def sampled(self) -> bool:
        """Whether it has seen how fast chunks arrive."""
        return self._delivered > 0

    @property
    def competing(self) -> bool:
        """Whether others keep the queue standing however we yield."""
        return self._foreign or self._patience_over

    @property
    def rate(self) -> float:
        """What to pace at."""
        if self._fixed is not None:
            return self._fixed
        gain = {Phase.PROBE: PROBE_GAIN, Phase.DRAIN: DRAIN_GAIN}.get(self.phase, CRUISE_GAIN)
        return max(self._bandwidth * gain, LEAST_RATE)

    @property
    def window_bytes(self) -> float:
        """Most bytes in flight: twice what fills the path."""
        return 2 * max(self._bandwidth, self._fixed or 0.0, LEAST_RATE) * max(self._min_rtt, 0.001)

    def state(self) -> PathState | None:
        """What to remember for the next transfer; None when nothing was learnt."""
        if self._bandwidth <= 0 or self._min_rtt <= 0:
            return None
        return PathState(self._bandwidth, self._min_rtt, self._loss)

    def on_time(self, now: float) -> None:
        """Move on to the next phase when this one is over."""
        if self.phase is Phase.TRAIN or now < self._phase_ends:
            return
        if self._phase_ends == 0.0:
            self._enter(self.phase, now, HOLD_ROUNDS * max(self._min_rtt, 0.001) if self._proved else PROBE_SECONDS)
            return
        if self.phase is Phase.PROBE:
            self._enter(Phase.DRAIN, now, PROBE_SECONDS)
        elif not self._proved:
            self._prove(now)
        elif self.phase is Phase.DRAIN or self._yields():
            self._enter(Phase.CRUISE, now, HOLD_ROUNDS * max(self._min_rtt, 0.001))
        else:
            self._enter(Phase.PROBE, now, PROBE_SECONDS)

    def _prove(self, now: float) -> None:
        """The rate was only estimated: wait a round trip for what a probe has found, then probe on or hold."""
        if self.phase is Phase.DRAIN:
            self._enter(Phase.CRUISE, now, max(self._min_rtt, 0.001))
        elif self._bandwidth >= self._proving_from * PROVING_GAIN:
            self._proving_from = self._bandwidth
            self._enter(Phase.PROBE, now, PROBE_SECONDS)
        else:
            self._proved = True
            self._enter(Phase.CRUISE, now, HOLD_ROUNDS * max(self._min_rtt, 0.001))

    def _yields(self) -> bool:
        """At the end of CRUISE: while others queue, hold no more than half of what the path gave us alone."""
        self._foreign = self._cruise_samples >= 5 and self._cruise_queued > FOREIGN_SHARE * self._cruise_samples
        if not self._foreign:
            self._capacity = self._bandwidth
            return False
        fair = self._capacity / 2
        if self._bandwidth <= fair:
            return False
        self._bandwidth = max(self._bandwidth * YIELD_GAIN, fair)
        self._samples.clear()
        return True

    def on_sample(self, sample: Sample, now: float) -> None:
        """Take a report's lesson in."""
        queue = self._on_rtt(sample.rtt, now)
        self._round_arrived += sample.arrived
        self._round_lost += sample.lost
        if sample.delivery_rate is not None:
            self._on_delivery(sample.delivery_rate / (1 - self._chunk_loss * LOSS_COMPENSATION), now)
        if now >= self._round_ends:
            self._end_round(sample.packets_per_chunk, now)
        if queue is not None:
            self._on_queue(queue, now)

    def _on_rtt(self, rtt: float | None, now: float) -> float | None:
        if rtt is None or rtt <= 0:
            return None
        self._last_rtt = rtt
        if self._min_rtt <= 0 or rtt <= self._min_rtt or now > self._min_rtt_at + MIN_RTT_SECONDS:
            self._min_rtt, self._min_rtt_at = rtt, now
        return rtt - self._min_rtt

    def _on_delivery(self, rate: float, now: float) -> None:
        self._delivered = rate
        while self._samples and self._samples[-1][1] <= rate:
            self._samples.pop()
        self._samples.append((now, rate))
        horizon = now - FILTER_ROUNDS * max(self._min_rtt, 0.001)
        while self._samples[0][0] < horizon:
            self._samples.popleft()
        self._bandwidth = self._samples[0][1]
        if self.phase is Phase.TRAIN:
            # the round trip that taught this was mostly idle: its queue is gone
            self._enter(Phase.CRUISE, now, HOLD_ROUNDS * max(self._min_rtt, 0.001))
            self._blind_until = now + 3 * self._min_rtt

    def _end_round(self, packets: int, now: float) -> None:
        seen = self._round_arrived + self._round_lost
        self._round_ends = now + max(self._min_rtt, 0.001)
        if seen < 8:
            return
        share = self._round_lost / seen
        self._round_arrived = self._round_lost = 0
        if share > max(HEAVY_LOSS, 2 * self._chunk_loss):
            if now >= self._blind_until:
                self._cut(max(self._bandwidth / 2, min(self._delivered, self._bandwidth)), now)
            return
        self._chunk_loss += (share - self._chunk_loss) / 8
        self._loss = 1 - (1 - self._chunk_loss) ** (1 / packets)

    def _on_queue(self, queue: float, now: float) -> None:
        if self.phase is Phase.CRUISE and self._phase_ends - now < HOLD_ROUNDS / 2 * self._min_rtt:
            self._cruise_samples += 1
            self._cruise_queued += queue > FOREIGN_QUEUE_SECONDS
        limit = max(QUEUE_SECONDS, QUEUE_SHARE * self._min_rtt)
        if queue < limit / 2:
            self._standing_since = None
            self._patience_over = False
            return
        if queue < limit or now < self._blind_until:
            return
        if self._standing_since is None:
            self._standing_since = now
        if now - self._standing_since > LARGEST_PATIENCE_ROUNDS * 2 * self._min_rtt:
            self._patience_over = True
        if not self.competing:
            self._cut(min(self._delivered or self._bandwidth, self._bandwidth), now)

    def _cut(self, rate: float, now: float) -> None:
        """Believe `rate`, and drain; blind until what is sent from now on can be judged."""
        rate = max(rate, LEAST_RATE)
        self._bandwidth = rate
        self._samples.clear()
        self._samples.append((now, rate))
        self._blind_until = now + 2 * self._min_rtt
        self._enter(Phase.DRAIN, now, max(self._min_rtt, PROBE_SECONDS))

    def _enter(self, phase: Phase, now: float, seconds: float) -> None:
        self.phase = phase
        self._phase_ends = now + seconds
        self._cruise_samples = self._cruise_queued = 0
