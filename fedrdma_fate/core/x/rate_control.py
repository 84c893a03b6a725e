"""The rate of a path, found from what arrives, how long it takes and what is lost.

The model is BBR's (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14, 2016, and the draft
draft-ietf-ccwg-bbr): the largest delivery rate and the least round trip, lately, and a cycle that probes for more,
drains what that has queued, and cruises. What differs is ours: STARTUP is one packet train and not exponential growth,
a standing queue makes the rate come down at once (`queue_detection.py`), and competitors are left half of the path
(`competition.py`). A constant of which nothing else is said is ours, tried in the simulator and measured in the testbed
(docs/results). How long phases take is in `cycle_times.py`, what is lost of each round in `loss_rounds.py`.

More than 500 lines: everything that changes the rate is to be seen in one place.
"""

from __future__ import annotations

import math

from fedrdma_fate.core.path import PathState, Sample
from fedrdma_fate.core.x.chunking import SLOW_PATH_RATE
from fedrdma_fate.core.x.competition import QUEUED_SECONDS, REDUCTION_FACTOR, Competition, QueueVerdict
from fedrdma_fate.core.x.controller import LEAST_RATE
from fedrdma_fate.core.x.cycle_times import (
    FIRST_BURST_SECONDS,
    IGNORE_CONGESTION_AFTER_REDUCTION_ROUNDS,
    IGNORE_CONGESTION_AFTER_STARTUP_ROUNDS,
    LEAST_SAMPLE_BYTES,
    LONG_SAMPLE_SECONDS,
    LOSSLESS,
    MIN_RTT_COMPETING_FACTOR,
    MIN_RTT_SECONDS,
    REPORT_ALLOWANCE_SECONDS,
    SHAPER_PACKETS,
    UNCERTAIN_ROUNDS,
    WINDOW_GAIN,
    CycleTimes,
)
from fedrdma_fate.core.x.estimators import DELIVERY_WINDOW_SECONDS, MOST_RATE, MaxRateFilter, RttFilter
from fedrdma_fate.core.x.lateness import CatchUp
from fedrdma_fate.core.x.loss_rounds import LEAST_ROUND_CHUNKS, LossRound, LossRounds
from fedrdma_fate.core.x.newcomer import FIRST_SIGN_SECONDS, Newcomer, Sign
from fedrdma_fate.core.x.opening import Opening
from fedrdma_fate.core.x.phases import Phase
from fedrdma_fate.core.x.probe_queue import LEAST_QUEUE_BYTES, LatestProbe, ProbeQueue
from fedrdma_fate.core.x.queue_delay import QueueDelay
from fedrdma_fate.core.x.queue_detection import (
    OVERLOAD_LOSS,
    STANDING_QUEUE_SECONDS,
    LongerPathCheck,
    Overload,
    StandingQueue,
)
from fedrdma_fate.core.x.raised_rate import RaisedRate
from fedrdma_fate.core.x.rate_bound import ROOM_GAIN, RateBound
from fedrdma_fate.core.x.report_delay import ReportDelay
from fedrdma_fate.core.x.short_path import SHORT_ROUND_TRIP_SECONDS, ReportClockedWindow
from fedrdma_fate.core.x.starvation import Starvation

MAYBE_OWN_QUEUE_GAIN = 0.97
"""Of the rate stays at a queue that may be our own: samples of the delivery rate are up to some hundredths too high."""

STEADY_SHARE = 0.85
"""Of our rate is delivered still: not the link has become slower, a newcomer takes room, which shows only later."""

RAISED_FACTOR = 1.01
"""The rate has risen when it is so many times what it was: more than samples of a steady path differ by."""

OVERRATED_LOSS = 0.01
"""Where a larger share of what is sent is lost, compensation for it overrates the delivery rate, and so the rate."""

NEAR_FAIR_SHARE = 0.95
"""While competitors are expected, so much of the fair rate is enough not to probe for more."""

QUEUE_CHUNKS = 1.6
"""Nothing below what so many chunks take is a queue: a chunk comes as a whole, so that one that is longer than those of
which the least round trip is remembered takes longer on an idle path, by up to its own time, and that of its heads."""


