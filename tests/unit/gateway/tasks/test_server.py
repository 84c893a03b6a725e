"""Tasks at their gateway: leases, local delivery, several parties and sessions, forked children, the socket.

More than 500 lines: one running gateway serves them all.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedrdma_fate.client.client import GatewayClient, ask_status
from fedrdma_fate.client.protocol import (
    CLIENT_PROTOCOL_VERSION,
    LENGTH_PREFIX,
    MAX_FRAME_BYTES,
    Attach,
    Attached,
    Commit,
    Error,
    LeaseSlot,
    Leave,
    Reply,
    Request,
    Written,
    decode_reply,
    encode_message,
)
from fedrdma_fate.unix_sockets import address_of
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, MemoryPoolError
from tests.support.files import spilled_below
from tests.support.sites import Site, eventually, party, start_gateways

GUEST, HOST, ARBITER = party("guest:1"), party("host:1"), party("arbiter:1")
BODY = os.urandom(300_000)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One gateway that serves three parties and knows a peer that does not exist."""
    layout = {"a": ["guest:1", "host:1", "arbiter:1"]}
    strangers = [{"site": "gone", "parties": ["host:9"], "address": None}]
    directory = tmp_path_factory.mktemp("tasks")
    with start_gateways(layout, directory, connected=False, strangers=strangers) as sites:
        yield sites["a"]


