"""Gateways for tests: sites with temporary directories and free loopback ports, in this process or in their own."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml

from fedrdma_fate.client.client import GatewayClient, ask_status
from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.gateway.daemon import Gateway
from fedrdma_fate.wire.errors import GatewayError
from fedrdma_fate.wire.frames import ControlFrame, Mode, Party
from tests.support.certificates import TestAuthority
from tests.support.ports import ports_of_this_process
from tests.support.shared_memory import room_for_regions
from tests.support.traces import trace_events

Result = TypeVar("Result")

READY_SECONDS = 30.0

PROCESS_READY_SECONDS = 120.0
"""For a process to import what a gateway needs, which took more than 30 s at load 25, and to stop."""

POLL_SECONDS = 0.005

SMALL = {"send_bytes": "8MiB", "receive_bytes": "8MiB", "ring_slots": 2, "ring_slot_bytes": "256KiB"}
"""Memory that is quick to fault in."""


def eventually(holds: Callable[[], Result], seconds: float = 10.0) -> Result:
    """Wait until something is true; what it was then.

    Raises:
        AssertionError: it was not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not (result := holds()):
        assert time.monotonic() < deadline, f"{holds} did not come true within {seconds:g} s, but stayed {result!r}"
        time.sleep(POLL_SECONDS)
    return result


def party(text: str) -> Party:
    """`role:id` as a party."""
    role, _, party_id = text.partition(":")
    return Party(role, party_id)


@dataclasses.dataclass(frozen=True)
class Site:
    """A site that may be running.

    Attributes:
        name: of the site.
        home: configuration, trace, log, spilled messages.
        config: what the configuration file says.
    """

    name: str
    home: Path
    config: dict[str, Any]

    @property
    def address(self) -> str:
        """Where tasks find the gateway."""
        return str(self.config["listen"]["socket"])

    @property
    def config_file(self) -> Path:
        """The configuration, written anew."""
        path = self.home / "gateway.yaml"
        path.write_text(yaml.safe_dump(self.config))
        return path

    def client(self, session: str = "s", of: str | None = None, *, mode: Mode | None = None) -> GatewayClient:
        """A task of a party of this site, by default of the first."""
        return GatewayClient(
            self.address, session, party(of or self.config["parties"][0]), mode=mode, connect_timeout=READY_SECONDS
        )

    def status(self) -> dict[str, Any]:
        """The status document."""
        return ask_status(self.address)

    def events(self, event: str) -> list[dict[str, Any]]:
        """Trace events of that name."""
        return [entry for entry in trace_events(self.home / "trace.jsonl") if entry["event"] == event]

    def standing_grants(self, ring_slots: int) -> int:
        """The most receive slots that may be granted ahead of time now: the rings, and one each for `fedrdma-x`."""
        paths = sum(len(peer["paths"]) for peer in self.status()["peers"])
        ahead = "fedrdma-x" in (self.config.get("mode"), *(event["mode"] for event in self.events("delivered")))
        return paths * (ring_slots + ahead)

    def pool(self, name: str) -> dict[str, Any]:
        """A pool as the status shows it."""
        return next(pool for pool in self.status()["pools"] if pool["name"] == name)

    def connected(self) -> bool:
        """Whether every peer is connected, and every data path up."""
        try:
            peers = self.status()["peers"]
        except GatewayError:
            return False
        return all(peer["connected"] and any(path["up"] for path in peer["paths"]) for peer in peers)


def gateway_site(
    name: str,
    parties: Sequence[str],
    *,
    home: Path,
    sockets: Path,
    port: int,
    peers: Sequence[Mapping[str, Any]] = (),
    **settings: Any,
) -> Site:
    """A site on loopback.

    Args:
        name: of the site.
        parties: served there, as `role:id`.
        home: directory for its files.
        sockets: directory with a short path for its unix socket.
        port: of its control channel.
        peers: as in the configuration.
        **settings: other keys of the configuration; those of a section are merged into it.
    """
    home.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "site": name,
        "parties": list(parties),
        "security": "off",
        "transport": "tcp",
        # what is lent takes no data path, which most tests are about
        "shm": {"lend": False},
        "listen": {"control": f"127.0.0.1:{port}", "socket": f"unix://{sockets}/{name}.sock"},
        "memory": {**SMALL, "directory": str(room_for_regions()), "spill_directory": str(home / "spill")},
        "timeouts": {"idle": 20.0, "connect": 5.0, "drain": 2.0},
        "peers": [dict(peer) for peer in peers],
        "trace": str(home / "trace.jsonl"),
    }
    for key, value in settings.items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, Mapping) else copy.deepcopy(value)
    return Site(name, home, config)


def linked_sites(
    layout: Mapping[str, Sequence[str]],
    directory: Path,
    sockets: Path,
    strangers: Sequence[Mapping[str, Any]] = (),
    authority: TestAuthority | None = None,
    of_site: Callable[[str], Mapping[str, Any]] = lambda _name: {},
    **settings: Any,
) -> dict[str, Site]:
    """Sites that all know each other, by name.

    Args:
        layout: the parties of each site.
        directory: for their files.
        sockets: directory with a short path.
        strangers: peers that do not run, known to all.
        authority: gives every site a certificate; without, `security` is off.
        of_site: further settings of one, by its name; also the parties that it says it has, where they are others.
        **settings: see `gateway_site`.
    """
    ports = dict(zip(layout, ports_of_this_process(len(layout)), strict=True))
    sites = {
        name: gateway_site(
            name,
            home=directory / name,
            sockets=sockets,
            port=ports[name],
            peers=[
                {"site": other, "parties": list(layout[other]), "address": f"127.0.0.1:{ports[other]}"}
                for other in layout
                if other != name
            ]
            + [dict(stranger) for stranger in strangers],
            **{"parties": parties, **settings, **of_site(name)},
        )
        for name, parties in layout.items()
    }
    if authority is not None:
        for name, site in sites.items():
            authority.issue(name)
            site.config.update(security="mtls", tls=authority.settings(name))
    return sites


