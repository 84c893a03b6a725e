"""What is done to connections from outside is what their two ends see."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from tests.support.connections import cut, reset, silence, strike


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname(), 5)
        other, _ = listener.accept()
        other.settimeout(5)
        with one, other:
            yield one, other


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
