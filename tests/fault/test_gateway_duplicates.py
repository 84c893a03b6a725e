"""One name and tag pushed more than once, by threads, tasks or a restarted site: one message comes, and comes once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.support.sites import Sites, eventually, party, start_gateways

A, B = party("guest:1"), party("host:2")
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
LARGE = 200_000


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    with start_gateways(LAYOUT, tmp_path) as running:
        yield running


def push(client: GatewayClient, body: bytes) -> ErrorCode | None:
    """Push the one message; the code with which it was refused."""
    try:
        if len(body) < LARGE:
            client.put_inline("m", "t", [B], "object", body)
        else:
            lease = client.lease(len(body))
            lease.buffer[:] = body
            lease.commit("m", "t", [B], "object")
    except GatewayError as error:
        return error.code
    return None


def pull(client: GatewayClient, timeout: float = 20.0) -> bytes:
    return bytes(client.get("m", "t", A, timeout=timeout).buffer)


def code_of_pull(client: GatewayClient) -> ErrorCode:
    with pytest.raises(GatewayError) as caught:
        pull(client, 0.2)
    return caught.value.code


def memory_is_back(sites: Sites) -> bool:
    return all(site.pool("send")["slots"] == 0 and site.pool("receive")["slots"] <= 2 for site in sites.values())


def test_of_many_pushes_at_once_by_two_tasks_one_is_taken_and_all_others_are_told(sites: Sites) -> None:
    bodies = [bytes([number]) * length for number in range(8) for length in (10, LARGE)]
    together = threading.Barrier(len(bodies))

    def push_together(client: GatewayClient, body: bytes) -> ErrorCode | None:
        together.wait(20)
        return push(client, body)

    with (
        sites["a"].client() as first,
        sites["a"].client() as second,
        sites["b"].client() as receiver,
        ThreadPoolExecutor(len(bodies)) as threads,
    ):
        codes = list(threads.map(push_together, itertools.cycle([first, first, second, second]), bodies))
        assert sorted(filter(None, codes)) == [ErrorCode.DUPLICATE_PUSH] * (len(bodies) - 1)
        assert pull(receiver) == bodies[codes.index(None)]
        assert code_of_pull(receiver) is ErrorCode.DUPLICATE_PULL
        assert push(first, bytes(LARGE)) is ErrorCode.DUPLICATE_PUSH
        assert len(sites["b"].events("delivered")) == 1
        eventually(lambda: memory_is_back(sites))


@pytest.mark.parametrize("length", [10, LARGE], ids=["inline", "slot"])
@pytest.mark.parametrize("pulled", [False, True], ids=["before the pull", "after the pull"])
def test_a_site_that_was_restarted_and_pushes_again_does_not_double_what_had_arrived(
    sites: Sites, length: int, pulled: bool
) -> None:
    with sites["b"].client() as receiver:
        with sites["a"].client() as sender:
            assert push(sender, b"1" * length) is None
            eventually(lambda: sites["b"].events("delivered"))
            if pulled:
                assert pull(receiver) == b"1" * length
        sites.runner.stop(sites["a"])
        sites.runner.start(sites["a"])
        sites.wait_until_connected()
        with sites["a"].client() as sender:
            assert push(sender, b"2" * length) is None
            eventually(lambda: len(sites["b"].events("delivered")) == 2)
            if not pulled:
                assert pull(receiver) == b"1" * length
            assert code_of_pull(receiver) is ErrorCode.DUPLICATE_PULL
            assert [event["kept"] for event in sites["b"].events("delivered")] == [True, False]
            eventually(lambda: memory_is_back(sites))
