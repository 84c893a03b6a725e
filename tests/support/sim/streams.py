"""A payload sent in segments of one packet each, as TCP does, by New Reno, CUBIC, BBR or LTP: models of each.

Every loss is known when an acknowledgement would have come, as by perfect selective acknowledgements, and no timer
ever fires; so the models are faster than what they stand for. LTP sends each segment once, and waits for none that is
lost.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tests.support.sim.bottleneck import Bottleneck, Nic
from tests.support.sim.clock import VirtualClock

FIRST_WINDOW = 10.0
"""Segments (RFC 6928)."""
LEAST_WINDOW = 2.0
"""Segments (RFC 5681, section 3.1)."""
RENO_BETA = 0.5
"""Of a window after a loss (RFC 6582)."""
CUBIC_BETA = 0.7
"""Of a window after a loss (RFC 9438, section 4.6)."""
CUBIC_C = 0.4
"""Segments per second cubed (RFC 9438, section 5)."""
STARTUP_GAIN = 2 / math.log(2)
"""Of BBR's first rounds (Cardwell et al. 2016)."""
FULL_GROWTH = 1.25
"""A bandwidth that has grown by less in three rounds is all that there is (the same)."""
FULL_ROUNDS = 3
"""See FULL_GROWTH."""
CYCLE = (1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
"""Gains of BBR, one a round trip (the same)."""
BANDWIDTH_ROUNDS = 10
"""Of which the largest bandwidth counts (the same)."""
WINDOW_GAIN = 2.0
"""Of bandwidth-delay products BBR has in flight (the same)."""


class Control(Protocol):
    """What bounds a stream.

    Attributes:
        window: segments that may be in flight.
        pace: segments a second; infinite: as fast as the card.
    """

    window: float
    pace: float

    def on_acknowledged(self, now: float, seconds: float, rate: float) -> None:
        """A segment came, after so many seconds; since it was sent, so many a second have come."""

    def on_lost(self, now: float, sent: float) -> None:
        """One that was sent then did not come."""


class Reno:
    """New Reno."""

    pace = math.inf

    def __init__(self) -> None:
        self.window = FIRST_WINDOW
        self._threshold = math.inf
        self._reduced_at = -math.inf

    def on_acknowledged(self, now: float, seconds: float, rate: float) -> None:
        """Slow start, then a segment a round trip."""
        del now, seconds, rate
        self.window += 1 if self.window < self._threshold else 1 / self.window

    def on_lost(self, now: float, sent: float) -> None:
        """Half the window, once a round trip."""
        if sent <= self._reduced_at:
            return
        self._reduced_at = now
        self.window = self._threshold = max(self.window * RENO_BETA, LEAST_WINDOW)


class Cubic:
    """CUBIC, with Reno's growth where that is faster."""

    pace = math.inf

    def __init__(self) -> None:
        self.window = FIRST_WINDOW
        self._threshold = math.inf
        self._reduced_at = -math.inf
        self._largest = self._reno = 0.0

    def on_acknowledged(self, now: float, seconds: float, rate: float) -> None:
        """Slow start, then along the cubic."""
        del rate
        if self.window < self._threshold:
            self.window += 1
            return
        zero = (max(self._largest - self._threshold, 0.0) / CUBIC_C) ** (1 / 3)
        target = CUBIC_C * (now - self._reduced_at + seconds - zero) ** 3 + self._largest
        growth = 3 * (1 - CUBIC_BETA) / (1 + CUBIC_BETA) if self._reno < self._largest else 1.0
        self._reno += growth / self.window
        self.window += max((min(target, 1.5 * self.window) - self.window) / self.window, 0.01 / self.window)
        self.window = max(self.window, self._reno)

    def on_lost(self, now: float, sent: float) -> None:
        """Down once a round trip, with fast convergence."""
        if sent <= self._reduced_at:
            return
        self._reduced_at = now
        converges = self.window < self._largest
        self._largest = self.window * ((1 + CUBIC_BETA) / 2 if converges else 1)
        self.window = self._threshold = self._reno = max(self.window * CUBIC_BETA, LEAST_WINDOW)


class Bbr:
    """BBR's first version, without its probing for the round trip: no transfer here needs it."""

    def __init__(self) -> None:
        self.window = FIRST_WINDOW
        self.pace = math.inf
        self._bandwidths: deque[tuple[int, float]] = deque()
        self._round = 0
        self._round_ends = 0.0
        self._least_seconds = math.inf
        self._full = 0.0
        self._full_rounds = 0

    def on_acknowledged(self, now: float, seconds: float, rate: float) -> None:
        """The largest bandwidth of the latest rounds, and the least round trip, are the model of the path."""
        self._least_seconds = min(self._least_seconds, seconds)
        while self._bandwidths and self._bandwidths[-1][1] <= rate:
            self._bandwidths.pop()
        self._bandwidths.append((self._round, rate))
        while self._bandwidths[0][0] < self._round - BANDWIDTH_ROUNDS:
            self._bandwidths.popleft()
        bandwidth = self._bandwidths[0][1]
        if now >= self._round_ends:
            self._round, self._round_ends = self._round + 1, now + seconds
            self._look_whether_full(bandwidth)
        starts = self._full_rounds < FULL_ROUNDS
        gain = STARTUP_GAIN if starts else CYCLE[self._round % len(CYCLE)]
        self.pace = gain * bandwidth
        in_flight = (STARTUP_GAIN if starts else WINDOW_GAIN) * bandwidth * self._least_seconds
        self.window = max(in_flight, FIRST_WINDOW)

    def on_lost(self, now: float, sent: float) -> None:
        """Says nothing."""

    def _look_whether_full(self, bandwidth: float) -> None:
        if self._full_rounds >= FULL_ROUNDS:
            return
        if bandwidth >= FULL_GROWTH * self._full:
            self._full, self._full_rounds = bandwidth, 0
        else:
            self._full_rounds += 1


class Unbounded:
    """Sends at a fixed rate, whatever is lost: loss tolerance without congestion control."""

    def __init__(self, pace: float) -> None:
        self.window = math.inf
        self.pace = pace

    def on_acknowledged(self, now: float, seconds: float, rate: float) -> None:
        """Says nothing."""

    def on_lost(self, now: float, sent: float) -> None:
        """Says nothing either."""


@dataclasses.dataclass(slots=True)
class Counts:
    """Of a transfer, in segments.

    Attributes:
        sent: all of them.
        resent: again.
        missing: that never came.
    """

    sent: int = 0
    resent: int = 0
    missing: int = 0


class Stream:
    """Sends a payload over a way, again and again; what the control has learnt stays.

    Attributes:
        counts: of the transfer.
        came: bytes of it, with those that came twice.
        on_received: called when the last of it has come, or will not.
    """

    def __init__(
        self, clock: VirtualClock, way: Bottleneck, total: int, control: Control, *, waits_for_lost: bool = True
    ) -> None:
        """
        Args:
            clock: virtual time.
            way: the path.
            total: bytes of the payload.
            control: of its window.
            waits_for_lost: whether lost segments are sent again.
        """
        self.counts = Counts()
        self.came = 0
        self.on_received: Callable[[], None] = lambda: None
        self._clock = clock
        self._way = way
        self._nic = Nic()
        self._total = total
        self._control = control
        self._waits_for_lost = waits_for_lost
        self._segments = self._new = self._lost = self._over = self._in_flight = 0
        self._delivered = 0
        self._next_at = 0.0
        self._is_waiting = False

    def start(self) -> None:
        """Send the payload now."""
        self.counts, self.came = Counts(), 0
        self._segments = self._new = -(-self._total // self._way.profile.mtu_bytes)
        self._over = 0
        self._send()

    def _send(self) -> None:
        while (self._new or self._lost) and self._in_flight < self._control.window and not self._is_waiting:
            now = self._clock.now
            if now < self._next_at:
                self._is_waiting = True
                self._clock.at(self._next_at, self._go_on)
                return
            self._next_at = max(self._next_at, now) + 1 / self._control.pace
            if self._lost:
                self._lost -= 1
                self.counts.resent += 1
            else:
                self._new -= 1
            self._post()

    def _go_on(self) -> None:
        self._is_waiting = False
        self._send()

    def _post(self) -> None:
        sent, delivered = self._clock.now, self._delivered
        self._in_flight += 1
        self.counts.sent += 1
        length = self._way.profile.mtu_bytes

        def landed() -> None:
            self.came += length
            self._end_one()
            self._clock.after(self._way.answers.half_trip(), acknowledged)

        def acknowledged() -> None:
            self._in_flight -= 1
            self._delivered += 1
            now = self._clock.now
            self._control.on_acknowledged(now, now - sent, (self._delivered - delivered) / (now - sent))
            self._send()

        def lost() -> None:
            if not self._waits_for_lost:
                self.counts.missing += 1
                self._end_one()
            self._clock.after(self._way.answers.half_trip(), noticed)

        def noticed() -> None:
            self._in_flight -= 1
            self._lost += self._waits_for_lost
            self._control.on_lost(self._clock.now, sent)
            self._send()

        self._way.post(self._nic, length, landed, lost)

    def _end_one(self) -> None:
        self._over += 1
        if self._over == self._segments:
            self.on_received()


class EndlessStream(Stream):
    """Always has something to send."""

    def __init__(self, clock: VirtualClock, way: Bottleneck, control: Control) -> None:
        """
        Args:
            clock: virtual time.
            way: the path.
            control: of its window.
        """
        super().__init__(clock, way, sys.maxsize, control)

    @property
    def arrived_bytes(self) -> int:
        """All that landed."""
        return self.came
