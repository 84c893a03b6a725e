"""Two sockets on loopback, and between them a path that takes what a test lets it take."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fedrdma_fate.transport.listener import ConnectError
from fedrdma_fate.transport.udp import meeting as meeting_module
from fedrdma_fate.transport.udp.listening import UdpListener
from fedrdma_fate.transport.udp.meeting import (
    PATH_MTUS,
    SILENCE_SECONDS,
    Meeting,
    Probe,
    lengths_to_try,
    probe,
    read_probe,
)
from fedrdma_fate.transport.udp.socket_options import prepare

TOKEN = b"t" * 16
LENGTHS = lengths_to_try(9000 - 28, 28)


def udp_socket(port: int = 0) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", port))
    return made


@contextlib.contextmanager
def path(carries: Callable[[bytes, bool], bool]) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two sockets, joined by one that passes on what the path carries."""
    left, right, between_left, between_right = (udp_socket() for _ in range(4))
    stop = threading.Event()

    def pass_on() -> None:
        poller = select.poll()
        ways = {
            between_left.fileno(): (between_left, between_right),
            between_right.fileno(): (between_right, between_left),
        }
        for descriptor in ways:
            poller.register(descriptor, select.POLLIN)
        while not stop.is_set():
            for descriptor, _ in poller.poll(20):
                source, target = ways[descriptor]
                with contextlib.suppress(OSError):
                    data = source.recv(65536)
                    if carries(data, source is between_left):
                        target.send(data)

    with contextlib.ExitStack() as undo:
        for made in (left, right, between_left, between_right):
            undo.callback(made.close)
        left.connect(between_left.getsockname())
        between_left.connect(left.getsockname())
        right.connect(between_right.getsockname())
        between_right.connect(right.getsockname())
        for made in (left, right):
            prepare(made)
        thread = threading.Thread(target=pass_on)
        thread.start()
        undo.callback(thread.join)
        undo.callback(stop.set)
        yield left, right


def meet(
    left: socket.socket, right: socket.socket, tokens: tuple[bytes, bytes] = (TOKEN, TOKEN), seconds: float = 10
) -> list[tuple[int, int]]:
    streams = socket.socketpair()
    for stream in streams:
        stream.setblocking(False)
    deadline = time.monotonic() + seconds
    try:
        with ThreadPoolExecutor(2) as pool:
            running = [
                pool.submit(Meeting(token, name, LENGTHS).run, udp, stream, deadline)
                for token, name, udp, stream in zip(tokens, (11, 22), (left, right), streams, strict=True)
            ]
            return [each.result() for each in running]
    finally:
        for stream in streams:
            stream.close()


@pytest.mark.parametrize("longest", [8972, 4172, 1472, 1252])
def test_both_find_the_longest_datagram_that_passes_and_hear_the_name_of_the_connection(longest: int) -> None:
    with path(lambda data, _: len(data) <= longest) as (left, right):
        assert meet(left, right) == [(longest, 22), (longest, 11)]


def test_the_shorter_way_decides() -> None:
    with path(lambda data, to_right: len(data) <= (1472 if to_right else 1372)) as (left, right):
        assert [length for length, _ in meet(left, right)] == [1352, 1352]


def test_where_most_probes_are_lost_they_meet_all_the_same() -> None:
    count = 0

    def carries(*_: object) -> bool:
        nonlocal count
        count += 1
        return count % 5 == 0

    with path(carries) as (left, right):
        assert all(length >= 1252 for length, _ in meet(left, right))


def test_where_nothing_passes_both_say_so_soon() -> None:
    began = time.monotonic()
    with path(lambda *_: False) as (left, right), pytest.raises(ConnectError, match="UDP does not pass"):
        meet(left, right)
    assert SILENCE_SECONDS <= time.monotonic() - began < SILENCE_SECONDS + 8


def test_probes_of_others_prove_nothing() -> None:
    with path(lambda *_: True) as (left, right), pytest.raises(ConnectError, match="UDP does not pass"):
        meet(left, right, (TOKEN, b"u" * 16))


class Flood:
    """Of datagrams that nobody has asked for: there is always one more. Fails who reads on and on."""

    def __init__(self, *_: object) -> None:
        self.read = 0

    def recvfrom(self, _most: int) -> tuple[bytes, Any]:
        return next(self.batch()), ("192.0.2.1", 9)

    def batch(self) -> Iterator[bytes]:
        self.read += 1
        assert self.read < 200_000, "nobody looks at the time"
        yield b"flood"

    def fileno(self) -> int:
        return 0

    def setsockopt(self, *_: object) -> None:
        raise OSError(92, "Protocol not available")

    def close(self) -> None:
        return


def test_who_floods_the_port_keeps_nobody_beyond_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = UdpListener("127.0.0.1", 0)
    token = listener.expect()
    with contextlib.closing(listener._socket):
        monkeypatch.setattr(listener, "_socket", Flood())
        with pytest.raises(ConnectError, match="no probe"):
            listener.accept(token, time.monotonic() + 0.05)
    # nor the lock, which the gateway's event loop takes
    assert listener.expect() != token


