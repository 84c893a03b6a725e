"""The phases of our controller's cycle, and what each does to the rate."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """What the rate is being used for: as BBR's Startup and the phases of its ProbeBW (draft, section 5.3).

    STARTUP lasts until a first rate is known. After every PROBE_UP, and after the rate was reduced, comes a PROBE_DOWN.
    """

    STARTUP = "startup"
    CRUISE = "cruise"
    PROBE_UP = "probe-up"
    PROBE_DOWN = "probe-down"

    @property
    def pacing_gain(self) -> float:
        """What is sent, as a share of the rate that is believed in. STARTUP is not paced."""
        return _PACING_GAINS[self]


_PACING_GAINS = {
    Phase.STARTUP: 1.0,
    # BBR.PacingMarginPercent is 1: pace that much below the estimate, for short queues (draft, section 5.6.2)
    Phase.CRUISE: 0.99,
    # BBR's gains in ProbeBW, 5/4 and 3/4 (ACM Queue 2016, "Steady-state behavior")
    Phase.PROBE_UP: 1.25,
    Phase.PROBE_DOWN: 0.75,
}
