"""Virtual time: events in order, links that transfers share, workers that add one update after the other."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable

Action = Callable[[], object]


class World:
    """Events in the order of their times.

    Attributes:
        now: seconds.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()

    def at(self, time: float, action: Action) -> None:
        """Do this then; of two at the same time the first one first.

        Raises:
            ValueError: that is over.
        """
        if time < self.now:
            raise ValueError(f"an event at {time}, and it is {self.now}")
        heapq.heappush(self._events, (time, next(self._numbers), action))

    def after(self, seconds: float, action: Action) -> None:
        """Do this so much later."""
        self.at(self.now + seconds, action)

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()


class Link:
    """What transfers share: each has as much as every other one, and no more than its own link lets it have."""

    def __init__(self, world: World, rate: float, each: float) -> None:
        """
        Args:
            world: whose time it is.
            rate: of all, bytes a second.
            each: of one at most, bytes a second.
        """
        self._world = world
        self._rate = rate
        self._each = each
        # what one has got that has been there all the time
        self._got = 0.0
        self._at = world.now
        self._under_way: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()
        self._looks = 0
        self.carried = 0

    def send(self, count: int, arrived: Action) -> None:
        """Carry so many bytes."""
        self._catch_up()
        self.carried += count
        heapq.heappush(self._under_way, (self._got + count, next(self._numbers), arrived))
        self._look_later()

    def _catch_up(self) -> None:
        if self._under_way:
            self._got += self._now_each() * (self._world.now - self._at)
        self._at = self._world.now

    def _now_each(self) -> float:
        return min(self._each, self._rate / len(self._under_way))

    def _look_later(self) -> None:
        self._looks += 1
        number = self._looks
        if self._under_way:
            left = max(0.0, self._under_way[0][0] - self._got)
            self._world.after(left / self._now_each(), lambda: self._look(number))

    def _look(self, number: int) -> None:
        if number != self._looks:
            # another one has begun, or ended, meanwhile
            return
        # by its own reckoning the first is there: what is rounded away would make it look for ever
        self._at, self._got = self._world.now, self._under_way[0][0]
        came = []
        while self._under_way and self._under_way[0][0] <= self._got:
            came.append(heapq.heappop(self._under_way)[2])
        self._look_later()
        for arrived in came:
            arrived()


class OneByOne:
    """Things that are done one after the other, in the order in which they came: a site's own link, a worker.

    Attributes:
        waiting: how many have not begun.
    """

    def __init__(self, begin: Callable[[int, Action], object]) -> None:
        """
        Args:
            begin: begins one of so many bytes, and calls back when it is done.
        """
        self._begin = begin
        self._queue: deque[tuple[int, Action]] = deque()
        self._busy = False

    @property
    def waiting(self) -> int:
        """How many have not begun."""
        return len(self._queue)

    def put(self, count: int, done: Action) -> None:
        """Have it done when those before are."""
        self._queue.append((count, done))
        self._next()

    def _next(self) -> None:
        if self._busy or not self._queue:
            return
        count, done = self._queue.popleft()
        self._busy = True

        def ended() -> None:
            self._busy = False
            done()
            self._next()

        self._begin(count, ended)


class Worker:
    """Adds one update after the other.

    Attributes:
        busy_seconds: that it has added.
        first: when it was first told of an update; None: never.
        last: when it was done with its last.
    """

    def __init__(self, world: World, seconds_per_byte: float, notice: float, start: float) -> None:
        """
        Args:
            world: whose time it is.
            seconds_per_byte: that an addition takes.
            notice: seconds from its being told of an update to its beginning with it.
            start: seconds that it takes to start, when it is first told of an update; 0: it runs.
        """
        self._world = world
        self._seconds_per_byte = seconds_per_byte
        self._notice = notice
        self._start = start
        self._ready = 0.0
        self._line = OneByOne(self._add)
        self.busy_seconds = 0.0
        self.first: float | None = None
        self.last = 0.0

    def wake(self) -> None:
        """There is an update, be it added later: it starts where it does not run."""
        if self.first is None:
            self.first = self._world.now
            self._ready = self.first + self._start

    def add(self, count: int, done: Action) -> None:
        """Add an update of so many bytes, when those before are added."""
        self.wake()
        self._line.put(count, done)

    def _add(self, count: int, done: Action) -> None:
        starts = max(0.0, self._ready - self._world.now)
        seconds = count * self._seconds_per_byte
        self.busy_seconds += seconds

        def ended() -> None:
            self.last = self._world.now
            done()

        self._world.after(starts + self._notice + seconds, ended)
