"""Runs the rows one after the other: nothing of one is left when the next one starts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from fedrdma_fate.bench.baselines.interface import Baseline, RowError, Service, complaining
from fedrdma_fate.bench.party_processes import Exchange, PartyProcesses
from fedrdma_fate.bench.payload import PayloadSpec
from fedrdma_fate.bench.processes import MemoryWatch
from fedrdma_fate.bench.results import Measurement
from fedrdma_fate.wire.errors import FedRDMAError

FIRST_MESSAGE = PayloadSpec("first message", ((2 * 2**20,),), "uint8")
"""Goes before everything else, so that imports, connections and worker processes are not counted; FATE's standalone
federation cuts it into slices, as it will the payload."""

WATCH_SECONDS = 0.001
"""Between two looks at memory, in exchanges that are not timed: copies of a payload live longer than this."""
SLOW_WATCH_SECONDS = 0.02
"""Between two looks at memory, where they must not disturb the timing that goes on meanwhile."""

Tell = Callable[[str], None]


def run_rows(
    baselines: Sequence[Baseline], spec: PayloadSpec, repeats: int, tell: Tell
) -> tuple[list[Measurement], dict[str, str]]:
    """Measure each baseline.

    Args:
        baselines: what to measure, in this order.
        spec: the payload.
        repeats: timed iterations of each.
        tell: is called with what is being done.

    Returns:
        What was measured, and by name of the row why the others could not be.
    """
    measurements: list[Measurement] = []
    failures: dict[str, str] = {}
    for baseline in baselines:
        try:
            measurements.append(measure(baseline, spec, repeats, tell))
        except (RowError, FedRDMAError) as error:
            failures[baseline.name] = str(error)
    return measurements, failures


def measure(baseline: Baseline, spec: PayloadSpec, repeats: int, tell: Tell) -> Measurement:
    """Measure one baseline.

    Raises:
        RowError: it cannot be started, a step failed, or something else arrived than was sent.
        FedRDMAError: it cannot be started.
    """
    tell(f"{baseline.name}: starting")
    with tempfile.TemporaryDirectory(prefix="fedrdma-bench-") as directory:
        workspace = Path(directory)
        largest = max(spec.total_bytes, FIRST_MESSAGE.total_bytes)
        with (
            baseline.start(workspace, largest) as service,
            complaining(service),
            PartyProcesses(service, workspace) as parties,
        ):
            return _Row(baseline, service, parties, tell).measure(spec, repeats)


class _Row:
    """A row whose processes are running."""

    def __init__(self, baseline: Baseline, service: Service, parties: PartyProcesses, tell: Tell) -> None:
        self._baseline = baseline
        self._service = service
        self._parties = parties
        self._tell = tell
        self._iteration = 0

    def measure(self, spec: PayloadSpec, repeats: int) -> Measurement:
        schedule = self._baseline.schedule
        repeats = min(repeats, schedule.most_repeats or repeats)
        self._exchange(FIRST_MESSAGE, "first message", 1)
        self._service.check()
        # here, so that the payload counts as there before
        self._parties.prepare(spec, self._iteration)
        if schedule.warm_ups:
            watch = MemoryWatch(self._parties.groups, WATCH_SECONDS)
            with watch:
                self._exchange(spec, "warm-up", schedule.warm_ups)
            timed = self._exchange(spec, "timed", repeats)
        else:
            watch = MemoryWatch(self._parties.groups, SLOW_WATCH_SECONDS)
            with watch:
                timed = self._exchange(spec, "timed", repeats)
        self._service.check()
        return self._to_measurement(timed, watch.growth)

    def _exchange(self, spec: PayloadSpec, what: str, times: int) -> list[Exchange]:
        done = []
        for count in range(1, times + 1):
            self._tell(f"{self._baseline.name}: {what}, {count} of {times}")
            self._iteration += 1
            done.append(self._parties.exchange(spec, self._iteration))
            self._service.settle()
        return done

    def _to_measurement(self, timed: Sequence[Exchange], growth: Sequence[int]) -> Measurement:
        shared = self._service.extra_shared()
        sender, receiver = (*growth, 0)[:2]
        return Measurement(
            name=self._baseline.name,
            seconds=tuple(one.seconds for one in timed),
            put_seconds=tuple(one.put_seconds for one in timed),
            cpu_seconds=tuple(one.cpu_seconds for one in timed),
            extra_bytes_sender=sender + shared.sender,
            extra_bytes_receiver=receiver + shared.receiver,
        )
