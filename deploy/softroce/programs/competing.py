"""Flows from host 0 to host 1 that share the WAN, and what each gets of it. Host 1 prints JSON.

    scripts/testbed run --virtual-time --rate 1gbit --rtt 20ms --buffer 4MB --memory 2500MB --at 6s:rate=500mbit -- \
        .venv/bin/python -m deploy.softroce.programs.competing UNTIL FLOW...

A flow is KIND@START: `x` (two gateways of its own, mode fedrdma-x, payloads of 128 MiB one after the other; `x/16` of
16 MiB), `x-udp` (the same over UDP) or a TCP congestion control such as `cubic`, from START until UNTIL. Times are
seconds after the programs were started, as those of `--at`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from deploy.softroce.programs.control import control_connection, this_host
from deploy.softroce.programs.gateways import (
    CONTROL_PORT,
    gateway_document,
    running_gateway,
    wait_for_event,
    wait_for_path,
)
from deploy.softroce.programs.pattern import fill
from deploy.softroce.programs.tcp_streams import choose, enlarge_buffers
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.frames import Party

BIN_SECONDS = 0.1
PARTIES = [Party("guest", "1"), Party("host", "2")]
TCP_PORT = 7490
DEFAULT_MEBIBYTES = 128
HEADROOM_BYTES = 32 * 2**20
BLOCK_BYTES = 2**16
PATIENCE_SECONDS = 60.0

OURS = {"x": "verbs", "x-udp": "udp"}
"""Kinds of flows of ours, and the transport of each."""

Arrived = Callable[[], int]
"""Bytes of a flow that have arrived so far."""


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """One flow.

    Attributes:
        number: counts the flows, from 0.
        kind: one of ours, or a TCP congestion control.
        payload_bytes: of one message of ours.
        start: seconds after the programs were started.
    """

    number: int
    kind: str
    payload_bytes: int
    start: float


def parse_flow(number: int, text: str) -> Flow:
    """A flow as written on the command line.

    Raises:
        ValueError: it is not KIND@START or KIND/MEBIBYTES@START.
    """
    name, _, start = text.partition("@")
    kind, _, mebibytes = name.partition("/")
    return Flow(number, kind, int(mebibytes or DEFAULT_MEBIBYTES) * 2**20, float(start or 0))


def elapsed() -> float:
    """Seconds since the programs were started."""
    return time.monotonic() - float(os.environ["TESTBED_BEGAN"])


def sleep_until(moment: float) -> None:
    """Until so many seconds after the programs were started."""
    time.sleep(max(0.0, moment - elapsed()))


def in_background(work: Callable[[], None]) -> None:
    """Run it for as long as the program."""
    threading.Thread(target=work, daemon=True).start()


@contextlib.contextmanager
def gateway(flow: Flow) -> Iterator[tuple[str, Path]]:
    """This host's gateway for a flow of ours: the address of its socket, and its trace."""
    size = flow.payload_bytes
    room = {"send_bytes": 2 * size if this_host() == 0 else 0, "receive_bytes": 3 * size if this_host() else 0}
    with tempfile.TemporaryDirectory() as home:
        document = gateway_document(
            Path(home),
            PARTIES,
            port=CONTROL_PORT + flow.number,
            mode="fedrdma-x",
            transport=OURS[flow.kind],
            memory={name: most + HEADROOM_BYTES for name, most in room.items()},
            timeouts={"drain": BIN_SECONDS},
        )
        with running_gateway(document) as address:
            yield address, Path(home, "trace.jsonl")


@contextlib.contextmanager
def pushing(flow: Flow, until: float) -> Iterator[None]:
    """Push payloads, the next when the last has been delivered."""
    with gateway(flow) as (address, trace), GatewayClient(address, "s", PARTIES[0]) as client:
        client.get("ready", "t", PARTIES[1], timeout=PATIENCE_SECONDS)
        wait_for_path(trace)

        def push() -> None:
            sleep_until(flow.start)
            number = 0
            while elapsed() < until:
                lease = client.lease(flow.payload_bytes)
                fill(lease.buffer)
                if number:
                    wait_for_event(trace, f"m{number - 1}")
                lease.commit(f"m{number}", "t", [PARTIES[1]], "object")
                number += 1

        in_background(push)
        yield


