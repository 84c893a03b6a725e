"""The rate of a path, found from what arrives, how long it takes and what is lost.

The model is BBR's (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14, 2016, and the draft
draft-ietf-ccwg-bbr): the largest delivery rate and the least round trip, lately, and a cycle that probes for more,
drains what that has queued, and cruises. What differs is ours: STARTUP is one packet train and not exponential growth,
a standing queue makes the rate come down at once (`queue_detection.py`), and competitors are left half of the path
(`competition.py`). A constant of which nothing else is said is ours, tried in the simulator and measured in the testbed
(docs/results). More than 500 lines: what the rate follows from is to be seen in one place.
"""

from __future__ import annotations

import math

from fedrdma_fate.core.path import PathState, Sample
from fedrdma_fate.core.x.chunking import SLOW_PATH_RATE
from fedrdma_fate.core.x.competition import QUEUED_SECONDS, REDUCTION_FACTOR, Competition, QueueVerdict
from fedrdma_fate.core.x.controller import LEAST_RATE
from fedrdma_fate.core.x.estimators import (
    DELIVERY_WINDOW_SECONDS,
    MOST_RATE,
    LossEstimator,
    MaxRateFilter,
    RttFilter,
    chunk_loss,
)
from fedrdma_fate.core.x.newcomer import FIRST_SIGN_SECONDS, Newcomer, Sign
from fedrdma_fate.core.x.phases import Phase
from fedrdma_fate.core.x.probe_queue import MOST_QUEUE_BYTES, ProbeQueue
from fedrdma_fate.core.x.queue_delay import QueueDelay
from fedrdma_fate.core.x.queue_detection import LongerPathCheck, Overload, StandingQueue
from fedrdma_fate.core.x.raised_rate import RaisedRate
from fedrdma_fate.core.x.short_path import SHORT_ROUND_TRIP_SECONDS, ReportClockedWindow

CRUISE_ROUNDS = 6
"""A CRUISE lasts so many round trips: with the two phases around it the eight of BBR's cycle (ACM Queue 2016)."""

LEAST_CRUISE_ROUND_SECONDS = 0.005
"""But a round trip counts for no less than this: a CRUISE of 30 ms has 15 reports, which come every 2 ms."""

PROBE_SECONDS = 0.008
"""Of a PROBE_UP; BBR's is a round trip. At 1.25 this queues 2 ms of the bottleneck: what half of a 0.5 MB buffer holds
at 1 Gbit/s."""

PROBE_CHUNKS = 6
"""But it is no shorter than so many chunks take: of fewer nobody can tell at which rate they arrive."""

LEAST_SAMPLE_BYTES = 64 * 1024
"""Of which a delivery rate is taken at least: a shaper's token bucket lets two packets of an idle link pass at once,
which are half of what a link of 5 Mbit/s carries in 8 ms, and a twentieth of this."""

LOSSLESS = 0.005
"""Not so where a larger share of the packets is lost, or it is not known: what is lost does not show in samples, only
half of it is added back, and that the largest of many short ones counts makes up for the rest."""

LONG_SAMPLE_SECONDS = 2 * DELIVERY_WINDOW_SECONDS
"""Below 33 Mbit/s such a sample, and the probe for it, take longer than this, and the probe's queue more than a drain.
On faster paths our own queue must be gone after one."""

PROBE_DIVISOR = 2
"""A PROBE_UP is no shorter than this part of such a sample takes: what it sends beyond the rate is to show as a queue,
and not in a token bucket. Where it finds all that it tries for, the rate rises by an eighth."""

SHAPER_PACKETS = 4
"""By so many packets may a sample be too large: two of the MTU, headers and all, are three of RDMA's, whose sizes are
powers of two, and a sample begins and ends with a whole one."""

PROVING_SHARE = 0.4
"""A rate that no transfer has proved is probed again at once as long as a probe finds so much of what it tried for, a
tenth more of a quarter; BBR's Startup goes on while a round finds a quarter more (draft, section 5.3.1.2), at a gain of
2.77."""

