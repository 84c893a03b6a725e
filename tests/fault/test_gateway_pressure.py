"""More than the pools hold now, and more than they can ever hold: what fits gets through, the rest gets a code."""

from __future__ import annotations

import gc
import itertools
import logging
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import Mode
from tests.support.files import spilled_below
from tests.support.sites import Site, Sites, eventually, party, start_gateways

MIB = 2**20
COUNT = 50
ROOM_FOR_FOUR = {
    "send_bytes": 4 * MIB,
    "receive_bytes": 5 * MIB,
    "ring_slots": 1,
    "ring_slot_bytes": "512KiB",
}
MODES: tuple[Mode, ...] = ("grpc", "fedrdma", "fedrdma-e", "fedrdma-x")


def body_of(name: str, length: int = MIB) -> bytes:
    return random.Random(name).randbytes(length)


def push(client: GatewayClient, name: str, to: Sequence[str], body: bytes) -> None:
    lease = client.lease(len(body), timeout=60)
    lease.buffer[:] = body
    lease.commit(name, "t", [party(one) for one in to], "object")


def pull(client: GatewayClient, name: str, source: str) -> bytes:
    return bytes(client.get(name, "t", party(source), timeout=60).buffer)


def refused(client: GatewayClient, name: str, to: Sequence[str], length: int) -> FedRDMAError:
    """The error of a push."""
    with pytest.raises(FedRDMAError) as caught:
        push(client, name, to, bytes(length))
    return caught.value


def all_memory_is_back(sites: Sites) -> bool:
    """Nothing is leased but the rings, of one slot a data path, and nothing is on disk."""
    return all(
        site.pool("send")["slots"] == 0
        and site.pool("receive")["slots"] <= site.standing_grants(ring_slots=1)
        and not spilled_below(site.home / "spill")
        for site in sites.values()
    )


# --- more than there is room for now ---


def push_all(client: GatewayClient, session: str, own: str, other: str) -> None:
    for number in range(COUNT):
        push(client, f"m{number}", [other], body_of(f"{session}{own}{number}"))


def push_all_and_pull_the_last_first(site: Site, session: str, own: str, other: str, mode: Mode | None) -> int:
    """Push fifty messages, and meanwhile pull the other's fifty from the last to the first; how many came whole."""
    with (
        site.client(session, own, mode=mode) as pusher,
        site.client(session, own) as puller,
        ThreadPoolExecutor(1) as thread,
    ):
        pushing = thread.submit(push_all, pusher, session, own, other)
        whole = sum(pull(puller, f"m{n}", other) == body_of(f"{session}{other}{n}") for n in reversed(range(COUNT)))
        pushing.result(60)
        return whole


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_the_last_of_fifty_is_pulled_first_in_both_directions_while_there_is_room_for_four(
    tmp_path: Path, mode: Mode, transport: str
) -> None:
    layout = {"a": ["guest:1"], "b": ["host:2"]}
    with (
        start_gateways(layout, tmp_path, memory=ROOM_FOR_FOUR, transport=transport) as sites,
        ThreadPoolExecutor(2) as threads,
    ):
        sides = [
            threads.submit(push_all_and_pull_the_last_first, sites["a"], "s", "guest:1", "host:2", mode),
            threads.submit(push_all_and_pull_the_last_first, sites["b"], "s", "host:2", "guest:1", mode),
        ]
        assert [side.result(100) for side in sides] == [COUNT, COUNT]
        eventually(lambda: all_memory_is_back(sites))


def test_the_last_of_fifty_is_pulled_first_within_one_gateway_by_two_sessions_at_once(tmp_path: Path) -> None:
    with start_gateways({"a": ["guest:1", "host:2"]}, tmp_path, memory=ROOM_FOR_FOUR) as sites:
        ways = itertools.product(("x", "y"), (("guest:1", "host:2"), ("host:2", "guest:1")))
        with ThreadPoolExecutor(4) as threads:
            sides = [
                threads.submit(push_all_and_pull_the_last_first, sites["a"], session, *way, None)
                for session, way in ways
            ]
            assert [side.result(100) for side in sides] == [COUNT] * 4
        eventually(lambda: all_memory_is_back(sites))


def test_a_get_that_times_out_while_a_task_holds_the_receive_region_says_so(tmp_path: Path) -> None:
    with start_gateways({"a": ["guest:1"], "b": ["host:2"]}, tmp_path, memory=ROOM_FOR_FOUR) as sites:
        with sites["a"].client() as a, sites["b"].client() as b:
            for number in range(4):
                push(a, f"m{number}", ["host:2"], body_of(f"m{number}"))
            kept = [b.get(f"m{number}", "t", party("guest:1"), timeout=60) for number in range(4)]
            push(a, "m4", ["host:2"], body_of("m4"))
            eventually(lambda: sites["b"].pool("receive")["waiting"] == 1)
            with pytest.raises(GatewayError) as caught:
                b.get("m4", "t", party("guest:1"), timeout=0.05)
            assert caught.value.code is ErrorCode.PULL_TIMEOUT
            assert "wait for room in the receive region: 1" in caught.value.message
            assert f"hold {4 * MIB:,} of its {5 * MIB:,} bytes" in caught.value.message
            assert "memory.receive_bytes" in caught.value.remedy
            # and when the task lets go, it comes
            kept.clear()
            gc.collect()
            assert pull(b, "m4", "guest:1") == body_of("m4")
            with pytest.raises(GatewayError) as caught:
                b.get("never", "t", party("guest:1"), timeout=0.05)
            assert "receive" not in str(caught.value)
        eventually(lambda: all_memory_is_back(sites))


