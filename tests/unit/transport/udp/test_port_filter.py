"""What the kernel lets through to the listener's socket."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from fedrdma_fate.transport.udp.port_filter import MOST_NAMES, dropped_by_kernel, keep_only

KINDS = (1, 4, 9)
NAMES = [bytes([number]) * 8 for number in range(200, 220)] + [bytes(range(8))]


class Unfilterable:
    """A kernel without filters."""

    def setsockopt(self, *_: object) -> None:
        raise OSError(92, "Protocol not available")

    def getsockopt(self, *_: object) -> None:
        raise OSError(92, "Protocol not available")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taking,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending,
    ):
        taking.bind(("127.0.0.1", 0))
        taking.setblocking(False)
        sending.connect(taking.getsockname())
        yield taking, sending


def taken(pair: tuple[socket.socket, socket.socket], *datagrams: bytes) -> list[bytes]:
    """What comes of them; loopback delivers while it sends."""
    taking, sending = pair
    for datagram in datagrams:
        sending.send(datagram)
    came = []
    with contextlib.suppress(BlockingIOError):
        while True:
            came.append(taking.recv(65536))
    return came


def test_what_has_a_kind_and_a_name_comes_through_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    keep_only(pair[0], KINDS, NAMES)
    good = [bytes([kind, 2]) + name + bytes(50) for kind in KINDS for name in NAMES]
    assert taken(pair, *good) == good


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"\x01",
        b"\x01\x02" + NAMES[0][:7],
        b"\x01\x02" + NAMES[0][:4] + NAMES[1][4:],
        b"\x01\x02" + b"?" * 8,
        b"\x02\x02" + NAMES[0],
        b"\x00\x02" + NAMES[0],
    ],
)
def test_everything_else_is_dropped_and_counted(pair: tuple[socket.socket, socket.socket], datagram: bytes) -> None:
    keep_only(pair[0], KINDS, NAMES)
    before = dropped_by_kernel(pair[0])
    assert taken(pair, datagram, datagram) == []
    assert dropped_by_kernel(pair[0]) == before + 2


def test_names_that_came_later_count_and_those_that_went_do_not(pair: tuple[socket.socket, socket.socket]) -> None:
    first, second = (b"\x01\x02" + name for name in NAMES[:2])
    keep_only(pair[0], KINDS, [])
    assert taken(pair, first, second) == []
    keep_only(pair[0], KINDS, NAMES[:1])
    assert taken(pair, first, second) == [first]
    keep_only(pair[0], KINDS, NAMES[1:2])
    assert taken(pair, first, second) == [second]


def test_more_names_than_a_program_holds_let_everything_through(pair: tuple[socket.socket, socket.socket]) -> None:
    names = [number.to_bytes(8, "big") for number in range(MOST_NAMES + 1)]
    keep_only(pair[0], KINDS, names[1:])
    last = b"\x01\x02" + names[-1]
    assert taken(pair, b"junk", last) == [last], "as many as there may be are filtered"
    keep_only(pair[0], KINDS, names)
    assert taken(pair, b"junk", last) == [b"junk", last]


def test_a_kernel_that_does_not_filter_is_no_error() -> None:
    keep_only(Unfilterable(), KINDS, NAMES)  # type: ignore[arg-type]
    assert dropped_by_kernel(Unfilterable()) == 0  # type: ignore[arg-type]
