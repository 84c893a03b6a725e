"""The rate of a path, found from what arrives, how long it takes and what is lost."""

from __future__ import annotations

import enum
import math
from collections import deque

from fedrdma_fate.core.path import PathState, Sample
from fedrdma_fate.core.x.competition import FOREIGN_QUEUE_SECONDS, YIELD_GAIN, Sharing, Sign
from fedrdma_fate.core.x.estimators import WINDOW_SECONDS, LossMeter, chunk_loss


class Phase(enum.Enum):
    """What the rate is being used for."""

    TRAIN = "train"
    CRUISE = "cruise"
    PROBE = "probe"
    DRAIN = "drain"

    @property
    def gain(self) -> float:
        """What is sent, as a share of the rate that is believed in. A TRAIN is not paced."""
        return _GAINS[self]


_GAINS = {Phase.TRAIN: 1.0, Phase.CRUISE: 0.99, Phase.PROBE: 1.25, Phase.DRAIN: 0.75}


HOLD_ROUNDS = 6
LEAST_ROUND_SECONDS = 0.005
PROBE_SECONDS = 0.008
"""At 1.25 this queues 2 ms of the bottleneck: what half of a 0.5 MB buffer holds at 1 Gbit/s."""

PROBE_QUEUE_BYTES = 12_500_000
"""Nor does it queue more than this, if that can be found out in half the time: buffers hold less of a faster link."""

PROBE_CHUNKS = 6
"""Nor is it shorter than so many chunks take: of fewer nobody can tell at which rate they arrive."""

PROVING_GAIN = 1.1
"""A rate that no transfer has proved is probed again at once, as long as a probe finds so much more."""

DOUBT_GAIN = 0.97
"""For a queue that may be our own: samples of the delivery rate err on the high side."""

STEADY_SHARE = 0.85
"""A slower link delivers less of what we send; beside a newcomer at first as much as before, only later."""

DOUBTFUL_ROUNDS = 2 * HOLD_ROUNDS
"""So long after a cut a queue may be what the cut has left, or after the rate has risen what an outlier does."""
RAISED = 1.01
DOUBTFUL_LOSS = 0.01
"""Where a larger share of the chunks is lost, the delivery rate is overrated, and so may be the rate."""

CONTENT = 0.95
"""While others are expected, so much of the fair share is enough not to probe for more."""

FILTER_ROUNDS = 10
MIN_RTT_SECONDS = 10.0

QUEUE_SECONDS = 0.003
QUEUE_SHARE = 0.15
QUEUE_CHUNKS = 4
"""A queue is standing when it adds this much, this share of the least round trip, and what so many chunks take: at a
low rate the round trip's own unrest is less than a chunk."""

HEAVY_LOSS = 0.4
"""Share of a round's chunks lost at which the buffer is overrun: no random loss worth the name does that."""

OVERLOAD_LOSS = 0.05
OVERLOAD_ROUNDS = 4
"""So many rounds in a row that lost more than this beside a standing queue: there is no room for us at this rate."""

MOVED_SHARE = 0.04
"""A queue that our draining shortens by less than this share of the time we drained is none: the path is longer."""

LOSS_COMPENSATION = 0.5
"""Chunks that are lost do not show in the delivery rate. All of them added back, the filter's taste for the largest
sample would overrate the link, which fills the buffer, which loses more."""

LEAST_RATE = 125_000.0

REPORT_PATIENCE_SECONDS = 0.01
"""Reports come every 2 ms, and later from a busy host: a window that is too small for that looks like a slow path."""

LARGEST_PATIENCE_ROUNDS = 4


