"""One of three hosts: a gateway that takes the best transport, and a task that exchanges a payload with both others.

With a host's number as argument, that host's RDMA device is removed before its gateway starts. Prints JSON: what came
whole, and the data path to each peer with the reason for it, from the gateway's status and from its trace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from deploy.softroce.programs.gateways import gateway_document, running_gateway
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.frames import Party

ME = int(os.environ["TESTBED_HOST"])
PARTIES = [Party("guest", "1"), Party("host", "2"), Party("arbiter", "3")]
OTHERS = [number for number in range(3) if number != ME]
SIZE = 2**20
SECONDS = 60.0


def main() -> None:
    """Run this host's part."""
    if sys.argv[1:] == [str(ME)]:
        subprocess.run(["rdma", "link", "delete", os.environ["TESTBED_DEVICE"]], check=True)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        memory = {"send_bytes": "16MiB", "receive_bytes": "64MiB"}
        document = gateway_document(home, PARTIES, transport="auto", memory=memory)
        with running_gateway(document) as address, GatewayClient(address, "s", PARTIES[ME]) as client:
            whole = exchange(client)
            paths = main_paths(client.status())
        trace = [json.loads(line) for line in (home / "trace.jsonl").read_text().splitlines()]
    links = {event["peer"]: [event["transport"], event["reason"]] for event in trace if event["event"] == "link"}
    print(json.dumps({"whole": whole, "status": paths, "trace": links}))


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