MAYBE_OWN_QUEUE_GAIN = 0.97
"""Of the rate stays at a queue that may be our own: samples of the delivery rate are up to some hundredths too high."""

STEADY_SHARE = 0.85
"""Of our rate is delivered still: not the link has become slower, a newcomer takes room, which shows only later."""

UNCERTAIN_ROUNDS = 2 * CRUISE_ROUNDS
"""So many round trips after a reduction a queue may be what that has left, or after the rate has risen what an outlier
does: until the next CRUISE has shown it."""

FIRST_BURST_SECONDS = 0.25
"""And so long after a transfer has begun with 1 ms of its rate at once: at 0.99 of the rate what that queues lasts for
0.1 s, and shows for 0.13 s more in a mean of many round trips."""

RAISED_FACTOR = 1.01
"""The rate has risen when it is so many times what it was: more than samples of a steady path differ by."""

OVERRATED_LOSS = 0.01
"""Where a larger share of what is sent is lost, compensation for it overrates the delivery rate, and so the rate."""

NEAR_FAIR_SHARE = 0.95
"""While competitors are expected, so much of the fair rate is enough not to probe for more."""

QUEUE_CHUNKS = 1.6
"""Nothing below what so many chunks take is a queue: a chunk comes as a whole, so that one that is longer than those of
which the least round trip is remembered takes longer on an idle path, by up to its own time, and that of its heads."""

MAX_RATE_ROUNDS = 10
"""Round trips that the largest delivery rate counts for, as in BBR (ACM Queue 2016: six to ten)."""

LEAST_MAX_RATE_SECONDS = 0.1
"""But no shorter than this, two cycles of a path with a short round trip, as BBR.MaxBwFilterLen (draft, section 2.10):
in less a busy host does not look at packets often enough, and the rate would fall from one such time to the next."""

MIN_RTT_SECONDS = 10.0
"""For which the least round trip counts: BBR.MinRTTFilterLen."""

MIN_RTT_COMPETING_FACTOR = 3
"""Times as long among competitors, whose queue may hide it for a while; we have no PROBE_RTT that would show it."""

LEAST_ROUND_CHUNKS = 8
"""A round goes on until so many chunks have arrived or been lost: the loss of fewer is no share."""

HEAVY_LOSS = 0.4
"""Share of a round's chunks lost at which the buffer is overrun: no random loss worth the name does that.
BBR.LossThresh is 0.02, but of packets: a chunk is lost with any of its packets, and there may be a thousand."""

USUAL_LOSS = 0.2
"""So many chunks may any path lose at random, of one packet each: what the mode was measured at."""

CHANCE_DEVIATIONS = 4
"""HEAVY_LOSS is so many standard deviations above what is usual, for of a round of few chunks many may be lost by
chance: at 20 % four of eight once in 18 times, and seven of them once in 12 000. From 64 chunks on it makes no
difference."""

CHUNK_LOSS_GAIN = 1 / 8
"""Weight of a round in the average share of chunks lost: what a smoothed round trip gives a sample (RFC 9002, section
5.3)."""

LOSS_COMPENSATION = 0.5
"""What is lost does not show in the delivery rate. All of them added back, the filter's taste for the largest
sample would overrate the link, which fills the buffer, which loses more."""

LEAST_ROUND_SECONDS = 0.001
"""What else is counted in rounds takes a round trip for no shorter than this, half of what is between two reports."""

WINDOW_GAIN = 2
"""Bandwidth-delay products that may be in flight: BBR.DefaultCwndGain."""

REPORT_ALLOWANCE_SECONDS = 0.01
"""And what is sent in this time: reports come every 2 ms, and later from a busy host, and a window that is too small
for that looks like a slow path."""

IGNORE_CONGESTION_AFTER_STARTUP_ROUNDS = 3
"""Round trips after STARTUP whose queue and losses are those of the packet train, which went unpaced."""

IGNORE_CONGESTION_AFTER_REDUCTION_ROUNDS = 2
"""Round trips after a reduction: one until it shows at the receiver's, one while the queue drains."""


