"""Who adds which updates: how many come, what an addition takes, which gateways have room, how many workers to keep.

As in LIFL's sections 5.1 and 5.2: arrivals are counted in windows and smoothed; rate times the time of an addition are
the updates that are being added or wait for it, the *queue*; a gateway's capacity is how many it takes at once, and
what its queue leaves of that is the *residual* capacity.

Nothing here moves or adds anything. Time, in seconds from any beginning, is an argument.
"""

from __future__ import annotations

import bisect
import dataclasses
import enum
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

SMOOTHING = 0.7
"""Of what was measured before, against what was measured just now; the paper's."""

WINDOW_SECONDS = 1.0
"""In which arrivals are counted: longer than the updates of a round on one path are apart, shorter than a round, so
that five windows later nine tenths of what is estimated are of the traffic there is now."""

BUSY_SHARE = 0.7
"""Of a worker's time, beyond which another one is wanted: there, what comes by chance waits for as long as it takes to
be added, and beyond it quickly longer."""

_SLACK = 1e-9
"""Of residual capacities, which are differences of floats."""


def smoothed(before: float, measured: float) -> float:
    """The exponentially weighted moving average after one more measurement."""
    return SMOOTHING * before + (1 - SMOOTHING) * measured


class Load:
    """What is asked of those who add, as it changes. Reading it changes nothing, so any thread may."""

    def __init__(self, now: float, window: float = WINDOW_SECONDS) -> None:
        """
        Args:
            now: when counting begins.
            window: in which arrivals are counted, seconds.

        Raises:
            ValueError: a window that is none.
        """
        if not window > 0:
            raise ValueError(f"a window of {window} s")
        self._window = window
        # begin of the window, what came in it, updates a second before it
        self._counted = now, 0, 0.0
        self._seconds_per_update = 0.0

    @property
    def seconds_per_update(self) -> float:
        """That an addition takes; 0 before the first one."""
        return self._seconds_per_update

    def arrived(self, now: float, updates: int = 1) -> None:
        """Some are here to be added."""
        begin, count, rate = self._at(now)
        self._counted = begin, count + updates, rate

    def added(self, seconds: float) -> None:
        """An addition took so long, waiting not included."""
        before = self._seconds_per_update
        self._seconds_per_update = smoothed(before, seconds) if before else seconds

    def rate(self, now: float) -> float:
        """Updates a second, of windows that are over."""
        return self._at(now)[2]

    def queue(self, now: float) -> float:
        """Updates that are being added or wait for it, on the average: as many workers would be busy all the time."""
        return self.rate(now) * self._seconds_per_update

    def _at(self, now: float) -> tuple[float, int, float]:
        begin, count, rate = self._counted
        windows = int((now - begin) / self._window)
        if windows <= 0:
            return begin, count, rate
        # in all but the first nothing came
        rate = smoothed(rate, count / self._window) * SMOOTHING ** (windows - 1)
        return begin + windows * self._window, 0, rate


def workers_wanted(queue: float, most: int) -> int:
    """How many workers to keep, 1 to `most`, so that none is busy for more than BUSY_SHARE of its time.

    Args:
        queue: see `Load.queue`.
        most: that there may be, 1 or more.
    """
    return max(1, min(most, math.ceil(min(queue, most) / BUSY_SHARE - _SLACK)))


@dataclasses.dataclass(frozen=True, slots=True)
class Gateway:
    """Who can take updates of a sum.

    Attributes:
        name: of the gateway.
        capacity: updates that it adds at once before each takes noticeably longer.
        queue: of those, what it is busy with.
    """

    name: str
    capacity: float
    queue: float = 0.0

    @property
    def residual(self) -> float:
        """Capacity that is left."""
        return max(0.0, self.capacity - self.queue)

    @property
    def room(self) -> int:
        """Whole updates that it can take."""
        return int(self.residual + _SLACK)


class Policy(str, enum.Enum):
    """On which gateways updates are put.

    Attributes:
        BEST_FIT: on the fewest: the smallest one that takes all that are left, and while none does, the largest.
        FIRST_FIT: on the first one that has room.
        WORST_FIT: each on the one with the most residual capacity.
        LEAST_CONNECTION: each on the one with the shortest queue, as Knative does.
    """

    BEST_FIT = "best-fit"
    FIRST_FIT = "first-fit"
    WORST_FIT = "worst-fit"
    LEAST_CONNECTION = "least-connection"


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """Where updates go.

    Attributes:
        gateway_of: of each update that is placed, the number of its gateway; those behind have to wait.
        waiting: updates for which no gateway has room.
        counts: updates of each gateway.
    """

    gateway_of: tuple[int, ...]
    waiting: int
    counts: tuple[int, ...]

    @property
    def used(self) -> tuple[int, ...]:
        """Numbers of the gateways that have some."""
        return tuple(number for number, count in enumerate(self.counts) if count)


def place(updates: int, gateways: Sequence[Gateway], policy: Policy = Policy.BEST_FIT) -> Placement:
    """Put updates on gateways, none beyond its residual capacity.

    Args:
        updates: how many, 0 or more.
        gateways: those there are.
        policy: how they are chosen.
    """
    rooms = [gateway.room for gateway in gateways]
    placed = min(updates, sum(rooms))
    if policy is Policy.BEST_FIT:
        order = _runs(_best_fit(placed, rooms))
    elif policy is Policy.FIRST_FIT:
        order = _runs(_first_fit(placed, rooms))
    elif policy is Policy.WORST_FIT:
        order = _one_by_one(placed, rooms, [-gateway.residual for gateway in gateways])
    else:
        order = _one_by_one(placed, rooms, [gateway.queue for gateway in gateways])
    counts = Counter(order)
    return Placement(tuple(order), updates - placed, tuple(counts[number] for number in range(len(gateways))))


