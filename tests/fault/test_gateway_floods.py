"""One peer at the full rate of a frame: an honest one's megabyte arrives, and memory and log stay small."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import tempfile
import threading
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
    host, _, port = site.config["listen"]["control"].rpartition(":")
    hello = Hello("m", os.urandom(4).hex(), PROTOCOL_VERSION, "1", "else", (str(EVIL),), ("tcp",), 2**20)
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(_framed(hello))
        connection.recv(LENGTH_BYTES)
        numbers = itertools.count(1)
        for _ in range(FRAMES // 100):
            connection.sendall(b"".join(_framed(make(next(numbers))) for _ in range(100)))
            sent.set()
        connection.sendall(_framed(Goodbye("done")))
    sent.set()


def _framed(frame: Frame) -> bytes:
    raw = encode_frame(frame)
    return len(raw).to_bytes(LENGTH_BYTES, "big") + raw


def test_one_peer_at_the_full_rate_of_each_frame_keeps_no_honest_megabyte_and_fills_neither_memory_nor_log(
    tmp_path: Path,
) -> None:
    with besieged(tmp_path) as (sites, runner), sites["a"].client() as a, sites["b"].client() as b:
        body = os.urandom(2**20)
        _exchange(a, b, "first", body)
        pid = runner.processes["b"].pid
        before, log = resident_bytes(pid), (sites["b"].home / "log").stat().st_size
        for name, make in KINDS.items():
            sent = threading.Event()
            flooding = threading.Thread(target=flood, args=(sites["b"], make, sent))
            flooding.start()
            sent.wait(30)
            for number in range(3):
                _exchange(a, b, f"{name}{number}", body)
            flooding.join(60)
            grown = resident_bytes(pid) - before
            assert grown < MOST_GROWTH_BYTES, f"{name}: {grown} bytes"
            assert honest_up(sites["b"]), name
        assert (sites["b"].home / "log").stat().st_size - log < MOST_LOG_BYTES


def _exchange(a: GatewayClient, b: GatewayClient, name: str, body: bytes) -> None:
    lease = a.lease(len(body))
    lease.buffer[:] = body
    lease.commit(name, "t", [B], "object")
    assert bytes(b.get(name, "t", A, timeout=30).buffer) == body


@pytest.mark.parametrize("name", sorted(KINDS))
def test_the_frames_of_the_flood_are_valid(name: str) -> None:
    frame = KINDS[name](7)
    assert decode_frame(encode_frame(frame)) == frame
