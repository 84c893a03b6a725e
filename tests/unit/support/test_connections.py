"""What is done to connections from outside is what their two ends see."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from tests.support.connections import (
    copies,
    cut,
    heal,
    lose,
    replay,
    reset,
    silence,
    strike,
    truncate,
    why_not_half_open,
)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname(), 5)
        other, _ = listener.accept()
        other.settimeout(5)
        with one, other:
            yield one, other


NO_FILTERS = why_not_half_open()
filters = pytest.mark.skipif(bool(NO_FILTERS), reason=NO_FILTERS)


def port_of(end: socket.socket) -> int:
    return int(end.getsockname()[1])


def test_a_cut_connection_ends_at_both_ends(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    assert strike(os.getpid(), lambda own, _: own == port_of(one), cut) == 1
    assert (one.recv(1), other.recv(1)) == (b"", b"")


def test_a_reset_connection_is_reset_at_the_other_end(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    assert strike(os.getpid(), lambda own, _: own == port_of(one), reset) == 1
    with pytest.raises(ConnectionResetError):
        other.recv(1)


@filters
def test_nothing_comes_in_by_a_half_open_connection_and_both_ends_are_there(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    one, other = ends
    assert strike(os.getpid(), lambda own, _: own == port_of(one), silence) == 1
    other.sendall(b"x")
    one.settimeout(0.2)
    with pytest.raises(TimeoutError):
        one.recv(1)
    other.settimeout(0.2)
    with pytest.raises(TimeoutError):
        other.recv(1)


def test_only_chosen_connections_are_struck(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    strike(os.getpid(), lambda own, far: {own, far} == {0}, cut)
    other.sendall(b"x")
    assert one.recv(1) == b"x"


@pytest.fixture
def datagrams() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
            each.settimeout(0.2)
        yield one, other


def test_some_datagrams_are_lost_until_it_is_healed(datagrams: tuple[socket.socket, socket.socket]) -> None:
    one, other = datagrams
    lose(one, 0.5)
    assert 20 < count_of(200, one, other, b"x") < 180
    heal(one)
    assert count_of(200, one, other, b"x") == 200


@filters
def test_datagrams_are_cut_short_and_a_stream_comes_whole(
    datagrams: tuple[socket.socket, socket.socket], ends: tuple[socket.socket, socket.socket]
) -> None:
    one, other = datagrams
    # with the eight bytes of UDP's own header
    truncate(one, 1.0, 108)
    assert count_of(1, one, other, b"x" * 500) == 1
    other.sendto(b"x" * 500, one.getsockname())
    assert len(one.recv(1000)) == 100
    one, other = ends
    # half of them would hold it up for longer than a test may take, once in a hundred runs
    truncate(one, 0.2, 100)
    other.sendall(bytes(range(256)) * 40)
    came = b""
    while len(came) < 256 * 40:
        came += one.recv(1 << 16)
    assert came == bytes(range(256)) * 40


def count_of(sent: int, one: socket.socket, other: socket.socket, body: bytes) -> int:
    """How many datagrams of so many come."""
    came = 0
    for _ in range(sent):
        other.sendto(body, one.getsockname())
        one.setblocking(False)
        try:
            one.recv(1000)
            came += 1
        except BlockingIOError:
            pass
    one.settimeout(0.2)
    return came


def test_what_has_not_been_read_comes_once_more(
    datagrams: tuple[socket.socket, socket.socket], ends: tuple[socket.socket, socket.socket]
) -> None:
    for one, other in (datagrams, ends):
        assert not replay(one, other)
        other.sendto(b"x", one.getsockname())
        assert replay(one, other)
    assert datagrams[0].recv(10) + datagrams[0].recv(10) == b"xx"
    assert ends[0].recv(2, socket.MSG_WAITALL) == b"xx"


def test_sockets_of_datagrams_are_copied_on_request(datagrams: tuple[socket.socket, socket.socket]) -> None:
    port = port_of(datagrams[0])
    with copies(os.getpid()) as streams, copies(os.getpid(), datagrams=True) as all_of_them:
        assert port not in map(port_of, streams)
        assert port in map(port_of, all_of_them)
