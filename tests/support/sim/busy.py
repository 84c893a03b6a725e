"""A host whose threads wait for their turn, for others keep its processors."""

from __future__ import annotations

import bisect
import dataclasses
import random


@dataclasses.dataclass(frozen=True, slots=True)
class Busy:
    """How a host's scheduler serves the thread of a link.

    Attributes:
        runs: it runs for so long, seconds.
        waits: and then waits, for half to one and a half times so long, seconds.
    """

    runs: float
    waits: float


class Turns:
    """When such a thread runs."""

    def __init__(self, busy: Busy, chance: random.Random) -> None:
        self._busy, self._chance = busy, chance
        self._starts = [0.0]
        self._ends = [chance.uniform(0, busy.runs)]

    def next(self, when: float) -> float:
        """The first moment at which it runs, from `when` on."""
        while self._ends[-1] <= when:
            self._starts.append(self._ends[-1] + self._busy.waits * self._chance.uniform(0.5, 1.5))
            self._ends.append(self._starts[-1] + self._busy.runs)
        return max(when, self._starts[bisect.bisect_right(self._ends, when)])
