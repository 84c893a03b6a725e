"""Programs on the hosts of a testbed, from tests: one boot of a guest each."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.softroce.errors import TestbedError
from deploy.softroce.guest_memory import find_place
from deploy.softroce.host_links import parse_host_link
from deploy.softroce.kernel import find_kernel
from deploy.softroce.run import Run, execute, missing_tools
from deploy.softroce.schedule import parse_change
from deploy.softroce.wan import DEFAULT_BUFFER_BYTES, DEFAULT_MTU, NIC_SPEEDUP, Wan
from fedrdma_fate.bench.wan.shaping import parse_cross_traffic, parse_policer, parse_rate_trace
from fedrdma_fate.quantities import parse_loss, parse_rate, parse_size, parse_time
from tests.support.repository import ROOT

PROGRAMS = ROOT / "tests" / "nic" / "programs"
MOST_MEMORY = "2500MB"
"""What the guest of the largest test has."""
PATIENCE = 4.0
"""How much longer a run may take on a machine that does something else as well; only a run that hangs takes longer."""


class TimedOutError(Exception):
    """The run was stopped; carries what the hosts had printed until then."""

    def __init__(self, results: list[HostResult]) -> None:
        super().__init__(f"stopped; so far: {results}")
        self.results = results


@dataclasses.dataclass(frozen=True, slots=True)
class HostResult:
    """What a host's program printed and how it ended; the status is None where it did not.

    Attributes:
        lost: packets that it sent and the WAN lost.
        overflowed: packets for it that the bottleneck's buffer could not hold.
        policed: packets for it that the policer had no tokens for.
        queued: most bytes seen in the bottleneck's buffer in front of it, window by window, where they were watched.
    """

    stdout: str
    stderr: str
    exit_status: int | None
    lost: int = 0
    overflowed: int = 0
    policed: int = 0
    queued: tuple[int, ...] = ()


def why_no_testbed() -> str | None:
    """Why guests cannot be booted, or verbs not be used in them, on this machine; None when they can."""
    missing = missing_tools()
    if missing:
        return f"no testbed: needs the Debian packages {', '.join(sorted(set(missing.values())))}"
    try:
        find_kernel("nic")
        find_place(parse_size(MOST_MEMORY))
    except TestbedError as error:
        return f"no testbed: {error.message}"
    try:
        import pyverbs.device  # noqa: F401  only an import tells
    except ImportError as error:
        return f"no pyverbs: {error}"
    return None


def program(name: str, *arguments: object) -> list[str]:
    """The command that runs a program of tests/nic/programs with this Python."""
    return [sys.executable, str(PROGRAMS / name), *map(str, arguments)]


def run_on_hosts(
    command: Sequence[str],
    *,
    on: Mapping[int, Sequence[str]] | None = None,
    hosts: int = 2,
    rate: str | None = None,
    rate_trace: str | None = None,
    nic_rate: str | None = None,
    rtt: str = "0",
    loss: str = "0",
    jitter: str = "0",
    reorder: bool = False,
    burst: float = 1.0,
    policer: str | None = None,
    cross: str | None = None,
    back_rate: str | None = None,
    back_loss: str | None = None,
    buffer: str | None = None,
    mtu: int = DEFAULT_MTU,
    seed: int = 1,
    virtual_time: bool = False,
    kernel: str = "nic",
    memory: str = "2GiB",
    timeout: float = 100.0,
    silence: float = math.inf,
    output: Path | None = None,
    environment: Mapping[str, str] | None = None,
    at: Sequence[str] = (),
    host: Sequence[str] = (),
    watch_queues: bool = False,
) -> list[HostResult]:
    """Run a command on every host of a fresh testbed, at the same time, to the end.

    Args:
        on: other commands for some of the hosts.
        rate, nic_rate, rtt, loss, jitter, burst, policer, cross, back_rate, back_loss, buffer, memory: as
            `scripts/testbed run` takes them.
        rate_trace: in place of a rate; what a file of it holds.
        reorder: packets overtake each other by the jitter.
        timeout: seconds of wall time that it takes at most where nothing else runs; PATIENCE times as many are allowed.
        silence: seconds without a line from any program after which the run is stopped as well.
        output: directory that the programs find as $TESTBED_OUT.
        environment: variables on top of this process's own.
        at: changes of the WAN, as `scripts/testbed run --at` takes them.
        host: links of single hosts, as `scripts/testbed run --host` takes them.
        watch_queues: find out how full the bottlenecks' buffers get.

    Returns:
        One result a host, in their order.

    Raises:
        TimedOutError: the programs did not end in time.
        TestbedError: the testbed failed.
    """
    trace = parse_rate_trace(rate_trace) if rate_trace else None
    link_rate = trace.highest_bps if trace else parse_rate(rate) if rate else None
    nic = parse_rate(nic_rate) if nic_rate else (link_rate * NIC_SPEEDUP if link_rate else None)
    wan = Wan(
        rate=link_rate,
        trace=trace,
        nic_rate=nic,
        rtt_ns=parse_time(rtt),
        loss=parse_loss(loss),
        jitter_ns=parse_time(jitter),
        reorders=reorder,
        burst_packets=burst,
        policer=parse_policer(policer) if policer else None,
        back_rate=parse_rate(back_rate) if back_rate else None,
        back_loss=parse_loss(back_loss) if back_loss else None,
        buffer_bytes=parse_size(buffer) if buffer else DEFAULT_BUFFER_BYTES,
        mtu=mtu,
        seed=seed,
        exact=virtual_time,
        own=tuple(parse_host_link(link) for link in host),
    )
    run = Run(
        commands=tuple(tuple((on or {}).get(host, command)) for host in range(hosts)),
        wan=wan,
        kernel=find_kernel(kernel),
        virtual_time=virtual_time,
        memory_bytes=parse_size(memory),
        timeout=timeout * PATIENCE,
        silence=silence,
        output=output,
        environment={"PYTHONPATH": str(ROOT), **os.environ, **(environment or {})},
        changes=tuple(parse_change(change) for change in at),
        cross=parse_cross_traffic(cross) if cross else None,
        watch_queues=watch_queues,
    )
    printed: dict[tuple[int, str], str] = defaultdict(str)

    def keep(host: int, stream: str, text: str) -> None:
        printed[host, stream] += text

    outcome = execute(run, keep)
    results = [
        HostResult(
            printed[host, "stdout"],
            printed[host, "stderr"],
            outcome.statuses.get(host),
            outcome.lost.get(host, 0),
            outcome.overflowed.get(host, 0),
            outcome.policed.get(host, 0),
            tuple(size for _, size in outcome.queues.get(host, ())),
        )
        for host in range(hosts)
    ]
    if outcome.timed_out:
        raise TimedOutError(results)
    return results
