"""What the pace of a `fedrdma-x` flow is for, just now."""

from __future__ import annotations

import enum


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
