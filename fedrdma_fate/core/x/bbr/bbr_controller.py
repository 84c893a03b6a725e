"""BBRv3 as a controller: its state machine, and rate and window. draft-ietf-ccwg-bbr-06, sections 5.3 and 5.6.

More than 500 lines: the draft's sections are to be compared with it in their order.
"""

from __future__ import annotations

import math
import random

from fedrdma_fate.core.path import PathState, Sample
from fedrdma_fate.core.x.bbr.path_model import (
    BETA,
    EXTRA_ACKED_ROUNDS,
    ExtraAcked,
    FullPipe,
    MaxBandwidth,
    MinRtt,
    Rounds,
    ShortTerm,
)
from fedrdma_fate.core.x.bbr.states import PROBE_RTT_WINDOW_GAIN, AckPhase, BbrState
from fedrdma_fate.core.x.controller import LEAST_RATE
from fedrdma_fate.core.x.estimators import MOST_RATE, LossEstimator, chunk_loss
from fedrdma_fate.core.x.flight_recorder import LostChunk, RateSample

LOSS_THRESHOLD = 0.02
"""BBR.LossThresh, section 2.8: share of the packets that a probe may lose in a round trip."""

HEADROOM = 0.15
"""BBR.Headroom, section 2.8: of the long-term bound, left to others."""

PACING_MARGIN = 0.01
"""BBR.PacingMarginPercent, section 2.5: paced that much below the bandwidth."""

LEAST_WINDOW_CHUNKS = 4
"""BBR.MinPipeCwnd, section 2.8."""

INITIAL_WINDOW_PACKETS = 10
"""C.InitialCwnd: RFC 6928, section 2."""

INITIAL_RTT_SECONDS = 0.001
"""What InitPacingRate takes for a round trip that is not known (section 5.6.2)."""

STARTUP_LOSSES = 6
"""BBRStartupFullLossCnt, section 5.3.1.3: ranges lost in a round trip; lost chunks here."""

DRAIN_ROUNDS = 3
"""Drain takes no longer (section 5.3.2)."""

LEAST_PROBE_WAIT_SECONDS = 2.0
"""Between two probes for bandwidth, and up to a second more, by chance (section 5.3.3.9, PickProbeWait)."""

MOST_PROBE_ROUNDS = 63
"""But no more round trips, nor more than packets in flight, as Reno would (section 5.3.3.9)."""

MOST_GROWTH_ROUNDS = 30
"""In which the long-term bound's growth doubles (section 5.3.3.9, RaiseInflightLongtermSlope)."""

PROBE_RTT_SECONDS = 0.2
"""BBR.ProbeRTTDuration, section 2.16.2."""

MOST_QUANTUM_SECONDS = 0.001
"""Of the rate goes at once (section 5.6.3)."""

MOST_QUANTUM_BYTES = 65_536
"""And no more than this."""

OFFLOAD_SECONDS = 0.002
"""Of the bandwidth are in flight for reports that are awaited, which come every 2 ms (section 5.5.8.2)."""


