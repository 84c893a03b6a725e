"""Rounds of a federation: every silo sends a payload to the arbiter at once, again and again. Prints JSON.

    scripts/testbed run --virtual-time --hosts 9 --rate 1gbit --rtt 20ms --buffer 0.5MB --memory 3GiB -- \\
        .venv/bin/python -m deploy.softroce.programs.rounds KIND BYTES ROUNDS [--down] [--settle SECONDS] \\
        [--set KEY=JSON ...]

Host 0 is the arbiter, all others are silos. KIND is a mode, between gateways over verbs (`grpc`: by gRPC over TCP), or
with `-udp` behind it over UDP sockets; or `tcp-` and a congestion control: plain sockets, a connection for each silo.
All silos begin within a millisecond, in the order of their numbers. A round has ended when the arbiter has pulled every
payload; with `--down` it then sends one payload of the same size to all silos, and the round has ended when the last
silo has that.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from deploy.softroce.programs.counters import read_counters
from deploy.softroce.programs.gateways import (
    CONTROL_PORT,
    gateway_document,
    running_gateway,
    text_of,
    wait_for_path,
)
from deploy.softroce.programs.meeting import Chair, Seat, chaired, number_of_hosts, seated
from deploy.softroce.programs.pattern import fill, is_filled
from deploy.softroce.programs.tcp_streams import choose, enlarge_buffers
from deploy.softroce.programs.trace_tail import Tail
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.frames import Party

START_WITHIN_SECONDS = 0.001
"""All silos begin in this time."""
PAUSE_SECONDS = 0.5
"""Between two rounds: credits are granted anew, and queues are empty."""
PATIENCE_SECONDS = 600.0
TCP = "tcp-"
TCP_PORT = 7484
UDP = "-udp"
SMALL_BYTES = 12 * 2**20
"""For what goes beside payloads, in either region of a gateway."""
RINGS_BYTES = 16 * 2**20
"""Twice what a gateway grants a peer ahead: rings may take half of the region."""
MOST_BYTES = 900 * 2**20
"""That Soft-RoCE registers at once."""
BLOCK_BYTES = 2**20
TAG = "t"


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What is asked for.

    Attributes:
        kind: how payloads go.
        size: of a payload, bytes.
        rounds: how many.
        down: the arbiter answers with a payload to all.
        settings: keys of the gateways' configuration, with their values.
        settle: seconds between the data paths and the first round.
    """

    kind: str
    size: int
    rounds: int
    down: bool
    settings: dict[str, Any]
    settle: float = 0.0


class Arbiter(Protocol):
    """The arbiter's end of a way for payloads."""

    def take(self, number: int) -> list[float]:
        """Take what every silo sends in a round; when each was there, by `time.monotonic`."""
        ...

    def give(self, number: int) -> int:
        """Send to all silos, until they have it; bytes of payload sent again, of those that are counted here."""
        ...

    def knows(self) -> dict[str, Any]:
        """What its gateway knows of its link, and how that was found, as the trace calls it; nothing without one."""
        ...


class Silo(Protocol):
    """A silo's end."""

    def prepare(self, number: int) -> None:
        """Have the payload of a round ready."""
        ...

    def put(self, number: int) -> None:
        """Send it; returns when it is under way, or there."""
        ...

    def get(self, number: int) -> None:
        """Wait for what the arbiter sends."""
        ...

    def resent(self, number: int) -> int:
        """Wait until the arbiter has the round's payload; bytes of it sent again, where that is counted here."""
        ...


def run_arbiter(arbiter: Arbiter, chair: Chair, options: Options) -> list[dict[str, Any]]:
    """All rounds, from the arbiter's end; what each took."""
    rounds = []
    chair.hear()
    time.sleep(options.settle)
    for number in range(options.rounds):
        known = arbiter.knows()
        begin = time.monotonic() + PAUSE_SECONDS
        before = read_counters()
        chair.tell(begin)
        there = arbiter.take(number)
        up = ended = time.monotonic()
        resent = arbiter.give(number) if options.down else 0
        told = chair.hear()
        if options.down:
            ended = max(each["got"] for each in told)
        counted = read_counters().since(before)
        rounds.append(
            {
                "begun": begin,
                "seconds": ended - begin,
                "up_seconds": up - begin,
                "silo_seconds": [moment - begin for moment in there],
                "resent_bytes": resent + sum(each["resent"] for each in told),
                "tcp_resent_bytes": counted.tcp_resent_bytes + sum(each["tcp_resent_bytes"] for each in told),
                "sent_bytes": counted.sent_bytes + sum(each["sent_bytes"] for each in told),
                **known,
            }
        )
    chair.tell("done")
    return rounds


