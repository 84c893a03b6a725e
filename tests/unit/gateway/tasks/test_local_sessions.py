"""Sessions between parties of one site: a task that was not named in one is told, and nothing is lost silently."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from tests.support.sites import READY_SECONDS, Site, eventually, party, start_gateways

GUEST, HOST, ARBITER = party("guest:1"), party("host:1"), party("arbiter:1")
LARGE = 300_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    layout = {"a": [str(GUEST), str(HOST), str(ARBITER)]}
    directory: Path = tmp_path_factory.mktemp("local")
    with start_gateways(layout, directory, connected=False) as sites:
        yield sites["a"]


def task(site: Site, session: str, of: str, *parties: str) -> GatewayClient:
    named = [party(each) for each in parties]
    return GatewayClient(site.address, session, party(of), parties=named, connect_timeout=READY_SECONDS)


def push(client: GatewayClient, name: str, length: int) -> None:
    body = os.urandom(length)
    if length < LARGE:
        client.put_inline(name, "t", [HOST], "bytes", body)
        return
    lease = client.lease(length)
    lease.buffer[:] = body
    lease.commit(name, "t", [HOST], "object")


@pytest.mark.parametrize("length", [10, LARGE])
def test_a_task_that_attaches_for_a_session_it_was_not_named_in_is_told_at_its_push(site: Site, length: int) -> None:
    session = f"unnamed-{length}"
    with (
        task(site, session, "host:1", "host:1", "guest:1") as host,
        task(site, session, "arbiter:1", "arbiter:1", "host:1") as stranger,
    ):
        with pytest.raises(FedRDMAError) as caught:
            push(stranger, "m", length)
        assert caught.value.code is ErrorCode.SESSION_NOT_OPEN
        # nothing waits, and where it is named it may be pushed
        assert site.status()["mailbox"]["messages"] == 0
        with task(site, session, "host:1", "arbiter:1"):
            push(stranger, "m", length)
            assert len(host.get("m", "t", ARBITER, timeout=10).buffer) == length
    eventually(lambda: site.pool("send")["slots"] == 0)


@pytest.mark.parametrize("length", [10, LARGE])
def test_a_task_whose_message_came_before_the_destination_did_not_name_it_is_told_at_its_next_call(
    site: Site, length: int
) -> None:
    session = f"early-{length}"
    with task(site, session, "arbiter:1", "arbiter:1", "host:1") as stranger:
        push(stranger, "m", length)
        with task(site, session, "host:1", "host:1", "guest:1"):
            with pytest.raises(FedRDMAError) as caught:
                push(stranger, "next", length)
            assert caught.value.code is ErrorCode.SESSION_NOT_OPEN
            assert "an earlier push" in caught.value.message
    eventually(lambda: site.pool("send")["slots"] == 0)