SMALL_BUFFER_TRIPS = 0.5
"""Times the least round trip, what a small buffer holds: in one that is full, BBR and CUBIC leave no room to who comes
down for what it loses. In a larger one they do, and to take each loss for a sign of them would keep us at half of a
link for seconds after they have gone. Ours."""

SHARED_QUEUE_SECONDS = 0.01
"""So long a queue of others does not make a window too small for a share of the link; in a buffer that they keep full
it is to become too small, as theirs do."""


class RateController:
    """Paces one flow of one path: a `Controller`. Times in seconds, rates in payload bytes a second.

    With nothing known it begins in STARTUP: the first bytes go unpaced, and the rate at which they arrive is the rate.
    With a rate that no transfer has proved it begins in PROBE_UP.

    Attributes:
        chunk_bytes: size of the flow's chunks; what takes no longer than a few of them at its rate is no queue.
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
        self.phase = Phase.STARTUP if remembered is None else Phase.CRUISE if proved else Phase.PROBE_UP
        self._gain = self.phase.pacing_gain
        self._phase_ends = 0.0
        self._proved = proved
        self._bandwidth = known.rate
        self._max_rate = MaxRateFilter()
        self._delivered = 0.0
        self._delivered_at = -math.inf
        self._rtt = RttFilter(known.min_rtt)
        self._queue_delay = QueueDelay(known.min_rtt, known.rtt_variation, known.least_mean_rtt)
        self._probe_queue = ProbeQueue(known.queue_bytes)
        self._catch_up = CatchUp()
        self._late_until = -math.inf
        self._latest_queue = math.inf
        self._left_at, self._now = known.left_at, 0.0
        self._report_delay = ReportDelay(known.way_back, known.left_at)
        self._rounds = LossRounds(known.loss, measured=proved)
        self._window = ReportClockedWindow(known.window_bytes, found=known.window_found)
        self._raised_rate = RaisedRate(known.policed_seconds, known.rate)
        self._opening = Opening(known.recent_rate, known.held_bytes, known.rate)
        self._competition = Competition(max(known.capacity, known.rate), known.shared_seconds)
        self._bound = RateBound()
        self._proving_gain = Phase.PROBE_UP.pacing_gain
        self._may_try_again = self._is_trying = False
        self._standing_queue = StandingQueue()
        self._overload = Overload()
        self._starvation = Starvation()
        self._longer_path = LongerPathCheck()
        self._newcomer = Newcomer()
        self._latest_probe = LatestProbe(known.rate, self._gain)
        self._ignore_congestion_until = 0.0
        self._ignore_delivery_until = 0.0
        self._is_told = False
        self._first_delivery_at = math.inf
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
    def report_delay(self) -> float:
        """How long a report may be held up on its way back, seconds."""
        return self._report_delay.expected(self._now)

    @property
    def loss(self) -> float:
        """Probability that a packet is lost, as transfers have found it."""
        return (self._rounds.packet_loss or 0.0) if self._rounds.is_measured else 0.0

    @property
    def counts_packets(self) -> bool:
        """See `Controller`."""
        return self._rounds.counts_packets

    @counts_packets.setter
    def counts_packets(self, counts: bool) -> None:
        self._rounds.counts_packets = counts

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
    def bandwidth(self) -> float:
        """What the path is known to carry."""
        return self._bandwidth

    @property
    def burst_bytes(self) -> float:
        """What may go at once: no more than a probe may queue, or a window."""
        if self.report_clocked:
            return self._window.burst_bytes
        return self._probe_queue.most_bytes

    @property
    def catch_up_bytes(self) -> float:
        """See `Controller`."""
        return self._catch_up.most_bytes

    @property
    def least_sample_bytes(self) -> int:
        """Of how much, at least, delivery rates are to be taken."""
        is_lossless = self._rounds.is_measured and self.loss <= LOSSLESS
        return LEAST_SAMPLE_BYTES if self.known and is_lossless else 0

    @property
    def window_bytes(self) -> float:
        """Most bytes in flight: twice what fills the path, and what is sent while a report is awaited."""
        if self.report_clocked:
            return self._window.window_bytes
        rtt = WINDOW_GAIN * self._rtt.least
        if self._competition.is_held_back:
            # the window of one who knows of all of the link lets it have its share in a queue; ours is to, too
            rtt = WINDOW_GAIN * min(self._rtt.latest, self._rtt.least + SHARED_QUEUE_SECONDS)
        elif self._standing_queue.persists and self._bandwidth <= SLOW_PATH_RATE and not self._has_fair_share:
            # of chunks this slow it may take long until it is known that they are competitors'
            rtt = max(rtt, self._rtt.latest)
        if self._competition.is_recent:
            # what they queue is not ours to wait for: a smaller window would be a lower rate, and that a smaller window
            rtt = max(rtt, self._rtt.latest)
        return max(self._bandwidth, LEAST_RATE) * (rtt + REPORT_ALLOWANCE_SECONDS + self.report_delay)

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
            self._rounds.packet_loss,
            capacity,
            competition.shared_seconds,
            self._queue_delay.variation,
            self._queue_delay.least_mean,
            self._probe_queue.remembered,
            self._raised_rate.held_seconds,
            self._window.remembered_bytes if self.report_clocked else 0.0,
            self.report_clocked and self._window.is_found,
            self._opening.remembered_rate(self._bandwidth),
            self._opening.held_bytes,
            self._now,
            self._report_delay.least_way,
        )

    # -- the cycle ------------------------------------------------------------------------------------------------

    def on_time(self, now: float) -> None:
        """Move on to the next phase when this one is over."""
        self._now = now
        self._competition.on_time(now)
        self._raised_rate.on_time(now)
        if self.report_clocked:
            return
        self._bound.on_rate(self._bandwidth, now)
        if self.settled and not self._is_full and self._bound.finds_room(self._bandwidth, self._times.max_rate, now):
            self._try_room(now)
            return
        if self.phase is Phase.STARTUP or now < self._phase_ends:
            return
        if self._phase_ends == 0.0:
            self._begin(now)
            return
        if self.phase is Phase.PROBE_UP:
            # no more than was queued has to drain
            gain = max(self._bound.within(self._gain, self._bandwidth), 1.0)
            seconds = self._times.trial if self._is_trying else self._times.probe
            self._enter(Phase.PROBE_DOWN, now, seconds, max(2 - gain, Phase.PROBE_DOWN.pacing_gain))
            self._may_try_again = False
        elif not self._proved:
            self._prove(now)
        elif self.phase is Phase.PROBE_DOWN:
            self._enter(Phase.CRUISE, now, self._times.cruise)
        else:
            self._on_cruise_end(now)

    def on_bound(self, most: float) -> None:
        """See `Controller`."""
        self._bound.most = self._competition.share = most

    def on_catch_up(self, late: float, now: float) -> None:
        """See `Controller`."""
        self._late_until = now + late + self._rtt.latest + 2 * DELIVERY_WINDOW_SECONDS
        self._catch_up.start(self._late_until)

    def _try_room(self, now: float) -> None:
        """Others have ended: what is known of the path was what they left of it."""
        self._competition.on_room()
        self._standing_queue.clear()
        self._newcomer.clear()
        self._proved, self._proving_gain, self._may_try_again = False, ROOM_GAIN, True
        self._probe_unproved(now)

    def _probe_unproved(self, now: float) -> None:
        gain = max(self._bound.within(self._proving_gain, self._bandwidth), Phase.PROBE_UP.pacing_gain)
        self._enter(Phase.PROBE_UP, now, self._times.probe, gain)

    def _begin(self, now: float) -> None:
        self._maybe_own_queue_until = max(self._uncertain_until(now), now + FIRST_BURST_SECONDS)
        opening = None
        # what was delivered just now is not doubted
        is_stale = now - self._left_at > self._times.max_rate
        if is_stale and self._proved and not self._competition.shared_seconds and not self._raised_rate.held_seconds:
            opening = self._opening.begin(self._bandwidth, self._probe_queue.most_bytes, self._times.round)
        if opening is not None:
            gain, seconds = opening
            self._enter(Phase.PROBE_UP, now, seconds, gain)
        else:
            self._is_trying = not self._proved
            self._enter(self.phase, now, self._times.cruise if self._proved else self._times.trial)

    def _on_cruise_end(self, now: float) -> None:
        competition = self._competition
        has_path = self._has_path(self._delivered)
        maybe_own_queue = has_path or self._is_maybe_own_queue(now)
        # where all that the path gives was ours throughout, a queue is what ours has left, however long it takes to go
        is_sure = self._times.sample > LONG_SAMPLE_SECONDS or competition.had_path
        # half of what is lost is added back: the rate may be too high for the path again and again, and its queue ours
        is_overrated = has_path and self.loss > LOSSLESS
        verdict = competition.on_cruise_end(
            self._bandwidth,
            maybe_own_queue=maybe_own_queue,
            has_path=has_path and is_sure,
            is_overrated=is_overrated,
        )
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
            self._bandwidth = competition.increased(self._bandwidth, self._times.cruise)
            self._max_rate.clear()
            self._enter(Phase.CRUISE, now, self._times.cruise)
        elif self._raised_rate.is_held(now):
            self._enter(Phase.CRUISE, now, self._times.cruise)
        else:
            self._opening.on_cycle(self._bandwidth)
            self._enter(Phase.PROBE_UP, now, self._times.probe)

    def _prove(self, now: float) -> None:
        """The rate was only estimated: wait a round trip for what a probe has found, then probe on or cruise."""
        if self.phase is Phase.PROBE_DOWN or not self._is_told:
            # where packets are late by chance, nothing may have been told yet
            self._enter(Phase.CRUISE, now, self._times.round)
        elif self._may_try_again or self._latest_probe.found_more(self._bandwidth):
            # a queue that those who have ended had left has cut the probe short
            self._may_try_again = False
            self._probe_unproved(now)
        else:
            self._proved, self._proving_gain = True, Phase.PROBE_UP.pacing_gain
            self._maybe_own_queue_until = max(self._maybe_own_queue_until, self._uncertain_until(now))
            self._enter(Phase.CRUISE, now, self._times.cruise)

    def _enter(self, phase: Phase, now: float, seconds: float, gain: float | None = None) -> None:
        self.phase, self._gain = phase, gain or phase.pacing_gain
        self._phase_ends = now + seconds
        self._is_trying = self._is_trying and phase is Phase.PROBE_UP
        self._competition.start_phase()
        if phase is Phase.PROBE_UP:
            capacity = self._competition.capacity
            self._raised_rate.on_probe(self._bandwidth)
            self._gain = self._probe_queue.gain(self._bandwidth, capacity, seconds, self._gain)
            queued = (self.rate - self._bandwidth) * seconds
            due = self._phase_ends + self._rtt.latest + 2 * DELIVERY_WINDOW_SECONDS
            # short transfers, of which all may be such an opening, are to learn what the path loses
            is_proved = self._proved and self.sampled
            is_hidden = QUEUED_SECONDS * self._bandwidth > LEAST_QUEUE_BYTES
            if self._probe_queue.start(queued, self.chunk_bytes, due, hidden=is_hidden, proved=is_proved):
                self._rounds.on_no_room()
            self._rounds.on_probe()
            self._latest_probe.start(self._bandwidth, self._gain, queued / max(self._bandwidth, LEAST_RATE), now)

    @property
    def _times(self) -> CycleTimes:
        return CycleTimes(self._bandwidth, self._rtt.least, self.chunk_bytes, self.least_sample_bytes)

    @property
    def _least_queue(self) -> float:
        """What a round trip has to be longer than the least for a queue: beyond what chunks of other sizes make it."""
        return max(QUEUED_SECONDS, QUEUE_CHUNKS * self._path_chunk)

    @property
    def _path_chunk(self) -> float:
        """What a chunk takes: it goes at the rate of the whole path, however little of that is ours."""
        return self.chunk_bytes / max(self._bandwidth, self._competition.capacity, LEAST_RATE)

    @property
    def _is_full(self) -> bool:
        """Whether others keep a buffer full that lost something of ours lately: a larger share is no room there."""
        return self._competition.is_overrun and self._latest_queue > self._least_queue

    @property
    def _has_fair_share(self) -> bool:
        return self._bandwidth >= NEAR_FAIR_SHARE * self._competition.fair_rate

    def _has_path(self, delivered: float) -> bool:
        """Whether at this delivery rate all of the path is ours; asked on slow ones alone.

        On others somebody who has just come would be seen too late.
        """
        if self._bandwidth > SLOW_PATH_RATE:
            return False
        sample_bytes = self._bandwidth * self._times.sample
        packet_bytes = self.chunk_bytes / self._rounds.packets
        overrated = SHAPER_PACKETS * packet_bytes / max(sample_bytes, 1.0) + self._rounds.undelivered
        return self._competition.has_path(delivered, overrated)

    def _uncertain_until(self, now: float) -> float:
        """Of what happens now, when a queue can no longer be what it has left."""
        return now + UNCERTAIN_ROUNDS * self._rtt.least

    def _is_maybe_own_queue(self, now: float) -> bool:
        """Whether a queue may well be our own."""
        return (
            now < self._maybe_own_queue_until or max(self._rounds.undelivered, self._rounds.expected) > OVERRATED_LOSS
        )

    # -- what reports say -----------------------------------------------------------------------------------------

    def on_sample(self, sample: Sample, now: float) -> None:
        """Take in what a report taught."""
        rounds = self._rounds
        rounds.on_sample(sample)
        self._is_told = True
        self._starvation.on_arrived(sample.arrived)
        if self.report_clocked:
            self._on_short_path(sample, now)
            return
        queue = self._on_rtt(sample, now)
        if self._probe_queue.on_sample(sample.lost, sample.arrived, rounds.chunk_loss, now):
            # what there was no room for says nothing about the path, though too little queues to be seen
            rounds.on_no_room()
        self._catch_up.on_sample(sample.lost, sample.arrived, rounds.chunk_loss, now)
        if sample.delivery_rate is not None:
            self._on_delivery(min(rounds.compensated(sample.delivery_rate), MOST_RATE), now)
        ended = rounds.end(now, self._times.round)
        if ended is not None:
            self._on_round(ended, now)
        if queue is not None:
            self._opening.on_queue(queue * min(self._delivered, self._bandwidth), lost=sample.lost > 0)
            self._on_queue(queue, now)

    def on_overdue(self, chunks: int, now: float) -> None:
        """Believe nothing of it but that a rate that was just raised does not last (`RaisedRate.on_overdue`), or lets
        nothing through (`Starvation`)."""
        # where packets count one by one, chunks that are overdue have mostly come, and what came of them is told
        if self.counts_packets or not self.known:
            return
        is_starved = self._starvation.on_overdue(chunks, is_known=self._rounds.is_measured)
        # of chunks of one packet a policer lets some through: where none comes, others fill the buffer;
        # where they fill a deep one, what is overdue comes late
        may_be_policed = self._rounds.packets > 1 and not self.competing and self._rtt.latest < 2 * self._rtt.least
        if is_starved and may_be_policed:
            self._lower_bandwidth(self._bandwidth / 2, now)
            return
        if not self.settled or chunks < LEAST_ROUND_CHUNKS:
            return
        ended = self._rounds.with_overdue(chunks)
        if self._latest_queue > self._least_queue or self._competition.is_full_lately:
            # what came last has queued, or nobody can tell: a buffer is overrun, and others may have done it
            return
        lasting = self._raised_rate.on_overdue(
            self._bandwidth, ended.share, ended.resolved, self._rounds.chunk_loss, self._rounds.packets, now
        )
        if lasting is not None:
            self._lower_bandwidth(lasting, now)

    def _on_short_path(self, sample: Sample, now: float) -> None:
        """What arrives is the rate, whatever it was sent at; a queue is what the window may have."""
        self._proved = True
        if self.phase is not Phase.CRUISE:
            self._enter(Phase.CRUISE, now, self._times.cruise)
        if sample.rtt is not None and sample.rtt > 0:
            self._rtt.update(sample.rtt, now, MIN_RTT_SECONDS)
        if sample.delivery_rate is not None:
            self._delivered = min(sample.delivery_rate, MOST_RATE)
            self._bandwidth = self._max_rate.update(self._delivered, now, self._times.max_rate)
        if self._window.on_sample(sample.arrived * self.chunk_bytes, sample.lost_bytes, self.chunk_bytes):
            ended = self._rounds.take()
            if ended is not None and not self._window.overrun:
                self._rounds.learn(ended)
            self._rounds.drop()

    def _on_rtt(self, sample: Sample, now: float) -> float | None:
        """What of the round trip is a queue's; None while that cannot be told."""
        rtt = sample.rtt
        held_up = 0.0
        if sample.way_back is not None:
            held_up = self._report_delay.update(sample.way_back, rtt, now)
        if rtt is None or rtt <= 0:
            return None
        rtt -= held_up
        window = MIN_RTT_SECONDS * (MIN_RTT_COMPETING_FACTOR if self._competition.is_recent else 1)
        self._rtt.update(rtt, now, window)
        queue = self._queue_delay.update(rtt, now, window)
        if queue is not None and (held := self.report_delay) > STANDING_QUEUE_SECONDS:
            # a radio that holds reports up does the same to what is sent
            queue = max(queue - held, 0.0)
        self._longer_path.on_rtt(rtt, now)
        if queue is not None:
            self._rounds.on_queue(queue)
            self._latest_queue = queue
        elif self._queue_delay.is_short(rtt):
            self._rounds.on_queue(0.0)
        return queue

    def _on_delivery(self, rate: float, now: float) -> None:
        self._first_delivery_at = min(self._first_delivery_at, now)
        is_first = now < self._first_delivery_at + DELIVERY_WINDOW_SECONDS
        if is_first and self._queue_delay.is_mean and rate < self._bandwidth:
            # what came first has waited for nothing in front of it, and all behind it looks late
            return
        self._delivered, self._delivered_at = rate, now
        if now < self._ignore_delivery_until:
            return
        most = self._max_rate.update(rate, now, self._times.max_rate)
        competition = self._competition
        competition.on_delivery(most)
        if not competition.is_recent:
            most = self._raised_rate.bound(most, now)
            if most > self._bandwidth * RAISED_FACTOR:
                self._raised_rate.on_raised(self._times.round, now)
                self._maybe_own_queue_until = max(self._maybe_own_queue_until, self._uncertain_until(now))
            self._bandwidth = most
        elif not self._has_fair_share:
            self._bandwidth = min(most, competition.fair_rate)
        if self.phase is Phase.STARTUP:
            # the round trip that taught this was mostly idle: its queue is gone
            self._enter(Phase.CRUISE, now, self._times.cruise)
            self._ignore_congestion_until = now + IGNORE_CONGESTION_AFTER_STARTUP_ROUNDS * self._rtt.least
            self._maybe_own_queue_until = self._uncertain_until(now)

    def _is_delivery_unknown(self, now: float) -> bool:
        """Whether nothing was told of it lately, for this host is late, and it sends too little: only losses tell."""
        return now < self._late_until and now - self._delivered_at > self._times.round + self._times.sample

    def _on_round(self, ended: LossRound, now: float) -> None:
        rounds, share = self._rounds, ended.share
        # where too few round trips agree nobody can tell, or where none was told, for all that came had gone again
        may_be_queued = ended.least_queue > self._least_queue
        if not self.known:
            # of STARTUP: what its train has lost says nothing of a rate that is not known
            return
        self._check_for_longer_path(share, now)
        self._check_for_overload(share, may_be_queued, now)
        is_heavy = rounds.is_heavy(ended)
        loses_in_queue = may_be_queued and share > rounds.chunk_loss
        if loses_in_queue:
            # any: a flow that fills buffers makes us lose something a few times a second at the most
            self._competition.on_overrun()
        is_overloaded = may_be_queued and share > rounds.chunk_loss + OVERLOAD_LOSS
        if is_overloaded:
            self._opening.on_full()
        # on slow paths a round has few chunks: what they lose by chance is as much
        is_judged = self._proved and self._competition.capacity > SLOW_PATH_RATE
        if loses_in_queue and is_judged and math.isfinite(ended.least_queue):
            is_small = ended.least_queue < SMALL_BUFFER_TRIPS * self._rtt.least
            self._competition.on_full_buffer(self._bandwidth, overloaded=is_overloaded and is_small)
        if not may_be_queued and not self._competition.is_full_lately:
            # where packets count one by one, and a burst takes many of few chunks, these tell too little;
            # and where the probe has queued, a buffer overflows that may be others' as well
            tells_nothing = self.counts_packets or not self._latest_probe.found_room
            rate = math.inf if tells_nothing else self._bandwidth
            lasting = self._raised_rate.on_round(
                rate, share, ended.resolved, rounds.chunk_loss, rounds.packets, now, heavy=is_heavy
            )
            if lasting is not None:
                self._reduce(min(lasting, self._bandwidth), now)
                return
        if is_heavy:
            if now >= self._ignore_congestion_until and not (self._proved and self._probe_queue.is_judging):
                delivered = min(self._delivered, self._bandwidth)
                if not may_be_queued or self._is_delivery_unknown(now):
                    # where nothing was queued it is a policer, of whose bucket the delivery rate says nothing
                    delivered = min(delivered, self._bandwidth * (1 - share) ** (1 / rounds.packets))
                self._reduce(max(self._bandwidth / 2, delivered), now)
        elif not may_be_queued and not self._probe_queue.is_judging_hidden:
            # what a full buffer drops says nothing about the path
            rounds.learn_unqueued(ended)

    def _check_for_longer_path(self, lost: float, now: float) -> None:
        """A reduction drains for a round or more: a round trip that stays as long, without loss, is the path's own."""
        delay = self._queue_delay
        # else a queue shows by means that were shorter before; and of what others queue a drain of ours takes little
        may_be_longer = delay.has_rare_least and not self._competition.shared_seconds
        variation = delay.variation if may_be_longer else 0.0
        longer = self._longer_path.on_round(lost, self._rounds.chunk_loss, self._times.drain, now, variation)
        if longer is not None and longer.least > self._rtt.least + self._least_queue:
            self._rtt.reset(longer.least, now)
            delay.reset(longer.least, longer.mean, now)
            self._bandwidth = max(self._bandwidth, self._longer_path.rate_before)
            self._competition.on_path_longer()
            self._standing_queue.clear()

    def _check_for_overload(self, lost: float, queued: bool, now: float) -> None:
        rtt = self._rtt
        usual = self._rounds.chunk_loss
        if self._overload.on_round(lost, usual, queued=queued, min_rtt=rtt.least, latest_rtt=rtt.latest):
            self._lower_bandwidth(self._bandwidth * REDUCTION_FACTOR, now)

    def _own_queue(self, now: float) -> float:
        """How long the queue of our latest probe may be, while reports tell of it."""
        return self._latest_probe.queue(now, self._rtt.least, 2 * self._times.probe + DELIVERY_WINDOW_SECONDS)

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

    def _on_queue(self, queue: float, now: float) -> None:
        self._latest_probe.on_queue(queue)
        self._watch_for_newcomers(queue, now)
        if self.phase is Phase.CRUISE and self._phase_ends - now < self._times.cruise / 2:
            self._competition.on_queue(queue if queue > self._least_queue else 0.0, self._delivered)
        # where a rare round trip makes all look queued, what the latest drain has shown is to be known first
        is_checked = self._queue_delay.has_rare_least and self._longer_path.is_under_way
        ignored = now < self._ignore_congestion_until or is_checked
        # of chunks at its own rate, who has little of the path would wait for longer than any buffer holds
        chunk = self._times.chunk if self._has_fair_share else self._path_chunk
        is_standing = self._standing_queue.update(queue, now, self._rtt.least, chunk, ignored=ignored)
        if not is_standing or self.competing or not self.sampled:
            return
        rate = min(self._delivered, self._bandwidth)
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
            self._ignore_delivery_until = now + self._rtt.latest + self._times.sample

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
        self._longer_path.start(self._rtt.latest, now, now + self._rtt.latest + self._times.drain)
        self._enter(Phase.PROBE_DOWN, now, self._times.drain)
