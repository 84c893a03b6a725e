"""Tasks on other hosts than their gateway's: what they send and get, and who is not let in.

More than 500 lines: all share one pair of gateways, which takes longer to start than most of these tests.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.client.protocol import (
    CLIENT_PROTOCOL_VERSION,
    LENGTH_PREFIX,
    AskSessions,
    Attach,
    DropSession,
    Enter,
    Fetch,
    Fill,
    Get,
    GoOn,
    GotSlot,
    Leased,
    LeaseSlot,
    Piece,
    RemoteRequest,
    Reply,
    decode_reply,
    encode_message,
)
from fedrdma_fate.client.remote import RemoteConnections, ask_remote_status, entered
from fedrdma_fate.fate.gateway_client import GatewayConnector
from fedrdma_fate.gateway.peers.newcomers import MOST_NEWCOMERS
from fedrdma_fate.gateway.tasks import port
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import Party
from tests.support.raw_task import code_of
from tests.support.sites import eventually, party
from tests.support.task_port import (
    LAYOUT,
    TaskPorts,
    certificate_of,
    in_a_process_without_the_socket,
    task_ports,
    write_access,
)

A, B = party("guest:1"), party("host:2")
LARGE = os.urandom(3_500_001)
"""Four pieces, the last of them short."""


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskPorts]:
    with task_ports(tmp_path_factory.mktemp("ports")) as running:
        yield running


def push(client: GatewayClient, name: str, body: bytes = LARGE, to: Party = B) -> None:
    lease = client.lease(len(body))
    lease.buffer[:] = body
    lease.commit(name, "t", [to], "object")


def code_raised(ports: TaskPorts, **changes: str) -> str:
    with pytest.raises(FedRDMAError) as raised:
        ports.task(**changes)
    return raised.value.code.value


class Remote:
    """A connection that says whatever the test likes."""

    def __init__(self, ports: TaskPorts, session: str) -> None:
        self.tls = entered(ports.access["a"], 5.0)
        self.call(Attach(CLIENT_PROTOCOL_VERSION, os.urandom(8).hex(), session, A))

    def send(self, request: RemoteRequest) -> None:
        self.tls.sendall(encode_message(request))

    def receive(self) -> Reply | None:
        """None at the end."""
        if not (prefix := self._read(LENGTH_PREFIX.size)):
            return None
        return decode_reply(self._read(LENGTH_PREFIX.unpack(prefix)[0]))

    def call(self, request: RemoteRequest) -> Reply:
        self.send(request)
        reply = self.receive()
        assert reply is not None
        return reply

    def close(self) -> None:
        self.tls.close()

    def _read(self, length: int) -> bytes:
        return read_exactly(self.tls, length)


def read_exactly(tls: ssl.SSLSocket, length: int) -> bytes:
    """Fewer only at the end."""
    found = b""
    while len(found) < length and (more := tls.recv(length - len(found))):
        found += more
    return found


def test_a_task_without_shared_memory_pushes_and_gets_messages_of_all_sizes_by_the_port(ports: TaskPorts) -> None:
    with ports.task("a", "sizes") as a, ports.task("b", "sizes") as b:
        for name, body in (("large", LARGE), ("piece", LARGE[: 1 << 20]), ("beyond", LARGE[:65537])):
            push(a, name, body)
            assert bytes(b.get(name, "t", A, timeout=20).buffer) == body
        a.put_inline("small", "t", [B], "object", b"small")
        got = b.get("small", "t", A, timeout=20)
        assert (bytes(got.buffer), got.kind) == (b"small", "object")


def test_what_a_task_has_got_is_no_memory_of_the_gateways_any_more(ports: TaskPorts) -> None:
    # slots that are granted ahead
    standing = ports.sites["b"].standing_grants(2)
    with ports.task("a", "held") as a, ports.task("b", "held") as b:
        push(a, "m")
        got = b.get("m", "t", A, timeout=20)
        eventually(lambda: ports.sites["b"].pool("receive")["slots"] <= standing)
        got.buffer[:4] = b"mine"
        assert bytes(got.buffer[4:]) == LARGE[4:]


def test_a_lease_that_is_kept_goes_to_further_parties_without_travelling_again(ports: TaskPorts) -> None:
    with ports.task("a", "kept") as a, ports.task("b", "kept") as b:
        lease = a.lease(len(LARGE))
        lease.buffer[:] = LARGE
        lease.commit("first", "t", [B], "object", keep=True)
        lease.commit("second", "t", [B], "object", keep=True)
        lease.release()
        assert bytes(b.get("first", "t", A, timeout=20).buffer) == LARGE
        assert bytes(b.get("second", "t", A, timeout=20).buffer) == LARGE


def test_a_message_that_is_kept_can_be_got_again_until_it_is_forgotten(ports: TaskPorts) -> None:
    with ports.task("a", "again") as a:
        push(a, "m#0")
        for _ in range(2):
            with ports.task("b", "again") as b:
                assert bytes(b.get("m#0", "t", A, timeout=20, keeps=True).buffer) == LARGE
        with ports.task("b", "again") as b:
            b.forget("m#", "t", A)
            with pytest.raises(FedRDMAError) as raised:
                b.get("m#0", "t", A, timeout=1)
            assert raised.value.code is ErrorCode.DUPLICATE_PULL


def test_a_sum_is_left_to_a_task_that_is_on_another_host(ports: TaskPorts) -> None:
    with ports.task("b", "sums") as b:
        b.expect_sum("m", [A])
        answer = b.get_sum("m", "t", [A], timeout=1)
        assert getattr(answer, "expected", False) is True


WORKER = """
import pickle, sys
connector = pickle.loads(bytes.fromhex(sys.argv[1]))
client = connector.connect(brief=True)
try:
    from fedrdma_fate.wire.frames import Party
    lease = client.lease(2_000_000)
    lease.buffer[:] = b"w" * 2_000_000
    lease.commit("by-worker", "t", [Party("host", "2")], "object")
