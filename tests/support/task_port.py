"""Gateways of which one listens for tasks on other hosts, and what such tasks have."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from fedrdma_fate.client.access import TaskAccess
from fedrdma_fate.client.client import GatewayClient
from tests.support.certificates import TestAuthority
from tests.support.ports import ports_of_this_process
from tests.support.sites import READY_SECONDS, InThread, Runner, Sites, linked_sites, party

SECRET = "5ec2e7" * 8
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}


@dataclasses.dataclass(frozen=True)
class TaskPorts:
    """Running sites, each with a port for tasks.

    Attributes:
        sites: by name.
        access: what tasks on other hosts have, by site.
        files: where that lies.
    """

    sites: Sites
    access: Mapping[str, TaskAccess]
    files: Mapping[str, Path]

    def task(self, site: str = "a", session: str = "s", **changes: str) -> GatewayClient:
        """A task on another host, by its first party; changes are of its access."""
        return GatewayClient(
            "unix:///nowhere/gateway.sock",
            session,
            party(str(self.sites[site].config["parties"][0])),
            connect_timeout=READY_SECONDS if not changes else 1.0,
            brief=True,
            access=msgspec.structs.replace(self.access[site], **changes),
        )

    def status(self, site: str = "a") -> dict[str, object]:
        """What the status says of the port."""
        found: dict[str, object] = self.sites[site].status()["tasks_port"]
        return found


def write_access(access: TaskAccess, path: Path) -> None:
    """As `fedrdma access` does."""
    path.touch(0o600)
    path.write_bytes(msgspec.json.encode(access))


@contextlib.contextmanager
def task_ports(
    directory: Path, runner: Runner | None = None, layout: Mapping[str, Sequence[str]] = LAYOUT, **settings: object
) -> Iterator[TaskPorts]:
    """Sites with certificates that listen for tasks on other hosts.

    Args:
        directory: for their files.
        runner: where they run; by default in this process.
        layout: the parties of each.
        **settings: of their configuration.
    """
    authority = TestAuthority(directory / "certificates")
    with tempfile.TemporaryDirectory(prefix="fr") as sockets:
        sites = linked_sites(layout, directory, Path(sockets), authority=authority, **settings)
        access, files = {}, {}
        for (name, site), port in zip(sites.items(), ports_of_this_process(len(sites)), strict=True):
            address = f"127.0.0.1:{port}"
            access[name] = TaskAccess(address, name, SECRET, authority.path.read_text())
            files[name] = directory / f"{name}-access.json"
            write_access(access[name], files[name])
            site.config["listen"]["tasks"] = address
            site.config["tasks_access"] = str(files[name])
        with Sites.running(sites, runner or InThread()) as running:
            running.wait_until_connected()
            yield TaskPorts(running, access, files)


def certificate_of(directory: Path, site: str) -> TestAuthority:
    """Another authority, with a certificate for a site of that name."""
    other = TestAuthority(directory, "other")
    other.issue(site)
    return other


def in_a_process_without_the_socket(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, as a worker on another host would; paths of sockets lead nowhere there."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "FEDRDMA_FATE_DISABLE": "1"},
    )
