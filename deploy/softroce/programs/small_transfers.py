"""Many small transfers between two gateways, one after the other: how long each took, which were held up, and where.

On two hosts of the testbed, or in two processes over loopback, in real time:

    scripts/testbed run --virtual-time --rate 1gbit --rtt 20ms --loss 1% -- \
        .venv/bin/python -m deploy.softroce.programs.small_transfers udp
    .venv/bin/python -m deploy.softroce.programs.small_transfers tcp --count 1000 --loopback

Prints a line of JSON: the median, and each transfer that took more than 50 ms longer, with its parts. `asking` lasts
until it has a slot, `moving` until it is whole at the other side, `telling` until the sender knows.

In real time a transfer is also late because the machine is busy. So for each the line says as well how late the event
loops were at most meanwhile, by a timer of each, and for how long the threads of both gateways could have run and had
no core.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deploy.softroce.programs.gateways import gateway_document, running_gateway, secured, wait_for_path
from deploy.softroce.programs.pattern import fill, is_filled
from deploy.softroce.programs.trace_tail import Tail
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.quantities import parse_size
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, Party

PARTIES = [Party("guest", "1"), Party("host", "2")]
SIZES = "256KiB,640KiB,192KiB,1MiB"
"""In turn."""

HELD_UP_SECONDS = 0.05
"""Above the median: more than twice the longest round trip that is measured here, and less than any time-out of TCP."""

SEND_BYTES = 64 * 2**20
RECEIVE_BYTES = 192 * 2**20
"""Of the memory of each host: many times what is on its way."""

PAUSE_SECONDS = 0.03
"""Between two transfers, as long as a task computes at least: what the last has left behind is over."""

PARTS = ("asking", "moving", "telling")

POLL_SECONDS = 0.001
TICK_SECONDS = 0.005
"""Of the timer that watches an event loop."""

PATIENCE_SECONDS = 120.0
LOOPBACK = "127.0.0.1,127.0.0.2"


class Watch:
    """How late an event loop is, and for how long this process's threads wait for a core, over time."""

    def __init__(self) -> None:
        self.late: list[tuple[float, float]] = []
        self._enabled = os.environ.get("TESTBED_VIRTUAL_TIME") != "1"

    async def run(self) -> None:
        """Tick, for as long as the loop runs."""
        while self._enabled:
            due = time.monotonic() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self.late.append((time.time(), time.monotonic() - due))

    def runnable_seconds(self) -> float:
        """For so long threads of this process could have run, and had no core; 0 where the kernel does not count it."""
        if not self._enabled:
            return 0.0
        waited = 0
        for path in Path("/proc/self/task").glob("*/schedstat"):
            try:
                waited += int(path.read_text().split()[1])
            except (OSError, IndexError):
                continue
        return waited / 1e9


def main() -> None:
    """Run this host's part, or both."""
    options = _options()
    if options.loopback:
        raise SystemExit(_on_loopback(sys.argv[1:]))
    logging.basicConfig(level=logging.ERROR)
    me, watch, shared = int(os.environ["TESTBED_HOST"]), Watch(), Path(os.environ["TESTBED_OUT"])
    with tempfile.TemporaryDirectory() as name:
        document = gateway_document(
            Path(name),
            PARTIES,
            mode="fedrdma-x",
            transport=options.transport,
            memory={
                "send_bytes": SEND_BYTES,
                "receive_bytes": RECEIVE_BYTES,
                **({"ring_slots": 0, "warm": False} if options.ask else {}),
            },
        )
        trace = shared / f"trace{me}.jsonl"
        document["trace"] = str(trace)
        if options.sealed:
            document = secured(document)
        with running_gateway(document, watch.run) as address, GatewayClient(address, "s", PARTIES[me]) as client:
            if me == 0:
                sent = push(client, trace, options, watch)
                other = shared / "pulled.json"
                _wait_for(other.exists)
                print(json.dumps(report(options, sent, trace, json.loads(other.read_text()), watch)))
            else:
                pull(client, options)
                made = shared / "pulled.part"
                delivered = {event["name"]: event["time"] for event in _events(trace, "delivered")}
                made.write_text(json.dumps({"delivered": delivered, "late": watch.late}))
                made.rename(shared / "pulled.json")


def push(client: GatewayClient, trace: Path, options: argparse.Namespace, watch: Watch) -> list[tuple[float, float]]:
    """Push them, each when the last is known to be there: when each began, and what the processor was waited for."""
    client.get("ready", "t", PARTIES[1], timeout=PATIENCE_SECONDS)
    wait_for_path(trace)
    events = Tail(trace)
    began = []
    for number in range(options.count):
        size = options.bytes[number % len(options.bytes)]
        lease = None
        if size > INLINE_LIMIT_BYTES:
            lease = client.lease(size)
            fill(lease.buffer)
        time.sleep(PAUSE_SECONDS)
        waited, at = watch.runnable_seconds(), time.time()
        if lease is None:
            client.put_inline(f"m{number}", "t", [PARTIES[1]], "bytes", bytes(size))
        else:
            lease.commit(f"m{number}", "t", [PARTIES[1]], "object")
        events.wait_for_end(f"m{number}")
        began.append((at, watch.runnable_seconds() - waited))
    client.put_inline("done", "t", [PARTIES[1]], "bytes", b"done")
    return began


