"""Tasks of one site that get what a task of another put to all of them: one transfer, one slot, each its own copy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from fedrdma_fate.client.client import GatewayClient, SendLease
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from tests.support.sites import Site, eventually, party, start_gateways

NAMES = [f"host:{number}" for number in range(4)]
HOSTS = [party(name) for name in NAMES]
ARBITER = party("arbiter:1")
BODY = random.Random(4).randbytes(1_000_000)
RING_SLOTS = 2
MEMORY = {"send_bytes": "8MiB", "receive_bytes": "8MiB", "ring_slots": RING_SLOTS, "ring_slot_bytes": "256KiB"}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    with start_gateways({"a": ["arbiter:1"], "b": NAMES}, tmp_path_factory.mktemp("sites"), memory=MEMORY) as running:
        yield running


def brought(sites: dict[str, Site], session: str) -> list[str]:
    """By which transport each message of a session came."""
    return [event["transport"] for event in sites["b"].events("delivered") if event["session"] == session]


def slots_of_messages(sites: dict[str, Site]) -> int:
    """Receive slots that are no standing grants, when all of those are granted."""
    return int(sites["b"].pool("receive")["slots"]) - sites["b"].standing_grants(RING_SLOTS)


@contextmanager
def attached(sites: dict[str, Site], session: str) -> Iterator[tuple[GatewayClient, list[GatewayClient]]]:
    """The task of the arbiter, and one of each party of the other site."""
    with ExitStack() as stack:
        arbiter = stack.enter_context(sites["a"].client(session, "arbiter:1"))
        yield arbiter, [stack.enter_context(sites["b"].client(session, name)) for name in NAMES]


def written(arbiter: GatewayClient) -> SendLease:
    """What all are to get."""
    lease = arbiter.lease(len(BODY))
    lease.buffer[:] = BODY
    return lease


@pytest.mark.parametrize("at_once", [True, False], ids=["in one put", "one put after the other"])
def test_each_party_gets_it_once_and_may_write_to_what_it_has_got(
    sites: dict[str, Site], request: pytest.FixtureRequest, at_once: bool
) -> None:
    session = request.node.name
    with attached(sites, session) as (arbiter, tasks):
        lease = written(arbiter)
        if at_once:
            lease.commit("m", "t", HOSTS, "object")
        else:
            for host in HOSTS[:-1]:
                lease.commit("m", "t", [host], "object", keep=True)
            lease.commit("m", "t", HOSTS[-1:], "object")
        for task in tasks:
            received = task.get("m", "t", ARBITER, timeout=60)
            assert bytes(received.buffer) == BODY
            # it is the task's own to write to
            received.buffer[:4] = b"mine"
            del received
        for task in tasks:
            with pytest.raises(FedRDMAError) as again:
                task.get("m", "t", ARBITER, timeout=1)
            assert again.value.code is ErrorCode.DUPLICATE_PULL
            del again
        eventually(lambda: len(brought(sites, session)) == 4)
        eventually(lambda: slots_of_messages(sites) == 0)
        eventually(lambda: sites["a"].pool("send")["slots"] == 0)
    if at_once:
        assert sorted(brought(sites, session)) == ["", "", "", "tcp"]


def test_the_last_task_that_has_it_keeps_its_slot(sites: dict[str, Site], request: pytest.FixtureRequest) -> None:
    session = request.node.name
    with attached(sites, session) as (arbiter, tasks):
        lease = written(arbiter)
        lease.commit("m", "t", HOSTS, "object")
        received = [task.get("m", "t", ARBITER, timeout=60) for task in tasks]
        eventually(lambda: slots_of_messages(sites) == 1)
        del received[1:]
        # nothing is freed by that
        tasks[0].put_inline("back", "t", [ARBITER], "bytes", b"x")
        assert arbiter.get("back", "t", HOSTS[0], timeout=60)
        assert slots_of_messages(sites) == 1
        assert bytes(received[0].buffer) == BODY
        received.clear()
        eventually(lambda: slots_of_messages(sites) == 0)


def test_a_party_that_leaves_takes_nothing_from_the_others(
    sites: dict[str, Site], request: pytest.FixtureRequest
) -> None:
    session = request.node.name
    with attached(sites, session) as (arbiter, tasks):
        lease = written(arbiter)
        lease.commit("m", "t", HOSTS, "object")
        eventually(lambda: len(brought(sites, session)) == 4)
        tasks[0].leave()
        for task in tasks[1:]:
            assert bytes(task.get("m", "t", ARBITER, timeout=60).buffer) == BODY
        eventually(lambda: sites["a"].pool("send")["slots"] == 0)