finally:
    client.close()
assert "torch" not in sys.modules and "fate" not in sys.modules
"""


def test_a_worker_process_chooses_the_port_where_the_socket_is_not_and_its_own_file_is(ports: TaskPorts) -> None:
    before = ports.status()["refused"]
    connector = GatewayConnector("unix:///nowhere/a.sock", "w", A, (A, B), tasks_access=str(ports.files["a"]))
    assert "5ec2e7" not in repr(pickle.dumps(connector))

    ended = in_a_process_without_the_socket(WORKER, pickle.dumps(connector).hex())

    assert ended.returncode == 0, ended.stderr
    with ports.sites["b"].client("w") as b:
        assert bytes(b.get("by-worker", "t", A, timeout=20).buffer) == b"w" * 2_000_000
    assert ports.status()["refused"] == before


def test_a_worker_on_a_host_with_neither_socket_nor_file_is_told_so_at_once() -> None:
    connector = GatewayConnector("unix:///nowhere/a.sock", "w", A, (A, B), tasks_access="/nowhere/access.json")

    ended = in_a_process_without_the_socket(WORKER, pickle.dumps(connector).hex())

    assert ErrorCode.NO_TASK_ACCESS.value in ended.stderr


def test_where_the_socket_is_there_it_is_taken(ports: TaskPorts, tmp_path: Path) -> None:
    exposed = tmp_path / "access.json"
    exposed.write_text("no access")
    site = ports.sites["a"]
    client = GatewayConnector(site.address, "own", A, (A, B), tasks_access=str(exposed)).connect()
    client.close()


# -- who is not let in ------------------------------------------------------------------------------------------------


def test_who_does_not_know_the_secret_is_told_so_and_served_nothing(ports: TaskPorts) -> None:
    assert code_raised(ports, secret="0" * 48) == ErrorCode.NO_TASK_ACCESS.value
    with pytest.raises(FedRDMAError, match=ErrorCode.NO_TASK_ACCESS.value):
        ask_remote_status(msgspec.structs.replace(ports.access["a"], secret="0" * 48))


def test_a_task_tells_its_secret_to_no_other_site_and_to_nobody_without_a_certificate(
    ports: TaskPorts, tmp_path: Path
) -> None:
    other = certificate_of(tmp_path, "a")
    assert code_raised(ports, address=ports.access["b"].address) == ErrorCode.PEER_IDENTITY.value
    assert code_raised(ports, authorities=other.path.read_text()) == ErrorCode.TLS_REFUSED.value


def test_another_secret_in_the_file_counts_for_the_next_connection(ports: TaskPorts) -> None:
    changed = msgspec.structs.replace(ports.access["b"], secret="b" * 48)
    try:
        write_access(changed, ports.files["b"])
        assert code_of_task(ports, ports.access["b"].secret) == ErrorCode.NO_TASK_ACCESS.value
        assert code_of_task(ports, changed.secret) == ""
    finally:
        write_access(ports.access["b"], ports.files["b"])


def code_of_task(ports: TaskPorts, secret: str) -> str:
    try:
        ports.task("b", "changed", secret=secret).close()
    except FedRDMAError as error:
        return error.code.value
    return ""


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"",
        os.urandom(100),
    ],
    ids=["http", "nothing", "noise"],
)
def test_what_is_no_tls_is_ended_and_counted(ports: TaskPorts, first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "ENTER_SECONDS", 0.2)
    before = ports.status()["refused"]
    host, number = ports.access["a"].host_and_port
    with socket.create_connection((host, number), 5) as connection:
        connection.sendall(first)
        while connection.recv(1000):
            pass
    eventually(lambda: ports.status()["refused"] == before + 1)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        LENGTH_PREFIX.pack(1 << 30),
        LENGTH_PREFIX.pack(10) + b"\x00" * 10,
        encode_message(Attach(CLIENT_PROTOCOL_VERSION, "c", "s", A)),
        encode_message(Enter("x" * 256)),
    ],
    ids=["nothing", "long", "noise", "attach", "secret"],
)
def test_what_does_not_enter_is_ended_before_it_is_believed_anything(
    ports: TaskPorts, first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "ENTER_SECONDS", 0.5)
    eventually(lambda: ports.sites["a"].status()["tasks"] == 0)
    before = ports.status()["refused"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(ports.access["a"].host_and_port, 5) as plain, context.wrap_socket(plain) as tls:
        tls.sendall(first)
        said = b""
        try:
            while more := tls.recv(1000):
                said += more
        except OSError:
            # reset, as what it sent was not read
            pass
    assert len(said) < 1000
    eventually(lambda: ports.status()["refused"] == before + 1)
    assert ports.sites["a"].status()["tasks"] == 0


def test_a_flood_of_newcomers_is_bounded_and_keeps_no_task_out(ports: TaskPorts) -> None:
    before = ports.status()["refused"]
    address = ports.access["a"].host_and_port
    held = [socket.create_connection(address, 5) for _ in range(3 * MOST_NEWCOMERS)]
    try:
        with ports.task("a", "flood") as a, ports.task("b", "flood") as b:
            a.put_inline("m", "t", [B], "object", b"through")
            assert bytes(b.get("m", "t", A, timeout=20).buffer) == b"through"
        eventually(lambda: int(str(ports.status()["refused"])) >= int(str(before)) + MOST_NEWCOMERS)
    finally:
        for each in held:
            each.close()


def connections_at(ports: TaskPorts) -> int:
    """Ends of connections that belong to the gateway, which runs in this process."""
    number, found = ports.access["a"].host_and_port[1], 0
    for entry in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, _, state, *_ = entry.split()[1:]
        # whoever has no inode is of no process any more
        found += int(local.rpartition(":")[2], 16) == number and state != "0A" and entry.split()[9] != "0"
    return found


def through_tls(ports: TaskPorts) -> ssl.SSLSocket:
    """A connection on which nothing was said; dialled again while the gateway says that this host dials too often."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for _ in range(50):
        with suppress(ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return context.wrap_socket(socket.create_connection(ports.access["a"].host_and_port, 5))
        time.sleep(0.1)
    pytest.fail("never let in")


def test_of_tasks_that_enter_at_the_same_time_no_more_get_in_than_may(
    ports: TaskPorts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_yet(_self: port.TaskPort, reader: asyncio.StreamReader, *_: Any) -> None:
        # as in the moment in which others enter, too
        await reader.read()

    eventually(lambda: ports.status()["connections"] == 0)
    with monkeypatch.context() as patch:
        patch.setattr(port, "MOST_OF_OTHER_HOSTS", 2)
        patch.setattr(port.TaskPort, "_talk", not_yet)
        held = [entered(ports.access["a"], 5.0) for _ in range(2)]
        try:
            with pytest.raises(FedRDMAError) as raised:
                entered(ports.access["a"], 5.0)
            assert raised.value.code is ErrorCode.LIMIT_REACHED
        finally:
            for each in held:
                each.close()
        eventually(lambda: ports.status()["connections"] == 0)
    with ports.task("a", "after"):
        assert ports.status()["connections"] == 1


@pytest.mark.parametrize("first", [b"", encode_message(Enter("x" * 48))], ids=["nothing", "another secret"])
def test_who_was_refused_after_tls_and_says_no_farewell_keeps_no_connection(
    ports: TaskPorts, first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "ENTER_SECONDS", 1.0)
    eventually(lambda: connections_at(ports) == 0)
    held = [through_tls(ports) for _ in range(5)]
    before = int(str(ports.status()["refused"]))
    try:
        for each in held:
            # on a busy host its time may be over before this
            with suppress(ConnectionError, ssl.SSLError):
                each.sendall(first)
        eventually(lambda: int(str(ports.status()["refused"])) > before)
        eventually(lambda: connections_at(ports) == 0)
    finally:
        for each in held:
            each.close()


def test_a_stranger_is_told_no_paths_of_the_gateways_host(ports: TaskPorts) -> None:
    ports.files["b"].chmod(0o644)
    try:
        with pytest.raises(FedRDMAError) as raised:
            ports.task("b", "exposed")
    finally:
        ports.files["b"].chmod(0o600)
    assert raised.value.code is ErrorCode.NO_TASK_ACCESS
    assert str(ports.files["b"]) not in str(raised.value)


# -- who is let in, and does what it may not -------------------------------------------------------------------------


def test_bytes_beyond_a_slot_end_the_connection_and_give_the_slot_back(ports: TaskPorts) -> None:
    remote = Remote(ports, "beyond")
    leased = remote.call(LeaseSlot(100_000, 5.0))
    assert isinstance(leased, Leased)
    remote.send(Fill(leased.lease, 99_999, b"xx"))
    assert code_of(remote.receive() or pytest.fail("no word")) == ErrorCode.MALFORMED_FRAME.value
    assert remote.receive() is None
    remote.close()
    eventually(lambda: ports.sites["a"].pool("send")["slots"] == 0)


def test_a_slot_that_is_not_its_own_is_not_written(ports: TaskPorts) -> None:
    one, other = Remote(ports, "one"), Remote(ports, "other")
    leased = one.call(LeaseSlot(100_000, 5.0))
    assert isinstance(leased, Leased)
    other.send(Fill(leased.lease, 0, b"x" * 1000))
    # its own connection goes on, and nothing of the other's can be read or written
    assert code_of(other.call(Fetch(leased.lease, 0, 1000))) == ErrorCode.LEASE_UNKNOWN.value
    one.close()
    other.close()


def test_no_more_of_a_message_than_there_is_can_be_read(ports: TaskPorts) -> None:
    with ports.task("b", "read") as b:
        lease = b.lease(len(LARGE))
        lease.buffer[:] = LARGE
        lease.commit("m", "t", [A], "object")
    remote = Remote(ports, "read")
    got = remote.call(Get("m", "t", B, 20.0, number=1))
    assert isinstance(got, GotSlot)
    piece = remote.call(Fetch(got.lease, len(LARGE) - 10, 10))
    assert isinstance(piece, Piece)
    assert piece.body == LARGE[-10:]
    for request in (Fetch(got.lease, len(LARGE) - 10, 11), Fetch(got.lease, 1 << 60, 1)):
        assert code_of(remote.call(request)) == ErrorCode.CLIENT_PROTOCOL.value
    remote.close()


@pytest.mark.parametrize(
    "request_", [GoOn((), 0), DropSession("s"), AskSessions()], ids=lambda each: type(each).__name__
)
def test_what_is_for_tasks_of_the_gateways_host_is_refused(ports: TaskPorts, request_: RemoteRequest) -> None:
    remote = Remote(ports, "refused")
    assert code_of(remote.call(request_)) == ErrorCode.CLIENT_PROTOCOL.value
    remote.close()


def ask_on(remote: Remote, request: RemoteRequest) -> None:
    for _ in range(30):
        remote.call(request)


def test_pieces_that_come_behind_a_get_that_waits_keep_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "_MOST_LARGE", 1)
    with task_ports(tmp_path) as own:
        waits = Remote(own, "waits")
        leased = waits.call(LeaseSlot(1 << 20, 5.0))
        assert isinstance(leased, Leased)
        waits.send(Get("never", "t", B, None, number=1))
        # that its connection ends shows behind what nobody reads only where the kernel has room for all of that
        waits.send(Fill(leased.lease, 0, bytes(1 << 16)))
        other = Remote(own, "other")
        other.tls.settimeout(20.0)
        leased = other.call(LeaseSlot(1 << 20, 5.0))
        assert isinstance(leased, Leased)
        other.send(Fill(leased.lease, 0, bytes(1 << 20)))
        # answered when the piece was taken
        assert isinstance(other.call(LeaseSlot(1 << 10, 5.0)), Leased)
        other.close()
        waits.close()
        eventually(lambda: own.status()["connections"] == 0, 30)


def test_pieces_that_nobody_takes_have_a_bound_and_keep_others_out_for_a_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "_MOST_LARGE", 1)
    # much longer than the other one waits below, for on a busy machine it does not begin to wait at once
    monkeypatch.setattr(port, "PIECE_SECONDS", 5.0)
    with task_ports(tmp_path) as own:
        with own.task("b", "slow") as b:
            for name in ("left", "taken"):
                push(b, name, to=A)
        slow, other = Remote(own, "slow"), Remote(own, "slow")
        left, taken = (each.call(Get(name, "t", B, 20.0)) for each, name in ((slow, "left"), (other, "taken")))
        assert isinstance(left, GotSlot)
        assert isinstance(taken, GotSlot)
        for _ in range(30):
            slow.send(Fetch(left.lease, 0, 1 << 20))

        other.tls.settimeout(1.0)
        # the kernel takes some of the others before nobody takes any more
        with pytest.raises(TimeoutError):
            ask_on(other, Fetch(taken.lease, 0, 1 << 20))

        other.tls.settimeout(20.0)
        assert isinstance(other.receive(), Piece)
        eventually(lambda: own.status()["connections"] == 1)
        slow.close()
        other.close()


