"""A gateway is killed between writing down who has pulled a lent message and the task's having it: it comes once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.client.protocol import Done, Get, GoOn, GotSlot
from fedrdma_fate.unix_sockets import close_all
from fedrdma_fate.wire.errors import ErrorCode
from tests.support.raw_task import Connection, code_of
from tests.support.sites import InProcesses, Site, Sites, eventually, party, runner_of, start_gateways

A, B = party("guest:1"), party("host:2")
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
MEMORY = {"send_bytes": "16MiB", "receive_bytes": "16MiB", "ring_slots": 2, "ring_slot_bytes": "1MiB"}
BODY = os.urandom(1 << 20)
CLIENT, SECRET = "task", b"only it knows it"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Two gateways that lend, as processes; each test makes use of them in a session of its own."""
    with (
        tempfile.TemporaryDirectory() as shared,
        start_gateways(
            LAYOUT,
            tmp_path_factory.mktemp("lent"),
            runner=InProcesses(),
            connected=False,
            memory={**MEMORY, "directory": shared},
            transport="auto",
            mode="fedrdma-e",
            shm={"lend": True},
        ) as running,
    ):
        yield running


def push(client: GatewayClient, name: str) -> None:
    lease = client.lease(len(BODY))
    lease.buffer[:] = BODY
    lease.commit(name, "t", [B], "object")


def task(sites: Sites, session: str) -> Connection:
    """A connection of the task that pulls, to whichever run there is."""
    return Connection(sites["b"], session, B, client=f"{CLIENT} {session}", secret=SECRET)


def get(number: int, timeout: float = 10.0) -> Get:
    return Get("m", "t", A, timeout, number=number)


def delivered(site: Site, session: str) -> list[str]:
    return [event["mode"] for event in site.events("delivered") if event["session"] == session]


def lent(site: Site) -> int:
    return sum(peer["lent_messages"] for peer in site.status()["peers"])


def kill_before_the_reply(sites: Sites, session: str) -> Connection:
    """The gateway has written down that the message is the task's, and is killed; what it has answered nobody reads."""
    first = task(sites, session)
    first.send(get(1))
    first.wait_for_reply()
    eventually(lambda: delivered(sites["b"], session) == ["lent"])
    runner_of(sites).kill(sites["b"])
    first.hang_up()
    runner_of(sites).start(sites["b"])
    # offered anew before the task is back
    eventually(lambda: len(delivered(sites["b"], session)) == 2, 20)
    return first


def received(connection: Connection, number: int) -> bytes:
    """What a get is answered with."""
    connection.send(get(number))
    reply, descriptors = connection.receive_with_descriptors()
    try:
        assert isinstance(reply, GotSlot), reply
        return os.pread(descriptors[0], reply.total_bytes, reply.offset)
    finally:
        close_all(descriptors)


def test_a_lent_message_whose_task_has_had_no_reply_is_got_by_it_once_and_by_no_other(
    sites: Sites, session: str
) -> None:
    with sites["a"].client(session) as a:
        push(a, "m")
        first = kill_before_the_reply(sites, session)
        # once more, while nobody knows whether the task has it
        runner_of(sites).kill(sites["b"])
        runner_of(sites).start(sites["b"])
        eventually(lambda: len(delivered(sites["b"], session)) == 3, 20)
        other = Connection(sites["b"], session, B)
        assert code_of(other.call(get(1, 0.1))) == ErrorCode.DUPLICATE_PULL.value
        back = task(sites, session)
        assert back.call(GoOn((), 0, (1,))) == Done()
        assert received(back, 1) == BODY
        for connection in (other, back):
            assert code_of(connection.call(get(2, 0.1))) == ErrorCode.DUPLICATE_PULL.value
            connection.close()
        first.close()
        eventually(lambda: lent(sites["a"]) == 0)


def test_a_lent_message_whose_task_died_with_its_gateway_is_nobodys_and_its_slot_comes_back(
    sites: Sites, session: str
) -> None:
    with sites["a"].client(session) as a:
        push(a, "m")
        first = kill_before_the_reply(sites, session)
        assert lent(sites["a"]) == 1
        first.close()
        eventually(lambda: lent(sites["a"]) == 0)
        other = Connection(sites["b"], session, B)
        assert code_of(other.call(get(1, 0.1))) == ErrorCode.DUPLICATE_PULL.value
        other.close()
