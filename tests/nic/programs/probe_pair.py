"""One of two hosts: a gateway each; host 0 probes host 1, examines itself, and prints both as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deploy.softroce.programs.gateways import gateway_document, running_gateway
from fedrdma_fate.client.client import ask_status
from fedrdma_fate.client.probe import ask_probe
from fedrdma_fate.doctor.examination import Machine, examine
from fedrdma_fate.wire.frames import Party

ME = int(os.environ["TESTBED_HOST"])
PARTIES = [Party("guest", "0"), Party("guest", "1")]
READY_SECONDS = 60.0


def main() -> None:
    """Run this host's part."""
    with tempfile.TemporaryDirectory() as name, running_gateway(document(Path(name))) as address:
        if ME == 0:
            wait_for(lambda: any(path["up"] for path in peer_of(address)["paths"]))
            print(json.dumps(ask_probe(address, "site1", 48 << 20, 20.0)), flush=True)
            print(json.dumps([dataclasses.asdict(found) for found in examine(Machine.this(), None, address)]))
        else:
            wait_for(lambda: peer_of(address)["connected"])
            wait_for(lambda: not peer_of(address)["connected"])


def document(home: Path) -> dict[str, Any]:
    """A gateway over verbs."""
    memory = {"send_bytes": "32MiB", "receive_bytes": "32MiB"}
    return gateway_document(home, PARTIES, transport="verbs", memory=memory)


def peer_of(address: str) -> dict[str, Any]:
    """The other site, in the gateway's status."""
    document: dict[str, Any] = ask_status(address)
    return dict(document["peers"][0])


def wait_for(holds: Callable[[], bool]) -> None:
    """Return when something is true, or much too late."""
    deadline = time.monotonic() + READY_SECONDS
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)


main()