def run_silo(silo: Silo, seat: Seat, options: Options) -> None:
    """All rounds, from a silo's end."""
    others = number_of_hosts() - 1
    offset = START_WITHIN_SECONDS * (int(os.environ["TESTBED_HOST"]) - 1) / others
    seat.say("ready")
    for number in range(options.rounds):
        silo.prepare(number)
        begin = seat.hear()
        before = read_counters()
        time.sleep(max(0.0, begin + offset - time.monotonic()))
        silo.put(number)
        if options.down:
            silo.get(number)
        got = time.monotonic()
        resent = silo.resent(number)
        counted = dataclasses.asdict(read_counters().since(before))
        seat.say({"got": got, "resent": resent, **counted})
    seat.hear()


# --- between gateways ---


def parties() -> list[Party]:
    """One for each host."""
    return [Party("arbiter", "0"), *(Party("guest", str(number)) for number in range(1, number_of_hosts()))]


def configuration(home: Path, options: Options) -> dict[str, Any]:
    """Of this host's gateway: silos know the arbiter alone, and dial it."""
    me, silos = int(os.environ["TESTBED_HOST"]), number_of_hosts() - 1
    transport = "udp" if options.kind.endswith(UDP) else "verbs"
    mode = options.kind.removesuffix(UDP)
    # room for what a peer sends, and what it was granted ahead
    one = max(2 * options.size, RINGS_BYTES)
    receive = min((1 if me else silos) * one + SMALL_BYTES, MOST_BYTES)
    document = gateway_document(
        home,
        parties(),
        mode=mode,
        transport="auto" if mode == "grpc" else transport,
        memory={"send_bytes": options.size + SMALL_BYTES, "receive_bytes": receive},
        **options.settings,
    )
    peers = document["peers"]
    if me:
        address = f"{os.environ['TESTBED_HOSTS'].split(',')[0]}:{CONTROL_PORT}"
        return {**document, "peers": [{**peer, "address": address} for peer in peers if peer["site"] == "site0"]}
    return {**document, "peers": [{**peer, "address": None} for peer in peers]}


class GatewayArbiter:
    """Pulls from party after party, as FATE's arbiter does."""

    def __init__(self, client: GatewayClient, trace: Path, size: int) -> None:
        self._client, self._trace, self._size = client, trace, size
        self._tail = Tail(trace, PATIENCE_SECONDS)
        self._silos = parties()[1:]
        # the trace has times of the other clock
        self._clocks = time.time() - time.monotonic()

    def take(self, number: int) -> list[float]:
        name = f"m{number}"
        for party in self._silos:
            if not is_filled(self._client.get(name, TAG, party, timeout=PATIENCE_SECONDS).buffer):
                raise SystemExit(f"what {party} sent in round {number + 1} came as something else")
        events = map(json.loads, text_of(self._trace).splitlines())
        there = {
            event["source"]: event["time"] - self._clocks
            for event in events
            if event["event"] == "delivered" and event["name"] == name
        }
        return [there[str(party)] for party in self._silos]

    def knows(self) -> dict[str, Any]:
        return link_known(text_of(self._trace))

    def give(self, number: int) -> int:
        lease = self._client.lease(self._size)
        fill(lease.buffer)
        lease.commit(f"a{number}", TAG, self._silos, "object")
        return sum(
            int(event.get("resent_bytes", 0)) for event in self._tail.wait_for_end(f"a{number}", len(self._silos))
        )


def link_known(trace: str) -> dict[str, Any]:
    """What the latest share of one that sends to this site was made of."""
    events = map(json.loads, trace.splitlines())
    told = [event for event in events if event["event"] == "share" and event["direction"] == "receive"]
    return {key: told[-1][key] for key in ("link_bits_per_second", "found_by")} if told else {}


class GatewaySilo:
    """A task that pushes, and pulls what the arbiter makes of it."""

    def __init__(self, client: GatewayClient, trace: Path, size: int) -> None:
        self._client, self._size = client, size
        self._tail = Tail(trace, PATIENCE_SECONDS)
        self._arbiter = parties()[0]
        self._lease = client.lease(size)

    def prepare(self, number: int) -> None:
        if number:
            self._lease = self._client.lease(self._size)
        fill(self._lease.buffer)

    def put(self, number: int) -> None:
        self._lease.commit(f"m{number}", TAG, [self._arbiter], "object")

    def get(self, number: int) -> None:
        received = self._client.get(f"a{number}", TAG, self._arbiter, timeout=PATIENCE_SECONDS)
        if not is_filled(received.buffer):
            raise SystemExit(f"what the arbiter sent in round {number + 1} came as something else")

    def resent(self, number: int) -> int:
        (event,) = self._tail.wait_for_end(f"m{number}")
        return int(event.get("resent_bytes", 0))


@contextlib.contextmanager
def attached(options: Options) -> Iterator[tuple[GatewayClient, Path]]:
    """A task at this host's gateway, and the gateway's trace, once the data paths are up."""
    me = int(os.environ["TESTBED_HOST"])
    with tempfile.TemporaryDirectory() as name:
        document = configuration(Path(name), options)
        with running_gateway(document) as address, GatewayClient(address, "s", parties()[me]) as client:
            if me:
                client.get("ready", TAG, parties()[0], timeout=PATIENCE_SECONDS)
                wait_for_path(Path(document["trace"]))
            else:
                client.put_inline("ready", TAG, parties()[1:], "bytes", b"ready")
            yield client, Path(document["trace"])


