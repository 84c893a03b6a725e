"""The listener shared by all links: who is let in, who is not, and that nobody holds up the others."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedrdma_fate.transport import listener
from fedrdma_fate.transport.listener import HELLO_BYTES, MOST_PENDING, ConnectError, Listener, dial, may_be_hello


class Place:
    """A listener on loopback, and ways to come to it."""

    def __init__(self) -> None:
        listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = listening.getsockname()
        self.listener = Listener(listening)
        self.opened: list[socket.socket] = []

    def raw(self, first: bytes = b"") -> socket.socket:
        connection = socket.create_connection(self.address, 5)
        self.opened.append(connection)
        connection.sendall(first)
        return connection

    def dial(self, token: bytes, count: int, timeout: float = 5) -> list[socket.socket]:
        met = dial(lambda seconds: socket.create_connection(self.address, seconds), token, count, timeout)
        self.opened += met
        return met

    def hello(self, token: bytes, number: int, count: int) -> bytes:
        return listener._HELLO.pack(listener._HELLO_MAGIC, token, number, count)


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.listener.close()
    for connection in made.opened:
        connection.close()


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(5)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_connections_come_back_in_the_order_of_their_numbers(place: Place) -> None:
    token = place.listener.expect()
    late = [place.raw(place.hello(token, number, 3)) for number in (2, 0, 1)]
    met = place.listener.wait(token, 3, 5)
    assert [ours.getpeername() for ours in met] == [late[at].getsockname() for at in (1, 2, 0)]
    for connection in met:
        connection.close()


def brought(hello: bytes = b"") -> tuple[socket.socket, socket.socket]:
    """A connection that somebody else has accepted, and the end that dialled; what it began with was read."""
    ours, dialled = socket.socketpair()
    ours.setblocking(False)
    dialled.sendall(hello)
    assert ours.recv(HELLO_BYTES) == hello
    return ours, dialled


def test_connections_that_others_accept_meet_whoever_waits_before_or_after_they_come() -> None:
    without_socket = Listener(None)
    early, late = without_socket.expect(), without_socket.expect()
    hellos = {token: listener._HELLO.pack(listener._HELLO_MAGIC, token, 0, 1) for token in (early, late)}
    came = {token: brought(hellos[token]) for token in (early, late)}
    assert without_socket.take(came[early][0], hellos[early])
    with ThreadPoolExecutor(2) as executor:
        waiting = executor.submit(without_socket.wait, late, 1, 10)
        assert without_socket.wait(early, 1, 10) == [came[early][0]]
        assert without_socket.take(came[late][0], hellos[late])
        assert waiting.result() == [came[late][0]]
    for ours, dialled in came.values():
        assert dialled.recv(64) == listener._WELCOME
        ours.close()
        dialled.close()
    without_socket.close()


def test_a_connection_that_nobody_waits_for_is_closed_when_it_is_brought() -> None:
    without_socket = Listener(None)
    token = without_socket.expect()
    stranger = listener._HELLO.pack(listener._HELLO_MAGIC, b"s" * 16, 0, 1)
    other_magic = listener._HELLO.pack(b"FRDMhi\x00\x09", token, 0, 1)
    senseless = listener._HELLO.pack(listener._HELLO_MAGIC, token, 2, 2)
    for hello in (stranger, other_magic, senseless):
        ours, dialled = brought(hello)
        assert not without_socket.take(ours, hello)
        assert is_closed(dialled)
        dialled.close()
    without_socket.close()
    ours, dialled = brought(stranger)
    assert not without_socket.take(ours, stranger)
    assert is_closed(dialled)
    dialled.close()


def test_who_waits_for_what_others_accept_is_told_when_it_does_not_come() -> None:
    without_socket = Listener(None)
    with pytest.raises(ConnectError, match=r"0 of the peer's 1 connections came within 0\.05 s"):
        without_socket.wait(without_socket.expect(), 1, 0.05)
    without_socket.close()


@pytest.mark.parametrize(("first", "may_be"), [(b"", True), (b"F", True), (b"FRDMhi", True), (b"FRDMok", False)])
def test_a_hello_is_known_by_its_first_bytes(first: bytes, may_be: bool) -> None:
    assert may_be_hello(first) is may_be
    # of TLS, of a greeting with its length, of HTTP
    for other in (b"\x16\x03\x01", b"\x00\x00\x01\x02", b"GET / HTTP/1.1", b"PRI * HTTP/2.0"):
        assert not may_be_hello(other[:1])


def test_silent_and_babbling_connections_hold_nobody_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # long enough for who dials here to say hello on a busy machine
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 0.5)
    silent = [place.raw() for _ in range(5)]
    halting = place.raw(b"FRDM")
    babbling = place.raw(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n" * 3)
    token = place.listener.expect()
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(place.listener.wait, token, 2, 5)
        began = time.monotonic()
        place.dial(token, 2)
        # one after the other, they would hold it up for half a second each
        assert time.monotonic() - began < 3
        for connection in waiting.result():
            connection.close()
    with pytest.raises(ConnectError):
        place.listener.wait(place.listener.expect(), 1, 1.0)
    assert all(is_closed(connection) for connection in (*silent, halting, babbling))


def test_a_flood_of_silent_connections_keeps_nobody_out(place: Place) -> None:
    flood = [place.raw() for _ in range(MOST_PENDING + 20)]
    token = place.listener.expect()
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(place.listener.wait, token, 1, 5)
        began = time.monotonic()
        place.dial(token, 1)
        for connection in waiting.result():
            connection.close()
    assert is_closed(flood[0]), "the oldest makes room"
    assert time.monotonic() - began < listener.HANDSHAKE_SECONDS


@pytest.mark.parametrize(
    ("number", "count"), [(0, 0), (3, 2), (0, listener.MOST_CONNECTIONS + 1)], ids=["none", "beyond", "too-many"]
)
def test_a_senseless_hello_is_shut_out(place: Place, number: int, count: int) -> None:
    token = place.listener.expect()
    connection = place.raw(place.hello(token, number, count))
    with pytest.raises(ConnectError):
        place.listener.wait(token, 1, 0.1)
    assert is_closed(connection)


def test_a_second_connection_with_the_same_number_is_shut_out_and_the_first_stays(place: Place) -> None:
    token = place.listener.expect()
    first, second = (place.raw(place.hello(token, 0, 2)) for _ in range(2))
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(place.listener.wait, token, 2, 5)
        assert is_closed(second)
        place.raw(place.hello(token, 1, 2))
        met = waiting.result()
    assert met[0].getpeername() == first.getsockname()
    for connection in met:
        connection.close()


def test_when_the_serving_waiter_gives_up_another_takes_over(place: Place) -> None:
    impatient, patient = place.listener.expect(), place.listener.expect()
    with ThreadPoolExecutor(2) as executor:
        giving_up = executor.submit(place.listener.wait, impatient, 1, 0.1)
        waiting = executor.submit(place.listener.wait, patient, 1, 5)
        with pytest.raises(ConnectError, match="0 of the peer's 1"):
            giving_up.result()
        place.dial(patient, 1)
        for connection in waiting.result():
            connection.close()


def test_forgetting_a_link_ends_its_wait_and_its_connections(place: Place) -> None:
    token = place.listener.expect()
    connection = place.raw(place.hello(token, 0, 2))
    failures: list[ConnectError] = []

    def wait() -> None:
        try:
            place.listener.wait(token, 2, 30)
        except ConnectError as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    place.listener.forget(token)
    place.listener.forget(token)
    thread.join(30)
    assert len(failures) == 1
    place.listener.close()
    assert is_closed(connection)


def test_a_closed_listener_expects_nobody(place: Place) -> None:
    place.listener.close()
    place.listener.close()
    with pytest.raises(ConnectError):
        place.listener.expect()


def test_dialling_something_else_than_a_gateway_fails_with_a_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger, ThreadPoolExecutor(1) as executor:

        def answer() -> None:
            connection, _ = stranger.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(1000)

        answering = executor.submit(answer)
        with pytest.raises(ConnectError, match="not a fedrdma-fate gateway"):
            dial(lambda seconds: socket.create_connection(stranger.getsockname(), seconds), b"t" * 16, 1, 5)
        answering.result()


def test_dialling_where_nobody_listens_fails_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    with pytest.raises(ConnectError, match="refused"):
        dial(lambda seconds: socket.create_connection(address, seconds), b"t" * 16, 1, 5)


def test_a_listener_without_a_descriptor_for_a_connection_waits_and_says_so(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = place.listener.expect()
    place.raw(place.hello(token, 0, 1))
    used = time.thread_time()

    def no_descriptor(_: socket.socket) -> object:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(socket.socket, "accept", no_descriptor)
        with pytest.raises(ConnectError, match="cannot be accepted: Too many open files"):
            place.listener.wait(token, 1, 0.5)
    assert time.thread_time() - used < 0.2, "it does not ask again and again"
    place.listener._paused_until = 0.0
    (met,) = place.listener.wait(token, 1, 5)
    met.close()
