"""One of two hosts: a gateway and a task, `transport: auto`; host 0 pushes payloads, host 1 compares them. Prints JSON.

left_path.py BYTES COUNT

Of each payload what the trace says and how long it took; what was said of data paths; what is not used, and why.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

from deploy.softroce.programs.gateways import gateway_document, running_gateway, wait_for_event, wait_for_path
from deploy.softroce.programs.pattern import fill, is_filled
from fedrdma_fate.client.client import GatewayClient, ask_status
from fedrdma_fate.wire.frames import Party

ME = int(os.environ["TESTBED_HOST"])
PARTIES = [Party("guest", "1"), Party("host", "2")]


def main() -> None:
    """Run this host's part."""
    size, count = int(sys.argv[1]), int(sys.argv[2])
    logging.basicConfig(level=logging.ERROR)
    memory = {"send_bytes": 2 * size + (16 << 20), "receive_bytes": 4 * size + (16 << 20)}
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        document = gateway_document(home, PARTIES, transport="auto", mode="fedrdma-x", memory=memory)
        with running_gateway(document) as address, GatewayClient(address, "s", PARTIES[ME]) as client:
            if ME == 0:
                print(json.dumps(push(client, address, home / "trace.jsonl", size, count)))
            else:
                client.put_inline("ready", "t", [PARTIES[0]], "bytes", b"ready")
                right = [is_filled(client.get(f"m{at}", "t", PARTIES[0], timeout=120).buffer) for at in range(count)]
                client.put_inline("done", "t", [PARTIES[0]], "bytes", b"done")
                print(json.dumps({"right": right}))


def push(client: GatewayClient, address: str, trace: Path, size: int, count: int) -> dict[str, object]:
    """Push payloads, each when the last was delivered."""
    client.get("ready", "t", PARTIES[1], timeout=120)
    wait_for_path(trace)
    sent = []
    for number in range(count):
        time.sleep(0.5)
        lease = client.lease(size)
        fill(lease.buffer)
        begun = time.time()
        lease.commit(f"m{number}", "t", [PARTIES[1]], "object")
        event = wait_for_event(trace, f"m{number}")
        sent.append({"event": event["event"], "transport": event.get("transport"), "seconds": event["time"] - begun})
    client.get("done", "t", PARTIES[1], timeout=120)
    (peer,) = ask_status(address)["peers"]
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    links = [{key: event[key] for key in ("transport", "reason")} for event in events if event["event"] == "link"]
    return {"sent": sent, "links": links, "unused": peer["unused_paths"]}


if __name__ == "__main__":
    main()
