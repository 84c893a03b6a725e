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
from fedrdma_fate.transport.listener import MOST_PENDING, ConnectError, Listener, dial


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


def test_silent_and_babbling_connections_hold_nobody_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 0.05)
    silent = [place.raw() for _ in range(5)]
    halting = place.raw(b"FRDM")
    babbling = place.raw(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n" * 3)
    token = place.listener.expect()
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(place.listener.wait, token, 2, 5)
        began = time.monotonic()
        place.dial(token, 2)
        assert time.monotonic() - began < 1
        for connection in waiting.result():
            connection.close()
    with pytest.raises(ConnectError):
        place.listener.wait(place.listener.expect(), 1, 0.2)
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
    thread.join(5)
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
