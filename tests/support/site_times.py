"""How long an aggregation of many sites takes, what their gateways take of the host, and what two jobs at once do.

`python -m tests.support.site_times [--sites 2,4,16] [--megabytes 100] [--rounds 3]`: a gateway for each site, each a
process and a peer of all others over tcp, all on this host; a silo at each, and the arbiter at the first. In a round
each silo puts its update, the arbiter's gateway sums them, the arbiter puts the aggregate to all out of one slot, half
as long as FATE has it, and each silo gets it. Nothing is trained, masked or pickled: what is timed is what gateways
do, and a copy of each update into its slot.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from fedrdma_fate.wire.frames import Party
from tests.soak.measure import Sample, measure
from tests.support.sites import InProcesses, Sites, runner_of, start_gateways
from tests.support.summands import written

ARBITER = Party("arbiter", "1")
UP, DOWN = "mixed_client_values", "aggregated_values"
STEP_SECONDS = 300.0
"""For each step of a round, and for a gateway to start: its regions are touched page by page."""

MIB = 2**20
JOBS = 2
"""At once, where that is compared with one after the other."""
JOB_SITES = 4
"""Of the jobs that are compared; fewer where fewer were asked for."""

PARAMETER_BYTES = 16
"""Of a masked update, as FATE makes it."""


class Job:
    """A session of one silo for each site, and an arbiter."""

    def __init__(self, sites: Sites, session: str, updates: Sequence[bytes]) -> None:
        """
        Args:
            sites: in their order.
            session: its name.
            updates: of each silo.
        """
        self._updates = updates
        self._silos = [silo(number) for number in range(len(sites))]
        with contextlib.ExitStack() as stack:
            self._clients = [
                stack.enter_context(GatewayClient(site.address, session, party, connect_timeout=STEP_SECONDS))
                for site, party in zip(sites.values(), self._silos, strict=True)
            ]
            first = next(iter(sites.values()))
            self._arbiter = stack.enter_context(
                GatewayClient(first.address, session, ARBITER, connect_timeout=STEP_SECONDS)
            )
            self._stack = stack.pop_all()

    def close(self) -> None:
        """All tasks go."""
        self._stack.close()

    def round(self, tag: str) -> float:
        """Seconds from the first put until the last silo has the aggregate.

        Raises:
            AssertionError: it is not the sum.
        """
        start = time.perf_counter()
        with ThreadPoolExecutor(len(self._clients) + 1) as pool:
            arbiter = pool.submit(self._arbitrate, tag)
            for future in [pool.submit(self._take_part, number, tag) for number in range(len(self._clients))]:
                future.result()
            arbiter.result()
        return time.perf_counter() - start

    def _take_part(self, number: int, tag: str) -> None:
        client, update = self._clients[number], self._updates[number]
        lease = client.lease(len(update), timeout=STEP_SECONDS)
        lease.buffer[:] = update
        lease.commit(UP, tag, [ARBITER], "object")
        received = client.get(DOWN, tag, ARBITER, timeout=STEP_SECONDS)
        numbers = np.frombuffer(received.buffer, np.float64)
        silos = len(self._clients)
        assert numbers[0] == numbers[-1] == silos * (silos + 1) / 2

    def _arbitrate(self, tag: str) -> None:
        summed = self._arbiter.get_sum(UP, tag, self._silos, timeout=STEP_SECONDS)
        assert isinstance(summed, ReceivedSum)
        assert not summed.reason
        [shape] = summed.shapes
        # the first of its two planes
        aggregate = summed.buffer[: 8 * shape[0]]
        lease = self._arbiter.lease(len(aggregate), timeout=STEP_SECONDS)
        lease.buffer[:] = aggregate
        lease.commit(DOWN, tag, self._silos, "object")


def silo(number: int) -> Party:
    """The one at a site."""
    return Party("host", str(100 + number))


def update_of(number: int, megabytes: float) -> bytes:
    """As a silo sends it."""
    parameters = int(megabytes * 1e6) // PARAMETER_BYTES
    fraction = np.full(parameters, float(number + 1))
    return written([(fraction, np.zeros(parameters))], silo(number))


@contextlib.contextmanager
def running(
    count: int, jobs: int, megabytes: float, directory: Path, runner: InProcesses | None = None
) -> Iterator[Sites]:
    """Sites that all know each other, with room for so many jobs at once.

    Args:
        count: of the sites.
        jobs: at once.
        megabytes: of an update.
        directory: for their files.
        runner: starts them; then it is not waited until all are connected.
    """
    update = int(megabytes * 1e6 / MIB) + 2
    names = [f"site{number:02}" for number in range(count)]
    layout = {name: [str(silo(number))] for number, name in enumerate(names)}
    layout[names[0]].append(str(ARBITER))

    def of_site(name: str) -> dict[str, Any]:
        # the arbiter's has the sum, updates that wait to be added, and the aggregate; the others an update and it
        send, receive = (2 * update, 5 * update) if name == names[0] else (update, update)
        sizes = {"send_bytes": f"{jobs * send + 16}MiB", "receive_bytes": f"{jobs * receive + 32}MiB"}
        ring = {"ring_slots": 2, "ring_slot_bytes": "256KiB"}
        return {"memory": {**sizes, **ring, "spill_directory": str(directory / name / "spill")}}

    runs = runner or InProcesses(STEP_SECONDS)
    with start_gateways(layout, directory, runner=runs, connected=runner is None, of_site=of_site) as sites:
        yield sites


def taken(sites: Sites) -> list[Sample]:
    """What each gateway takes now, the arbiter's first."""
    processes = runner_of(sites).processes
    return [measure(processes[name].pid, site.home, 0, 0) for name, site in sites.items()]


