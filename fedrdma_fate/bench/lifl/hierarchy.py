"""One sum by several gateways in virtual time: each adds what is put on it, one of them the others' sums besides.

Who adds what says `core/planning.py`, who is in which sum and what is next `core/fold.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from fedrdma_fate.bench.lifl.costs import Costs, Hop
from fedrdma_fate.bench.lifl.simulation import Link, OneByOne, Worker, World
from fedrdma_fate.core.fold import Fold, Order

NO_HOP = Hop(0.0, 0.0)
"""Updates lie where they are added."""


@dataclasses.dataclass(frozen=True, slots=True)
class System:
    """How updates are added.

    Attributes:
        name: of the row.
        warm: workers run before the first update comes.
        eager: each update, and at the top each sum, is added as it comes; else all when the last one is there, and
            the top adds the sum of its own updates besides, as it does the others'.
        hop: of each update, and each sum, to the process that adds it.
    """

    name: str
    warm: bool
    eager: bool
    hop: Hop = NO_HOP


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """Between gateways.

    Attributes:
        rate: of a gateway's link, bytes a second.
        each: of one transfer at most, bytes a second.
    """

    rate: float
    each: float


@dataclasses.dataclass(frozen=True, slots=True)
class Sum:
    """How one went.

    Attributes:
        seconds: when it was whole.
        cpu_seconds: of adding, moving between processes, and starting workers.
        gateways: that had updates.
        started: workers that had to be started.
        moved_bytes: between gateways.
        active: of each gateway's worker, from when to when it was there.
    """

    seconds: float
    cpu_seconds: float
    gateways: int
    started: int
    moved_bytes: int
    active: tuple[tuple[float, float], ...]


def add_up(
    system: System,
    costs: Costs,
    network: Network,
    update_bytes: int,
    arrivals: Sequence[tuple[float, int]],
    top: int,
    came: Callable[[float, int], object] = lambda _now, _gateway: None,
    *,
    from_clients: bool = False,
) -> Sum:
    """Add updates.

    Args:
        system: how.
        costs: of each step.
        network: between gateways.
        update_bytes: of each update, and of a sum.
        arrivals: of each update when it is in the memory of a gateway, and of which.
        top: the gateway that adds the others' sums.
        came: called for each update and each sum that is ready to be added, with the time and its gateway.
        from_clients: arrivals are when updates leave their clients, over the link of their gateway.

    Raises:
        ValueError: there are none.
    """
    if not arrivals:
        raise ValueError("a sum of no updates")
    world = World()
    used = sorted({gateway for _, gateway in arrivals} | {top})
    start = 0.0 if system.warm else costs.start_seconds
    workers = {each: Worker(world, costs.add_seconds_per_byte, costs.notice_seconds, start) for each in used}
    hops = {each: OneByOne(lambda count, done: world.after(count * system.hop.seconds_per_byte, done)) for each in used}
    links = {each: Link(world, network.rate, network.each) for each in used}
    moved = 0
    hopped = 0
    ends: list[float] = []
    folds: dict[int, Adding] = {}

    def arrive(gateway: int, ready: Callable[[], object]) -> None:
        nonlocal hopped
        hopped += update_bytes

        def there() -> None:
            came(world.now, gateway)
            ready()

        hops[gateway].put(update_bytes, there)

    of = {each: [number for number, (_, gateway) in enumerate(arrivals) if gateway == each] for each in used}
    total = Adding(system.eager, workers[top], update_bytes, range(len(arrivals)), lambda: ends.append(world.now))
    for each in used:
        if len(used) == 1 or (each == top and system.eager):
            folds[each] = total
            continue
        if not of[each]:
            # the top has none of its own
            continue

        def whole(each: int = each) -> None:
            if each == top:
                total.came_together(of[each])
            else:
                nonlocal moved
                moved += update_bytes
                links[top].send(update_bytes, lambda: arrive(top, lambda: total.came_together(of[each])))

        folds[each] = Adding(system.eager, workers[each], update_bytes, of[each], whole)
    for number, (time, gateway) in enumerate(arrivals):

        def comes(number: int = number, gateway: int = gateway) -> None:
            def there() -> None:
                arrive(gateway, lambda: folds[gateway].came(number))

            if from_clients:
                links[gateway].send(update_bytes, there)
            else:
                there()

        world.at(time, comes)
    world.run()
    (end,) = ends
    busy = [worker for worker in workers.values() if worker.first is not None]
    started = 0 if system.warm else len(busy)
    cpu = sum(worker.busy_seconds for worker in busy) + hopped * system.hop.cpu_per_byte
    active = tuple((0.0, end) if system.warm else (worker.first or 0.0, worker.last) for worker in busy)
    return Sum(end, cpu + started * costs.start_seconds, len(busy), started, moved, active)


class Adding:
    """What one gateway adds."""

    def __init__(
        self, eager: bool, worker: Worker, update_bytes: int, parties: Sequence[int], whole: Callable[[], object]
    ) -> None:
        self._eager = eager
        self._worker = worker
        self._update_bytes = update_bytes
        self._number_of = {party: number for number, party in enumerate(parties)}
        self._fold = Fold(len(parties), Order.EXACT)
        self._awaited = len(parties)
        self._whole = whole

    def came(self, party: int) -> None:
        """An update is here."""
        self._worker.wake()
        self._fold.arrived(self._number_of[party])
        self._awaited -= 1
        self._next()

    def came_together(self, parties: Sequence[int]) -> None:
        """The sum of another gateway is here."""
        self._worker.wake()
        self._fold.arrived_together([self._number_of[party] for party in parties])
        self._awaited -= len(parties)
        self._next()

    def _next(self) -> None:
        if (not self._eager and self._awaited) or self._fold.next_up is None:
            return
        party = self._fold.begin()
        self._worker.add(self._update_bytes, lambda: self._added(party))

    def _added(self, party: int) -> None:
        self._fold.added_together(dict.fromkeys(self._fold.together(party) or (party,), 1.0))
        if self._fold.closed:
            self._whole()
        else:
            self._next()
