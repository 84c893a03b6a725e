"""What a path may do to packets beside rate, delay and loss, as people write it: a policer.

The testbed takes its options from here, too, so that both command lines read them alike.
"""

from __future__ import annotations

import dataclasses

from fedrdma_fate.quantities import QuantityError, parse_rate, parse_size


@dataclasses.dataclass(frozen=True, slots=True)
class Policer:
    """A token bucket that drops what it has no tokens for, and queues nothing.

    Attributes:
        rate_bps: at which tokens come.
        burst_bytes: that the bucket holds: what passes at once after a pause.
    """

    rate_bps: int
    burst_bytes: int

    def __str__(self) -> str:
        return f"{self.rate_bps}bit:{self.burst_bytes}B"


def parse_policer(text: str) -> Policer:
    """A policer as people write it: RATE:BURST, such as 500mbit:100kB.

    Raises:
        QuantityError: it is not one.
    """
    rate, separator, burst = text.partition(":")
    if not separator:
        raise QuantityError(f"{text!r} is not RATE:BURST, such as 500mbit:100kB")
    return Policer(parse_rate(rate), parse_size(burst))