class Runner(Protocol):
    """Runs sites."""

    def start(self, site: Site) -> None:
        """Start a gateway; returns when tasks can attach."""
        ...

    def stop(self, site: Site) -> None:
        """Stop it in order."""
        ...

    def stop_all(self) -> None:
        """Stop all that run."""
        ...


class InThread:
    """Runs gateways in this process, on an event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gateways", daemon=True)
        self._thread.start()
        self.gateways: dict[str, Gateway] = {}

    def start(self, site: Site) -> None:
        """Start a gateway."""
        self.gateways[site.name] = self.run(self._start(site))

    def stop(self, site: Site) -> None:
        """Stop it in order."""
        self.run(self.gateways.pop(site.name).stop())

    def stop_all(self) -> None:
        """Stop all that run, and the loop."""
        try:
            for gateway in list(self.gateways.values()):
                self.run(gateway.stop())
        finally:
            self.gateways.clear()
            self.run(self._loop.shutdown_default_executor())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, Result], timeout: float = 30.0) -> Result:
        """Run something on the gateways' loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def tell(self, site: str, other: str, frame: ControlFrame) -> None:
        """Have a gateway send a peer of its a frame that it never would."""

        async def send() -> None:
            assembly = self.gateways[site]._assembly
            assert assembly is not None
            assert assembly.peers[other].send(frame), f"{site} is not connected to {other}"

        self.run(send())

    @staticmethod
    async def _start(site: Site) -> Gateway:
        gateway = Gateway(parse_config(site.config))
        await gateway.start()
        return gateway


class InProcesses:
    """Runs each gateway in a process of its own, by the command line."""

    def __init__(self, ready_seconds: float = PROCESS_READY_SECONDS) -> None:
        """
        Args:
            ready_seconds: for a gateway to start, and to stop.
        """
        self._ready_seconds = ready_seconds
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, site: Site) -> None:
        """Start a gateway."""
        arguments = ["gateway", "--config", str(site.config_file), "--log-level", "info"]
        with (site.home / "log").open("ab") as log:
            process = subprocess.Popen([*self.command(site), *arguments], stdout=log, stderr=log)
        self.processes[site.name] = process
        eventually(lambda: process.poll() is not None or _answers(site), self._ready_seconds)
        assert process.poll() is None, (site.home / "log").read_text()

    def command(self, site: Site) -> list[str]:
        """How `fedrdma` is called for a site."""
        del site
        return [sys.executable, "-m", "fedrdma_fate.cli.main"]

    def stop(self, site: Site, number: int = signal.SIGTERM) -> None:
        """Stop it in order: SIGTERM keeps what waits for the next run, SIGINT nothing."""
        process = self.processes.pop(site.name)
        process.send_signal(number)
        assert process.wait(self._ready_seconds) == 0, (site.home / "log").read_text()

    def kill(self, site: Site) -> None:
        """Stop it with SIGKILL."""
        process = self.processes.pop(site.name)
        process.kill()
        process.wait(self._ready_seconds)

    def signal(self, site: Site, number: int) -> None:
        """Send it a signal."""
        os.kill(self.processes[site.name].pid, number)

    def stop_all(self) -> None:
        """Stop all that run."""
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            # for good: nobody waits for what is left of a test
            process.send_signal(signal.SIGINT)
        for process in self.processes.values():
            try:
                process.wait(self._ready_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Sites(dict[str, Site]):
    """Running sites by name; stopped when the context is left.

    Attributes:
        runner: what runs them.
    """

    runner: Runner

    @classmethod
    @contextlib.contextmanager
    def running(cls, sites: Mapping[str, Site], runner: Runner) -> Iterator[Sites]:
        """Start them all."""
        made = cls(sites)
        made.runner = runner
        try:
            for site in made.values():
                runner.start(site)
            yield made
        finally:
            runner.stop_all()

    def wait_until_connected(self) -> None:
        """Return when all sites have a control channel and a data path to all others."""
        for site in self.values():
            eventually(site.connected, READY_SECONDS)


@contextlib.contextmanager
def start_gateways(
    layout: Mapping[str, Sequence[str]],
    directory: Path,
    *,
    runner: Runner | None = None,
    connected: bool = True,
    **settings: Any,
) -> Iterator[Sites]:
    """Start a gateway for each site, all of them peers of each other, and stop them in the end.

    Args:
        layout: the parties of each site, as `role:id`.
        directory: for configurations, traces and logs.
        runner: where they run; by default in this process.
        connected: wait until they have found each other.
        **settings: keys of the configuration, over the defaults of the tests.
    """
    with tempfile.TemporaryDirectory(prefix="fr") as sockets:
        sites = linked_sites(layout, directory, Path(sockets), **settings)
        with Sites.running(sites, runner or InThread()) as running:
            if connected:
                running.wait_until_connected()
            yield running


def runner_of(sites: Sites) -> InProcesses:
    """Who runs these, each in a process of its own."""
    assert isinstance(sites.runner, InProcesses)
    return sites.runner


def start_all(sites: Sites) -> None:
    """Start those that a test before has stopped or killed, and wait until all are connected."""
    for site in sites.values():
        if site.name not in runner_of(sites).processes:
            runner_of(sites).start(site)
    sites.wait_until_connected()


def log_of(site: Site) -> str:
    """What a gateway in a process of its own has logged, in all its runs."""
    return (site.home / "log").read_text()


def _answers(site: Site) -> bool:
    try:
        site.status()
    except GatewayError:
        return False
    return True
