"""A gateway whose control group has no memory left: the kernel kills it, or its keeper, and no message is lost."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.soak.runner import LAYOUT, QUIET_SECONDS, SETTINGS, START_SECONDS, Soak, held_by
from tests.support.memory_group import MemoryGroup, memory_group
from tests.support.sites import InProcesses, Site, Sites, eventually, start_gateways

ROUNDS = 6
"""After each kill."""

MOST_ROUNDS = 1000
KILLS = 2
KILL_SECONDS = 120.0


class InMemoryGroup(InProcesses):
    """Gateway b has a control group of its own."""

    def __init__(self, group: MemoryGroup) -> None:
        super().__init__(START_SECONDS)
        self._group = group

    def command(self, site: Site) -> list[str]:
        command = super().command(site)
        return self._group.command(*command) if site.name == "b" else command


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    with memory_group() as made:
        yield made


@contextlib.contextmanager
def running(directory: Path, group: MemoryGroup) -> Iterator[Sites]:
    with start_gateways(LAYOUT, directory, runner=InMemoryGroup(group), transport="tcp", **SETTINGS) as sites:
        yield sites


def run_out(sites: Sites, group: MemoryGroup) -> None:
    """Let the kernel kill one of the processes of b; who was the gateway is started again."""
    killed, runner = group.killed, sites.runner
    assert isinstance(runner, InProcesses)
    process = runner.processes["b"]
    ends = time.monotonic() + KILL_SECONDS
    while group.killed == killed:
        # what it gave back meanwhile it may use again, so anew
        group.cut_short()
        time.sleep(0.02)
        assert time.monotonic() < ends, "nothing was killed"
    group.free()
    # the keeper may have been killed, and the gateway starts another one
    with contextlib.suppress(AssertionError):
        eventually(lambda: process.poll() is not None, 2)
    if process.poll() is not None:
        runner.processes.pop("b")
        runner.start(sites["b"])


def rounds_until(killed: threading.Event, soak: Soak, first: int) -> None:
    """Rounds while the memory is being cut short, and some more after that."""
    left = ROUNDS
    for number in range(first, first + MOST_ROUNDS):
        left -= killed.is_set()
        if left < 0 or soak.outcome.wrong:
            return
        soak._round(number)


@pytest.mark.timeout(400)
def test_every_message_comes_once_though_the_kernel_kills_for_want_of_memory(
    tmp_path: Path, group: MemoryGroup
) -> None:
    with running(tmp_path, group) as sites, ThreadPoolExecutor(1) as pool:
        soak = Soak(sites, None, seed=3, settle_seconds=0.0)
        # sessions may be told of it, and begin anew
        soak._struck = True
        for kill in range(KILLS):
            killed = threading.Event()
            done = pool.submit(rounds_until, killed, soak, kill * MOST_ROUNDS)
            try:
                run_out(sites, group)
            finally:
                killed.set()
            done.result(KILL_SECONDS)
        assert soak.outcome.wrong == []
        assert soak.outcome.rounds >= KILLS * ROUNDS
        assert group.killed >= KILLS
        soak._quiet(soak.outcome.rounds)
        for site in sites.values():
            eventually(lambda site=site: not held_by(site), QUIET_SECONDS)  # type: ignore[misc]
