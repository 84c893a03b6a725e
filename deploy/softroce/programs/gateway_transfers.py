"""Two gateways over verbs, or UDP, with a task each; host 0's pushes equal payloads one after the other. Prints JSON.

    scripts/testbed run --virtual-time --rate 1gbit --rtt 20ms -- \
        .venv/bin/python -m deploy.softroce.programs.gateway_transfers MODE BYTES [COUNT [CHUNK_SERVICE [CHUNK]]]

In mode grpc the payloads go by gRPC over TCP; fedrdma-x-repeat is fedrdma-x without repair chunks. What ends in -udp
goes by UDP sockets. What ends in -sealed has certificates, and seals its chunks.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from deploy.softroce.programs.counters import read_counters
from deploy.softroce.programs.gateways import (
    gateway_document,
    running_gateway,
    secured,
    wait_for_event,
    wait_for_path,
)
from deploy.softroce.programs.pattern import fill, is_filled
from deploy.softroce.programs.pauses import pause_before
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.frames import Party

ME = int(os.environ["TESTBED_HOST"])
PARTIES = [Party("guest", "1"), Party("host", "2")]
PATIENCE_SECONDS = 600.0
HEADROOM_BYTES = 12 * 2**20
MOST_BYTES = 900 * 2**20
REPEAT_ONLY = "fedrdma-x-repeat"
UDP = "-udp"
SEALED = "-sealed"


def main() -> None:
    """Run this host's part."""
    mode, size = sys.argv[1], int(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    service = sys.argv[4] if len(sys.argv) > 4 else "auto"
    chunk = sys.argv[5] if len(sys.argv) > 5 else "auto"
    logging.basicConfig(level=logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        made = document(home, mode.removesuffix(SEALED), size, service, chunk)
        gateway = running_gateway(secured(made) if mode.endswith(SEALED) else made)
        with gateway as address, GatewayClient(address, "s", PARTIES[ME]) as client:
            if ME == 0:
                print(json.dumps(push(client, home / "trace.jsonl", size, count)))
            else:
                print(json.dumps(pull(client, count)))


def document(home: Path, mode: str, size: int, service: str, chunk: str) -> dict[str, Any]:
    """A gateway over verbs or UDP, with room for one payload."""
    transport = "udp" if mode.endswith(UDP) else "verbs"
    mode = mode.removesuffix(UDP)
    large, small = size + HEADROOM_BYTES, 4 * HEADROOM_BYTES
    return gateway_document(
        home,
        PARTIES,
        mode="fedrdma-x" if mode == REPEAT_ONLY else mode,
        repair_chunks=mode != REPEAT_ONLY,
        transport="auto" if mode == "grpc" else transport,
        verbs={"chunk_service": service},
        chunk=chunk,
        memory={
            "send_bytes": large if ME == 0 else small,
            # the largest that Soft-RoCE registers, or room for what is there, the next, and one more
            "receive_bytes": small if ME == 0 else max(large, min(3 * large, MOST_BYTES)),
        },
    )


def push(client: GatewayClient, trace: Path, size: int, count: int) -> list[dict[str, object]]:
    """Push payloads, each when the last has been delivered, and say how long each took."""
    # the data path is up before the clock starts
    client.get("ready", "t", PARTIES[1], timeout=PATIENCE_SECONDS)
    wait_for_path(trace)
    taken: list[dict[str, object]] = []
    for number in range(count):
        pause_before(number)
        lease = client.lease(size)
        fill(lease.buffer)
        before, at, begun = read_counters(), time.monotonic(), time.time()
        lease.commit(f"m{number}", "t", [PARTIES[1]], "object")
        event = wait_for_event(trace, f"m{number}")
        counted = read_counters().since(before)
        if event["event"] != "sent":
            raise SystemExit(f"transfer {number + 1} was not delivered: {event.get('reason')}")
        told = {key: event.get(key) for key in ("mode", "resent_bytes", "chunks", "seconds", "reason")}
        taken.append({**told, "begun": at, "seconds": event["time"] - begun, **dataclasses.asdict(counted)})
    client.get("done", "t", PARTIES[1], timeout=PATIENCE_SECONDS)
    return taken


def pull(client: GatewayClient, count: int) -> dict[str, object]:
    """Pull and compare every payload."""
    client.put_inline("ready", "t", [PARTIES[0]], "bytes", b"ready")
    right = []
    for number in range(count):
        right.append(is_filled(client.get(f"m{number}", "t", PARTIES[0], timeout=PATIENCE_SECONDS).buffer))
    client.put_inline("done", "t", [PARTIES[0]], "bytes", b"done")
    return {"right": right}


if __name__ == "__main__":
    main()