@pytest.fixture
def session(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.fixture
def guest(site: Site, session: str) -> Iterator[GatewayClient]:
    with site.client(session, "guest:1") as client:
        yield client


@pytest.fixture
def host(site: Site, session: str) -> Iterator[GatewayClient]:
    with site.client(session, "host:1") as client:
        yield client


@pytest.fixture(autouse=True)
def _nothing_stays_leased(site: Site) -> Iterator[None]:
    yield
    gc.collect()
    eventually(lambda: site.pool("send")["slots"] == 0)


def push(client: GatewayClient, name: str, body: bytes = BODY, *to: str, keep: bool = False) -> None:
    lease = client.lease(len(body))
    lease.buffer[:] = body
    lease.commit(name, "t", [party(each) for each in to or ("host:1",)], "object", keep=keep)
    if keep:
        lease.release()


def pull(client: GatewayClient, name: str, source: str = "guest:1") -> bytes:
    return bytes(client.get(name, "t", party(source), timeout=10).buffer)


# --- local delivery ---


@pytest.mark.parametrize("length", [0, 1, 4096, 300_000])
def test_two_parties_of_one_gateway_exchange_messages(
    guest: GatewayClient, host: GatewayClient, site: Site, length: int
) -> None:
    push(guest, "m", BODY[:length])
    assert pull(host, "m") == BODY[:length]
    (delivered,) = [event for event in site.events("delivered") if event["session"] == guest._membership.session]
    assert (delivered["transport"], delivered["bytes"]) == ("local", length)


def test_a_small_message_goes_inline(guest: GatewayClient, host: GatewayClient, site: Site) -> None:
    guest.put_inline("m", "t", [HOST], "bytes", b"hi")
    received = host.get("m", "t", GUEST, timeout=10)
    assert (received.kind, bytes(received.buffer)) == ("bytes", b"hi")
    assert site.pool("send")["slots"] == 0


def test_one_slot_serves_several_destinations(guest: GatewayClient, host: GatewayClient, site: Site) -> None:
    with site.client(guest._membership.session, "arbiter:1") as arbiter:
        push(guest, "m", BODY, "host:1", "arbiter:1")
        assert site.pool("send")["slots"] == 1
        assert pull(host, "m") == BODY
        assert site.pool("send")["slots"] == 1
        assert pull(arbiter, "m") == BODY
        eventually(lambda: site.pool("send")["slots"] == 0)


def test_a_kept_slot_is_committed_again_to_others(guest: GatewayClient, host: GatewayClient, site: Site) -> None:
    lease = guest.lease(len(BODY))
    lease.buffer[:] = BODY
    lease.commit("m", "t", [HOST], "object", keep=True)
    lease.commit("m", "t", [ARBITER], "object", keep=True)
    assert pull(host, "m") == BODY
    lease.release()
    lease.release()
    with site.client(guest._membership.session, "arbiter:1") as arbiter:
        assert pull(arbiter, "m") == BODY


def test_a_received_buffer_is_private_and_its_slot_returns_with_its_last_view(
    guest: GatewayClient, host: GatewayClient, site: Site
) -> None:
    push(guest, "m", BODY, "host:1", "arbiter:1")
    with site.client(guest._membership.session, "arbiter:1") as arbiter:
        array = np.frombuffer(host.get("m", "t", GUEST, timeout=10).buffer, dtype=np.uint8)
        part = array[5:10]
        array[:] = 0
        assert pull(arbiter, "m") == BODY
        del array
        gc.collect()
        assert site.pool("send")["slots"] == 1
        del part
    eventually(lambda: site.pool("send")["slots"] == 0)


def test_many_slots_released_at_once_all_come_back(guest: GatewayClient, host: GatewayClient, site: Site) -> None:
    """Releases are one-way, so the next is there before the one before it was dealt with."""
    for number in range(60):
        push(guest, f"m{number}", bytes([number]) * 70_000)
    received = [host.get(f"m{number}", "t", GUEST, timeout=10) for number in range(60)]
    assert [each.buffer[0] for each in received] == list(range(60))
    del received
    gc.collect()
    eventually(lambda: site.pool("send")["slots"] == 0)
    push(guest, "after")
    assert pull(host, "after") == BODY


def test_sessions_and_parties_do_not_mix(site: Site, session: str) -> None:
    clients = {(name, of): site.client(f"{session}-{name}", of) for name in "xy" for of in ("guest:1", "host:1")}
    for (name, of), client in clients.items():
        push(client, "m", f"{name}{of}".encode() * 9000, "arbiter:1")
    for name in "xy":
        with site.client(f"{session}-{name}", "arbiter:1") as arbiter:
            for of in ("guest:1", "host:1"):
                assert pull(arbiter, "m", of) == f"{name}{of}".encode() * 9000
    for client in clients.values():
        client.close()


# --- leases ---


def test_an_uncommitted_lease_is_given_back(guest: GatewayClient, site: Site) -> None:
    lease = guest.lease(1000)
    assert site.pool("send")["slots"] == 1
    lease.release()
    lease.release()
    eventually(lambda: site.pool("send")["slots"] == 0)
    with pytest.raises(MemoryPoolError) as caught:
        lease.commit("m", "t", [HOST], "bytes")
    assert caught.value.code is ErrorCode.LEASE_UNKNOWN


def test_a_lease_is_committed_once(guest: GatewayClient, host: GatewayClient) -> None:
    lease = guest.lease(10)
    lease.commit("m", "t", [HOST], "bytes")
    with pytest.raises(MemoryPoolError) as caught:
        lease.commit("n", "t", [HOST], "bytes")
    assert caught.value.code is ErrorCode.LEASE_UNKNOWN
    pull(host, "m")


def test_who_writes_on_after_its_commit_is_told_so_and_what_it_committed_is_delivered(
    guest: GatewayClient, host: GatewayClient
) -> None:
    lease = guest.lease(len(BODY))
    kept = lease.buffer
    kept[:] = BODY
    lease.commit("m", "t", [HOST], "object")
    with pytest.raises(MemoryPoolError) as caught:
        lease.buffer[:] = bytes(len(BODY))
    assert caught.value.code is ErrorCode.LEASE_UNKNOWN
    with pytest.raises(ValueError, match="released"):
        kept[:] = bytes(len(BODY))
    assert pull(host, "m") == BODY


def test_an_array_that_still_views_a_committed_slot_does_no_harm(guest: GatewayClient, host: GatewayClient) -> None:
    lease = guest.lease(len(BODY))
    view = np.frombuffer(lease.buffer, dtype=np.uint8)
    view[:] = np.frombuffer(BODY, dtype=np.uint8)
    lease.commit("m", "t", [HOST], "object")
    assert pull(host, "m") == BODY
    assert len(view) == len(BODY)


def test_closing_a_client_gives_its_leases_back(site: Site, session: str) -> None:
    client = site.client(session)
    client.lease(1000)
    client.lease(2000)
    assert site.pool("send")["slots"] == 2
    client.close()
    client.close()
    eventually(lambda: site.pool("send")["slots"] == 0)


def test_a_refused_commit_gives_its_lease_back(guest: GatewayClient, site: Site) -> None:
    lease = guest.lease(1000)
    with pytest.raises(GatewayError):
        lease.commit("m", "t", [party("host:77")], "bytes")
    eventually(lambda: site.pool("send")["slots"] == 0)


def test_a_refused_commit_of_a_kept_lease_keeps_it(guest: GatewayClient, host: GatewayClient) -> None:
    lease = guest.lease(1000)
    with pytest.raises(GatewayError):
        lease.commit("m", "t", [party("host:77")], "bytes", keep=True)
    lease.commit("m", "t", [HOST], "bytes")
    assert len(pull(host, "m")) == 1000


def test_a_put_waits_for_room_and_is_told_when_there_is_none(guest: GatewayClient, site: Site) -> None:
    held = guest.lease(6 << 20)
    with pytest.raises(MemoryPoolError) as caught:
        guest.lease(6 << 20, timeout=0.05)
    assert caught.value.code is ErrorCode.POOL_TIMEOUT
    assert "memory.send_bytes" in caught.value.remedy
    waiting: list[int] = []
    thread = threading.Thread(target=lambda: waiting.append(len(guest.lease(6 << 20, timeout=10).buffer)))
    thread.start()
    eventually(lambda: site.pool("send")["waiting"] == 1)
    held.release()
    thread.join(10)
    assert waiting == [6 << 20]
    guest.close()


def test_a_task_that_goes_away_while_it_waits_for_room_waits_no_longer(guest: GatewayClient, site: Site) -> None:
    held = guest.lease(6 << 20)
    raw = attached(site)
    raw.sendall(encode_message(LeaseSlot(6 << 20, 60.0)))
    eventually(lambda: site.pool("send")["waiting"] == 1)
    raw.close()
    eventually(lambda: site.pool("send")["waiting"] == 0)
    held.release()


def test_local_messages_that_nobody_has_pulled_are_spilled_when_others_want_the_send_memory(
    guest: GatewayClient, host: GatewayClient, site: Site
) -> None:
    for number in range(12):
        push(guest, f"m{number}", bytes([number]) * (1 << 20))
    assert site.status()["mailbox"]["spilled_messages"] > 0
    for number in reversed(range(12)):
        assert pull(host, f"m{number}") == bytes([number]) * (1 << 20)
    assert eventually(lambda: not spilled_below(Path(site.config["memory"]["spill_directory"])))


# --- sessions ---


def test_what_waits_for_a_party_that_leaves_is_dropped(guest: GatewayClient, host: GatewayClient, site: Site) -> None:
    push(guest, "m")
    host.leave()
    eventually(lambda: site.pool("send")["slots"] == 0)
    push(guest, "late")
    eventually(lambda: site.pool("send")["slots"] == 0)
    with pytest.raises(GatewayError) as caught:
        host.get("m", "t", GUEST, timeout=1)
    assert caught.value.code is ErrorCode.SESSION_CLOSED


def test_a_party_that_has_left_pushes_no_more(guest: GatewayClient) -> None:
    guest.leave()
    for attempt in (lambda: guest.lease(10), lambda: guest.put_inline("m", "t", [HOST], "bytes", b"")):
        with pytest.raises(GatewayError) as caught:
            attempt()
        assert caught.value.code is ErrorCode.SESSION_CLOSED


def test_a_new_task_may_join_a_session_that_its_party_has_left(guest: GatewayClient, site: Site) -> None:
    guest.leave()
    session = guest._membership.session
    guest.close()
    with site.client(session) as again, site.client(session, "host:1") as host:
        again.put_inline("m", "t", [HOST], "bytes", b"again")
        assert pull(host, "m") == b"again"


# --- processes and threads ---


def test_a_forked_child_attaches_anew_and_leaves_its_parents_leases_alone(
    guest: GatewayClient, host: GatewayClient, site: Site
) -> None:
    lease = guest.lease(len(BODY))
    lease.buffer[:] = BODY
    child = os.fork()
    if child == 0:
        code = 1
        try:
            lease.release()
            guest.put_inline("child", "t", [HOST], "bytes", b"from the child")
            own = guest.lease(1000)
            own.commit("own", "t", [HOST], "bytes")
            try:
                lease.commit("stolen", "t", [HOST], "object")
            except MemoryPoolError:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pull(host, "child") == b"from the child"
    assert len(pull(host, "own")) == 1000
    lease.commit("m", "t", [HOST], "object")
    assert pull(host, "m") == BODY
    assert site.pool("send")["slots"] in (0, 1)


def test_threads_share_a_client(guest: GatewayClient, host: GatewayClient) -> None:
    errors: list[BaseException] = []

    def traffic(number: int) -> None:
        try:
            body = bytes([number]) * 80_000
            for turn in range(5):
                push(guest, f"m{number}.{turn}", body)
                assert pull(host, f"m{number}.{turn}") == body
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=traffic, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []


def test_two_hundred_sessions_leave_nothing_behind(site: Site, session: str) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def regions() -> int:
        return Path("/proc/self/maps").read_text().count("/fedrdma-")

    def sessions() -> int:
        return int(site.status()["mailbox"]["sessions"])

    before = (0, 0, 0)
    for number in range(201):
        with site.client(f"{session}{number}", "guest:1") as guest, site.client(f"{session}{number}", "host:1") as host:
            push(guest, "m", bytes([number]) * 70_000)
            guest.put_inline("n", "t", [HOST], "bytes", b"hi")
            assert pull(host, "m")[0] == number
            assert pull(host, "n") == b"hi"
            guest.leave()
            host.leave()
        if number == 0:
            eventually(lambda: site.status()["tasks"] == 0)
            before = descriptors(), regions(), sessions()
    eventually(lambda: site.status()["tasks"] == 0)
    # the gateway closes its ends of connections a moment after we close ours
    eventually(lambda: descriptors() <= before[0])
    assert regions() <= before[1]
    eventually(lambda: sessions() <= before[2])
    eventually(lambda: site.status()["mailbox"]["messages"] == 0)
    eventually(lambda: [pool["leased_bytes"] for pool in site.status()["pools"]] == [0, 0])


# --- the socket ---


def attached(site: Site) -> socket.socket:
    """A connection that has attached."""
    raw = connection(site)
    attach = Attach(CLIENT_PROTOCOL_VERSION, os.urandom(4).hex(), "raw", GUEST)
    assert isinstance(asked(raw, attach), Attached)
    return raw


def connection(site: Site) -> socket.socket:
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    raw.settimeout(10)
    with address_of(Path(site.address.removeprefix("unix://"))) as address:
        raw.connect(address)
    return raw


def asked(raw: socket.socket, request: Request) -> Reply:
    raw.sendall(encode_message(request))
    return answered(raw)


def answered(raw: socket.socket) -> Reply:
    (length,) = LENGTH_PREFIX.unpack(raw.recv(LENGTH_PREFIX.size, socket.MSG_WAITALL))
    return decode_reply(raw.recv(length, socket.MSG_WAITALL))


def test_the_socket_is_for_its_owner_only(site: Site) -> None:
    mode = os.stat(site.address.removeprefix("unix://")).st_mode
    assert stat.S_IMODE(mode) == 0o600


@pytest.mark.parametrize(
    "garbage",
    [
        LENGTH_PREFIX.pack(3) + b"\xc1\xc1\xc1",
        LENGTH_PREFIX.pack(1) + b"\x80",
        LENGTH_PREFIX.pack(MAX_FRAME_BYTES + 1),
        b"GET / HTTP/1.1\r\n\r\n",
        encode_message(LeaseSlot(5)).replace(b"\x05", b"\xff"),
        encode_message(LeaseSlot(5, -1.0)),
    ],
    ids=["no-msgpack", "no-request", "too-long", "http", "negative-size", "negative-time"],
)
def test_a_malformed_request_is_answered_with_an_error_and_ends_its_connection_only(
    site: Site, guest: GatewayClient, host: GatewayClient, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    raw = attached(site)
    raw.sendall(garbage)
    reply = answered(raw)
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.MALFORMED_FRAME.value
    assert raw.recv(1) == b""
    raw.close()
    assert "[FR201]" in caplog.text
    push(guest, "m")
    assert pull(host, "m") == BODY


def test_a_request_that_is_cut_short_ends_its_connection_only(site: Site, guest: GatewayClient) -> None:
    raw = attached(site)
    raw.sendall(encode_message(LeaseSlot(1000))[:-1])
    raw.close()
    eventually(lambda: site.status()["tasks"] == 1)
    guest.lease(10).release()


def test_a_task_has_to_attach_first_and_once(site: Site) -> None:
    raw = connection(site)
    attach = Attach(CLIENT_PROTOCOL_VERSION, "attaches twice", "raw", GUEST)
    replies = [asked(raw, Leave()), asked(raw, attach), asked(raw, attach)]
    assert [type(reply) for reply in replies] == [Error, Attached, Error]
    assert isinstance(replies[0], Error)
    assert replies[0].code == ErrorCode.CLIENT_PROTOCOL.value
    raw.close()


def test_a_task_of_another_protocol_version_is_told(site: Site) -> None:
    raw = connection(site)
    reply = asked(raw, Attach(CLIENT_PROTOCOL_VERSION + 1, "me", "raw", GUEST))
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.CLIENT_PROTOCOL.value
    assert "same fedrdma-fate version" in reply.remedy
    raw.close()


def test_one_client_id_stands_for_one_task(site: Site) -> None:
    first, second = connection(site), connection(site)
    assert isinstance(asked(first, Attach(CLIENT_PROTOCOL_VERSION, "me", "one", GUEST)), Attached)
    reply = asked(second, Attach(CLIENT_PROTOCOL_VERSION, "me", "two", GUEST))
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.CLIENT_PROTOCOL.value
    first.close()
    second.close()


def test_the_status_is_given_without_attaching(site: Site) -> None:
    assert ask_status(site.address)["site"] == "a"


# --- whom a task may be, and write to ---


def test_a_party_of_another_site_is_sent_to_its_own_gateway(site: Site, session: str) -> None:
    with pytest.raises(GatewayError) as caught:
        site.client(session, "host:9")
    assert caught.value.code is ErrorCode.WRONG_PARTY
    assert "Parties here: guest:1, host:1, arbiter:1" in caught.value.remedy


@pytest.mark.parametrize("small", [True, False])
def test_a_push_to_a_party_that_nobody_serves_reaches_nobody(
    guest: GatewayClient, host: GatewayClient, small: bool
) -> None:
    everybody = [HOST, party("host:77")]

    def put() -> None:
        if small:
            guest.put_inline("m", "t", everybody, "bytes", b"hi")
        else:
            guest.lease(100_000).commit("m", "t", everybody, "bytes")

    with pytest.raises(FedRDMAError) as caught:
        put()
    assert caught.value.code is ErrorCode.WRONG_PARTY
    with pytest.raises(FedRDMAError) as nothing:
        host.get("m", "t", GUEST, timeout=0.05)
    assert nothing.value.code is ErrorCode.PULL_TIMEOUT
    # and the name is still free
    guest.put_inline("m", "t", [HOST], "bytes", b"hi")
    assert pull(host, "m") == b"hi"


def test_a_pull_from_a_party_that_nobody_serves_is_refused(host: GatewayClient) -> None:
    with pytest.raises(GatewayError) as caught:
        host.get("m", "t", party("guest:77"), timeout=1)
    assert caught.value.code is ErrorCode.WRONG_PARTY


@pytest.mark.parametrize("small", [True, False])
def test_a_second_push_of_a_message_is_refused_and_the_first_is_kept(
    guest: GatewayClient, host: GatewayClient, small: bool
) -> None:
    guest.put_inline("m", "t", [HOST], "bytes", b"first")

    def put_again() -> None:
        if small:
            guest.put_inline("m", "t", [HOST], "bytes", b"second")
        else:
            push(guest, "m")

    with pytest.raises(GatewayError) as caught:
        put_again()
    assert caught.value.code is ErrorCode.DUPLICATE_PUSH
    assert "the first message is kept" in caught.value.remedy
    assert pull(host, "m") == b"first"


def test_a_task_that_is_refused_again_and_again_does_not_fill_the_log(
    host: GatewayClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedrdma_fate")
    for _ in range(300):
        with pytest.raises(GatewayError):
            host.get("n" * 1000, "t", party("guest:77"), timeout=1)
    assert 0 < sum(len(record.getMessage()) for record in caplog.records) < 20 * 400


def test_a_party_is_named_once_in_a_push(guest: GatewayClient, host: GatewayClient) -> None:
    with pytest.raises(GatewayError) as caught:
        push(guest, "m", BODY, "host:1", "host:1")
    assert caught.value.code is ErrorCode.DUPLICATE_PUSH
    push(guest, "m")
    assert pull(host, "m") == BODY


def test_a_message_is_pulled_once(guest: GatewayClient, host: GatewayClient) -> None:
    push(guest, "m")
    pull(host, "m")
    with pytest.raises(GatewayError) as caught:
        pull(host, "m")
    assert caught.value.code is ErrorCode.DUPLICATE_PULL


def test_a_pull_that_never_comes_times_out(host: GatewayClient, site: Site) -> None:
    with pytest.raises(GatewayError) as caught:
        host.get("never", "t", GUEST, timeout=0.05)
    assert caught.value.code is ErrorCode.PULL_TIMEOUT
    eventually(lambda: site.status()["mailbox"]["waiting_pulls"] == 0)


def test_a_payload_larger_than_the_send_memory_is_refused_at_once(guest: GatewayClient) -> None:
    with pytest.raises(MemoryPoolError) as caught:
        guest.lease(9 << 20)
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert "memory.send_bytes" in caught.value.remedy


def test_a_body_larger_than_the_inline_limit_is_not_sent_inline(guest: GatewayClient) -> None:
    with pytest.raises(ValueError, match="65536 is the limit"):
        guest.put_inline("m", "t", [HOST], "bytes", bytes(65537))


def test_a_task_cannot_use_or_release_the_lease_of_another(
    guest: GatewayClient, host: GatewayClient, site: Site, session: str
) -> None:
    lease = guest.lease(len(BODY))
    lease.buffer[:] = BODY
    number = lease._lease
    assert number is not None
    with site.client(session) as other:
        connections = other._own()
        connections.release(number)
        for request in (Commit(number, "theirs", "t", (HOST,), "object"), Written(number, 0)):
            reply = connections.call(request)
            assert isinstance(reply, Error)
            assert reply.code == ErrorCode.LEASE_UNKNOWN.value
    assert site.pool("send")["slots"] == 1
    lease.commit("m", "t", [HOST], "object")
    assert pull(host, "m") == BODY