class RateController:
    """Paces one flow of one path. Times in seconds, rates in payload bytes a second.

    With nothing known it begins in TRAIN: the first bytes go unpaced, and the rate at which they arrive is the rate.
    With a rate that no transfer has proved it begins in PROBE.

    Attributes:
        chunk_bytes: size of the flow's chunks; what takes no longer than a few of them at its rate is no queue.
    """

    def __init__(
        self, remembered: PathState | None = None, *, fixed_rate: float | None = None, proved: bool = True
    ) -> None:
        self.chunk_bytes = 0
        self.phase = Phase.TRAIN if remembered is None else Phase.CRUISE if proved else Phase.PROBE
        self._proved = proved
        self._proving_from = 0.0 if remembered is None else remembered.rate
        self._fixed = fixed_rate
        self._bandwidth = 0.0 if remembered is None else remembered.rate
        self._min_rtt = 0.0 if remembered is None else remembered.min_rtt
        self._min_rtt_at: float | None = None
        self._last_rtt = self._min_rtt
        self._chunk_loss = 0.0
        self._packets = 1
        self._loss = LossMeter(None if remembered is None else remembered.loss, found=proved)
        self._loss_is_found = proved
        self._samples: deque[tuple[float, float]] = deque()
        self._phase_ends = 0.0
        self._round_ends = 0.0
        self._round_arrived = 0
        self._round_lost = 0
        self._delivered = 0.0
        self._blind_until = 0.0
        self._standing_since: float | None = None
        self._patience_over = False
        known = remembered or PathState(0.0, 0.0, 0.0)
        self._sharing = Sharing(max(known.capacity, known.rate), known.shared_seconds)
        self._deaf_until = self._doubtful_until = 0.0
        self._overload_rounds = 0
        self._least_queue = math.inf
        self._judge_at: float | None = None
        self._before_cut = 0.0
        self._least_since_cut = self._most_since_cut = 0.0

    @property
    def known(self) -> bool:
        """Whether a rate is known."""
        return self._fixed is not None or self._bandwidth > 0

    @property
    def settled(self) -> bool:
        """Whether a rate is known that transfers have proved."""
        return self.known and self._proved

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
        """Probability that a packet is lost, as transfers have found it."""
        return (self._loss.loss or 0.0) if self._loss_is_found else 0.0

    @property
    def sampled(self) -> bool:
        """Whether it has seen how fast chunks arrive."""
        return self._delivered > 0

    @property
    def competing(self) -> bool:
        """Whether others keep the queue standing however we yield."""
        return self._sharing.holding or self._patience_over

    @property
    def rate(self) -> float:
        """What to pace at."""
        if self._fixed is not None:
            return self._fixed
        return max(self._bandwidth * self.phase.gain, LEAST_RATE)

    @property
    def window_bytes(self) -> float:
        """Most bytes in flight: twice what fills the path, and what is sent while a report is awaited."""
        return max(self._bandwidth, self._fixed or 0.0, LEAST_RATE) * (2 * self._min_rtt + REPORT_PATIENCE_SECONDS)

    def state(self) -> PathState | None:
        """What to remember for the next transfer; None when nothing was learnt."""
        if self._bandwidth <= 0 or self._min_rtt <= 0:
            return None
        # also where no others are expected any more: a transfer may end just when it has come down for them
        capacity = self._sharing.capacity if self._sharing.capacity > self._bandwidth else 0.0
        return PathState(self._bandwidth, self._min_rtt, self._loss.loss, capacity, self._sharing.expected)

    def on_time(self, now: float) -> None:
        """Move on to the next phase when this one is over."""
        self._sharing.on_time(now)
        if self.phase is Phase.TRAIN or now < self._phase_ends:
            return
        if self._phase_ends == 0.0:
            self._enter(self.phase, now, self._hold_seconds if self._proved else self._probe_seconds)
            return
        if self.phase is Phase.PROBE:
            self._enter(Phase.DRAIN, now, self._probe_seconds)
        elif not self._proved:
            self._prove(now)
        elif self.phase is Phase.DRAIN:
            self._enter(Phase.CRUISE, now, self._hold_seconds)
        else:
            self._on_cruised(now)

    def _on_cruised(self, now: float) -> None:
        sharing = self._sharing
        sign = sharing.on_cruised(self._bandwidth, doubtful=self._doubtful(now))
        content = self._bandwidth >= CONTENT * sharing.fair
        if sign is Sign.QUEUE or (sign is Sign.OTHERS and content):
            # our own queue goes when we drain for a round; and if it is a longer path, nothing happens
            own = self._bandwidth * DOUBT_GAIN
            self._come_down(sharing.yielded(self._bandwidth) if sign is Sign.OTHERS else own, now)
            self._drain_and_judge(now)
        elif sharing.holding and content:
            self._bandwidth = sharing.crept(self._bandwidth, self._hold_seconds)
            self._samples.clear()
            self._enter(Phase.CRUISE, now, self._hold_seconds)
        else:
            self._enter(Phase.PROBE, now, self._probe_seconds)

    @property
    def _round_seconds(self) -> float:
        """A round trip, of a path that has any to speak of."""
        return max(self._min_rtt, 0.001)

    @property
    def _hold_seconds(self) -> float:
        """How long a CRUISE lasts: long enough for some reports."""
        return HOLD_ROUNDS * max(self._min_rtt, LEAST_ROUND_SECONDS)

    @property
    def _chunk_seconds(self) -> float:
        """What a chunk takes at our rate."""
        return self.chunk_bytes / max(self._bandwidth, LEAST_RATE)

    @property
    def _probe_seconds(self) -> float:
        """Long enough for some chunks, and short enough for a buffer."""
        bearable = PROBE_QUEUE_BYTES / (Phase.PROBE.gain - 1) / max(self._bandwidth, LEAST_RATE)
        return max(min(PROBE_SECONDS, bearable), PROBE_SECONDS / 2, PROBE_CHUNKS * self._chunk_seconds)

    def _prove(self, now: float) -> None:
        """The rate was only estimated: wait a round trip for what a probe has found, then probe on or hold."""
        if self.phase is Phase.DRAIN:
            self._enter(Phase.CRUISE, now, self._round_seconds)
        elif self._bandwidth >= self._proving_from * PROVING_GAIN:
            self._proving_from = self._bandwidth
            self._enter(Phase.PROBE, now, self._probe_seconds)
        else:
            self._proved = True
            self._doubtful_until = self._doubt_ends(now)
            self._enter(Phase.CRUISE, now, self._hold_seconds)

    def _doubt_ends(self, now: float) -> float:
        """Of what happens now, when a queue can no longer be what it has left."""
        return now + DOUBTFUL_ROUNDS * self._min_rtt

    def _doubtful(self, now: float) -> bool:
        """Whether a queue may well be our own."""
        lost = max(self._chunk_loss, chunk_loss(self._loss.loss or 0.0, self._packets))
        return now < self._doubtful_until or lost > DOUBTFUL_LOSS

    def _come_down(self, rate: float, now: float) -> None:
        """Send less from now on; what was sent before teaches nothing about it."""
        if rate < self._bandwidth:
            self._bandwidth = max(rate, LEAST_RATE)
            self._samples.clear()
            self._deaf_until = now + self._last_rtt + WINDOW_SECONDS

    def on_sample(self, sample: Sample, now: float) -> None:
        """Take a report's lesson in."""
        self._packets = sample.packets_per_chunk
        timed = self._on_rtt(sample.rtt, now)
        self._round_arrived += sample.arrived
        self._round_lost += sample.lost
        if sample.delivery_rate is not None:
            self._on_delivery(sample.delivery_rate / (1 - self._chunk_loss * LOSS_COMPENSATION), now)
        if now >= self._round_ends:
            self._end_round(now)
        if timed:
            self._on_queue(self._last_rtt - self._min_rtt, now)

    def _on_rtt(self, rtt: float | None, now: float) -> bool:
        if rtt is None or rtt <= 0:
            return False
        self._last_rtt = rtt
        if self._min_rtt_at is None:
            # what is remembered counts as seen now: the first round trip may have met a queue of others
            self._min_rtt_at = now
        if self._min_rtt <= 0 or rtt <= self._min_rtt or now > self._min_rtt_at + self._rtt_horizon():
            self._min_rtt, self._min_rtt_at = rtt, now
        self._least_since_cut = min(self._least_since_cut, rtt)
        self._most_since_cut = max(self._most_since_cut, rtt)
        self._least_queue = min(self._least_queue, rtt - self._min_rtt)
        return True

    def _rtt_horizon(self) -> float:
        """How long the least round trip is believed: among others it may not show again for a while."""
        return MIN_RTT_SECONDS * (3 if self._sharing.holding else 1)

    def _on_delivery(self, rate: float, now: float) -> None:
        self._delivered = rate
        if now < self._deaf_until:
            return
        while self._samples and self._samples[-1][1] <= rate:
            self._samples.pop()
        self._samples.append((now, rate))
        horizon = now - FILTER_ROUNDS * self._round_seconds
        while self._samples[0][0] < horizon:
            self._samples.popleft()
        sharing, most = self._sharing, self._samples[0][1]
        sharing.on_delivery(most)
        if not sharing.holding:
            if most > self._bandwidth * RAISED:
                self._doubtful_until = max(self._doubtful_until, self._doubt_ends(now))
            self._bandwidth = most
        elif self._bandwidth < CONTENT * sharing.fair:
            self._bandwidth = min(most, sharing.fair)
        if self.phase is Phase.TRAIN:
            # the round trip that taught this was mostly idle: its queue is gone
            self._enter(Phase.CRUISE, now, self._hold_seconds)
            self._blind_until = now + 3 * self._min_rtt
            self._doubtful_until = self._doubt_ends(now)

    def _end_round(self, now: float) -> None:
        seen = self._round_arrived + self._round_lost
        self._round_ends = now + self._round_seconds
        if seen < 8:
            return
        lost, share = self._round_lost, self._round_lost / seen
        self._round_arrived = self._round_lost = 0
        queued, self._least_queue = self._least_queue > FOREIGN_QUEUE_SECONDS, math.inf
        self._judge_path(share, now)
        self._judge_load(share, queued, now)
        if share > max(HEAVY_LOSS, 2 * self._chunk_loss):
            if now >= self._blind_until:
                self._cut(max(self._bandwidth / 2, min(self._delivered, self._bandwidth)), now)
            return
        if queued:
            # what a full buffer drops says nothing about the path
            return
        self._chunk_loss += (share - self._chunk_loss) / 8
        self._loss.on_round(lost, seen, self._packets)
        self._loss_is_found = True

    def _judge_path(self, lost: float, now: float) -> None:
        """A cut drains for a round or more: a round trip that is as long as before, without loss, is the path's own."""
        if self._judge_at is None or now < self._judge_at:
            return
        self._judge_at = None
        shortened = self._most_since_cut - self._least_since_cut
        if shortened < MOVED_SHARE * max(self._min_rtt, PROBE_SECONDS) and lost <= max(0.02, 2 * self._chunk_loss):
            self._min_rtt, self._min_rtt_at = self._least_since_cut, now
            self._bandwidth = max(self._bandwidth, self._before_cut)
            self._sharing.on_moved()
            self._standing_since = None
            self._patience_over = False

    def _judge_load(self, lost: float, queued: bool, now: float) -> None:
        if not queued or lost <= OVERLOAD_LOSS + self._chunk_loss:
            self._overload_rounds = 0
            return
        self._overload_rounds += 1
        # in a full buffer a round trip, and so one loss event of others, is longer than a round
        if self._overload_rounds * self._min_rtt >= OVERLOAD_ROUNDS * self._last_rtt:
            self._overload_rounds = 0
            self._come_down(self._bandwidth * YIELD_GAIN, now)

    def _on_queue(self, queue: float, now: float) -> None:
        if self.phase is Phase.CRUISE and self._phase_ends - now < self._hold_seconds / 2:
            self._sharing.on_sample(queue if queue > self._chunk_seconds else 0.0)
        limit = max(QUEUE_SECONDS, QUEUE_SHARE * self._min_rtt, QUEUE_CHUNKS * self._chunk_seconds)
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
            rate = min(self._delivered or self._bandwidth, self._bandwidth)
            is_steady = rate > STEADY_SHARE * self._bandwidth
            if is_steady and not self._proved:
                # the queue of our own first probe, at a rate that suits the path
                return
            if is_steady and not self._doubtful(now):
                self._sharing.on_newcomer()
                rate = self._sharing.yielded(rate)
            self._cut(rate, now)

    def _cut(self, rate: float, now: float) -> None:
        """Believe `rate`, and drain; blind until what is sent from now on can be judged."""
        rate = max(rate, LEAST_RATE)
        self._before_cut = max(self._before_cut, self._bandwidth) if self._judge_at is not None else self._bandwidth
        self._bandwidth = rate
        self._samples.clear()
        self._samples.append((now, rate))
        self._blind_until = now + 2 * self._min_rtt
        self._doubtful_until = self._doubt_ends(now)
        self._drain_and_judge(now)

    def _drain_and_judge(self, now: float) -> None:
        self._least_since_cut = self._most_since_cut = self._last_rtt
        self._judge_at = now + self._last_rtt + max(self._min_rtt, PROBE_SECONDS)
        self._enter(Phase.DRAIN, now, max(self._min_rtt, PROBE_SECONDS))

    def _enter(self, phase: Phase, now: float, seconds: float) -> None:
        self.phase = phase
        self._phase_ends = now + seconds
        self._sharing.start_phase()
