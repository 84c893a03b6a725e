"""How chunks and messages become datagrams, whatever the kernel says to them."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fedrdma_fate.transport.udp.nacks import NackedChunk, decode_nacks
from fedrdma_fate.transport.udp.outbound import BYTES_PER_TURN, MOST_COPIES, MOST_MESSAGES, DatagramOutbound
from fedrdma_fate.transport.udp.packets import CHUNK, CHUNK_HEAD, MESSAGE, MESSAGE_HEAD, NACK, NACK_HEAD, PING
from fedrdma_fate.transport.udp.socket_options import UDP_SEGMENT

DATAGRAM, CONNECTION = 1472, 0xABCDEF0123456789
KEY, IMMEDIATE = 5, 77


class Kernel:
    """A UDP socket: what it took, as datagrams, and what it answers before it takes anything."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.calls = 0
        self.answers: list[int] = []
        self.without_segments: int = 0

    def sendmsg(self, buffers: Sequence[Any], options: Sequence[tuple[int, int, bytes]]) -> None:
        self.calls += 1
        if options and self.without_segments:
            raise OSError(self.without_segments, "no segments here")
        if self.answers and (answer := self.answers.pop(0)):
            raise OSError(answer, os.strerror(answer))
        joined = b"".join(buffers)
        size = len(joined)
        if options:
            ((_, kind, data),) = options
            assert kind == UDP_SEGMENT
            size = struct.unpack("=H", data)[0]
            assert len(joined) <= 65507
        assert size <= DATAGRAM
        self.taken += [joined[at : at + size] for at in range(0, len(joined), size)]

    def chunk(self) -> bytes:
        """The chunk that the datagrams taken are pieces of."""
        body = bytearray()
        for number, datagram in enumerate(self.taken):
            kind, _, piece, pieces, key, immediate, connection, offset = CHUNK_HEAD.unpack_from(datagram)
            assert (kind, piece, pieces) == (CHUNK, number, len(self.taken))
            assert (key, immediate, connection, offset) == (KEY, IMMEDIATE, CONNECTION, 4096 + len(body))
            body += datagram[CHUNK_HEAD.size :]
        return bytes(body)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def done() -> list[int]:
    return []


@pytest.fixture
def outbound(kernel: Kernel, done: list[int]) -> DatagramOutbound:
    return DatagramOutbound(kernel, DATAGRAM, CONNECTION, done.append, segments=True)  # type: ignore[arg-type]


def add(outbound: DatagramOutbound, body: bytes, work_request: int = 1) -> None:
    outbound.add_chunk(work_request, memoryview(body), KEY, IMMEDIATE, 4096)


def drain(outbound: DatagramOutbound) -> None:
    for _ in range(1000):
        if not outbound.waiting:
            return
        outbound.flush()
    raise AssertionError("it never ends")


@pytest.mark.parametrize("length", [1, 1441, 1442, 1443, 100_000, 4 << 20])
def test_a_chunk_is_cut_into_datagrams_that_fill_the_path_and_is_done_when_all_were_taken(
    outbound: DatagramOutbound, kernel: Kernel, done: list[int], length: int
) -> None:
    body = os.urandom(length)
    add(outbound, body)
    drain(outbound)
    assert kernel.chunk() == body
    assert {len(datagram) for datagram in kernel.taken[:-1]} <= {DATAGRAM}
    assert done == [1]
    assert kernel.calls <= 1 + len(kernel.taken) // 40, "batches"


@pytest.mark.parametrize("answer", [errno.EIO, errno.EINVAL])
def test_where_batches_are_refused_each_datagram_goes_by_itself(
    outbound: DatagramOutbound, kernel: Kernel, done: list[int], answer: int
) -> None:
    kernel.without_segments = answer
    body = os.urandom(10_000)
    add(outbound, body)
    drain(outbound)
    assert kernel.chunk() == body
    assert (done, outbound.segments) == ([1], False)


@pytest.mark.parametrize("answer", [errno.EAGAIN, errno.ENOBUFS])
def test_what_finds_no_room_is_sent_later_and_nothing_is_left_out(
    outbound: DatagramOutbound, kernel: Kernel, done: list[int], answer: int
) -> None:
    kernel.answers = [answer, 0, answer, answer]
    body = os.urandom(150_000)
    add(outbound, body)
    outbound.flush()
    assert (outbound.blocked, done) == (True, [])
    drain(outbound)
    assert kernel.chunk() == body
    assert done == [1]


def test_what_a_filter_drops_counts_as_sent_and_anything_else_is_told(
    outbound: DatagramOutbound, kernel: Kernel, done: list[int]
) -> None:
    kernel.answers = [errno.EPERM, errno.ECONNREFUSED, errno.EMSGSIZE]
    for number in range(3):
        add(outbound, b"x" * 100, number)
    with pytest.raises(OSError, match="long"):
        outbound.flush()
    assert done == [0, 1]


