"""A gateway that has no descriptor left for another connection: it says so once, does not spin, and goes on."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedrdma_fate.client import connections
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.unix_sockets import address_of
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.support.ports import ports_of_this_process
from tests.support.sites import InProcesses, Site, Sites, eventually, linked_sites, party

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
CONNECTIONS = 100
DIAL_SECONDS = 0.5
WATCHED_SECONDS = 4.0
MOST_CPU_SHARE = 0.25
"""Of a core, on machines with other load, too; a gateway that asks again and again takes all of one."""
MOST_LOG_BYTES_A_SECOND = 2**20 / 60
FEWEST_DESCRIPTORS = 12
"""`poll` refuses to wait for more descriptors than the limit: a link waits for its own few, and those go on."""


def dial_control(site: Site) -> socket.socket:
    host, _, port = site.config["listen"]["control"].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=DIAL_SECONDS)


def dial_metrics(site: Site) -> socket.socket:
    host, _, port = site.config["listen"]["metrics"].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=DIAL_SECONDS)


def dial_tasks(site: Site) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(DIAL_SECONDS)
    try:
        with address_of(Path(site.address.removeprefix("unix://"))) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


DOORS: dict[str, Callable[[Site], socket.socket]] = {
    "listen.control": dial_control,
    "listen.socket": dial_tasks,
    "listen.metrics": dial_metrics,
}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    """The process can open nothing more, for a while."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # lower than what it has open already: what it closes meanwhile gives nothing back
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (FEWEST_DESCRIPTORS, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def running(directory: Path) -> Iterator[tuple[Sites, InProcesses]]:
    runner = InProcesses()
    with tempfile.TemporaryDirectory(prefix="fr") as sockets:
        sites = linked_sites(LAYOUT, directory, Path(sockets))
        sites["b"].config["listen"]["metrics"] = f"127.0.0.1:{ports_of_this_process(1)[0]}"
        with Sites.running(sites, runner) as running_sites:
            running_sites.wait_until_connected()
            yield running_sites, runner


def complaints_of(site: Site) -> str:
    with urllib.request.urlopen(f"http://{site.config['listen']['metrics']}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def exchange(a: GatewayClient, b: GatewayClient, name: str) -> None:
    """A small message, which needs no descriptor."""
    a.put_inline(name, "t", [party("host:2")], "bytes", b"small")
    assert bytes(b.get(name, "t", party("guest:1"), timeout=10).buffer) == b"small"


@pytest.mark.parametrize("door", DOORS)
def test_connections_for_which_there_is_no_descriptor_wait_and_are_complained_of_once(
    tmp_path: Path, door: str
) -> None:
    with running(tmp_path) as (sites, runner), contextlib.ExitStack() as stack:
        b, pid = sites["b"], runner.processes["b"].pid
        log = b.home / "log"
        a_task, b_task = stack.enter_context(sites["a"].client()), stack.enter_context(b.client())
        exchange(a_task, b_task, "before")
        before = log.stat().st_size
        with without_descriptors(pid), contextlib.ExitStack() as dialled:
            used, began = cpu_seconds(pid), time.monotonic()
            # until the kernel takes no more of them
            with contextlib.suppress(OSError):
                for _ in range(CONNECTIONS):
                    dialled.enter_context(DOORS[door](b))
            told = f"`{door}` cannot be accepted"
            eventually(lambda: told in log.read_text())
            time.sleep(max(0.0, WATCHED_SECONDS - (time.monotonic() - began)))
            share = (cpu_seconds(pid) - used) / (time.monotonic() - began)
            # who is there already notices nothing
            exchange(a_task, b_task, "meanwhile")
            grown, said = log.stat().st_size - before, log.read_text()
        assert share < MOST_CPU_SHARE, f"{share:.2f} of a core"
        assert "Traceback" not in said
        assert said.count(told) == 1
        assert grown < MOST_LOG_BYTES_A_SECOND * WATCHED_SECONDS
        # there are descriptors again: so is everything else
        eventually(lambda: b.status()["site"] == "b")
        counted = [
            line
            for line in complaints_of(b).splitlines()
            if "_total" in line and "cannot accept" in line and f'"{door}"' in line
        ]
        assert len(counted) == 1
        assert float(counted[0].rpartition(" ")[2]) > 1


def test_a_task_for_which_the_gateway_has_no_descriptor_is_told_and_gets_in_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "ATTACH_SECONDS", 0.5)
    with running(tmp_path) as (sites, runner):
        with without_descriptors(runner.processes["b"].pid), pytest.raises(GatewayError) as caught:
            sites["b"].client()
        assert caught.value.code is ErrorCode.GATEWAY_UNREACHABLE
        monkeypatch.undo()
        sites["b"].client().close()