def _runs(runs: Sequence[tuple[int, int]]) -> list[int]:
    return list(itertools.chain.from_iterable(itertools.repeat(number, count) for number, count in runs))


def _best_fit(updates: int, rooms: Sequence[int]) -> list[tuple[int, int]]:
    # ascending, and of equal ones the first comes last, where the largest is taken
    left = sorted(range(len(rooms)), key=lambda number: (rooms[number], -number))
    sizes = [rooms[number] for number in left]
    runs = []
    while updates:
        smallest = bisect.bisect_left(sizes, updates)
        # of equal ones the first
        at = len(sizes) - 1 if smallest == len(sizes) else bisect.bisect_right(sizes, sizes[smallest]) - 1
        count = min(sizes.pop(at), updates)
        runs.append((left.pop(at), count))
        updates -= count
    return runs


def _first_fit(updates: int, rooms: Sequence[int]) -> list[tuple[int, int]]:
    runs = []
    for number, room in enumerate(rooms):
        count = min(room, updates)
        runs.append((number, count))
        updates -= count
    return runs


def _one_by_one(updates: int, rooms: Sequence[int], burdens: Sequence[float]) -> list[int]:
    """Each goes to the least burdened one, which it burdens by 1."""
    heap = [(burden, number) for number, burden in enumerate(burdens) if rooms[number]]
    heapq.heapify(heap)
    left, order = list(rooms), []
    for _ in range(updates):
        burden, number = heap[0]
        order.append(number)
        left[number] -= 1
        if left[number]:
            heapq.heapreplace(heap, (burden + 1, number))
        else:
            heapq.heappop(heap)
    return order


@dataclasses.dataclass(frozen=True, slots=True)
class Adder:
    """What one gateway does of a sum.

    Attributes:
        gateway: its number.
        updates: that it adds.
        sums: of other gateways that it adds to them.
        workers: that it keeps warm.
        parent: number of the gateway that adds its sum; None: it is the top.
    """

    gateway: int
    updates: int
    sums: int
    workers: int
    parent: int | None = None

    @property
    def fan_in(self) -> int:
        """What it adds in all."""
        return self.updates + self.sums


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Who adds what of a sum.

    Attributes:
        placement: which update goes where.
        adders: the gateways that add, the top first: the one with the most updates, so that the fewest bytes move; each
            behind its parent.
    """

    placement: Placement
    adders: tuple[Adder, ...]


def plan(
    updates: int,
    gateways: Sequence[Gateway],
    policy: Policy = Policy.BEST_FIT,
    wanted: Callable[[Gateway, int], int] = lambda _gateway, _updates: 1,
    fan_in: int | None = None,
) -> Plan:
    """Who adds these updates: each gateway those that are put on it, and one the others' sums besides.

    With a fan-in, no gateway adds more sums than that: the others are in a tree, those with the most updates nearest
    the top.

    Args:
        updates: how many.
        gateways: those there are.
        policy: on which the updates are put.
        wanted: how many workers a gateway keeps that has so many of them; one adds a sum as fast as the memory lets it.
        fan_in: sums that a gateway adds to its own updates, 1 or more; None: as many as there are.

    Raises:
        ValueError: a fan-in that is none.
    """
    placement = place(updates, gateways, policy)
    used = sorted(placement.used, key=lambda number: (-placement.counts[number], number))
    above = parents(len(used), max(1, len(used)) if fan_in is None else fan_in)
    sums = Counter(above)
    adders = tuple(
        Adder(
            number,
            placement.counts[number],
            sums[at],
            wanted(gateways[number], placement.counts[number]),
            None if (parent := above[at]) is None else used[parent],
        )
        for at, number in enumerate(used)
    )
    return Plan(placement, adders)


def parents(count: int, fan_in: int, tops: int = 1) -> tuple[int | None, ...]:
    """Who adds whose sum in a tree that is as flat as can be, by number; None: that one is at the top.

    Args:
        count: of those that add.
        fan_in: sums that each adds at most.
        tops: how many are at the top.

    Raises:
        ValueError: a fan-in or a number of tops that is none.
    """
    if fan_in < 1 or tops < 1:
        raise ValueError(f"a tree with a fan-in of {fan_in}, and {tops} at its top")
    return tuple(None if number < tops else (number - tops) // fan_in for number in range(count))


def tops_of(count: int, fan_in: int, levels: int) -> int:
    """How many have to be at the top so that a tree of so many has no more levels than these.

    Args:
        count: of those that add.
        fan_in: sums that each adds at most, 1 or more.
        levels: 1 or more.
    """
    below_each, width = 0, 1
    for _ in range(levels):
        below_each += width
        width *= fan_in
    return max(1, math.ceil(count / below_each))


def no_slower_than(parent: str, askers: Iterable[str], rates: Mapping[str, float]) -> tuple[str, ...]:
    """Those who ask for sums that are reached at least as fast as the parent is by which these go to them.

    To them a sum goes no sooner by the parent: it takes one more transfer, which is no shorter than the one that it
    saves. What is left of a tree is that fewer bytes come to who asks.

    Args:
        parent: site that adds the sums of this one to its own.
        askers: sites that ask for sums.
        rates: of the paths to sites, in one unit; of some nothing may be known.
    """
    own = rates.get(parent)
    if own is None:
        return ()
    return tuple(site for site in askers if site != parent and rates.get(site, 0.0) >= own)
