"""FATE's own federations by a broker that runs already, in the program `exchange`: rounds by OSX, and none there."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from fedrdma_fate.bench.ports import free_ports
from fedrdma_fate.bench.protocols.running import RunningBroker
from tests.support.osx_broker import stand_in
from tests.support.repository import ROOT

fate_running = pytest.importorskip(
    "deploy.softroce.programs.exchange.fate_running", exc_type=ImportError, reason="FATE is missing"
)

SIZE = 1_200_000
"""Bytes of a model: two of FATE's slices."""
PATIENCE_SECONDS = 240.0

pytestmark = [pytest.mark.fate, pytest.mark.timeout(600)]


def by_osx(port: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    asked = ["--loopback", "--silos", "2", "--model", str(SIZE), "--rows", "fate-osx", "--osx", f"127.0.0.1:{port}"]
    command = [sys.executable, "-m", "fedrdma_fate.cli.main", "bench", "protocols", *asked, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, cwd=ROOT)


@pytest.mark.sweep
def test_models_go_by_fate_s_own_osx_federation_through_a_broker_that_runs() -> None:
    (port,) = free_ports(1)
    with stand_in(("0", "1", "2"), {}, port) as broker:
        done = by_osx(port, "--rounds", "2", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert (len(row["rounds"]), row["missing_bytes"]) == (2, 0)
    assert "its CPU time and memory are not counted" in done.stderr
    assert len({session for session, _ in broker.queues}) == 1
    assert all(waiting.empty() for waiting in broker.queues.values()), "every byte was taken"


@pytest.mark.sweep
def test_a_broker_that_is_no_osx_fails_the_row_with_the_host_that_found_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        # it takes connections and ends them
        threading.Thread(target=_end_each, args=(nobody,), daemon=True).start()
        done = by_osx(nobody.getsockname()[1], "--rounds", "1")
    assert done.returncode == 1
    assert "fate-osx was not measured: host" in done.stderr


def _end_each(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            server.accept()[0].close()


@pytest.mark.parametrize("protocol", ["fate-osx", "fate-pulsar"])
def test_fate_is_told_where_the_broker_is_and_nothing_of_routes(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    told: list[dict[str, Any]] = []

    # FATE has computed with it before anything goes by gRPC
    computing = MagicMock()

    def from_conf(session: str, _: object, me: object, everyone: object, *where: Any, **more: Any) -> str:
        told.append({"session": session, "me": me, "everyone": everyone, "where": where, **more})
        return "a federation"

    for module, name in (("osx", "OSXFederation"), ("pulsar", "PulsarFederation")):
        fake = SimpleNamespace(**{name: SimpleNamespace(from_conf=from_conf)})
        monkeypatch.setitem(sys.modules, f"fate.arch.federation.backends.{module}", fake)
    everyone = [("arbiter", "0"), ("host", "1")]
    way = fate_running.ByRunning(protocol, "s", RunningBroker("broker.site-a", 6650, 8081))
    assert way.federation(computing, everyone[1], everyone) == "a federation"
    (one,) = told
    assert (one["session"], one["me"], one["everyone"]) == ("s", ("host", "1"), everyone)
    assert bool(computing.parallelize.called) == (protocol == "fate-osx")
    if protocol == "fate-osx":
        assert one["where"] == ("broker.site-a", 6650)
    else:
        assert (one["host"], one["port"], one["mng_port"], one["mode"]) == ("broker.site-a", 6650, 8081, "client")
