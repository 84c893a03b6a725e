"""Gateways as processes of their own, one for each silo of a test, on loopback."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedrdma_fate.client.client import ask_status
from fedrdma_fate.wire.errors import GatewayError
from tests.support.certificates import TestAuthority
from tests.support.ports import ports_of_this_process
from tests.support.shared_memory import room_for_regions
from tests.support.traces import trace_events

PartyTuple = tuple[str, str]

_READY_SECONDS = 120.0
"""For gateways to import what they need, and to find each other: on two cores at load 20 that took more than 30 s."""


@dataclasses.dataclass(frozen=True)
class Silos:
    """Running gateways.

    Attributes:
        directory: configurations, logs and traces.
        sockets: unix sockets; its path is short, as theirs must be.
        parties: one silo for each.
    """

    directory: Path
    sockets: Path
    parties: Sequence[PartyTuple]

    def address(self, party: PartyTuple) -> str:
        """Where tasks of a party find their gateway."""
        return f"unix://{self.sockets}/{_site(party)}.sock"

    @property
    def addresses(self) -> dict[str, str]:
        """All of them, by `role:party`."""
        return {":".join(party): self.address(party) for party in self.parties}

    def status(self, party: PartyTuple) -> dict[str, Any]:
        """The status document of a party's gateway."""
        return ask_status(self.address(party))

    def events(self, name: str) -> list[dict[str, Any]]:
        """The trace events of this name, of all gateways."""
        traces = self.directory.glob("*/trace.jsonl")
        return [event for trace in traces for event in trace_events(trace) if event["event"] == name]

    def delivered(self) -> Counter[tuple[str, ...]]:
        """What was delivered: (session, name, tag, source, destination, bytes), with how often."""
        keys = ("session", "name", "tag", "source", "destination", "bytes")
        return Counter(tuple(str(event[key]) for key in keys) for event in self.events("delivered"))

    def pushed(self) -> Counter[tuple[str, ...]]:
        """What tasks pushed, in the same form, once for each destination."""
        return Counter(
            (*(str(event[key]) for key in ("session", "name", "tag", "source")), destination, str(event["bytes"]))
            for event in self.events("put")
            for destination in event["destinations"]
        )


@contextlib.contextmanager
def running_gateways(directory: Path, parties: Sequence[PartyTuple], **settings: Any) -> Iterator[Silos]:
    """Start a gateway for each party, and stop them by their process ids.

    Args:
        directory: for configurations, logs and traces.
        parties: who gets a silo.
        settings: keys of the gateways' configuration, over the defaults of the tests.

    Raises:
        AssertionError: they did not find each other, with their logs.
    """
    with tempfile.TemporaryDirectory(prefix="fr") as sockets, contextlib.ExitStack() as stack:
        silos = Silos(directory, Path(sockets), tuple(parties))
        authority = TestAuthority(directory / "tls")
        for party in parties:
            authority.issue(_site(party))
        ports = dict(zip(parties, ports_of_this_process(len(parties)), strict=True))
        processes = [stack.enter_context(_gateway(silos, party, ports, settings)) for party in parties]
        # all at once, so that none waits for another's farewell
        stack.callback(lambda: [process.send_signal(signal.SIGINT) for process in processes])
        _wait_until_connected(silos, processes)
        yield silos


@contextlib.contextmanager
def _gateway(
    silos: Silos, party: PartyTuple, ports: dict[PartyTuple, int], settings: dict[str, Any]
) -> Iterator[subprocess.Popen[bytes]]:
    home = silos.directory / _site(party)
    home.mkdir(parents=True)
    config = home / "gateway.yaml"
    config.write_text(yaml.safe_dump({**_defaults(silos, party, ports), **settings}))
    command = [sys.executable, "-m", "fedrdma_fate.cli.main", "gateway", "--config", str(config)]
    with (home / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


def _defaults(silos: Silos, party: PartyTuple, ports: dict[PartyTuple, int]) -> dict[str, Any]:
    home = silos.directory / _site(party)
    return {
        "site": _site(party),
        "parties": [":".join(party)],
        "tls": {
            "certificate": str(silos.directory / "tls" / f"{_site(party)}.pem"),
            "key": str(silos.directory / "tls" / f"{_site(party)}.key"),
            "authorities": [str(silos.directory / "tls" / "authority.pem")],
        },
        "listen": {"control": f"127.0.0.1:{ports[party]}", "data": "127.0.0.1:0", "socket": silos.address(party)},
        "memory": {
            "directory": str(room_for_regions()),
            "send_bytes": "32MiB",
            "receive_bytes": "64MiB",
            "ring_slots": 2,
            "ring_slot_bytes": "1MiB",
            "spill_directory": str(home / "spill"),
        },
        "peers": [
            {"site": _site(other), "parties": [":".join(other)], "address": f"127.0.0.1:{ports[other]}"}
            for other in silos.parties
            if other != party
        ],
        "trace": str(home / "trace.jsonl"),
    }


def _site(party: PartyTuple) -> str:
    return "-".join(party)


def _wait_until_connected(silos: Silos, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not all(_is_connected(silos, party) for party in silos.parties):
        ended = [process.args for process in processes if process.poll() is not None]
        if ended or time.monotonic() > deadline:
            logs = {str(log): log.read_text()[-1500:] for log in silos.directory.glob("*/log")}
            raise AssertionError(f"the gateways did not find each other; ended: {ended}; logs: {logs}")
        time.sleep(0.05)


def _is_connected(silos: Silos, party: PartyTuple) -> bool:
    try:
        peers = silos.status(party)["peers"]
    except GatewayError:
        return False
    return all(peer["connected"] for peer in peers)