def aggregations(count: int, megabytes: float, rounds: int) -> str:
    """A line of the table of sites."""
    updates = [update_of(number, megabytes) for number in range(count)]
    with tempfile.TemporaryDirectory() as name, running(count, 1, megabytes, Path(name)) as sites:
        job = Job(sites, "sites", updates)
        # the first one warms up: slots are touched, and rates found
        seconds = [job.round(str(number)) for number in range(rounds + 1)][1:]
        arbiter, *others = taken(sites)
        job.close()
    moved = count * megabytes * 1.5
    rest = max(others, key=lambda sample: sample.memory_kib)
    cells = [
        str(count),
        f"{statistics.median(seconds):.2f} s",
        f"{min(seconds):.2f} to {max(seconds):.2f} s",
        f"{moved / statistics.median(seconds):.0f} MB/s",
        f"{_both(arbiter.memory_kib, rest.memory_kib, 1024)} MiB",
        f"{_both(arbiter.shared_kib, rest.shared_kib, 1024)} MiB",
        _both(arbiter.threads, rest.threads),
        _both(arbiter.descriptors, rest.descriptors),
    ]
    return "| " + " | ".join(cells) + " |"


def _both(arbiter: int, other: int, unit: int = 1) -> str:
    return f"{arbiter // unit}, {other // unit}"


def jobs_at_once(count: int, megabytes: float, rounds: int) -> str:
    """A line that compares two jobs at once with one after the other, round by round."""
    updates = [update_of(number, megabytes) for number in range(count)]
    with tempfile.TemporaryDirectory() as name, running(count, JOBS, megabytes, Path(name)) as sites:
        jobs = [Job(sites, f"job{number}", updates) for number in range(JOBS)]
        after, together = [], []
        for number in range(rounds + 1):
            alone = sum(job.round(f"alone{number}") for job in jobs)
            start = time.perf_counter()
            threads = [threading.Thread(target=job.round, args=(f"both{number}",)) for job in jobs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            after.append(alone)
            together.append(time.perf_counter() - start)
        for job in jobs:
            job.close()
    one, both = statistics.median(after[1:]), statistics.median(together[1:])
    return f"| {count} | {one:.2f} s | {both:.2f} s | {both / one:.2f} |"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", default="2,4,16", help="numbers of sites")
    parser.add_argument("--megabytes", type=float, default=100.0, help="of an update")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    counts = [int(count) for count in given.sites.split(",")]
    heads = ("sites", "a round", "least and most", "at the arbiter", "private", "shared", "threads", "descriptors")
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads), flush=True)
    for count in counts:
        print(aggregations(count, given.megabytes, given.rounds), flush=True)
    print("\n| sites | two jobs, one after the other | both at once | ratio |\n|---|---|---|---|", flush=True)
    print(jobs_at_once(min(JOB_SITES, max(counts)), given.megabytes, given.rounds))
    print(f"\nload of the last minute: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
