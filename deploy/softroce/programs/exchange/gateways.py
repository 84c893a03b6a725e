"""This project: a gateway for each host, and a task at each that puts and gets, as FATE's do."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.softroce.programs.exchange.interface import (
    Exchanged,
    Host,
    Options,
    Received,
    Server,
    Silo,
    models_of,
)
from deploy.softroce.programs.exchange.tcp import NEVER_SECONDS
from deploy.softroce.programs.exchange.usage import in_testbed
from deploy.softroce.programs.gateways import gateway_document, running_gateway, text_of, wait_for_path
from deploy.softroce.programs.meeting import Chair, Seat
from deploy.softroce.programs.trace_tail import Tail
from fedrdma_fate.bench.ports import free_ports
from fedrdma_fate.client.client import GatewayClient, ask_status
from fedrdma_fate.core.shares.joint_probe import ANSWERED_SECONDS, REPEAT_SECONDS, SETTLED_SECONDS
from fedrdma_fate.wire.frames import Party

BESIDE_BYTES = 12 * 2**20
"""For what goes beside models, in either region of a gateway."""
LEAST_PEER_BYTES = 16 * 2**20
"""Twice what a gateway grants a peer ahead: rings may take half of the region."""
PROBED_SECONDS = SETTLED_SECONDS + 4 * ANSWERED_SECONDS + REPEAT_SECONDS + 0.5
"""After the last path came up: the trains that tell what the server's own link carries have gone, twice at most, and
once more where they have not told that it carries all.
Gateways run long before a job; one that begins at once finds the link by its first round."""
POLL_SECONDS = 0.02
"""Between two looks into a trace for how a round ended; nothing is timed by them, and they cost CPU time."""
_TAG = "t"
_PROBING = ("grpc", "udp", "verbs")
"""Transports whose rate is the gateways' to find; beside `grpc` a main data path by one of them is up."""


def parties(host: Host) -> list[Party]:
    """One for each host."""
    return [Party("arbiter", "0"), *(Party("guest", str(number)) for number in range(1, host.silos + 1))]


def configuration(home: Path, host: Host, options: Options, port: int) -> dict[str, Any]:
    """Of a host's gateway: silos know the server alone, and dial it at this port."""
    mode, transport = options.protocol.split("/")
    each = max(2 * options.size, LEAST_PEER_BYTES)
    document = gateway_document(
        home,
        parties(host),
        port=0 if host.number else port,
        mode=mode,
        transport="auto" if transport == "grpc" else transport,
        memory={
            "send_bytes": options.size + BESIDE_BYTES,
            "receive_bytes": (1 if host.number else host.silos) * each + BESIDE_BYTES,
        },
    )
    address = f"{host.addresses[0]}:{port}" if host.number else None
    known = [peer for peer in document["peers"] if not host.number or peer["site"] == "site0"]
    document["peers"] = [{**peer, "address": address} for peer in known]
    if not in_testbed():
        # it is there for who measures, and to write and to read it would be counted as the protocol's CPU time
        del document["trace"]
    return document


def probes(host: Host, options: Options) -> bool:
    """Whether the server's gateway sends trains to all its peers at once, to find out what its own link carries.

    It does so whatever the mode: where the first round had begun by then, they would be counted as its bytes.
    """
    _, transport = options.protocol.split("/")
    return transport in _PROBING and host.silos > 1


