"""The states of BBRv3 and what each does to rate and window: draft-ietf-ccwg-bbr-06, section 5.6.1."""

from __future__ import annotations

import enum


class BbrState(enum.Enum):
    """Where the state machine is (section 5.1)."""

    STARTUP = "startup"
    DRAIN = "drain"
    PROBE_BW_DOWN = "probe-bw-down"
    PROBE_BW_CRUISE = "probe-bw-cruise"
    PROBE_BW_REFILL = "probe-bw-refill"
    PROBE_BW_UP = "probe-bw-up"
    PROBE_RTT = "probe-rtt"

    @property
    def pacing_gain(self) -> float:
        """What is sent, as a share of the bandwidth that is believed in."""
        return _PACING_GAINS[self]

    @property
    def window_gain(self) -> float:
        """What may be in flight, in bandwidth-delay products."""
        return _WINDOW_GAINS.get(self, DEFAULT_WINDOW_GAIN)

    @property
    def is_probe_bw(self) -> bool:
        """Whether it is one of the four of ProbeBW."""
        return self in _PROBE_BW

    @property
    def is_probing(self) -> bool:
        """Whether it sends more than is known to suit the path (section 5.5.10.3, IsProbingBW)."""
        return self in (BbrState.STARTUP, BbrState.PROBE_BW_REFILL, BbrState.PROBE_BW_UP)


DEFAULT_WINDOW_GAIN = 2.0
"""BBR.DefaultCwndGain, section 2.6."""

PROBE_RTT_WINDOW_GAIN = 0.5
"""BBR.ProbeRTTCwndGain, section 2.16.2."""

_PACING_GAINS = {
    # 4 ln 2: doubles the rate each round trip (BBR.StartupPacingGain, section 2.5)
    BbrState.STARTUP: 2.77,
    # BBR.DrainPacingGain, section 2.5
    BbrState.DRAIN: 0.5,
    # section 5.3.3.1
    BbrState.PROBE_BW_DOWN: 0.9,
    # section 5.3.3.2
    BbrState.PROBE_BW_CRUISE: 1.0,
    # section 5.3.3.3
    BbrState.PROBE_BW_REFILL: 1.0,
    # section 5.3.3.5
    BbrState.PROBE_BW_UP: 1.25,
    # section 5.3.4.3
    BbrState.PROBE_RTT: 1.0,
}

_WINDOW_GAINS = {
    # section 5.3.3.5
    BbrState.PROBE_BW_UP: 2.25,
    BbrState.PROBE_RTT: PROBE_RTT_WINDOW_GAIN,
}

_PROBE_BW = (BbrState.PROBE_BW_DOWN, BbrState.PROBE_BW_CRUISE, BbrState.PROBE_BW_REFILL, BbrState.PROBE_BW_UP)


class AckPhase(enum.Enum):
    """What acknowledgements say of a probe for bandwidth (BBR.ack_phase, section 2.14)."""

    INIT = "init"
    REFILLING = "refilling"
    PROBE_STARTING = "probe-starting"
    PROBE_FEEDBACK = "probe-feedback"
    PROBE_STOPPING = "probe-stopping"
