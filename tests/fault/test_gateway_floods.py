"""Floods by a peer, or by strangers: an honest megabyte arrives meanwhile, memory and log stay small."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.gateway.peers.control_connection import LENGTH_BYTES
from fedrdma_fate.wire.frames import (
    Frame,
    Goodbye,
    Grant,
    GrantRequest,
    Hello,
    Inline,
    Lend,
    MessageKey,
    Offer,
    Party,
    Ping,
    Undeliverable,
    decode_frame,
    encode_frame,
)
from fedrdma_fate.wire.header import PROTOCOL_VERSION
from tests.support.sites import InProcesses, Site, Sites, eventually, linked_sites, party

A, B, EVIL = party("guest:1"), party("host:2"), Party("arbiter", "3")
FRAMES = 40_000
"""Two seconds at the rate that a peer may have, and as fast as it can be sent."""

CONNECTIONS = 1_000
"""Idle at once, or greeting in each second."""
GREETING_SECONDS = 3.0

MOST_GROWTH_BYTES = 64 * 2**20
MOST_LOG_BYTES = 2**20


def key(number: int) -> MessageKey:
    return MessageKey("e", f"m{number}", "t", EVIL, B)


KINDS: dict[str, Callable[[int], Frame]] = {
    "ping": lambda number: Ping(float(number)),
    "inline": lambda number: Inline(number, key(number), "bytes", bytes(1000)),
    "inline of others": lambda number: Inline(number, MessageKey("s", f"m{number}", "t", A, B), "bytes", b""),
    "undeliverable": lambda number: Undeliverable(key(number), "FR303", "y" * 1000),
    "grant-request": lambda number: GrantRequest("tcp", number, 2**26),
    "grant": lambda number: Grant("tcp", number, 1, 0, 4096),
    "offer": lambda number: Offer("tcp", number, key(number), "bytes", 70_000, "fedrdma-e", number, 4096, 0),
    "lend": lambda number: Lend(number, key(number), "bytes", 70_000, 0),
}


def resident_bytes(pid: int) -> int:
    """Of a process's own memory: its heap, without the regions."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@contextlib.contextmanager
def besieged(directory: Path) -> Iterator[tuple[Sites, InProcesses]]:
    runner = InProcesses()
    stranger = {"site": "m", "parties": [str(EVIL)]}
    with tempfile.TemporaryDirectory(prefix="fr") as sockets:
        layout = {"a": ["guest:1"], "b": ["host:2"]}
        sites = linked_sites(layout, directory, Path(sockets), strangers=[stranger])
        with Sites.running(sites, runner) as running:
            for site in running.values():
                eventually(lambda site=site: honest_up(site), 60)  # type: ignore[misc]
            yield running, runner


def honest_up(site: Site) -> bool:
    peers = [peer for peer in site.status()["peers"] if peer["site"] != "m"]
    return all(peer["connected"] and any(path["up"] for path in peer["paths"]) for peer in peers)