@contextlib.contextmanager
def pulling(flow: Flow) -> Iterator[Arrived]:
    """Pull payloads for as long as they come."""
    with gateway(flow) as (address, _), GatewayClient(address, "s", PARTIES[1]) as client:
        client.put_inline("ready", "t", [PARTIES[0]], "bytes", b"ready")

        def pull() -> None:
            number = 0
            with GatewayClient(address, "s", PARTIES[1]) as puller:
                while True:
                    puller.get(f"m{number}", "t", PARTIES[0], timeout=PATIENCE_SECONDS)
                    number += 1

        in_background(pull)
        yield Arrivals(client).total


class Arrivals:
    """The bytes of all transfers that a gateway has received, finished or not."""

    def __init__(self, client: GatewayClient) -> None:
        self._client = client
        self._finished_bytes = 0
        self._under_way: dict[int, dict[str, Any]] = {}

    def total(self) -> int:
        """So far; to be asked more often than transfers come."""
        listed: Any = self._client.status()["transfers"]
        now = {transfer["transfer"]: transfer for transfer in listed if transfer["direction"] == "receive"}
        gone = [transfer for number, transfer in self._under_way.items() if number not in now]
        self._finished_bytes += sum(transfer["total_bytes"] for transfer in gone)
        self._under_way = now
        return self._finished_bytes + sum(int(transfer["done_bytes"]) for transfer in now.values())


@contextlib.contextmanager
def streaming(flow: Flow, until: float) -> Iterator[None]:
    """Send by TCP."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        choose(connection, flow.kind)
        connection.connect((os.environ["TESTBED_HOSTS"].split(",")[1], TCP_PORT + flow.number))

        def stream() -> None:
            sleep_until(flow.start)
            while elapsed() < until:
                connection.sendall(bytes(BLOCK_BYTES))

        in_background(stream)
        yield


@contextlib.contextmanager
def taking(server: socket.socket) -> Iterator[Arrived]:
    """Receive by TCP."""
    with server.accept()[0] as connection:
        total = 0

        def take() -> None:
            nonlocal total
            # at the end of a connection recv returns at once, for ever, and time stands still
            while block := connection.recv(BLOCK_BYTES):
                total += len(block)

        in_background(take)
        yield lambda: total


def send(flows: Sequence[Flow], until: float, stack: contextlib.ExitStack) -> None:
    """Host 0's part."""
    for flow in flows:
        stack.enter_context(pushing(flow, until) if flow.kind in OURS else streaming(flow, until))
    late = [flow for flow in flows if flow.start < elapsed()]
    if late:
        raise SystemExit(f"ready after {elapsed():.3f} s: too late for {late}")
    sleep_until(until)


def receive(servers: dict[int, socket.socket], flows: Sequence[Flow], until: float, stack: contextlib.ExitStack) -> Any:
    """Host 1's part: when it looked, and what had arrived of each flow until then."""
    counters = [
        stack.enter_context(pulling(flow) if flow.kind in OURS else taking(servers[flow.number])) for flow in flows
    ]
    times, arrived = [], []
    for count in range(int(min(flow.start for flow in flows) / BIN_SECONDS), round(until / BIN_SECONDS) + 1):
        sleep_until(count * BIN_SECONDS)
        times.append(elapsed())
        arrived.append([counter() for counter in counters])
    columns = zip(*arrived, strict=True)
    rows = [{**dataclasses.asdict(flow), "arrived_bytes": column} for flow, column in zip(flows, columns, strict=True)]
    return {"times": times, "flows": rows}


def main() -> None:
    """Run this host's part."""
    until = float(sys.argv[1])
    flows = [parse_flow(number, text) for number, text in enumerate(sys.argv[2:])]
    logging.basicConfig(level=logging.CRITICAL)
    enlarge_buffers()
    with control_connection() as control, contextlib.ExitStack() as stack:
        address = os.environ["TESTBED_ADDRESS"]
        servers = {
            flow.number: stack.enter_context(socket.create_server((address, TCP_PORT + flow.number)))
            for flow in flows
            if flow.kind not in OURS and this_host()
        }
        control.exchange("listening")
        if this_host() == 0:
            send(flows, until, stack)
        else:
            print(json.dumps(receive(servers, flows, until, stack)), flush=True)
        control.exchange("done")


if __name__ == "__main__":
    main()
