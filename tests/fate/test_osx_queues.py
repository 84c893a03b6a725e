"""FATE's own federation for OSX, unmodified and with nothing of ours in FATE, between two gateways."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fate.conftest import GUEST, HOST
from tests.fate.jobs.over_osx import PARTIES
from tests.fate.test_component_entrypoint import engines, finish, homes, start, task_config
from tests.support.ports import ports_of_this_process
from tests.support.repository import ROOT
from tests.support.sites import InProcesses, Sites, start_gateways

pytestmark = pytest.mark.fate

SECONDS = 300
"""For whatever a loaded machine may hold up."""


ATTEMPTS = 3
"""Now and then one of FATE's workers crashes, forked beside threads of gRPC: seen once, in a run of all tests."""

LAYOUT = {"a": ["9999"], "b": ["10000"]}

# slices and tables are sent by workers that are forked from a process that uses gRPC; nothing of ours is loaded
ENVIRONMENT = {
    **os.environ,
    "GRPC_ENABLE_FORK_SUPPORT": "1",
    "GRPC_POLL_STRATEGY": "poll",
    "FEDRDMA_FATE_DISABLE": "1",
    "PYTHONPATH": str(ROOT),
}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Two gateways, as processes."""
    ports = dict(zip(LAYOUT, ports_of_this_process(len(LAYOUT)), strict=True))

    def of_site(name: str) -> dict[str, Any]:
        return {"listen": {"osx": f"127.0.0.1:{ports[name]}"}}

    home = tmp_path_factory.mktemp("sites")
    memory = {"send_bytes": "64MiB", "receive_bytes": "64MiB"}
    with start_gateways(LAYOUT, home, runner=InProcesses(), of_site=of_site, memory=memory) as running:
        yield running


def front(sites: Sites, party: tuple[str, str]) -> int:
    site = "a" if party == GUEST else "b"
    return int(sites[site].config["listen"]["osx"].rpartition(":")[2])


def test_secure_aggregation_and_a_table_of_three_parties_run_over_osx(sites: Sites, tmp_path: Path) -> None:
    parties = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.fate.jobs.over_osx", *party, str(front(sites, party)), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**ENVIRONMENT, "EXPECTED_FEDERATION": "OSXFederation"},
        )
        for party in PARTIES
    ]
    for each in parties:
        finish(each)
    # all parties have released the session
    assert [site.status()["tasks"] for site in sites.values()] == [0, 0]


def test_a_component_runs_over_osx_and_its_clean_up_releases_the_session(
    sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    sections = {
        party: {"type": "osx", "metadata": {"osx_config": {"host": "127.0.0.1", "port": front(sites, party)}}}
        for party in (GUEST, HOST)
    }
    running = []
    for party, home in homes(tmp_path).items():
        meta = ["--execution-final-meta-path", str(home / "meta.json")]
        running.append((party, home, start("execute", task_config(party, sections[party], home), home, *meta)))
    for _, home, process in running:
        finish(process)
        assert json.loads((home / "meta.json").read_text())["status"] == {"code": 0}
    for party, home, _ in running:
        finish(start("cleanup", engines(party, sections[party], home), home))
    assert [site.status()["tasks"] for site in sites.values()] == [0, 0]


def test_what_is_put_over_osx_is_what_is_got_whole_and_in_slices() -> None:
    command = [sys.executable, "-m", "tests.support.osx_queue_times", "--megabytes", "3", "--rounds", "1"]
    for _ in range(ATTEMPTS):
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, env=ENVIRONMENT, timeout=SECONDS
        )
        if "BrokenProcessPool" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    ours = [line for line in done.stdout.splitlines() if line.startswith("gateways ")]
    assert ["max_message_size=None" in line for line in ours] == [True, False]