def test_a_flood_from_the_peers_address_does_not_keep_a_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting_module, "DatagramReceiver", Flood)
    monkeypatch.setattr(meeting_module, "SILENCE_SECONDS", 0.1)
    with path(lambda *_: False) as (left, right), pytest.raises(ConnectError, match="UDP does not pass"):
        meet(left, right)


@pytest.mark.parametrize("told", [1, 30, 31, 1251])
def test_lengths_that_were_never_sent_are_not_believed(told: int) -> None:
    own, other = socket.socketpair()
    own.setblocking(False)
    with path(lambda *_: True) as (left, right), contextlib.closing(own), contextlib.closing(other):
        for length in LENGTHS:
            right.send(probe(TOKEN, length, LENGTHS[0]))
        other.sendall(meeting_module._FOUND.pack(told, 2))
        with pytest.raises(ConnectError, match=f"{told} bytes, which were not sent"):
            Meeting(TOKEN, 1, LENGTHS).run(left, own, time.monotonic() + 10)


def test_a_peer_that_goes_away_meanwhile_is_noticed() -> None:
    with path(lambda *_: False) as (left, _):
        own, other = socket.socketpair()
        own.setblocking(False)
        other.close()
        with pytest.raises(ConnectError, match="closed"):
            Meeting(TOKEN, 1, LENGTHS).run(left, own, time.monotonic() + 10)
        own.close()


@pytest.mark.parametrize("data", [b"", b"x" * 37, probe(TOKEN, 100, 0)[:-1], b"\2" + probe(TOKEN, 100, 0)[1:]])
def test_what_is_no_probe_or_was_cut_is_none(data: bytes) -> None:
    assert read_probe(data) is None
    assert read_probe(probe(TOKEN, 100, 7, b"c" * 8)) == Probe(TOKEN, 100, 7, b"c" * 8)


def test_lengths_to_try_begin_with_the_routes_own_and_go_down_to_what_every_path_carries() -> None:
    assert lengths_to_try(1472, 28) == [1472, 1464, 1422, 1392, 1352, 1252]
    assert lengths_to_try(65507, 28)[:2] == [65507, 8972]
    assert list(PATH_MTUS) == sorted(PATH_MTUS, reverse=True)


def test_a_listener_gives_each_link_a_socket_of_its_own_on_the_same_port() -> None:
    listener = UdpListener("127.0.0.1", 0)
    tokens = [listener.expect(), listener.expect()]
    dialled = [udp_socket() for _ in tokens]
    for made, token in zip(dialled, tokens, strict=True):
        made.sendto(b"nonsense", ("127.0.0.1", listener.port))
        made.sendto(probe(b"?" * 16, 100, 0), ("127.0.0.1", listener.port))
        made.sendto(probe(token, 100, 0), ("127.0.0.1", listener.port))
    met = [listener.accept(token, time.monotonic() + 5) for token in reversed(tokens)][::-1]
    assert [received for _, received in met] == [100, 100]
    accepted = [connected for connected, _ in met]
    listener.close()
    for made, peer in zip(accepted, dialled, strict=True):
        assert made.getsockname()[1] == listener.port
        peer.sendto(b"hello", ("127.0.0.1", listener.port))
        assert select.select([made], [], [], 5)[0]
        assert made.recv(100) == b"hello"
        made.close()
        peer.close()


def test_a_listener_that_hears_nothing_or_is_closed_says_so() -> None:
    listener = UdpListener("127.0.0.1", 0)
    token = listener.expect()
    with pytest.raises(ConnectError, match="no probe"):
        listener.accept(token, time.monotonic() + 0.05)
    listener.forget(token)
    with pytest.raises(ConnectError, match="closed"):
        listener.accept(token, time.monotonic() + 5)
    listener.close()
    listener.close()
    with pytest.raises(ConnectError, match="closed"):
        listener.expect()


def test_who_sends_a_token_from_an_address_that_is_not_its_own_makes_no_more_go_there_than_it_has_sent() -> None:
    """The token was seen on the path, and the sender's address is another's, who answers nothing."""
    stream, _ = streams = socket.socketpair()
    stream.setblocking(False)
    sent = came = 0
    with contextlib.closing(streams[0]), contextlib.closing(streams[1]), path(lambda *_: True) as (left, right):
        meeting = Meeting(TOKEN, 1, LENGTHS, received_bytes=100)
        sent += 100
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(meeting.run, left, stream, time.monotonic() + 2)
            while not running.done():
                sent += right.send(probe(TOKEN, 500, 0))
                time.sleep(0.05)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        came += len(right.recv(65536))
            with pytest.raises(ConnectError):
                running.result()
    assert 0 < came <= sent


def test_who_sends_a_cookie_back_is_where_it_says_and_all_lengths_are_tried() -> None:
    streams = socket.socketpair()
    for stream in streams:
        stream.setblocking(False)
    with contextlib.closing(streams[0]), contextlib.closing(streams[1]), path(lambda *_: True) as (left, right):
        deadline = time.monotonic() + 10
        with ThreadPoolExecutor(2) as pool:
            listening = pool.submit(Meeting(TOKEN, 11, LENGTHS, received_bytes=100).run, left, streams[0], deadline)
            dialling = pool.submit(Meeting(TOKEN, 22, LENGTHS).run, right, streams[1], deadline)
            assert [listening.result(), dialling.result()] == [(8972, 22), (8972, 11)]