# --- TCP ---


class TcpArbiter:
    """A connection for each silo."""

    def __init__(self, connections: Sequence[socket.socket], size: int, pool: ThreadPoolExecutor) -> None:
        self._connections, self._size, self._pool = connections, size, pool

    def take(self, number: int) -> list[float]:
        del number
        return list(self._pool.map(lambda connection: _receive(connection, self._size), self._connections))

    def knows(self) -> dict[str, Any]:
        return {}

    def give(self, number: int) -> int:
        del number
        list(self._pool.map(lambda connection: _send(connection, self._size), self._connections))
        return 0


class TcpSilo:
    """One connection to the arbiter."""

    def __init__(self, connection: socket.socket, size: int) -> None:
        self._connection, self._size = connection, size

    def prepare(self, number: int) -> None:
        """Zeros need no preparation."""

    def put(self, number: int) -> None:
        del number
        _send(self._connection, self._size)

    def get(self, number: int) -> None:
        del number
        _receive(self._connection, self._size)

    def resent(self, number: int) -> int:
        """The kernel counts what it sends again."""
        del number
        return 0


def _send(connection: socket.socket, size: int) -> None:
    block = memoryview(bytes(BLOCK_BYTES))
    for at in range(0, size, BLOCK_BYTES):
        connection.sendall(block[: size - at])


def _receive(connection: socket.socket, size: int) -> float:
    """When the last byte was there."""
    block = memoryview(bytearray(BLOCK_BYTES))
    left = size
    while left:
        taken = connection.recv_into(block[:left])
        # at the end of a connection recv returns at once, for ever, and time stands still
        if not taken:
            raise SystemExit("the other host hung up")
        left -= taken
    return time.monotonic()


def accept(server: socket.socket, stack: contextlib.ExitStack) -> list[socket.socket]:
    """The connections of all silos, in the order of the hosts."""
    connections = {}
    for _ in range(number_of_hosts() - 1):
        connection, (address, _) = server.accept()
        connections[address] = stack.enter_context(connection)
    return [connections[address] for address in os.environ["TESTBED_HOSTS"].split(",")[1:]]


def run_tcp(options: Options) -> list[dict[str, Any]] | None:
    """This host's part by plain sockets; what the rounds took, at the arbiter."""
    me, congestion = int(os.environ["TESTBED_HOST"]), options.kind.removeprefix(TCP)
    address = os.environ["TESTBED_HOSTS"].split(",")[0], TCP_PORT
    enlarge_buffers()
    with contextlib.ExitStack() as stack:
        if me:
            seat = stack.enter_context(seated(me))
            # a server that has called the meeting listens
            connection = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            choose(connection, congestion)
            connection.connect(address)
            run_silo(TcpSilo(connection, options.size), seat, options)
            return None
        server = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        # connections that it accepts have it too
        choose(server, congestion)
        server.bind(address)
        server.listen(number_of_hosts())
        chair = stack.enter_context(chaired(number_of_hosts() - 1))
        connections = accept(server, stack)
        pool = stack.enter_context(ThreadPoolExecutor(len(connections)))
        return run_arbiter(TcpArbiter(connections, options.size, pool), chair, options)


def run_gateways(options: Options) -> list[dict[str, Any]] | None:
    """This host's part between gateways; what the rounds took, at the arbiter."""
    me = int(os.environ["TESTBED_HOST"])
    with attached(options) as (client, trace):
        if me:
            with seated(me) as seat:
                run_silo(GatewaySilo(client, trace, options.size), seat, options)
            return None
        with chaired(number_of_hosts() - 1) as chair:
            return run_arbiter(GatewayArbiter(client, trace, options.size), chair, options)


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m deploy.softroce.programs.rounds")
    parser.add_argument("kind", help="a mode, or one with -udp behind it, or tcp-CONGESTION")
    parser.add_argument("bytes", type=int, help="of a payload")
    parser.add_argument("rounds", type=int, help="how many")
    parser.add_argument("--down", action="store_true", help="the arbiter answers with a payload to all")
    parser.add_argument("--settle", type=float, default=0.0, help="seconds between the data paths and the first round")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="of the gateways' configuration")
    asked = parser.parse_args(arguments)
    pairs = (text.partition("=") for text in asked.set)
    settings = {key: json.loads(value) for key, _, value in pairs}
    return Options(asked.kind, asked.bytes, asked.rounds, asked.down, settings, asked.settle)


def main() -> None:
    """Run this host's part."""
    logging.basicConfig(level=logging.ERROR)
    options = parse_options()
    rounds = run_tcp(options) if options.kind.startswith(TCP) else run_gateways(options)
    if rounds is not None:
        print(json.dumps(rounds))


if __name__ == "__main__":
    main()