def test_messages_go_before_chunks_and_a_turn_takes_no_more_than_its_share(
    outbound: DatagramOutbound, kernel: Kernel
) -> None:
    add(outbound, bytes(3 * BYTES_PER_TURN))
    assert outbound.add_message(b"report", 6, 2)
    outbound.flush()
    assert [datagram[0] for datagram in kernel.taken[:3]] == [MESSAGE, MESSAGE, CHUNK]
    assert BYTES_PER_TURN <= sum(map(len, kernel.taken)) <= BYTES_PER_TURN + 65507
    assert outbound.waiting


def test_a_long_message_goes_in_pieces_with_zeros_behind(outbound: DatagramOutbound, kernel: Kernel) -> None:
    data = os.urandom(4096)
    assert outbound.add_message(data, 10_000, 1)
    drain(outbound)
    heads = [MESSAGE_HEAD.unpack_from(datagram) for datagram in kernel.taken]
    assert [(piece, pieces, connection) for _, _, piece, pieces, _, connection in heads] == [
        (number, len(heads), CONNECTION) for number in range(len(heads))
    ]
    assert b"".join(datagram[MESSAGE_HEAD.size :] for datagram in kernel.taken) == data + bytes(10_000 - 4096)


def test_no_more_messages_wait_than_there_is_room_for(outbound: DatagramOutbound) -> None:
    assert not outbound.add_message(b"x", 1, MOST_COPIES + 1)
    for _ in range(MOST_MESSAGES // MOST_COPIES):
        assert outbound.add_message(b"x", 1, MOST_COPIES)
    assert not outbound.add_message(b"x", 1, 1)


def test_a_chunk_of_more_pieces_than_can_be_counted_is_refused(outbound: DatagramOutbound) -> None:
    with pytest.raises(ValueError, match="too long"):
        add(outbound, bytes(65536 * outbound.piece_bytes))


def test_of_a_chunk_that_is_sent_again_only_what_the_peer_lacks_goes(
    outbound: DatagramOutbound, kernel: Kernel, done: list[int]
) -> None:
    body = os.urandom(10 * outbound.piece_bytes - 7)
    assert outbound.on_nack(NackedChunk(KEY, IMMEDIATE, 10, 0b10_0100_1000)) == 3 * outbound.piece_bytes
    add(outbound, body)
    drain(outbound)
    size = outbound.piece_bytes
    heads = [CHUNK_HEAD.unpack_from(datagram) for datagram in kernel.taken]
    assert [head[2] for head in heads] == [3, 6, 9]
    assert {head[3] for head in heads} == {10}
    assert [head[7] for head in heads] == [4096 + piece * size for piece in (3, 6, 9)]
    assert [datagram[CHUNK_HEAD.size :] for datagram in kernel.taken] == [
        body[piece * size : (piece + 1) * size] for piece in (3, 6, 9)
    ]
    assert (done, kernel.calls) == ([1], 1)
    kernel.taken.clear()
    outbound.add_chunk(2, memoryview(body), KEY, IMMEDIATE + 1, 4096)
    drain(outbound)
    assert len(kernel.taken) == 10, "of another chunk nothing is known"


def test_what_the_peer_should_send_again_is_told_in_as_many_datagrams_as_it_takes(
    outbound: DatagramOutbound, kernel: Kernel
) -> None:
    chunks = [NackedChunk(KEY, number, 800, 1 << number) for number in range(100)]
    too_long = NackedChunk(KEY, 999, 12_000, 1)
    outbound.nack([*chunks[:50], too_long, *chunks[50:]])
    assert max(map(len, kernel.taken)) <= DATAGRAM
    assert {datagram[0] for datagram in kernel.taken} == {NACK}
    named = [chunk for datagram in kernel.taken for chunk in decode_nacks(datagram[NACK_HEAD.size :])]
    assert named == chunks


@pytest.mark.parametrize(
    ("send", "length"),
    [(lambda outbound: outbound.ping(3), DATAGRAM), (lambda outbound: outbound.pong(3), 14)],
    ids=["ping", "pong"],
)
def test_pings_are_as_long_as_pieces_and_their_answers_short(
    outbound: DatagramOutbound, kernel: Kernel, send: Callable[[DatagramOutbound], None], length: int
) -> None:
    kernel.answers = [errno.EAGAIN]
    send(outbound)
    assert kernel.taken == [], "lost, and not waited for"
    send(outbound)
    (datagram,) = kernel.taken
    assert len(datagram) == length
    assert datagram[0] == PING + (length == 14)
