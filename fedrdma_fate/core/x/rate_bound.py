"""What a flow is let send by who has others to serve: its share of the receiver's link, or of the own.

Where it uses all of its share, what it knows of its path may be no more than that. So when others end, what it knows is
not what there is room for, and a cycle that finds a quarter more each time would take longer than what is left to send.
All rules and numbers of this module are ours. Times in seconds, rates in bytes a second.
"""

from __future__ import annotations

import math

ROOM_FACTOR = 1.25
"""Of its rate it is let send: what a PROBE_UP would not come to by itself."""

ROOM_GAIN = 2.0
"""Of the probe for it: as much as BBR has under way of a path that it knows (BBR.DefaultCwndGain)."""

BOUND_USED_SHARE = 0.85
"""Of what it is let send is all of it, as the receiver counts it, too (`core/shares/windows.py`): who takes the
others' queue for a competitor's is some hundredths below."""


class RateBound:
    """What a flow is let send.

    Attributes:
        most: rate; infinite: no bound.
    """

    def __init__(self) -> None:
        self.most = math.inf
        self._held_at = -math.inf

    def on_rate(self, rate: float, now: float) -> None:
        """The flow knows of this rate, before anything is sent at it."""
        if rate >= BOUND_USED_SHARE * self.most:
            self._held_at = now

    def finds_room(self, rate: float, recent_seconds: float, now: float) -> bool:
        """Whether it has just been let send much more than the rate that it knows of, and was held to until lately.

        Says so once.

        Args:
            rate: that it knows of.
            recent_seconds: how long is lately.
            now: the time.
        """
        if self.most < ROOM_FACTOR * rate or now > self._held_at + recent_seconds:
            return False
        self._held_at = -math.inf
        return True

    def within(self, gain: float, rate: float) -> float:
        """What of a gain on this rate it is let send."""
        return min(gain, self.most / rate) if rate > 0 else gain
