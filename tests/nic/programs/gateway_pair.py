"""One of two hosts: a gateway and a task; host 0 pushes payloads, host 1 pulls and compares them. Prints JSON.

Arguments: the mode, and `secured` for gateways with certificates, which seal their chunks by default.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from deploy.softroce.programs.gateways import gateway_document, running_gateway, secured
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.frames import Party

ME = int(os.environ["TESTBED_HOST"])
PARTIES = [Party("guest", "1"), Party("host", "2")]
SIZES = [100_000, 4 * 2**20 - 1, 4 * 2**20, 4 * 2**20 + 1, 20 * 2**20]


def main() -> None:
    """Run this host's part in the mode of the first argument."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        settings = {"mode": sys.argv[1], "memory": {"send_bytes": "64MiB", "receive_bytes": "64MiB"}}
        # the transport that it finds best
        document = gateway_document(home, PARTIES, transport="auto", **settings)
        if sys.argv[2:] == ["secured"]:
            document = secured(document)
        with running_gateway(document) as address, GatewayClient(address, "s", PARTIES[ME]) as client:
            print(json.dumps(push(client) if ME == 0 else pull(client)))
        trace = map(json.loads, (home / "trace.jsonl").read_text().splitlines())
        moved = [event for event in trace if event["event"] in ("sent", "delivered") and event["mode"] != "inline"]
        print(json.dumps([f"{event['mode']}/{event['transport']}" for event in moved]))


def body(size: int) -> bytes:
    """The same bytes on both hosts."""
    return hashlib.shake_128(str(size).encode()).digest(size)


def push(client: GatewayClient) -> dict[str, object]:
    """Push every size, and wait for the word that all have come."""
    for size in SIZES:
        lease = client.lease(size)
        lease.buffer[:] = body(size)
        lease.commit(f"m{size}", "t", [PARTIES[1]], "object")
    done = client.get("done", "t", PARTIES[1], timeout=60)
    return {"answer": bytes(done.buffer).decode()}


def pull(client: GatewayClient) -> dict[str, object]:
    """Pull and compare every size, then say so."""
    started = time.monotonic()
    right = [client.get(f"m{size}", "t", PARTIES[0], timeout=60).buffer == body(size) for size in SIZES]
    client.put_inline("done", "t", [PARTIES[0]], "bytes", b"all here")
    return {"right": right, "seconds": time.monotonic() - started}


main()