class BbrController:
    """Paces one flow of one path by BBRv3: a `Controller`. Times in seconds, rates in payload bytes a second.

    Attributes:
        chunk_bytes, counts_packets: see `Controller`.
        state_now: of the state machine.
        in_flight_long_term: most that may be in flight, as losses of probes have shown (BBR.inflight_longterm).
        short_term: what losses say of now.
    """

    needs_rate_samples = True

    def __init__(
        self, remembered: PathState | None = None, *, proved: bool = True, chance: random.Random | None = None
    ) -> None:
        """
        Args:
            remembered: what is known of the path.
            proved: that was found by transfers, and not only estimated.
            chance: draws how long is waited between probes.
        """
        known = remembered or PathState(0.0, 0.0, None)
        self.chunk_bytes, self.counts_packets = 0, False
        self.in_flight_long_term = math.inf
        self.short_term = ShortTerm()
        self._chance = chance or random.Random(1)  # noqa: S311
        self._max_bandwidth = MaxBandwidth(known.rate)
        self._rounds = Rounds()
        self._min_rtt = MinRtt(known.min_rtt)
        self._extra_acked = ExtraAcked()
        self._full_pipe = FullPipe()
        self._pipe_was_full = known.rate > 0
        self._loss = LossEstimator(known.loss, measured=proved)
        self._packets = 1
        self._window = 0.0
        self._pacing_rate = 0.0
        self._prior_window = 0.0
        self._settled = proved and known.rate > 0
        self._sampled = False
        self._ack_phase = AckPhase.INIT
        self._is_probe_sample = False
        self._was_too_high = self._was_precautionary = False
        self._up_rounds = 0
        self._up_acked = 0.0
        self._up_acked_per_increase = math.inf
        self._cycle_began = 0.0
        self._probe_wait = 0.0
        self._rounds_since_up = 0
        self._drain_since = 0
        self._probe_rtt_until: float | None = None
        self._probe_rtt_round_done = False
        self._round_arrived = self._round_lost = 0
        self.state_now = BbrState.STARTUP
        if self._pipe_was_full and proved:
            self._start_down(0.0)
            self.state_now = BbrState.PROBE_BW_CRUISE
        elif self._pipe_was_full:
            self._start_refill()

    # -- what the sender asks -------------------------------------------------------------------------------------

    @property
    def known(self) -> bool:
        """Always: Startup is paced, too."""
        return True

    @property
    def report_clocked(self) -> bool:
        """Never: all is paced."""
        return False

    @property
    def settled(self) -> bool:
        """Whether the pipe was found full by a transfer."""
        return self._settled

    @property
    def sampled(self) -> bool:
        """Whether it has seen how fast chunks arrive."""
        return self._sampled

    @property
    def rtt(self) -> float:
        """Latest round trip, 0 when unknown."""
        return self._min_rtt.latest

    @property
    def min_rtt(self) -> float:
        """Least round trip, 0 when unknown."""
        return 0.0 if math.isinf(self._min_rtt.value) else self._min_rtt.value

    @property
    def least_sample_bytes(self) -> int:
        """Its samples are of a round trip (`flight_recorder.py`)."""
        return 0

    @property
    def report_delay(self) -> float:
        """See `Controller`: what it takes reports to be held up by is part of its window (`ExtraAcked`)."""
        return 0.0

    @property
    def loss(self) -> float:
        """Probability that a packet is lost, as transfers have found it."""
        return self._loss.loss or 0.0 if self._settled else 0.0

    @property
    def rate(self) -> float:
        """What to pace at (section 5.6.2)."""
        if self._pacing_rate:
            return self._pacing_rate
        if self._pipe_was_full:
            return self._wanted_rate
        first_rate = self._first_window / (self.min_rtt or INITIAL_RTT_SECONDS)
        return min(max(BbrState.STARTUP.pacing_gain * first_rate, LEAST_RATE), MOST_RATE)

    @property
    def bandwidth(self) -> float:
        """BBR.max_bw (sections 5.5.3 to 5.5.6)."""
        return self._max_bandwidth.value

    @property
    def window_bytes(self) -> float:
        """Most bytes in flight (section 5.6.4)."""
        if self._window:
            return self._window
        return self._bounded(self._max_in_flight if self._pipe_was_full else self._first_window)

    @property
    def burst_bytes(self) -> float:
        """What may go at once (section 5.6.3, C.send_quantum)."""
        return max(min(MOST_QUANTUM_SECONDS * self.rate, MOST_QUANTUM_BYTES), 2 * self._segment)

    @property
    def catch_up_bytes(self) -> float:
        """Nothing besides (section 5.6.3)."""
        return 0.0

    def on_catch_up(self, late: float, now: float) -> None:
        """Nothing: there is none."""

    def state(self) -> PathState | None:
        """What to remember for the next transfer."""
        rate = self._max_bandwidth.value
        if rate <= 0 or math.isinf(self._min_rtt.value):
            return None
        return PathState(rate, self._min_rtt.value, self._loss.loss)

    def on_bound(self, most: float) -> None:
        """See `Controller`: the draft knows of no such thing."""
        del most

    def on_time(self, now: float) -> None:
        """Nothing: BBR moves on with acknowledgements."""

    def on_overdue(self, chunks: int, now: float) -> None:
        """Nothing: what a probe time-out sends again is no loss (RFC 9002, section 7.5)."""
        del chunks, now

    def on_sample(self, sample: Sample, now: float) -> None:
        """A report has come (section 5.2.3)."""
        self._packets = sample.packets_per_chunk
        flight = sample.flight
        if flight is None:
            return
        for lost in flight.newly_lost:
            self._on_lost(lost, flight, now)
        self._rounds.update(flight)
        self._rounds_since_up += self._rounds.started
        self._round_arrived += sample.arrived
        self._round_lost += sample.lost
        self._update_model(flight, now)
        self._check_full_pipe(flight, now)
        if self._pipe_was_full:
            self._update_cycle(flight, now)
        self._min_rtt.update(sample.rtt, now)
        self._check_probe_rtt(flight, now)
        if self._rounds.started:
            self._end_round()
        self._set_rate()
        self._set_window(flight)

    # -- the model ------------------------------------------------------------------------------------------------

    @property
    def _bandwidth(self) -> float:
        """BBR.bw."""
        return min(self._max_bandwidth.value, self.short_term.bandwidth)

    @property
    def _segment(self) -> float:
        """C.SMSS."""
        return max(self.chunk_bytes / self._packets, 1.0)

    @property
    def _least_window(self) -> float:
        return float(LEAST_WINDOW_CHUNKS * max(self.chunk_bytes, 1))

    @property
    def _first_window(self) -> float:
        return max(INITIAL_WINDOW_PACKETS * self._segment, self._least_window)

    def _in_flight(self, gain: float, bandwidth: float) -> float:
        """Section 5.6.4.2: so many bandwidth-delay products, and what batches need."""
        if math.isinf(self._min_rtt.value):
            return self._first_window
        return self._quantized(gain * bandwidth * self._min_rtt.value)

    def _quantized(self, wanted: float) -> float:
        wanted = max(wanted, OFFLOAD_SECONDS * self._max_bandwidth.value, self._least_window)
        return wanted + 2 * self._segment if self.state_now is BbrState.PROBE_BW_UP else wanted

    @property
    def _max_in_flight(self) -> float:
        if math.isinf(self._min_rtt.value):
            return self._first_window
        product = self._bandwidth * self._min_rtt.value
        return self._quantized(self.state_now.window_gain * product + self._extra_acked.value)

    @property
    def _target_in_flight(self) -> float:
        """Section 5.3.3.9, TargetInflight."""
        return min(self._bandwidth * self.min_rtt, self.window_bytes)

    @property
    def _with_headroom(self) -> float:
        """Section 5.3.3.9, InflightWithHeadroom."""
        if math.isinf(self.in_flight_long_term):
            return math.inf
        headroom = max(self._segment, HEADROOM * self.in_flight_long_term)
        return max(self.in_flight_long_term - headroom, self._least_window)

    @property
    def _chunk_threshold(self) -> float:
        """The share of chunks that are lost where packets are by the threshold: of a chunk nothing counts then."""
        return chunk_loss(LOSS_THRESHOLD, self._packets)

    def _update_model(self, flight: RateSample, now: float) -> None:
        """Sections 5.5.5, 5.5.9 and 5.5.10.3."""
        if flight.newly_acked:
            self._sampled = self._sampled or flight.rate > 0
            self._max_bandwidth.update(flight)
        self.short_term.update(
            flight, self._max_bandwidth.value, self.window_bytes, is_probing=self.state_now.is_probing
        )
        rounds = EXTRA_ACKED_ROUNDS if self._pipe_was_full else 1
        self._extra_acked.update(flight, self._bandwidth, self.window_bytes, now, self._rounds.count, rounds)

    def _end_round(self) -> None:
        resolved = self._round_arrived + self._round_lost
        if resolved:
            self._loss.on_round(self._round_lost, resolved, self._packets)
        self._round_arrived = self._round_lost = 0

    # -- Startup and Drain ----------------------------------------------------------------------------------------

    def _check_full_pipe(self, flight: RateSample, now: float) -> None:
        """Sections 5.3.1.2, 5.3.1.3 and 5.3.2."""
        self._full_pipe.update(flight, round_started=self._rounds.started)
        if self.state_now is BbrState.STARTUP:
            if self._rounds.started and self._is_startup_loss_high:
                self.in_flight_long_term = max(self._in_flight(1.0, self._bandwidth), self.short_term.latest_in_flight)
                self._pipe_was_full = True
            if self._full_pipe.now or self._pipe_was_full:
                self._pipe_was_full = self._settled = True
                self._drain_since = self._rounds.count
                self.state_now = BbrState.DRAIN
        is_long = self._rounds.count > self._drain_since + DRAIN_ROUNDS
        if self.state_now is BbrState.DRAIN and (is_long or flight.in_flight <= self._in_flight(1.0, self._bandwidth)):
            self._start_down(now)

    @property
    def _is_startup_loss_high(self) -> bool:
        resolved = self._round_arrived + self._round_lost
        return self._round_lost >= STARTUP_LOSSES and self._round_lost > self._chunk_threshold * resolved

    # -- ProbeBW --------------------------------------------------------------------------------------------------

    def _start_down(self, now: float) -> None:
        self.short_term.reset_signals()
        self._up_acked_per_increase = math.inf
        self._rounds_since_up = self._chance.randint(0, 1)
        self._probe_wait = LEAST_PROBE_WAIT_SECONDS + self._chance.random()
        self._cycle_began = now
        self._ack_phase = AckPhase.PROBE_STOPPING
        self._rounds.start()
        self.state_now = BbrState.PROBE_BW_DOWN

    def _start_refill(self) -> None:
        self.short_term.reset()
        self._up_rounds, self._up_acked = 0, 0.0
        self._was_precautionary = False
        self._ack_phase = AckPhase.REFILLING
        self._rounds.start()
        self.state_now = BbrState.PROBE_BW_REFILL

    def _start_up(self, flight: RateSample) -> None:
        self._is_probe_sample = True
        self._ack_phase = AckPhase.PROBE_STARTING
        self._rounds.start()
        self._full_pipe.reset(flight.rate)
        self.state_now = BbrState.PROBE_BW_UP
        self._raise_slope()

    def _update_cycle(self, flight: RateSample, now: float) -> None:
        """Section 5.3.3.9, UpdateProbeBWCyclePhase."""
        if self._adapt_long_term(flight) or not self.state_now.is_probe_bw:
            return
        state = self.state_now
        if state in (BbrState.PROBE_BW_DOWN, BbrState.PROBE_BW_CRUISE) and self._is_time_to_probe(now):
            self._start_refill()
        elif state is BbrState.PROBE_BW_DOWN and self._is_time_to_cruise(flight):
            self.state_now = BbrState.PROBE_BW_CRUISE
        elif state is BbrState.PROBE_BW_REFILL and self._rounds.started:
            self._start_up(flight)
        elif state is BbrState.PROBE_BW_UP and self._is_time_to_go_down(flight):
            self._was_too_high = False
            self._settled = True
            self._start_down(now)

    def _adapt_long_term(self, flight: RateSample) -> bool:
        """Section 5.3.3.9, AdaptLongTermModel; whether it has decided on the next state."""
        if self._ack_phase is AckPhase.PROBE_STARTING and self._rounds.started:
            self._ack_phase = AckPhase.PROBE_FEEDBACK
        if self._ack_phase is AckPhase.PROBE_STOPPING and self._rounds.started:
            self._is_probe_sample = False
            self._ack_phase = AckPhase.INIT
            if self.state_now.is_probe_bw and not flight.is_limited:
                self._max_bandwidth.advance()
            if self.state_now.is_probe_bw and self._was_precautionary and not self._was_too_high:
                self._start_refill()
                return True
        if flight.lost > flight.sent_in_flight * self._chunk_threshold or math.isinf(self.in_flight_long_term):
            return False
        self.in_flight_long_term = max(self.in_flight_long_term, float(flight.sent_in_flight))
        if self.state_now is BbrState.PROBE_BW_UP:
            self._probe_upward(flight)
        return False

    def _is_time_to_probe(self, now: float) -> bool:
        rounds = min(self._target_in_flight / self._segment, MOST_PROBE_ROUNDS)
        return now > self._cycle_began + self._probe_wait or self._rounds_since_up >= rounds

    def _is_time_to_cruise(self, flight: RateSample) -> bool:
        in_flight = flight.in_flight
        return in_flight <= self._with_headroom and in_flight <= self._in_flight(1.0, self._max_bandwidth.value)

    def _is_time_to_go_down(self, flight: RateSample) -> bool:
        if self._was_too_high and flight.in_flight >= self.in_flight_long_term:
            self._was_precautionary = True
            return True
        if self._is_window_limited(flight):
            self._full_pipe.reset(flight.rate)
            return False
        return self._full_pipe.now

    def _is_window_limited(self, flight: RateSample) -> bool:
        """Whether the long-term bound, by the window, kept us from sending more."""
        in_flight = flight.in_flight + flight.newly_acked
        return in_flight + self.chunk_bytes > self.window_bytes >= self.in_flight_long_term

    def _raise_slope(self) -> None:
        self._up_acked_per_increase = max(self.window_bytes / (1 << self._up_rounds), self._segment)
        self._up_rounds = min(self._up_rounds + 1, MOST_GROWTH_ROUNDS)

    def _probe_upward(self, flight: RateSample) -> None:
        """Section 5.3.3.9, ProbeInflightLongtermUpward."""
        if not self._is_window_limited(flight):
            return
        self._up_acked += flight.newly_acked
        increases = self._up_acked // self._up_acked_per_increase
        self._up_acked -= increases * self._up_acked_per_increase
        self.in_flight_long_term += increases * self._segment
        if self._rounds.started:
            self._raise_slope()

    def _on_lost(self, lost: LostChunk, flight: RateSample, now: float) -> None:
        """Section 5.5.10.2, HandleLostPacket."""
        self.short_term.on_loss(flight.total_delivered - flight.newly_acked)
        threshold = self._chunk_threshold
        if not self._is_probe_sample or lost.lost_since <= lost.in_flight * threshold:
            return
        before = lost.in_flight - lost.length
        prefix = (threshold * before - (lost.lost_since - lost.length)) / (1 - threshold)
        self._was_too_high = True
        self._is_probe_sample = False
        if not lost.is_limited:
            at_loss = max(before + prefix, self._target_in_flight * BETA, self._least_window)
            self.in_flight_long_term = at_loss
        if self.state_now is BbrState.PROBE_BW_UP:
            self._settled = True
            self._start_down(now)

    # -- ProbeRTT -------------------------------------------------------------------------------------------------

    @property
    def _probe_rtt_window(self) -> float:
        return max(PROBE_RTT_WINDOW_GAIN * self._bandwidth * self.min_rtt, self._least_window)

    def _check_probe_rtt(self, flight: RateSample, now: float) -> None:
        """Section 5.3.4.3."""
        if self.state_now is not BbrState.PROBE_RTT:
            if not self._min_rtt.is_expired:
                return
            self._prior_window = max(self._prior_window, self.window_bytes)
            self.state_now = BbrState.PROBE_RTT
            self._probe_rtt_until = None
            self._ack_phase = AckPhase.PROBE_STOPPING
            self._rounds.start()
        if self._probe_rtt_until is None:
            if flight.in_flight <= self._probe_rtt_window:
                self._probe_rtt_until = now + PROBE_RTT_SECONDS
                self._probe_rtt_round_done = False
                self._rounds.start()
            return
        self._probe_rtt_round_done = self._probe_rtt_round_done or self._rounds.started
        if self._probe_rtt_round_done and now > self._probe_rtt_until:
            self._min_rtt.schedule(now)
            self._window, self._prior_window = max(self._window, self._prior_window), 0.0
            self.short_term.reset()
            if not self._pipe_was_full:
                self.state_now = BbrState.STARTUP
                return
            self._start_down(now)
            self.state_now = BbrState.PROBE_BW_CRUISE

    # -- rate and window ------------------------------------------------------------------------------------------

    @property
    def _wanted_rate(self) -> float:
        wanted = self.state_now.pacing_gain * self._bandwidth * (1 - PACING_MARGIN)
        return min(max(wanted, LEAST_RATE), MOST_RATE)

    def _set_rate(self) -> None:
        """Section 5.6.2."""
        if self._bandwidth > 0 and (self._pipe_was_full or self._wanted_rate > self.rate):
            self._pacing_rate = self._wanted_rate

    def _set_window(self, flight: RateSample) -> None:
        """Sections 5.6.4.5 to 5.6.4.7."""
        window, most = self.window_bytes, self._max_in_flight
        if self._pipe_was_full:
            window = min(window + flight.newly_acked, most)
        elif window < most or flight.total_delivered < self._first_window:
            window += flight.newly_acked
        self._window = self._bounded(window)

    def _bounded(self, window: float) -> float:
        most = math.inf
        if self.state_now in (BbrState.PROBE_RTT, BbrState.PROBE_BW_CRUISE):
            most = self._with_headroom
        elif self.state_now.is_probe_bw:
            most = self.in_flight_long_term
        if self.state_now is BbrState.PROBE_RTT:
            most = min(most, self._probe_rtt_window)
        return max(min(window, most, self.short_term.in_flight), self._least_window)
