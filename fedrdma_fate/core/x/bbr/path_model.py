"""What BBRv3 believes of a path: draft-ietf-ccwg-bbr-06, section 5.5. Bytes, seconds, bytes a second."""

from __future__ import annotations

import math
from collections import deque

from fedrdma_fate.core.x.estimators import MOST_SAMPLES
from fedrdma_fate.core.x.flight_recorder import RateSample

BETA = 0.7
"""BBR.Beta, section 2.8: what stays after a round trip that lost something."""

MAX_BANDWIDTH_CYCLES = 2
"""BBR.MaxBwFilterLen, section 2.11: this cycle of ProbeBW and the last."""

EXTRA_ACKED_ROUNDS = 10
"""BBR.ExtraAckedFilterLen, section 2.12."""

MIN_RTT_FILTER_SECONDS = 10.0
"""BBR.MinRTTFilterLen, section 2.16.1."""

PROBE_RTT_INTERVAL_SECONDS = 5.0
"""BBR.ProbeRTTInterval, section 2.16.2."""

FULL_PIPE_GROWTH = 1.25
"""A round whose rate grew by less has found the pipe full (section 5.3.1.2)."""

FULL_PIPE_ROUNDS = 3
"""When so many have (section 5.3.1.2)."""


class MaxBandwidth:
    """The largest delivery rate of this and the last cycle (sections 5.5.3 to 5.5.6)."""

    def __init__(self, known: float) -> None:
        self._cycles: deque[float] = deque([known], maxlen=MAX_BANDWIDTH_CYCLES)

    @property
    def value(self) -> float:
        """The largest."""
        return max(self._cycles)

    def update(self, sample: RateSample) -> None:
        """Take a sample in; one of too little to send counts only where it is larger."""
        if sample.rate > 0 and (sample.rate >= self.value or not sample.is_limited):
            self._cycles[-1] = max(self._cycles[-1], sample.rate)

    def advance(self) -> None:
        """A cycle is over; one without a sample leaves what was."""
        if self._cycles[-1] > 0:
            self._cycles.append(0.0)


class Rounds:
    """Round trips, counted by what is delivered (section 5.5.1).

    Attributes:
        count: of those that are over.
        started: whether the latest report began one.
    """

    def __init__(self) -> None:
        self.count = 0
        self.started = False
        self._next_delivered = 0
        self._delivered = 0

    def update(self, sample: RateSample) -> None:
        """A report has come."""
        self._delivered = sample.total_delivered
        self.started = sample.newly_acked > 0 and sample.prior_delivered >= self._next_delivered
        if self.started:
            self.start()
            self.count += 1

    def start(self) -> None:
        """A round begins with what is sent from now on."""
        self._next_delivered = self._delivered


class MinRtt:
    """The least round trip, and when to look for it again (section 5.3.4.3).

    Attributes:
        value: the least; inf while unknown.
        latest: 0 while unknown.
        is_expired: no round trip of ProbeRTT's interval came near enough to it.
    """

    def __init__(self, known: float) -> None:
        self.latest = known
        self.value = known or math.inf
        self.is_expired = False
        self._at: float | None = None
        self._probe_delay = math.inf
        self._probe_at = 0.0

    def update(self, rtt: float | None, now: float) -> None:
        """A report has come, perhaps with a round trip."""
        if self._at is None:
            self._at = self._probe_at = now
        self.is_expired = now > self._probe_at + PROBE_RTT_INTERVAL_SECONDS
        if rtt is not None and rtt > 0:
            self.latest = rtt
            if rtt < self._probe_delay or self.is_expired:
                self._probe_delay, self._probe_at = rtt, now
        if self._probe_delay < self.value or (now > self._at + MIN_RTT_FILTER_SECONDS and self._probe_delay < math.inf):
            self.value, self._at = self._probe_delay, self._probe_at

    def schedule(self, now: float) -> None:
        """ProbeRTT is over: the next one an interval from now."""
        self._probe_at = now


class ExtraAcked:
    """What reports bring beyond what the rate would, lately: by so much more may be in flight (section 5.5.9).

    Attributes:
        value: the most of some round trips.
    """

    def __init__(self) -> None:
        self.value = 0.0
        self._since = 0.0
        self._acked = 0.0
        self._samples: deque[tuple[int, float]] = deque(maxlen=MOST_SAMPLES)

    def update(self, sample: RateSample, bandwidth: float, window: float, now: float, count: int, rounds: int) -> None:
        """A report has come, in the round of this count; the most of so many rounds counts."""
        expected = bandwidth * (now - self._since)
        if self._acked <= expected:
            self._acked, self._since, expected = 0.0, now, 0.0
        self._acked += sample.newly_acked
        extra = min(self._acked - expected, window)
        samples = self._samples
        while samples and samples[-1][1] <= extra:
            samples.pop()
        samples.append((count, extra))
        while samples[0][0] < count - rounds:
            samples.popleft()
        self.value = samples[0][1]


class FullPipe:
    """Whether the delivery rate grows no more, however much is sent (section 5.3.1.2).

    Attributes:
        now: it does not, since `reset`.
    """

    def __init__(self) -> None:
        self.reset(0.0)

    def reset(self, rate: float) -> None:
        """Look anew, from this rate on."""
        self.now = False
        self._rate = rate
        self._rounds = 0

    def update(self, sample: RateSample, *, round_started: bool) -> None:
        """A report has come."""
        if self.now or not round_started or sample.is_limited:
            return
        if sample.rate >= self._rate * FULL_PIPE_GROWTH:
            self.reset(sample.rate)
            return
        self._rounds += 1
        self.now = self._rounds >= FULL_PIPE_ROUNDS


class ShortTerm:
    """What losses say of now, until the next probe for bandwidth (section 5.5.10.3).

    Attributes:
        bandwidth: at most; inf: no loss.
        in_flight: at most; inf: no loss.
    """

    def __init__(self) -> None:
        self.bandwidth = self.in_flight = math.inf
        self.latest_in_flight = 0.0
        self._latest_bandwidth = 0.0
        self._round_delivered = 0
        self._lost_in_round = False

    def reset(self) -> None:
        """Probe for bandwidth, whatever was lost."""
        self.bandwidth = self.in_flight = math.inf

    def reset_signals(self) -> None:
        """A cycle begins."""
        self._lost_in_round = False
        self._latest_bandwidth = self.latest_in_flight = 0.0

    def on_loss(self, total_delivered: int) -> None:
        """Something is lost."""
        if not self._lost_in_round:
            self._round_delivered = total_delivered
        self._lost_in_round = True

    def update(self, sample: RateSample, max_bandwidth: float, window: float, *, is_probing: bool) -> None:
        """A report has come."""
        self._latest_bandwidth = max(self._latest_bandwidth, sample.rate)
        self.latest_in_flight = max(self.latest_in_flight, sample.delivered)
        if not sample.newly_acked or sample.prior_delivered < self._round_delivered:
            return
        self._round_delivered = sample.total_delivered
        if self._lost_in_round and not is_probing:
            bandwidth = max_bandwidth if math.isinf(self.bandwidth) else self.bandwidth
            in_flight = window if math.isinf(self.in_flight) else self.in_flight
            self.bandwidth = max(self._latest_bandwidth, BETA * bandwidth)
            self.in_flight = max(self.latest_in_flight, BETA * in_flight)
        self._lost_in_round = False
        self._latest_bandwidth, self.latest_in_flight = sample.rate, float(sample.delivered)