def pull(client: GatewayClient, options: argparse.Namespace) -> None:
    """Pull and compare every payload.

    Raises:
        SystemExit: one is not what was sent.
    """
    client.put_inline("ready", "t", [PARTIES[0]], "bytes", b"ready")
    for number in range(options.count):
        received = client.get(f"m{number}", "t", PARTIES[0], timeout=PATIENCE_SECONDS).buffer
        if len(received) > INLINE_LIMIT_BYTES and not is_filled(received):
            raise SystemExit(f"message {number} is not what was sent")
    client.get("done", "t", PARTIES[0], timeout=PATIENCE_SECONDS)


def report(
    options: argparse.Namespace,
    began: Sequence[tuple[float, float]],
    trace: Path,
    other: dict[str, Any],
    watch: Watch,
) -> dict[str, Any]:
    """What was seen."""
    sent = {event["name"]: event for event in _events(trace, "sent")}
    transfers = []
    for number, (at, waited) in enumerate(began):
        event, delivered = sent[f"m{number}"], other["delivered"][f"m{number}"]
        start = event["time"] - event["seconds"]
        if event["mode"] == "inline":
            start = at
        parts = {"asking": start - at, "moving": delivered - start, "telling": event["time"] - delivered}
        late = max(_latest(watch.late, at, event["time"]), _latest(other["late"], at, event["time"]))
        transfers.append(
            {
                "number": number,
                "bytes": event["bytes"],
                "seconds": round(event["time"] - at, 6),
                **{part: round(seconds, 6) for part, seconds in parts.items()},
                "loop_late": round(late, 6),
                "waited_for_core": round(waited, 6),
                "resent_bytes": event.get("resent_bytes", 0),
            }
        )
    taken = sorted(transfer["seconds"] for transfer in transfers)
    median = statistics.median(taken)
    held_up = [transfer for transfer in transfers if transfer["seconds"] > median + HELD_UP_SECONDS]
    return {
        "transport": options.transport,
        "count": len(taken),
        "median": median,
        "p99": taken[len(taken) * 99 // 100],
        "worst": taken[-1],
        "loop_late_worst": max((late for _, late in (*watch.late, *other["late"])), default=0.0),
        "worst_parts": {part: max(transfer[part] for transfer in transfers) for part in PARTS},
        "held_up_count": len(held_up),
        "held_up": held_up,
    }


def _latest(late: Sequence[Sequence[float]], since: float, until: float) -> float:
    """How late a loop was at most in that time."""
    first = bisect.bisect_left(late, since, key=lambda entry: entry[0])
    # the tick that was due in it may have come behind its end
    last = bisect.bisect_right(late, until, key=lambda entry: entry[0]) + 1
    return max((seconds for _, seconds in late[first:last]), default=0.0)


def _events(trace: Path, kind: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    return [event for event in events if event["event"] == kind and event.get("name") not in ("ready", "done")]


def _wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit("the other host does not end")
        time.sleep(POLL_SECONDS)


def _on_loopback(arguments: Sequence[str]) -> int:
    """Both hosts' parts, each in a process; 0 when both ended well."""
    command = [sys.executable, "-m", "deploy.softroce.programs.small_transfers"]
    command += [argument for argument in arguments if argument != "--loopback"]
    with tempfile.TemporaryDirectory() as shared:
        hosts = {"TESTBED_HOSTS": LOOPBACK, "TESTBED_OUT": shared}
        environments = [{**os.environ, **hosts, "TESTBED_HOST": str(host)} for host in range(len(PARTIES))]
        processes = [subprocess.Popen(command, env=environment) for environment in environments]
        return max(abs(process.wait()) for process in processes)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.softroce.programs.small_transfers")
    parser.add_argument("transport", choices=("verbs", "udp", "tcp"))
    parser.add_argument("--count", type=int, default=300, help="of transfers (default 300)")
    parser.add_argument(
        "--bytes", default=SIZES, type=_sizes, metavar="SIZE,...", help=f"of the payloads, in turn (default {SIZES})"
    )
    parser.add_argument("--ask", action="store_true", help="nothing is granted ahead: each asks for a slot")
    parser.add_argument("--sealed", action="store_true", help="with certificates, chunks sealed")
    parser.add_argument("--loopback", action="store_true", help="both hosts here, in real time")
    return parser.parse_args()


def _sizes(text: str) -> list[int]:
    return [parse_size(each) for each in text.split(",")]


if __name__ == "__main__":
    main()