class RateController:
    """Paces one flow of one path: a `Controller`. Times in seconds, rates in payload bytes a second.

    With nothing known it begins in STARTUP: the first bytes go unpaced, and the rate at which they arrive is the rate.
    With a rate that no transfer has proved it begins in PROBE_UP.

    Attributes:
        chunk_bytes: size of the flow's chunks; what takes no longer than a few of them at its rate is no queue.
        counts_packets: see `Controller`.
        phase: what the rate is being used for.
    """

    needs_rate_samples = False

    def __init__(self, remembered: PathState | None = None, *, proved: bool = True) -> None:
        """
        Args:
            remembered: what is known of the path.
            proved: what is known was found by transfers, and not only estimated.
        """
        known = remembered or PathState(0.0, 0.0, None)
        self.chunk_bytes = 0
        self.counts_packets = False
        self.phase = Phase.STARTUP if remembered is None else Phase.CRUISE if proved else Phase.PROBE_UP
        self._gain = self._probe_gain = self.phase.pacing_gain
        self._phase_ends = 0.0
        self._proved = proved
        self._probed_from = known.rate
        self._bandwidth = known.rate
        self._max_rate = MaxRateFilter()
        self._delivered = 0.0
        self._rtt = RttFilter(known.min_rtt)
        self._queue_delay = QueueDelay(known.min_rtt, known.rtt_variation, known.least_mean_rtt)
        self._probe_queue = ProbeQueue(known.queue_bytes)
        self._chunk_loss = 0.0
        self._packets = 1
        self._loss = LossEstimator(known.loss, measured=proved)
        self._loss_is_measured = proved
        self._window = ReportClockedWindow(known.window_bytes, found=known.window_found)
        self._raised_rate = RaisedRate(known.policed_seconds, known.rate)
        self._round_ends = 0.0
        self._round_arrived = 0
        self._round_lost = 0
        self._round_least_queue = math.inf
        self._competition = Competition(max(known.capacity, known.rate), known.shared_seconds)
        self._standing_queue = StandingQueue()
        self._overload = Overload()
        self._longer_path = LongerPathCheck()
        self._newcomer = Newcomer()
        self._probe_began = self._probe_queued = -math.inf
        self._probe_showed = 0.0
        self._ignore_congestion_until = 0.0
        self._ignore_delivery_until = 0.0
        self._maybe_own_queue_until = 0.0

    @property
    def known(self) -> bool:
        """Whether a rate is known."""
        return self._bandwidth > 0

    @property
    def settled(self) -> bool:
        """Whether a rate is known that transfers have proved."""
        return self.known and self._proved

    @property
    def min_rtt(self) -> float:
        """Least round trip, 0 when unknown."""
        return self._rtt.least

    @property
    def rtt(self) -> float:
        """Latest round trip, 0 when unknown."""
        return self._rtt.latest

    @property
    def loss(self) -> float:
        """Probability that a packet is lost, as transfers have found it."""
        return (self._loss.loss or 0.0) if self._loss_is_measured else 0.0

    @property
    def sampled(self) -> bool:
        """Whether it has seen how fast chunks arrive."""
        return self._delivered > 0

    @property
    def competing(self) -> bool:
        """Whether competitors keep the queue standing however we yield."""
        return self._competition.is_recent or self._standing_queue.persists

    @property
    def report_clocked(self) -> bool:
        """Whether reports alone clock what is sent: on short paths, where packets are repaired one by one."""
        return self.counts_packets and 0 < self._rtt.least < SHORT_ROUND_TRIP_SECONDS

    @property
    def rate(self) -> float:
        """What to pace at."""
        return max(self._bandwidth * self._gain, LEAST_RATE)

    @property
    def burst_bytes(self) -> float:
        """What may go at once: no more than a probe may queue, or a window."""
        if self.report_clocked:
            return self._window.burst_bytes
        return self._probe_queue.most_bytes

    @property
    def least_sample_bytes(self) -> int:
        """Of how much, at least, delivery rates are to be taken."""
        is_lossless = self._loss_is_measured and self.loss <= LOSSLESS
        return LEAST_SAMPLE_BYTES if self.known and is_lossless else 0

    @property
    def window_bytes(self) -> float:
        """Most bytes in flight: twice what fills the path, and what is sent while a report is awaited."""
        if self.report_clocked:
            return self._window.window_bytes
        return max(self._bandwidth, LEAST_RATE) * (WINDOW_GAIN * self._rtt.least + REPORT_ALLOWANCE_SECONDS)

    def state(self) -> PathState | None:
        """What to remember for the next transfer; None when nothing was learnt."""
        if self._bandwidth <= 0 or self._rtt.least <= 0:
            return None
        # also where no competitors are expected any more: a transfer may end just when it has come down for them
        competition = self._competition
        capacity = competition.capacity if competition.capacity > self._bandwidth else 0.0
        return PathState(
            self._bandwidth,
            self._rtt.least,
            self._loss.loss,
            capacity,
            competition.shared_seconds,
            self._queue_delay.variation,
            self._queue_delay.least_mean,
            self._probe_queue.remembered,
            self._raised_rate.held_seconds,
            self._window.remembered_bytes if self.report_clocked else 0.0,
            self.report_clocked and self._window.is_found,
        )

    # -- the cycle ------------------------------------------------------------------------------------------------

    def on_time(self, now: float) -> None:
        """Move on to the next phase when this one is over."""
        self._competition.on_time(now)
        self._raised_rate.on_time(now)
        if self.report_clocked:
            return
        if self.phase is Phase.STARTUP or now < self._phase_ends:
            return
        if self._phase_ends == 0.0:
            self._maybe_own_queue_until = max(self._uncertain_until(now), now + FIRST_BURST_SECONDS)
            self._enter(self.phase, now, self._cruise_seconds if self._proved else self._probe_seconds)
            return
        if self.phase is Phase.PROBE_UP:
            # no more than was queued has to drain
            self._enter(Phase.PROBE_DOWN, now, self._probe_seconds, 2 - self._gain)
        elif not self._proved:
            self._prove(now)
        elif self.phase is Phase.PROBE_DOWN:
            self._enter(Phase.CRUISE, now, self._cruise_seconds)
        else:
            self._on_cruise_end(now)

    def _on_cruise_end(self, now: float) -> None:
        competition = self._competition
        has_path = self._has_path(self._delivered)
        maybe_own_queue = has_path or self._is_maybe_own_queue(now)
        has_path = has_path and self._sample_seconds > LONG_SAMPLE_SECONDS
        verdict = competition.on_cruise_end(self._bandwidth, maybe_own_queue=maybe_own_queue, has_path=has_path)
        if verdict is QueueVerdict.OWN:
            # with a queue, what arrives is what the path carries
            self._reduce(min(self._delivered, self._bandwidth), now)
        elif verdict is QueueVerdict.UNCERTAIN or (verdict is QueueVerdict.COMPETITORS and self._has_fair_share):
            # our own queue goes when we drain for a round; and if it is a longer path, nothing happens
            own = self._bandwidth * MAYBE_OWN_QUEUE_GAIN
            is_own = verdict is QueueVerdict.UNCERTAIN
            self._lower_bandwidth(own if is_own else competition.reduced(self._bandwidth), now)
            self._drain(now)
        elif competition.is_recent and self._has_fair_share:
            self._bandwidth = competition.increased(self._bandwidth, self._cruise_seconds)
            self._max_rate.clear()
            self._enter(Phase.CRUISE, now, self._cruise_seconds)
        elif self._raised_rate.is_held(now):
            self._enter(Phase.CRUISE, now, self._cruise_seconds)
        else:
            self._enter(Phase.PROBE_UP, now, self._probe_seconds)

    def _prove(self, now: float) -> None:
        """The rate was only estimated: wait a round trip for what a probe has found, then probe on or cruise."""
        if self.phase is Phase.PROBE_DOWN:
            self._enter(Phase.CRUISE, now, self._round_seconds)
        elif self._has_risen:
            self._enter(Phase.PROBE_UP, now, self._probe_seconds)
        else:
            self._proved = True
            self._maybe_own_queue_until = max(self._maybe_own_queue_until, self._uncertain_until(now))
            self._enter(Phase.CRUISE, now, self._cruise_seconds)

    @property
    def _has_risen(self) -> bool:
        """Whether the latest probe has found more."""
        return self._bandwidth >= self._probed_from * (1 + PROVING_SHARE * (self._probe_gain - 1))

    def _enter(self, phase: Phase, now: float, seconds: float, gain: float | None = None) -> None:
        self.phase, self._gain = phase, gain or phase.pacing_gain
        self._phase_ends = now + seconds
        self._competition.start_phase()
        if phase is Phase.PROBE_UP:
            capacity = self._competition.capacity
            self._raised_rate.on_probe(self._bandwidth)
            self._probed_from = self._bandwidth
            self._gain = self._probe_queue.gain(self._bandwidth, capacity, seconds, phase.pacing_gain)
            self._probe_gain = self._gain
            queued = (self.rate - self._bandwidth) * seconds
            due = self._phase_ends + self._rtt.latest + 2 * DELIVERY_WINDOW_SECONDS
            self._probe_queue.start(queued, self.chunk_bytes, due)
            self._probe_began, self._probe_queued = now, queued / max(self._bandwidth, LEAST_RATE)
            self._probe_showed = 0.0

    @property
    def _round_seconds(self) -> float:
        """A round trip, of a path that has any to speak of."""
        return max(self._rtt.least, LEAST_ROUND_SECONDS)

    @property
    def _cruise_seconds(self) -> float:
        """How long a CRUISE lasts: long enough for some reports."""
        return CRUISE_ROUNDS * max(self._rtt.least, LEAST_CRUISE_ROUND_SECONDS)

    @property
    def _max_rate_seconds(self) -> float:
        """What the largest delivery rate is taken of: a whole cycle at least, or what PROBE_UP finds is forgotten."""
        cycle = self._cruise_seconds + 2 * self._probe_seconds
        return max(MAX_RATE_ROUNDS * self._round_seconds, LEAST_MAX_RATE_SECONDS, cycle)

    @property
    def _drain_seconds(self) -> float:
        """How long we drain after a reduction.

        Not for as long as the queue takes to go: of two flows, who saw it first would leave the other more than half.
        """
        return max(self._rtt.least, PROBE_SECONDS)

    @property
    def _chunk_seconds(self) -> float:
        """What a chunk takes at our rate."""
        return self.chunk_bytes / max(self._bandwidth, LEAST_RATE)

    @property
    def _least_queue(self) -> float:
        """What a round trip has to be longer than the least for a queue: beyond what chunks of other sizes make it."""
        # a chunk goes at the rate of the whole path, however little of that is ours
        path_rate = max(self._bandwidth, self._competition.capacity, LEAST_RATE)
        return max(QUEUED_SECONDS, QUEUE_CHUNKS * self.chunk_bytes / path_rate)

    @property
    def _probe_seconds(self) -> float:
        """Long enough for some chunks, and short enough for a buffer."""
        bearable = MOST_QUEUE_BYTES / (Phase.PROBE_UP.pacing_gain - 1) / max(self._bandwidth, LEAST_RATE)
        return max(
            min(PROBE_SECONDS, bearable),
            PROBE_SECONDS / 2,
            PROBE_CHUNKS * self._chunk_seconds,
            self.least_sample_bytes / PROBE_DIVISOR / max(self._bandwidth, LEAST_RATE),
        )

    @property
    def _has_fair_share(self) -> bool:
        return self._bandwidth >= NEAR_FAIR_SHARE * self._competition.fair_rate

    @property
    def _sample_seconds(self) -> float:
        """What a delivery rate is taken of."""
        return max(DELIVERY_WINDOW_SECONDS, self.least_sample_bytes / max(self._bandwidth, LEAST_RATE))

    def _has_path(self, delivered: float) -> bool:
        """Whether at this delivery rate all of the path is ours; asked on slow ones alone.

        On others somebody who has just come would be seen too late.
        """
        if self._bandwidth > SLOW_PATH_RATE:
            return False
        sample_bytes = self._bandwidth * self._sample_seconds
        packet_bytes = self.chunk_bytes / self._packets
        return self._competition.has_path(delivered, SHAPER_PACKETS * packet_bytes / max(sample_bytes, 1.0))

    def _uncertain_until(self, now: float) -> float:
        """Of what happens now, when a queue can no longer be what it has left."""
        return now + UNCERTAIN_ROUNDS * self._rtt.least

    def _is_maybe_own_queue(self, now: float) -> bool:
        """Whether a queue may well be our own."""
        return now < self._maybe_own_queue_until or max(self._undelivered_share, self._expected_loss) > OVERRATED_LOSS

    @property
    def _expected_loss(self) -> float:
        """The share of what is sent that the path is known to lose: of chunks, or of packets where these count."""
        loss = self._loss.loss or 0.0
        return loss if self.counts_packets else chunk_loss(loss, self._packets)

    @property
    def _undelivered_share(self) -> float:
        """The share of what is sent, lately, that the delivery rate does not show."""
        return min(self._chunk_loss, self._expected_loss) if self.counts_packets else self._chunk_loss

    # -- what reports say -----------------------------------------------------------------------------------------

    def on_sample(self, sample: Sample, now: float) -> None:
        """Take in what a report taught."""
        self._packets, self.counts_packets = sample.packets_per_chunk, sample.counts_packets
        if self.report_clocked:
            self._on_short_path(sample, now)
            return
        queue = self._on_rtt(sample.rtt, now)
        self._probe_queue.on_sample(sample.lost, sample.arrived, self._chunk_loss, now)
        self._round_arrived += sample.arrived
        self._round_lost += sample.lost
        if sample.delivery_rate is not None:
            rate = sample.delivery_rate / (1 - self._undelivered_share * LOSS_COMPENSATION)
            self._on_delivery(min(rate, MOST_RATE), now)
        if now >= self._round_ends:
            self._end_round(now)
        if queue is not None:
            self._on_queue(queue, now)

    def _on_short_path(self, sample: Sample, now: float) -> None:
        """What arrives is the rate, whatever it was sent at; a queue is what the window may have."""
        self._proved = True
        if self.phase is not Phase.CRUISE:
            self._enter(Phase.CRUISE, now, self._cruise_seconds)
        if sample.rtt is not None and sample.rtt > 0:
            self._rtt.update(sample.rtt, now, MIN_RTT_SECONDS)
        if sample.delivery_rate is not None:
            self._delivered = min(sample.delivery_rate, MOST_RATE)
            self._bandwidth = self._max_rate.update(self._delivered, now, self._max_rate_seconds)
        self._round_arrived += sample.arrived
        self._round_lost += sample.lost
        if self._window.on_sample(sample.arrived * self.chunk_bytes, sample.lost_bytes, self.chunk_bytes):
            resolved = self._round_arrived + self._round_lost
            if resolved >= LEAST_ROUND_CHUNKS and not self._window.overrun:
                self._loss.on_round(self._round_lost, resolved, self._packets)
                self._loss_is_measured = True
            self._round_arrived = self._round_lost = 0

    def _on_rtt(self, rtt: float | None, now: float) -> float | None:
        """What of it is a queue's; None while that cannot be told."""
        if rtt is None or rtt <= 0:
            return None
        window = MIN_RTT_SECONDS * (MIN_RTT_COMPETING_FACTOR if self._competition.is_recent else 1)
        self._rtt.update(rtt, now, window)
        queue = self._queue_delay.update(rtt, now, window)
        self._longer_path.on_rtt(rtt)
        if queue is not None:
            self._round_least_queue = min(self._round_least_queue, queue)
        elif self._queue_delay.is_short(rtt):
            self._round_least_queue = 0.0
        return queue

    def _on_delivery(self, rate: float, now: float) -> None:
        self._delivered = rate
        if now < self._ignore_delivery_until:
            return
        most = self._max_rate.update(rate, now, self._max_rate_seconds)
        competition = self._competition
        competition.on_delivery(most)
        if not competition.is_recent:
            most = self._raised_rate.bound(most, now)
            if most > self._bandwidth * RAISED_FACTOR:
                self._raised_rate.on_raised(self._round_seconds, now)
                self._maybe_own_queue_until = max(self._maybe_own_queue_until, self._uncertain_until(now))
            self._bandwidth = most
        elif not self._has_fair_share:
            self._bandwidth = min(most, competition.fair_rate)
        if self.phase is Phase.STARTUP:
            # the round trip that taught this was mostly idle: its queue is gone
            self._enter(Phase.CRUISE, now, self._cruise_seconds)
            self._ignore_congestion_until = now + IGNORE_CONGESTION_AFTER_STARTUP_ROUNDS * self._rtt.least
            self._maybe_own_queue_until = self._uncertain_until(now)

    def _end_round(self, now: float) -> None:
        resolved = self._round_arrived + self._round_lost
        self._round_ends = now + self._round_seconds
        if resolved < LEAST_ROUND_CHUNKS:
            return
        lost, share = self._round_lost, self._round_lost / resolved
        self._round_arrived = self._round_lost = 0
        least_queue, self._round_least_queue = self._round_least_queue, math.inf
        # where too few round trips agree, nobody can tell
        may_be_queued, queued = least_queue > self._least_queue, self._least_queue < least_queue < math.inf
        if not self.known:
            # of STARTUP: what its train has lost says nothing of a rate that is not known
            return
        self._check_for_longer_path(share, now)
        if queued or not may_be_queued:
            self._check_for_overload(share, queued, now)
        usual = max(USUAL_LOSS, self._chunk_loss, self._expected_loss)
        by_chance = usual + CHANCE_DEVIATIONS * math.sqrt(usual * (1 - usual) / resolved)
        is_heavy = share > max(HEAVY_LOSS, 2 * self._chunk_loss, by_chance)
        if not may_be_queued:
            # where packets count one by one, and a burst takes many of few chunks, these tell too little;
            # and where the probe has queued, a buffer overflows that may be others' as well
            tells_nothing = self.counts_packets or not self._probe_found_room
            rate = math.inf if tells_nothing else self._bandwidth
            lasting = self._raised_rate.on_round(
                rate, share, resolved, self._chunk_loss, self._packets, now, heavy=is_heavy
            )
            if lasting is not None:
                self._reduce(min(lasting, self._bandwidth), now)
                return
        if is_heavy:
            if now >= self._ignore_congestion_until and not (self._proved and self._probe_queue.is_judging):
                delivered = min(self._delivered, self._bandwidth)
                if not may_be_queued:
                    # a policer: of what its bucket lets through at once the delivery rate says nothing
                    delivered = min(delivered, self._bandwidth * (1 - share) ** (1 / self._packets))
                self._reduce(max(self._bandwidth / 2, delivered), now)
            return
        if may_be_queued:
            # what a full buffer drops says nothing about the path
            return
        self._chunk_loss += (share - self._chunk_loss) * CHUNK_LOSS_GAIN
        self._loss.on_round(lost, resolved, self._packets)
        self._loss_is_measured = True

    def _check_for_longer_path(self, lost: float, now: float) -> None:
        """A reduction drains for a round or more: a round trip that stays as long, without loss, is the path's own."""
        least = self._longer_path.on_round(lost, self._chunk_loss, self._drain_seconds, now)
        if least is not None and least > self._rtt.least + self._least_queue:
            self._rtt.reset(least, now)
            self._queue_delay.reset(least, now)
            self._bandwidth = max(self._bandwidth, self._longer_path.rate_before)
            self._competition.on_path_longer()
            self._standing_queue.clear()

    def _check_for_overload(self, lost: float, queued: bool, now: float) -> None:
        rtt = self._rtt
        if self._overload.on_round(lost, self._chunk_loss, queued=queued, min_rtt=rtt.least, latest_rtt=rtt.latest):
            self._lower_bandwidth(self._bandwidth * REDUCTION_FACTOR, now)

    def _own_queue(self, now: float) -> float:
        """How long the queue of our latest probe may be, while reports tell of it: from a round trip after it began."""
        since = now - self._probe_began - self._rtt.least
        return self._probe_queued if 0 <= since < 2 * self._probe_seconds + DELIVERY_WINDOW_SECONDS else 0.0

    def _watch_for_newcomers(self, queue: float, now: float) -> None:
        """Leave room at the first sign of somebody who begins to send, and the fair share when it was one."""
        path_rate = max(self._bandwidth, self._competition.capacity)
        # round trips tell of nothing but chunks, and of what a shaper lets pass at once, or vary by chance
        is_vague = path_rate <= SLOW_PATH_RATE or self._queue_delay.least_mean > 0
        if is_vague or not self._proved or self.competing or self._is_maybe_own_queue(now):
            self._newcomer.clear()
            return
        least_queue = FIRST_SIGN_SECONDS + self.chunk_bytes / path_rate + self._own_queue(now)
        sign = self._newcomer.on_queue(queue, least_queue, self._rtt.latest, now)
        if sign is Sign.SUSPECTED:
            self._longer_path.note_rate(self._bandwidth)
            self._drain(now)
        elif sign is Sign.FOUND:
            self._competition.on_newcomer()
            self._reduce(min(self._bandwidth, self._competition.fair_rate), now)

    @property
    def _probe_found_room(self) -> bool:
        """Whether what the latest probe sent beyond its rate went through. Where it waited, the path was full, and what
        arrived more was taken from others, or lost to them."""
        return self._probe_showed < self._probe_queued / 2

    def _on_queue(self, queue: float, now: float) -> None:
        self._probe_showed = max(self._probe_showed, queue)
        self._watch_for_newcomers(queue, now)
        if self.phase is Phase.CRUISE and self._phase_ends - now < self._cruise_seconds / 2:
            self._competition.on_queue(queue if queue > self._least_queue else 0.0)
        ignored = now < self._ignore_congestion_until
        is_standing = self._standing_queue.update(queue, now, self._rtt.least, self._chunk_seconds, ignored=ignored)
        if not is_standing or self.competing:
            return
        rate = min(self._delivered or self._bandwidth, self._bandwidth)
        is_steady = rate > STEADY_SHARE * self._bandwidth
        if is_steady and not self._proved:
            # the queue of our own first probe, at a rate that suits the path
            return
        # what a probe has queued shows a round trip later, when CRUISE may have begun
        is_probe = (self.phase is not Phase.CRUISE or self._own_queue(now) > 0) and self._has_path(rate)
        if is_steady and not self._is_maybe_own_queue(now) and not is_probe:
            self._competition.on_newcomer()
            rate = self._competition.reduced(rate)
        self._reduce(rate, now)

    # -- coming down ----------------------------------------------------------------------------------------------

    def _lower_bandwidth(self, rate: float, now: float) -> None:
        """Send less from now on; what was sent before teaches nothing about it."""
        if rate < self._bandwidth:
            self._bandwidth = max(rate, LEAST_RATE)
            self._max_rate.clear()
            self._queue_delay.restart()
            self._ignore_delivery_until = now + self._rtt.latest + self._sample_seconds

    def _reduce(self, rate: float, now: float) -> None:
        """Believe `rate`, and drain; no congestion counts until what is sent from now on can be judged."""
        rate = max(rate, LEAST_RATE)
        self._longer_path.note_rate(self._bandwidth)
        self._bandwidth = rate
        self._max_rate.restart(rate, now)
        self._queue_delay.restart()
        self._ignore_congestion_until = now + IGNORE_CONGESTION_AFTER_REDUCTION_ROUNDS * self._rtt.least
        self._maybe_own_queue_until = self._uncertain_until(now)
        self._drain(now)

    def _drain(self, now: float) -> None:
        """For a round trip; whether the queue goes shows whether there was one."""
        self._longer_path.start(self._rtt.latest, now + self._rtt.latest + self._drain_seconds)
        self._enter(Phase.PROBE_DOWN, now, self._drain_seconds)
