"""Tasks that say anything in any order: what they hold comes back, what they may have is bounded, others go on."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator

import pytest

from fedrdma_fate.client.protocol import (
    Attached,
    Commit,
    Done,
    Get,
    Leased,
    LeaseSlot,
    Leave,
    PutInline,
    ReleaseLeases,
    Request,
    Written,
)
from fedrdma_fate.gateway.tasks import request_reader
from fedrdma_fate.gateway.tasks.request_reader import LARGE_REQUEST_BYTES, READ_AHEAD
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import MOST_PARTIES, Party
from tests.support.raw_task import GUEST, Connection, code_of
from tests.support.sites import Site, eventually, party, start_gateways

HOST = party("host:1")
SESSION_MESSAGES = 40


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("tasks")
    limits = {"messages": 2 * SESSION_MESSAGES, "session_messages": SESSION_MESSAGES}
    with start_gateways({"a": ["guest:1", "host:1"]}, directory, connected=False, limits=limits) as sites:
        yield sites["a"]


@pytest.mark.parametrize(
    "behind",
    [[ReleaseLeases((1,))] * (READ_AHEAD + 3), [PutInline("n" * LARGE_REQUEST_BYTES, "t", (HOST,), "bytes", b"")] * 2],
)
def test_a_task_that_ends_with_much_unread_behind_a_pull_leaves_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, behind: list[Request]
) -> None:
    monkeypatch.setattr(request_reader, "LOOK_SECONDS", 0.05)
    connection = Connection(site, "ended")
    assert isinstance(connection.call(LeaseSlot(4096)), Leased)
    connection.send(Get("never", "t", HOST), *behind)
    eventually(lambda: site.status()["mailbox"]["waiting_pulls"] == 1)
    connection.close()
    eventually(lambda: site.pool("send")["slots"] == 0)
    eventually(lambda: site.status()["mailbox"]["waiting_pulls"] == 0)
    eventually(lambda: site.status()["tasks"] == 0)


def test_so_many_small_messages_of_a_user_wait_for_parties_of_this_site(site: Site) -> None:
    guest, host = Connection(site, "many"), Connection(site, "many", HOST)
    body = bytes(60_000)
    replies = [guest.call(PutInline(f"m{n}", "t", (HOST,), "bytes", body)) for n in range(SESSION_MESSAGES + 1)]
    assert replies[:-1] == [Done()] * SESSION_MESSAGES
    assert code_of(replies[-1]) == ErrorCode.LIMIT_REACHED.value

    def lie() -> tuple[int, int]:
        """How many, and how many of them in receive memory and on disk, as one look at the status shows it."""
        status = site.status()
        slots = next(pool["slots"] for pool in status["pools"] if pool["name"] == "receive")
        return status["mailbox"]["messages"], slots + status["mailbox"]["spilled_messages"]

    # not in the heap
    eventually(lambda: lie() == (SESSION_MESSAGES, SESSION_MESSAGES))
    # what was refused may be put again, once there is room
    assert code_of(host.call(Get("m0", "t", GUEST))) == "GotInline"
    last = f"m{SESSION_MESSAGES}"
    assert guest.call(PutInline(last, "t", (HOST,), "bytes", body)) == Done()
    assert code_of(host.call(Get(last, "t", GUEST))) == "GotInline"
    host.call(Leave())
    guest.close()
    host.close()
    eventually(lambda: site.pool("receive")["slots"] == 0)


def test_the_parties_that_tasks_name_of_one_session_are_bounded(site: Site) -> None:
    def named(first: int) -> tuple[Party, ...]:
        return tuple(Party("guest", str(n)) for n in range(first, first + MOST_PARTIES))

    first = Connection(site, "named", parties=named(0))
    again = Connection(site, "named", parties=named(0))
    more = Connection(site, "named", parties=named(MOST_PARTIES))
    assert isinstance(first.attached, Attached)
    assert isinstance(again.attached, Attached)
    assert code_of(more.attached) == ErrorCode.LIMIT_REACHED.value
    # those of the test before may still be there
    eventually(lambda: site.status()["tasks"] == 2)
    for each in (first, again, more):
        each.close()


def test_what_a_task_does_again_and_again_does_not_fill_the_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fedrdma_fate")
    session = "s" * 1000
    for _ in range(100):
        connection = Connection(site, session)
        assert isinstance(connection.call(LeaseSlot(8 << 20, 0.0)), Leased)
        another = Connection(site, session)
        assert code_of(another.call(LeaseSlot(8 << 20, 0.0))) == ErrorCode.POOL_TIMEOUT.value
        another.call(Leave())
        another.close()
        connection.close()
        eventually(lambda: site.pool("send")["slots"] == 0)
    said = [record.getMessage() for record in caplog.records]
    assert any("left" in each for each in said)
    assert len(said) < 100
    assert sum(map(len, said)) < 100 * 500


def test_a_descriptor_that_the_kernel_does_not_pass_is_a_typed_error_and_costs_no_message(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(*_: object) -> int:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

    guest, host = Connection(site, "passed"), Connection(site, "passed", HOST)
    leased = guest.call(LeaseSlot(70_000))
    assert isinstance(leased, Leased)
    assert guest.call(Commit(leased.lease, "m", "t", (HOST,), "object")) == Done()
    with monkeypatch.context() as many_unread:
        many_unread.setattr(socket, "send_fds", too_many)
        assert code_of(Connection(site, "passed").attached) == ErrorCode.REGION_UNAVAILABLE.value
        assert code_of(host.call(Get("m", "t", GUEST))) == ErrorCode.REGION_UNAVAILABLE.value
    assert code_of(host.call(Get("m", "t", GUEST))) == "GotSlot"
    guest.close()
    host.close()
    eventually(lambda: site.pool("send")["slots"] == 0)


def test_of_descriptors_that_a_task_does_not_read_one_is_on_its_way_on_each_connection(site: Site) -> None:
    guest, host = Connection(site, "unread"), Connection(site, "unread", HOST)
    leased = guest.call(LeaseSlot(70_000))
    assert isinstance(leased, Leased)
    for number in range(10):
        assert guest.call(Commit(leased.lease, "m", str(number), (HOST,), "object", keep=True)) == Done()
    guest.close()
    host.send(*(Get("m", str(number), GUEST) for number in range(10)))
    eventually(lambda: site.status()["mailbox"]["messages"] == 9)
    time.sleep(0.5)
    assert site.status()["mailbox"]["messages"] == 9
    # what it did not read is still for it
    for _ in range(10):
        assert code_of(host.receive()) == "GotSlot"
    host.close()
    eventually(lambda: site.pool("send")["slots"] == 0)


def test_a_task_that_ends_without_having_read_its_answers_leaves_what_it_asked_for_behind_them(site: Site) -> None:
    guest, host = Connection(site, "ends"), Connection(site, "ends", HOST)
    for number in range(10):
        assert guest.call(PutInline("m", str(number), (HOST,), "bytes", b"x" * 100)) == Done()
    host.send(*(Get("m", str(number), GUEST) for number in range(10)))
    time.sleep(0.2)
    host.close()
    again = Connection(site, "ends", HOST)
    for number in range(1, 10):
        assert code_of(again.call(Get("m", str(number), GUEST))) == "GotInline"
    guest.close()
    again.close()


def test_requests_that_take_the_event_loop_long_are_none(site: Site) -> None:
    connection = Connection(site, "long")
    assert code_of(connection.call(ReleaseLeases((1,) * 1_000_000))) == ErrorCode.MALFORMED_FRAME.value
    connection.close()


def test_digests_of_blocks_that_a_payload_does_not_have_are_refused(site: Site) -> None:
    connection = Connection(site, "digests")
    leased = connection.call(LeaseSlot(300_000))
    assert isinstance(leased, Leased)
    refused = connection.call(Written(leased.lease, 262_144, (1, 2)))
    assert code_of(refused) == ErrorCode.CLIENT_PROTOCOL.value
    assert connection.call(Written(leased.lease, 262_144, (1,))) == Done()
    assert connection.call(Written(leased.lease, 0, (2,))) == Done()
    connection.close()