def flood(site: Site, make: Callable[[int], Frame], sent: threading.Event) -> None:
    """Greet as m, and send frames of one kind as fast as they are taken; read nothing."""
    hello = Hello("m", os.urandom(4).hex(), PROTOCOL_VERSION, "1", "else", (str(EVIL),), ("tcp",), 2**20)
    with contextlib.suppress(OSError), socket.create_connection(control_address(site), timeout=20) as connection:
        connection.sendall(_framed(hello))
        connection.recv(LENGTH_BYTES)
        numbers = itertools.count(1)
        for _ in range(FRAMES // 100):
            connection.sendall(b"".join(_framed(make(next(numbers))) for _ in range(100)))
            sent.set()
        connection.sendall(_framed(Goodbye("done")))
    sent.set()


def frames_of(make: Callable[[int], Frame]) -> Flood:
    """Frames of one kind by a peer."""
    return lambda site, sent: flood(site, make, sent)


def idle(site: Site, sent: threading.Event) -> None:
    """A thousand connections that say nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection(control_address(site), timeout=20))
        sent.set()
        time.sleep(GREETING_SECONDS)


def greetings(site: Site, sent: threading.Event) -> None:
    """A thousand greetings a second by somebody who is no peer, each on a connection of its own."""
    began, greeted = time.monotonic(), 0
    while (passed := time.monotonic() - began) < GREETING_SECONDS:
        if greeted >= CONNECTIONS * passed:
            time.sleep(0.001)
            continue
        hello = Hello(f"s{greeted}", "x", PROTOCOL_VERSION, "1", "else", ("host:9",), ("tcp",), 2**20)
        with contextlib.suppress(OSError), socket.create_connection(control_address(site), timeout=20) as connection:
            connection.sendall(_framed(hello))
        greeted += 1
        sent.set()
    sent.set()


Flood = Callable[[Site, threading.Event], None]
FLOODS: dict[str, Flood] = {
    **{f"each {name}": frames_of(make) for name, make in KINDS.items()},
    "a thousand idle connections": idle,
    "a thousand greetings a second": greetings,
}


def control_address(site: Site) -> tuple[str, int]:
    host, _, port = site.config["listen"]["control"].rpartition(":")
    return host, int(port)


def _framed(frame: Frame) -> bytes:
    raw = encode_frame(frame)
    return len(raw).to_bytes(LENGTH_BYTES, "big") + raw


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_no_flood_keeps_an_honest_megabyte_or_fills_memory_or_log(tmp_path: Path) -> None:
    """`pytest -s` prints how long an honest megabyte takes meanwhile, beside what it takes without."""
    with besieged(tmp_path) as (sites, runner), sites["a"].client() as a, sites["b"].client() as b:
        body = os.urandom(2**20)
        usual = max(_exchange(a, b, f"usual{number}", body) for number in range(10))
        print(f"\nseconds of an honest megabyte: usually {usual:.3f} at most")
        pid = runner.processes["b"].pid
        before, log = resident_bytes(pid), (sites["b"].home / "log").stat().st_size
        for name, flood_with in FLOODS.items():
            longest = _longest_meanwhile(sites, flood_with, lambda at, name=name: _exchange(a, b, f"{name}{at}", body))
            if longest > 2 * usual + 1:
                # the host may have been busy with something else; a flood that holds others up does so again
                longest = _longest_meanwhile(
                    sites, flood_with, lambda at, name=name: _exchange(a, b, f"{name} again{at}", body)
                )
            grown = resident_bytes(pid) - before
            print(f"{longest:6.3f} and {grown / 2**20:5.1f} MiB more: {name}")
            assert longest < 2 * usual + 1, f"{name}: {longest:.3f} s, usually {usual:.3f} s"
            assert grown < MOST_GROWTH_BYTES, f"{name}: {grown} bytes"
            assert honest_up(sites["b"]), name
        assert (sites["b"].home / "log").stat().st_size - log < MOST_LOG_BYTES


def _longest_meanwhile(sites: Sites, flood_with: Flood, exchange: Callable[[int], float]) -> float:
    """How long the longest of three exchanges takes during a flood of b."""
    sent = threading.Event()
    flooding = threading.Thread(target=flood_with, args=(sites["b"], sent))
    flooding.start()
    sent.wait(30)
    longest = max(map(exchange, range(3)))
    flooding.join(60)
    return longest


def _exchange(a: GatewayClient, b: GatewayClient, name: str, body: bytes) -> float:
    """Send a message, and get it; how many seconds that took."""
    began = time.monotonic()
    lease = a.lease(len(body))
    lease.buffer[:] = body
    lease.commit(name, "t", [B], "object")
    assert bytes(b.get(name, "t", A, timeout=30).buffer) == body
    return time.monotonic() - began


@pytest.mark.parametrize("name", sorted(KINDS))
def test_the_frames_of_the_flood_are_valid(name: str) -> None:
    frame = KINDS[name](7)
    assert decode_frame(encode_frame(frame)) == frame
