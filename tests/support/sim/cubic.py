"""A long-lived TCP flow with CUBIC (RFC 9438), in segments of one message each, for a rival on the bottleneck."""

from __future__ import annotations

import functools

from tests.support.sim.bottleneck import Bottleneck, Nic
from tests.support.sim.clock import VirtualClock

_C = 0.4
_BETA = 0.7
_RENO_GROWTH = 3 * (1 - _BETA) / (1 + _BETA)
_SEGMENT_BYTES = 4096


class CubicFlow:
    """Sends without end. Slow start, cubic growth or Reno's, fast convergence, one reduction per window of data.

    Losses are always repaired, and never time out.

    Attributes:
        arrivals: (time, bytes) of every segment that landed.
    """

    def __init__(self, clock: VirtualClock, link: Bottleneck, until: float) -> None:
        self.arrivals: list[tuple[float, int]] = []
        self._clock = clock
        self._link = link
        self._nic = Nic()
        self._until = until
        self._window = 10.0
        self._threshold = float("inf")
        self._in_flight = 0
        self._largest = 0.0
        self._reno = 0.0
        self._reduced_at = -1.0

    def start(self) -> None:
        """Begin."""
        sent = self._clock.now
        while self._in_flight < self._window and sent < self._until:
            self._in_flight += 1
            self._link.post(self._nic, _SEGMENT_BYTES, self._landed, functools.partial(self._lost, sent))

    @property
    def arrived_bytes(self) -> int:
        """All that landed."""
        return sum(length for _, length in self.arrivals)

    def goodput_bps(self, since: float, until: float) -> float:
        """Bits a second that landed in a span of time."""
        return sum(length for at, length in self.arrivals if since <= at < until) * 8 / (until - since)

    def _landed(self) -> None:
        self.arrivals.append((self._clock.now, _SEGMENT_BYTES))
        self._clock.after(self._link.answers.half_trip(), self._acknowledged)

    def _lost(self, sent: float) -> None:
        self._clock.after(self._link.answers.half_trip(), functools.partial(self._reduce, sent))

    def _acknowledged(self) -> None:
        self._in_flight -= 1
        if self._window < self._threshold:
            self._window += 1
        else:
            elapsed = self._clock.now - self._reduced_at + self._link.profile.rtt
            zero = (max(self._largest - self._threshold, 0.0) / _C) ** (1 / 3)
            target = min(_C * (elapsed - zero) ** 3 + self._largest, 1.5 * self._window)
            self._reno += (_RENO_GROWTH if self._reno < self._largest else 1.0) / self._window
            self._window += max((target - self._window) / self._window, 0.01 / self._window)
            self._window = max(self._window, self._reno)
        self.start()

    def _reduce(self, sent: float) -> None:
        self._in_flight -= 1
        # what was sent before the latest reduction was lost of the same window (RFC 6675, section 5), however late a
        # queue lets it be told: behind one a round trip is longer than the path's
        if sent > self._reduced_at:
            self._reduced_at = self._clock.now
            converging = self._window < self._largest
            self._largest = self._window * ((1 + _BETA) / 2 if converging else 1)
            self._window = max(self._window * _BETA, 2.0)
            self._threshold = self._reno = self._window
        self.start()
