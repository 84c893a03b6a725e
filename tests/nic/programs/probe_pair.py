"""One of two hosts: a gateway each; host 0 probes host 1, examines itself, and prints both as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedrdma_fate.doctor.examination import Machine, examine
from fedrdma_fate.gateway.client import ask_status
from fedrdma_fate.gateway.config import parse_config
from fedrdma_fate.gateway.daemon import Gateway
from fedrdma_fate.gateway.probe_client import ask_probe

ME = int(os.environ["TESTBED_HOST"])
ADDRESSES = os.environ["TESTBED_HOSTS"].split(",")
CONTROL_PORT = 9370
READY_SECONDS = 60.0


def main() -> None:
    """Run this host's part."""
    with tempfile.TemporaryDirectory() as name, running_gateway(Path(name)) as address:
        if ME == 0:
            wait_for(lambda: any(path["up"] for path in peer_of(address)["paths"]))
            print(json.dumps(ask_probe(address, "site1", 48 << 20, 20.0)), flush=True)
            print(json.dumps([dataclasses.asdict(found) for found in examine(Machine.this(), None, address)]))
        else:
            wait_for(lambda: peer_of(address)["connected"])
            wait_for(lambda: not peer_of(address)["connected"])


@contextlib.contextmanager
def running_gateway(home: Path) -> Iterator[str]:
    """A gateway over verbs, on a loop in a thread; the address of its socket."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    other = 1 - ME
    socket = f"unix://{home}/g.sock"
    listen = {"control": f"{ADDRESSES[ME]}:{CONTROL_PORT}", "data": f"{ADDRESSES[ME]}:0", "grpc": f"{ADDRESSES[ME]}:0"}
    address = f"{ADDRESSES[other]}:{CONTROL_PORT}" if ME == 0 else None
    config = {
        "site": f"site{ME}",
        "parties": [f"guest:{ME}"],
        "security": "off",
        "listen": {**listen, "socket": socket},
        "transport": "verbs",
        "memory": {"send_bytes": "32MiB", "receive_bytes": "32MiB", "spill_directory": str(home / "spill")},
        "peers": [{"site": f"site{other}", "parties": [f"guest:{other}"], "address": address}],
    }

    async def start() -> Gateway:
        gateway = Gateway(parse_config(config))
        await gateway.start()
        return gateway

    gateway = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    try:
        yield socket
    finally:
        asyncio.run_coroutine_threadsafe(gateway.stop(), loop).result(60)


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
