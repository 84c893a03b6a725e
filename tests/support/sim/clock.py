"""Virtual time: events happen in the order of their time, and nothing waits for a real clock."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

Event = Callable[[], None]


class VirtualClock:
    """A queue of events; `now`, in seconds, is the time of the event that runs."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Event]] = []
        self._sequence = itertools.count()

    def at(self, when: float, event: Event) -> None:
        """Run the event at `when`, but not before now. Events of one time run in the order they were given."""
        heapq.heappush(self._queue, (max(when, self.now), next(self._sequence), event))

    def after(self, delay: float, event: Event) -> None:
        """Run the event in `delay` seconds."""
        self.at(self.now + delay, event)

    def run(self, until: float = math.inf) -> None:
        """Run events until none is left or the next one lies behind `until`."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, event = heapq.heappop(self._queue)
            event()

    def run_until(self, is_done: Callable[[], bool], given_up: float, step: float) -> None:
        """Run until it is done, or it is given up; looked at each `step` seconds, whether or not anything happens."""
        # `now` stands at the latest event, and the next may be far away
        until = self.now
        while not is_done() and until < given_up:
            until += step
            self.run(until)
