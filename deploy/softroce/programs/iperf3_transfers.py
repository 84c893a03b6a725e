"""Payloads from host 0 to host 1 by iperf3, a connection each. Prints JSON.

    scripts/testbed run --virtual-time --rate 1gbit --rtt 20ms -- \
        .venv/bin/python -m deploy.softroce.programs.iperf3_transfers cubic 64000000 3

iperf3 ends when the last byte is in the sender's socket buffer, not when it has arrived. So the time of a payload is
what the receiver's own rate, bytes taken over the seconds that it took them in, makes of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from deploy.softroce.programs.control import Control, control_connection, this_host
from deploy.softroce.programs.counters import read_counters
from deploy.softroce.programs.pauses import PAUSE_SECONDS, pause_before
from deploy.softroce.programs.tcp_streams import enlarge_buffers

PORT = "7483"
PROGRAM = "iperf3"


def find_program() -> str:
    """Where iperf3 is: beside this Python, or on the path.

    Raises:
        SystemExit: nowhere.
    """
    beside = Path(sys.executable).parent
    found = shutil.which(PROGRAM, path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        raise SystemExit("there is no program iperf3")
    return found


def serve(command: list[str], control: Control, count: int) -> None:
    """Host 1's part: a server for each transfer."""
    address = os.environ["TESTBED_ADDRESS"]
    for _ in range(count):
        with tempfile.TemporaryFile() as said:
            server = subprocess.Popen([*command, "--server", "--one-off", "--bind", address], stdout=said)
            # it says nothing when it listens, and a client that comes too early fails
            time.sleep(PAUSE_SECONDS)
            control.exchange("listening")
            server.wait()
        control.exchange("received")


def send(command: list[str], control: Control, congestion: str, size: int, count: int) -> list[dict[str, object]]:
    """Host 0's part: what each transfer took."""
    address = os.environ["TESTBED_HOSTS"].split(",")[1]
    client = [*command, "--client", address, "--congestion", congestion, "--bytes", str(size), "--json"]
    taken: list[dict[str, object]] = []
    for number in range(count):
        control.exchange("ready")
        pause_before(number)
        before, begun = read_counters(), time.monotonic()
        done = subprocess.run(client, check=False, capture_output=True, text=True)
        control.exchange("sent")
        counted = dataclasses.asdict(read_counters().since(before))
        taken.append({"begun": begun, "seconds": seconds_of(json.loads(done.stdout), size), **counted})
    return taken


def seconds_of(document: dict[str, Any], size: int) -> float:
    """How long a payload takes at the receiver's rate, by the client's report.

    Raises:
        SystemExit: iperf3 failed, or ended before anything had arrived.
    """
    if "error" in document:
        raise SystemExit(f"iperf3: {document['error']}")
    received = document["end"]["sum_received"]
    if not received["bytes"]:
        raise SystemExit("iperf3: nothing arrived before it ended")
    return size * float(received["seconds"]) / int(received["bytes"])


def main() -> None:
    """Run this host's part."""
    congestion, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    command = [find_program(), "--port", PORT]
    enlarge_buffers()
    with control_connection() as control:
        if this_host():
            serve(command, control, count)
        else:
            print(json.dumps(send(command, control, congestion, size, count)))


if __name__ == "__main__":
    main()
