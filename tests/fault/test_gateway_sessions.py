"""Sessions side by side and one after the other: messages are not mixed up, and nothing is left of a session."""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES
from tests.support.files import files_below
from tests.support.shared_memory import room_for_regions
from tests.support.sites import InProcesses, Site, Sites, eventually, party, start_gateways

PARTIES = ("guest:1", "host:2", "arbiter:3")
SESSIONS = ("job-1", "job-2")
LENGTHS = {"tiny": 11, "inline": INLINE_LIMIT_BYTES, "slot": INLINE_LIMIT_BYTES + 1, "large": 600_000}
TURNS = 4


def body_of(session: str, source: str, destination: str, name: str, tag: str) -> bytes:
    """What only this message holds."""
    return random.Random(f"{session}/{source}/{destination}/{name}/{tag}").randbytes(LENGTHS[name])


def push(client: GatewayClient, name: str, tag: str, to: str, body: bytes) -> None:
    if len(body) <= INLINE_LIMIT_BYTES:
        client.put_inline(name, tag, [party(to)], "bytes", body)
        return
    lease = client.lease(len(body))
    lease.buffer[:] = body
    lease.commit(name, tag, [party(to)], "object")


def take_part(site: Site, session: str, own: str) -> int:
    """Push every message to every other party, pull all of theirs in any order; how many were what they should be."""
    chance = random.Random(f"{session}{own}")
    others = [other for other in PARTIES if other != own]
    messages = list(itertools.product(others, LENGTHS, map(str, range(TURNS))))
    right = 0
    with site.client(session, own) as client:
        for to, name, tag in messages:
            push(client, name, tag, to, body_of(session, own, to, name, tag))
        chance.shuffle(messages)
        for source, name, tag in messages:
            received = client.get(name, tag, party(source), timeout=60)
            right += bytes(received.buffer) == body_of(session, source, own, name, tag)
    return right


ONE = {"a": PARTIES}
TWO = {"a": PARTIES[:1], "b": PARTIES[1:]}
THREE = {"a": PARTIES[:1], "b": PARTIES[1:2], "c": PARTIES[2:]}


@pytest.mark.parametrize(
    ("layout", "transport"),
    [(ONE, "auto"), (TWO, "tcp"), (TWO, "shm"), (THREE, "tcp"), (THREE, "shm")],
    ids=["one gateway", "two, tcp", "two, shm", "three, tcp", "three, shm"],
)
def test_two_sessions_of_three_parties_at_once_are_not_mixed_up(
    tmp_path: Path, layout: Mapping[str, Sequence[str]], transport: str
) -> None:
    site_of = {one: name for name, parties in layout.items() for one in parties}
    actors = list(itertools.product(SESSIONS, PARTIES))
    each = (len(PARTIES) - 1) * len(LENGTHS) * TURNS
    with start_gateways(layout, tmp_path, transport=transport) as sites, ThreadPoolExecutor(len(actors)) as threads:
        right = threads.map(lambda actor: take_part(sites[site_of[actor[1]]], *actor), actors)
        assert list(right) == [each] * len(actors)
        eventually(lambda: all(site.pool("send")["slots"] == 0 for site in sites.values()))
        delivered = Counter(identity(event) for site in sites.values() for event in site.events("delivered"))
    assert len(delivered) == each * len(actors)
    assert set(delivered.values()) == {1}


def identity(event: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(event[key] for key in ("session", "source", "destination", "name", "tag"))


# --- one after the other ---


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Sites]:
    """Two gateways, each a process of its own, in shared memory of their own."""
    with (
        tempfile.TemporaryDirectory(dir=room_for_regions(), prefix="test-of-fedrdma-") as memory,
        start_gateways(
            {"a": ["guest:1"], "b": ["host:2"]}, tmp_path, runner=InProcesses(), memory={"directory": memory}
        ) as sites,
    ):
        yield sites


def held_by(sites: Sites, site: Site) -> dict[str, int]:
    """What a gateway's process holds of everything that a session could leave behind."""
    assert isinstance(sites.runner, InProcesses)
    process = Path(f"/proc/{sites.runner.processes[site.name].pid}")
    status = site.status()
    memory = Path(site.config["memory"]["directory"])
    return {
        "descriptors": len(os.listdir(process / "fd")),
        "threads": len(os.listdir(process / "task")),
        "mappings": (process / "maps").read_text().count(str(memory)),
        "files in memory": len(files_below(memory)),
        "spill files": len(files_below(site.home / "spill")),
        "leases to send": site.pool("send")["slots"],
        "tasks": status["tasks"],
        "transfers": len(status["transfers"]),
        **status["mailbox"],
    }


def one_session(sites: Sites, number: int) -> None:
    """Both push and pull; in some sessions the receive memory is too small, and most of it is never pulled."""
    session = f"s{number}"
    count = 16 if number % 10 == 0 else 1
    with sites["a"].client(session) as a, sites["b"].client(session) as b:
        for turn in map(str, range(count)):
            push(a, "large", turn, "host:2", body_of(session, "guest:1", "host:2", "large", turn))
        push(b, "slot", "t", "guest:1", body_of(session, "host:2", "guest:1", "slot", "t"))
        push(b, "tiny", "t", "guest:1", b"never pulled")
        last = b.get("large", str(count - 1), party("guest:1"), timeout=30)
        assert bytes(last.buffer) == body_of(session, "guest:1", "host:2", "large", str(count - 1))
        assert len(a.get("slot", "t", party("host:2"), timeout=30).buffer) == LENGTHS["slot"]
        a.leave()
        b.leave()


def nothing_is_left(before: Mapping[str, int], now: Mapping[str, int]) -> bool:
    """Nothing grew but the pool of worker threads, which grows when it is first used and is bounded."""
    workers = min(32, (os.cpu_count() or 1) + 4)
    return all(now[what] <= before[what] + (workers if what == "threads" else 0) for what in before)


def test_two_hundred_sessions_one_after_the_other_leave_nothing_in_the_gateways(processes: Sites) -> None:
    def all_held() -> list[dict[str, int]]:
        return [held_by(processes, site) for site in processes.values()]

    def idle() -> bool:
        return all(not (held["tasks"] or held["transfers"] or held["leases to send"]) for held in all_held())

    for number in range(11):
        one_session(processes, number)
    eventually(idle)
    before = all_held()
    for number in range(11, 211):
        one_session(processes, number)
    assert processes["b"].events("spilled")
    eventually(lambda: all(map(nothing_is_left, before, all_held())))


def test_a_session_that_puts_faster_than_its_rate_waits_and_all_of_it_arrives(tmp_path: Path) -> None:
    rate, floods = 50, 100
    with start_gateways(TWO, tmp_path, limits={"session_frames_per_second": rate}) as sites:
        with sites["a"].client("floods", PARTIES[0]) as task:
            began = time.monotonic()
            for number in range(floods):
                task.put_inline("n", str(number), [party(PARTIES[1])], "bytes", b"x")
            # a burst of one second, then one after the other
            assert time.monotonic() - began >= (floods - rate - 2) / rate
        with sites["b"].client("floods", PARTIES[1]) as task:
            for number in range(floods):
                assert bytes(task.get("n", str(number), party(PARTIES[0]), timeout=20).buffer) == b"x"