# --- more than there can ever be room for ---


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    """Site a has 4 MiB to send from, b has 2 MiB and c has 8 MiB to receive into."""
    layout = {"a": ["guest:1"], "b": ["host:2"], "c": ["host:3"]}
    memory = {"send_bytes": 4 * MIB, "receive_bytes": 8 * MIB, "ring_slots": 1, "ring_slot_bytes": "256KiB"}
    with start_gateways(layout, tmp_path, connected=False, memory=memory) as running:
        running.runner.stop(running["b"])
        running["b"].config["memory"]["receive_bytes"] = 2 * MIB
        running.runner.start(running["b"])
        running.wait_until_connected()
        yield running


def test_the_sender_is_told_at_once_what_its_own_memory_will_never_hold(sites: Sites) -> None:
    with sites["a"].client() as a, sites["c"].client() as c:
        with pytest.raises(MemoryPoolError) as caught:
            a.lease(4 * MIB + 1)
        assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
        assert "memory.send_bytes" in caught.value.remedy
        push(a, "m", ["host:3"], body_of("all of it", 4 * MIB))
        assert pull(c, "m", "guest:1") == body_of("all of it", 4 * MIB)
    eventually(lambda: all_memory_is_back(sites))


def test_what_one_of_two_receivers_will_never_hold_is_sent_to_none_of_them(sites: Sites) -> None:
    with sites["a"].client() as a, sites["b"].client() as b, sites["c"].client() as c:
        error = refused(a, "m", ["host:3", "host:2"], 3 * MIB)
        assert error.code is ErrorCode.PAYLOAD_TOO_LARGE
        assert "site 'b'" in error.message
        assert error.remedy == "Raise memory.receive_bytes there."
        push(a, "m", ["host:3", "host:2"], body_of("fits"))
        assert pull(b, "m", "guest:1") == pull(c, "m", "guest:1") == body_of("fits")
    eventually(lambda: all_memory_is_back(sites))


LARGEST_SLOT = 2 * MIB - 2 * MIB // 16
"""Of b's receive memory: an eighth of the share of its other peer is reserved for that one."""


@pytest.mark.parametrize(
    ("mode", "small", "large"),
    [
        # a slot holds a header as well, and in mode fedrdma what is staged besides
        ("grpc", MIB, LARGEST_SLOT - 4096),
        ("fedrdma", MIB // 2, (LARGEST_SLOT - 8192) // 2),
        ("fedrdma-e", MIB, LARGEST_SLOT - 4096),
    ],
)
def test_what_takes_all_receive_memory_waits_until_what_nobody_pulls_is_on_disk(
    sites: Sites, mode: Mode, small: int, large: int
) -> None:
    with sites["a"].client(mode=mode) as a, sites["b"].client() as b:
        push(a, "m0", ["host:2"], body_of("m0", small))
        eventually(lambda: sites["b"].status()["mailbox"]["messages"] == 1)
        push(a, "m1", ["host:2"], body_of("m1", large))
        assert pull(b, "m1", "guest:1") == body_of("m1", large)
        assert pull(b, "m0", "guest:1") == body_of("m0", small)
        assert [event["bytes"] for event in sites["b"].events("spilled")] == [small]
    eventually(lambda: all_memory_is_back(sites))


def test_what_was_pushed_to_a_peer_of_unknown_size_is_refused_in_both_logs_and_the_next_gets_through(
    sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    sites.runner.stop(sites["b"])
    eventually(lambda: not sites["a"].status()["peers"][0]["connected"])
    sites.runner.stop(sites["a"])
    sites.runner.start(sites["a"])
    with sites["a"].client() as a, caplog.at_level(logging.WARNING):
        push(a, "too large", ["host:2"], bytes(3 * MIB))
        push(a, "fits", ["host:2"], body_of("fits"))
        sites.runner.start(sites["b"])
        with sites["b"].client() as b:
            with pytest.raises(FedRDMAError) as caught:
                pull(b, "too large", "guest:1")
            assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
            assert pull(b, "fits", "guest:1") == body_of("fits")
        assert refused(a, "next", ["host:2"], 1).code is ErrorCode.PAYLOAD_TOO_LARGE
    loggers = {record.name for record in caplog.records if "[FR402]" in record.getMessage()}
    assert loggers >= {"fedrdma_fate.gateway.peers.sending", "fedrdma_fate.gateway.peers.receiving"}
    eventually(lambda: all_memory_is_back(sites))
