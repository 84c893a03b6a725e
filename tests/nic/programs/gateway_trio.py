"""One of three hosts: a gateway that takes the best transport, and a task that exchanges a payload with both others.

With a host's number as argument, that host's RDMA device is removed before its gateway starts. Prints JSON: what came
whole, and the data path to each peer with the reason for it, from the gateway's status and from its trace.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from fedrdma_fate.gateway.client import GatewayClient
from fedrdma_fate.gateway.config import parse_config
from fedrdma_fate.gateway.daemon import Gateway
from fedrdma_fate.wire.frames import Party

ME = int(os.environ["TESTBED_HOST"])
ADDRESSES = os.environ["TESTBED_HOSTS"].split(",")
PARTIES = [Party("guest", "1"), Party("host", "2"), Party("arbiter", "3")]
OTHERS = [number for number in range(3) if number != ME]
SIZE = 2**20
CONTROL_PORT = 9370
SECONDS = 60.0


def main() -> None:
    """Run this host's part."""
    if sys.argv[1:] == [str(ME)]:
        subprocess.run(["rdma", "link", "delete", os.environ["TESTBED_DEVICE"]], check=True)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        gateway = Gateway(parse_config(document(home)))
        asyncio.run_coroutine_threadsafe(gateway.start(), loop).result(SECONDS)
        with GatewayClient(f"unix://{home}/g.sock", "s", PARTIES[ME]) as client:
            whole = exchange(client)
            paths = main_paths(client.status())
        asyncio.run_coroutine_threadsafe(gateway.stop(), loop).result(SECONDS)
        trace = [json.loads(line) for line in (home / "trace.jsonl").read_text().splitlines()]
    links = {event["peer"]: [event["transport"], event["reason"]] for event in trace if event["event"] == "link"}
    print(json.dumps({"whole": whole, "status": paths, "trace": links}))


def document(home: Path) -> dict[str, Any]:
    """The configuration of this host's gateway."""
    return {
        "site": f"site{ME}",
        "parties": [str(PARTIES[ME])],
        "security": "off",
        "listen": {
            "control": f"{ADDRESSES[ME]}:{CONTROL_PORT}",
            "data": f"{ADDRESSES[ME]}:0",
            "grpc": f"{ADDRESSES[ME]}:0",
            "socket": f"unix://{home}/g.sock",
        },
        "transport": "auto",
        "memory": {"send_bytes": "16MiB", "receive_bytes": "64MiB", "spill_directory": str(home / "spill")},
        "peers": [
            {
                "site": f"site{other}",
                "parties": [str(PARTIES[other])],
                "address": f"{ADDRESSES[other]}:{CONTROL_PORT}",
            }
            for other in OTHERS
        ],
        "trace": str(home / "trace.jsonl"),
    }


def body(number: int) -> bytes:
    """What a host sends, the same on all hosts."""
    return bytes([number + 1]) * SIZE


def exchange(client: GatewayClient) -> list[bool]:
    """Send to both others and compare what they sent; return when all three have everything."""
    others = [PARTIES[other] for other in OTHERS]
    lease = client.lease(SIZE)
    lease.buffer[:] = body(ME)
    lease.commit("payload", "t", others, "object")
    whole = [client.get("payload", "t", PARTIES[other], timeout=SECONDS).buffer == body(other) for other in OTHERS]
    client.put_inline("done", "t", others, "bytes", b"")
    for other in others:
        client.get("done", "t", other, timeout=SECONDS)
    return whole


def main_paths(status: dict[str, Any]) -> dict[str, list[str]]:
    """By peer, the transport that payloads take and why."""
    return {
        peer["site"]: [path["transport"], path["reason"]]
        for peer in status["peers"]
        for path in peer["paths"]
        if path["main"]
    }


main()