def test_what_a_task_had_comes_back_when_its_connection_breaks(ports: TaskPorts) -> None:
    remote = Remote(ports, "breaks")
    assert isinstance(remote.call(LeaseSlot(1 << 20, 5.0)), Leased)
    remote.tls.shutdown(socket.SHUT_RDWR)
    remote.close()
    eventually(lambda: ports.sites["a"].pool("send")["slots"] == 0)
    eventually(lambda: ports.status()["connections"] == 0)


def test_a_lease_that_went_with_its_connection_is_not_taken_for_the_next_one(ports: TaskPorts) -> None:
    with ports.task("a", "again") as a, ports.task("b", "again") as b:
        gone, gone_too = a.lease(100_000), a.lease(100_000)
        own = a._connections
        assert isinstance(own, RemoteConnections)
        own._idle[0].shutdown(socket.SHUT_RDWR)
        with pytest.raises(FedRDMAError) as raised:
            a.lease(100_000)
        assert raised.value.code is ErrorCode.GATEWAY_UNREACHABLE
        eventually(lambda: ports.sites["a"].pool("send")["slots"] == 0)

        leases = [a.lease(len(LARGE)) for _ in range(2)]
        # by whom a garbage collector finds late, say
        gone.release()
        with pytest.raises(FedRDMAError) as raised:
            gone_too.commit("gone", "t", [B], "object")
        assert raised.value.code is ErrorCode.LEASE_UNKNOWN
        for lease, name in zip(leases, ("one", "other"), strict=True):
            lease.buffer[:] = LARGE
            lease.commit(name, "t", [B], "object")
            assert bytes(b.get(name, "t", A, timeout=20).buffer) == LARGE


def test_a_lease_is_released_also_where_a_finalizer_comes_between(ports: TaskPorts) -> None:
    with ports.task("a", "finalizer") as a:
        lease, own = a.lease(100_000), a._connections
        assert isinstance(own, RemoteConnections)

        def in_between() -> None:
            with own._lock:
                lease.release()

        # as a daemon: where it waits for itself, it does so for ever
        working = threading.Thread(target=in_between, daemon=True)
        working.start()
        working.join(10)
        assert not working.is_alive()
        eventually(lambda: ports.sites["a"].pool("send")["slots"] == 0)


def test_a_gateway_that_stops_ends_what_waits_and_its_connections(tmp_path: Path) -> None:
    with task_ports(tmp_path, layout=LAYOUT) as own:
        remote = Remote(own, "stops")
        own.sites.runner.stop(own.sites["a"])
        started = time.monotonic()
        assert remote.receive() is None
        assert time.monotonic() - started < 10
        remote.close()
        with pytest.raises(FedRDMAError) as raised:
            ask_remote_status(own.access["a"])
        assert raised.value.code is ErrorCode.GATEWAY_UNREACHABLE
