"""A job of three silos whose gateways are killed at random and started again: it ends by itself, with its model.

For longer: `scripts/test --only fate -- -k killed_gateways --kills 200 --kills-seed 7`.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.averaging_job import EVERYBODY, SILENCE_SECONDS, model_after
from tests.support.repository import ROOT
from tests.support.sites import InProcesses, Sites, eventually, log_of, runner_of, start_gateways

pytestmark = pytest.mark.fate

START_SECONDS = 600.0
"""For a gateway to start, and until the first round: three processes import FATE, which takes minutes on a machine that
does other things."""
LONGEST_PAUSE_SECONDS = 1.0
"""Between two kills: a round takes about as long."""
MEMORY = {"send_bytes": "64MiB", "receive_bytes": "64MiB", "ring_slots": 2, "ring_slot_bytes": "2MiB"}


@contextlib.contextmanager
def job(sites: Sites, session: str, directory: Path) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """The processes of the parties, by site."""
    with contextlib.ExitStack() as undo:
        running = {}
        for role, number in EVERYBODY:
            place = directory / f"tasks-{role}"
            place.mkdir()
            name = f"{role}-{number}"
            command = [sys.executable, "-m", "tests.support.averaging_job", role, sites[name].address, session]
            log = undo.enter_context((place / "log").open("w"))
            process = subprocess.Popen([*command, str(place)], cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
            undo.callback(process.wait)
            undo.callback(process.kill)
            running[name] = process
        yield running


def outcome(process: subprocess.Popen[str], log: Path) -> list[str]:
    """What a party's process has said it came to."""
    said, _ = process.communicate(timeout=2 * SILENCE_SECONDS)
    assert process.returncode == 0, log.read_text()[-3000:]
    (line,) = [line for line in said.splitlines() if line.startswith("came to ")]
    return line.split()[2:]


def kill_and_restart(sites: Sites, chance: random.Random, kills: int, processes: dict[str, Any]) -> Counter[str]:
    """Kill gateways at random moments; how often each was."""
    killed: Counter[str] = Counter()
    for _ in range(kills):
        time.sleep(chance.random() * LONGEST_PAUSE_SECONDS)
        ended = {name: process.returncode for name, process in processes.items() if process.poll() is not None}
        assert not ended, f"ended after {killed.total()} kills: {ended}"
        name = chance.choice(sorted(processes))
        runner_of(sites).kill(sites[name])
        runner_of(sites).start(sites[name])
        killed[name] += 1
    return killed


@pytest.mark.timeout(0)
def test_a_job_whose_gateways_are_killed_at_random_moments_ends_by_itself_with_the_same_model(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    kills, seed = pytestconfig.getoption("kills"), pytestconfig.getoption("kills_seed")
    layout = {f"{role}-{number}": [f"{role}:{number}"] for role, number in EVERYBODY}
    with start_gateways(
        layout, tmp_path / "gateways", runner=InProcesses(START_SECONDS), memory=MEMORY, mode="fedrdma-e"
    ) as sites:
        idle = {name: (site.pool("send")["slots"], site.standing_grants(2)) for name, site in sites.items()}
        with job(sites, "killed", tmp_path) as processes:
            # each of them has begun
            eventually(lambda: any(event["name"] == "loss 0" for event in _delivered(sites)), START_SECONDS)
            began = time.monotonic()
            killed = kill_and_restart(sites, random.Random(seed), kills, processes)
            seconds = time.monotonic() - began
            (tmp_path / "tasks-arbiter" / "stop").touch()
            said = {
                name: outcome(process, tmp_path / f"tasks-{name.split('-')[0]}" / "log")
                for name, process in processes.items()
            }
        rounds, digest = int(said["arbiter-1"][0]), said["arbiter-1"][1]
        assert {int(each[0]) for each in said.values()} == {rounds}
        assert digest == model_after(rounds)
        # what is lent, and not pulled, lies with its sender: the next run is told of it anew, and tells so
        moved = [event for event in _delivered(sites) if event["mode"] != "lent"]
        doubled = [key for key, count in Counter(map(_key, moved)).items() if count > 1]
        print(f"\n{kills} kills {dict(killed)} in {seconds:.0f} s, seed {seed}: {rounds} rounds, model as without")
        assert doubled == []
        for name, site in sites.items():
            eventually(lambda site=site: site.status()["mailbox"]["messages"] == 0)
            eventually(lambda site=site, name=name: site.pool("send")["slots"] == idle[name][0])
            eventually(lambda site=site: site.pool("receive")["slots"] <= site.standing_grants(2) + 2)
            assert "Traceback" not in log_of(site)


def _delivered(sites: Sites) -> list[dict[str, Any]]:
    return [event for site in sites.values() for event in site.events("delivered")]


def _key(event: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(event[part]) for part in ("session", "name", "tag", "source", "destination"))