class GatewayServer:
    """Hands over one model for all silos, and pulls theirs one after the other, as FATE's arbiter does."""

    def __init__(self, client: GatewayClient, trace: Path | None, host: Host, options: Options) -> None:
        self._client, self._trace, self._models = client, trace, models_of(0, options)
        self._silos = parties(host)[1:]
        self._tail = _tail_of(trace)
        # the trace has times of the other clock
        self._clocks = time.time() - time.monotonic()

    def exchange(self, number: int) -> Exchanged:
        lease = self._client.lease(self._models.size)
        lease.buffer[:] = self._models.own(number)
        lease.commit(f"down{number}", _TAG, self._silos, "object")
        sent, name = time.monotonic(), f"up{number}"
        got_at = []
        for silo, party in enumerate(self._silos, start=1):
            got = self._client.get(name, _TAG, party, timeout=NEVER_SECONDS)
            got_at.append(time.monotonic())
            self._models.take(got.buffer, silo, number)
        if self._trace is None:
            return Exchanged(sent, tuple(map(Received, got_at)))
        # of all rounds so far: to parse the others' lines would cost more CPU time each round
        events = (json.loads(line) for line in text_of(self._trace).splitlines() if f'"{name}"' in line)
        there = {
            event["source"]: event["time"] - self._clocks
            for event in events
            if event["event"] == "delivered" and event.get("name") == name
        }
        return Exchanged(sent, tuple(Received(there[str(party)]) for party in self._silos))

    def resent(self, number: int) -> int:
        if self._tail is None:
            return 0
        ended = self._tail.wait_for_end(f"down{number}", len(self._silos))
        return sum(int(event.get("resent_bytes", 0)) for event in ended)


class GatewaySilo:
    """A task that pulls the server's model, and pushes its own."""

    def __init__(self, client: GatewayClient, trace: Path | None, host: Host, options: Options) -> None:
        self._client, self._models = client, models_of(host.number, options)
        self._server = parties(host)[0]
        self._tail = _tail_of(trace)
        self._lease: Any = None

    def prepare(self, number: int) -> None:
        del number
        self._lease = self._client.lease(self._models.size)

    def receive(self, number: int) -> Received:
        got = self._client.get(f"down{number}", _TAG, self._server, timeout=NEVER_SECONDS)
        moment = time.monotonic()
        self._models.take(got.buffer, 0, number)
        return Received(moment)

    def send(self, number: int) -> None:
        self._lease.buffer[:] = self._models.own(number)
        self._lease.commit(f"up{number}", _TAG, [self._server], "object")

    def resent(self, number: int) -> int:
        if self._tail is None:
            return 0
        (event,) = self._tail.wait_for_end(f"up{number}")
        return int(event.get("resent_bytes", 0))


def _tail_of(trace: Path | None) -> Tail | None:
    return None if trace is None else Tail(trace, NEVER_SECONDS, POLL_SECONDS)


def _wait_until_up(address: str) -> None:
    """Wait until a gateway has a data path."""
    while True:
        peers: Any = ask_status(address)["peers"]
        if any(path["up"] for peer in peers for path in peer["paths"]):
            return
        time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def _attached(host: Host, options: Options, port: int) -> Iterator[tuple[GatewayClient, Path | None]]:
    with tempfile.TemporaryDirectory() as name:
        document = configuration(Path(name), host, options, port)
        told, me = document.get("trace"), parties(host)[host.number]
        trace = None if told is None else Path(told)
        with running_gateway(document) as address, GatewayClient(address, "s", me) as client:
            if host.number:
                client.get("ready", _TAG, parties(host)[0], timeout=NEVER_SECONDS)
                if trace is None:
                    _wait_until_up(address)
                else:
                    wait_for_path(trace)
            else:
                client.put_inline("ready", _TAG, parties(host)[1:], "bytes", b"ready")
            yield client, trace


@contextlib.contextmanager
def gateway_server(host: Host, chair: Chair, options: Options) -> Iterator[Server]:
    """Of every MODE/TRANSPORT."""
    (port,) = free_ports(1)
    with _attached(host, options, port) as (client, trace):
        chair.tell(port)
        chair.hear()
        if probes(host, options):
            time.sleep(PROBED_SECONDS)
        yield GatewayServer(client, trace, host, options)


@contextlib.contextmanager
def gateway_silo(host: Host, seat: Seat, options: Options) -> Iterator[Silo]:
    """Of every MODE/TRANSPORT."""
    with _attached(host, options, int(seat.hear())) as (client, trace):
        seat.say("the data path is up")
        yield GatewaySilo(client, trace, host, options)
