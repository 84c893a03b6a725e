"""One of two hosts: scheduling calls from host 0 to host 1, ten a second, while payloads move from 0 to 1, or none.

call_times.py MODE MEGABYTES [secured]: host 0 prints a JSON line of how long the calls took, host 1 of how many came.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from deploy.softroce.programs.gateways import gateway_document, running_gateway, secured
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.frames import Party
from tests.support.flow import FakeFlow, body_for, call

ME = int(os.environ["TESTBED_HOST"])
PARTIES = [Party("guest", "9999"), Party("host", "10000")]
FRONT_PORT = 9390
EACH = 50_000_000
"""Bytes of a payload."""
INTERVAL_SECONDS = 0.1
QUIET_SECONDS = 10.0
"""Of calls, where nothing moves."""
PATIENCE_SECONDS = 3600.0


def main(mode: str, megabytes: int, *, with_certificates: bool) -> None:
    """Run this host's part."""
    payloads = megabytes * 1_000_000 // EACH
    flow = FakeFlow()
    with tempfile.TemporaryDirectory() as name:
        memory = {"send_bytes": "256MiB", "receive_bytes": "256MiB", "warm": False}
        document = gateway_document(Path(name), PARTIES, transport="auto", mode=mode, memory=memory)
        document["listen"]["flow"] = f"127.0.0.1:{FRONT_PORT}"
        document["flow"] = {"server": f"127.0.0.1:{flow.port}"}
        if with_certificates:
            document = secured(document)
        with running_gateway(document) as address, GatewayClient(address, "s", PARTIES[ME]) as client:
            print(json.dumps(_ask(client, payloads) if ME == 0 else _serve(client, payloads, flow)), flush=True)


def _ask(client: GatewayClient, payloads: int) -> dict[str, Any]:
    """Push, and call all the while."""
    moved = threading.Event()

    def push() -> None:
        for number in range(payloads):
            lease = client.lease(EACH)
            lease.buffer[:] = bytes([number]) * EACH
            lease.commit(f"m{number}", "t", [PARTIES[1]], "object")
        client.get("moved", "t", PARTIES[1], timeout=PATIENCE_SECONDS)
        moved.set()

    client.get("ready", "t", PARTIES[1], timeout=PATIENCE_SECONDS)
    started = time.monotonic()
    pushing = threading.Thread(target=push, daemon=True)
    if payloads:
        pushing.start()
    seconds: list[float] = []
    while not moved.is_set() and (payloads or time.monotonic() - started < QUIET_SECONDS):
        began = time.monotonic()
        told = call(FRONT_PORT, body=body_for("host", "10000", number=len(seconds)))
        seconds.append(time.monotonic() - began)
        if told.status != 200:
            raise SystemExit(f"a call ended with {told}")
        time.sleep(max(0.0, INTERVAL_SECONDS - seconds[-1]))
    all_seconds = time.monotonic() - started
    client.put_inline("done", "t", [PARTIES[1]], "bytes", b"")
    ordered = sorted(seconds)
    at = {name: round(ordered[int(share * (len(ordered) - 1))], 4) for name, share in (("p50", 0.5), ("p99", 0.99))}
    rate = payloads * EACH * 8 / all_seconds
    return {"calls": len(seconds), **at, "most": round(ordered[-1], 4), "mbit_per_second": round(rate / 1e6, 1)}


def _serve(client: GatewayClient, payloads: int, flow: FakeFlow) -> dict[str, Any]:
    """Pull, and say when all is here."""
    client.put_inline("ready", "t", [PARTIES[0]], "bytes", b"")
    for number in range(payloads):
        client.get(f"m{number}", "t", PARTIES[0], timeout=PATIENCE_SECONDS)
    if payloads:
        client.put_inline("moved", "t", [PARTIES[0]], "bytes", b"")
    client.get("done", "t", PARTIES[0], timeout=PATIENCE_SECONDS)
    return {"came": len(flow.calls), "different": len({seen.body for seen in flow.calls})}


main(sys.argv[1], int(sys.argv[2]), with_certificates=sys.argv[3:] == ["secured"])
