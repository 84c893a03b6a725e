"""How chunks and messages become datagrams, whatever the kernel says to them."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fedrdma_fate.transport.udp import nacks
from fedrdma_fate.transport.udp.cuts import Cut
from fedrdma_fate.transport.udp.nacks import NackedChunk, decode_nacks
from fedrdma_fate.transport.udp.outbound import BYTES_PER_TURN, MOST_COPIES, MOST_MESSAGES, DatagramOutbound
from fedrdma_fate.transport.udp.packets import (
    CHUNK,
    CHUNK_HEAD,
    CONNECTION_HEAD,
    MESSAGE,
    MESSAGE_HEAD,
    MOST_PIECES,
    NACK,
    PADDING,
    PING,
    PONG,
)
from fedrdma_fate.transport.udp.path_mtu import LongSent
from fedrdma_fate.transport.udp.socket_options import UDP_SEGMENT

DATAGRAM, SHORTER, CONNECTION = 1472, 1252, 0xABCDEF0123456789
KEY, IMMEDIATE = 5, 77


class Kernel:
    """A UDP socket: what it took, as datagrams, and what it answers before it takes anything."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.calls = 0
        self.answers: list[int] = []
        self.without_segments: int = 0
        self.most_bytes = DATAGRAM

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
        if size > self.most_bytes:
            raise OSError(errno.EINVAL if options else errno.EMSGSIZE, "too long")
        self.taken += [joined[at : at + size] for at in range(0, len(joined), size)]

    def chunk(self) -> bytes:
        """The chunk that the datagrams taken are pieces of."""
        body = bytearray()
        for number, datagram in enumerate(self.taken):
            kind, _, connection, piece, pieces, size, key, immediate, offset = CHUNK_HEAD.unpack_from(datagram)
            assert (kind, piece, pieces, size) == (CHUNK, number, len(self.taken), DATAGRAM - CHUNK_HEAD.size)
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
    def too_long() -> None:
        made.set_length(SHORTER)

    made = DatagramOutbound(
        kernel,  # type: ignore[arg-type]
        DATAGRAM,
        CONNECTION,
        done.append,
        segments=True,
        least_bytes=SHORTER,
        too_long=too_long,
    )
    return made


def add(outbound: DatagramOutbound, body: bytes, work_request: int = 1) -> None:
    outbound.add_chunk(work_request, memoryview(body), KEY, IMMEDIATE, 4096)


def drain(outbound: DatagramOutbound) -> None:
    for _ in range(1000):
        if not outbound.waiting:
            return
        outbound.flush()
    raise AssertionError("it never ends")


@pytest.mark.parametrize("length", [1, 1439, 1440, 1441, 100_000, 4 << 20])
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


def test_a_device_that_refuses_batches_in_the_middle_of_a_chunk_costs_none_of_it(
    outbound: DatagramOutbound, kernel: Kernel, done: list[int]
) -> None:
    body = os.urandom(2 * BYTES_PER_TURN)
    add(outbound, body)
    outbound.flush()
    assert (outbound.segments, outbound.waiting) == (True, True)
    kernel.without_segments = errno.EIO
    drain(outbound)
    assert kernel.chunk() == body
    assert (done, outbound.segments) == ([1], False)
    outbound.set_length(SHORTER)
    assert not outbound.segments, "it is the device that cannot, whatever their length"


def test_what_a_filter_drops_counts_as_sent_and_anything_else_is_told(
    outbound: DatagramOutbound, kernel: Kernel, done: list[int]
) -> None:
    kernel.answers = [errno.EPERM, errno.ECONNREFUSED, errno.EDESTADDRREQ]
    for number in range(3):
        add(outbound, b"x" * 100, number)
    with pytest.raises(OSError, match="required"):
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
    size = DATAGRAM - MESSAGE_HEAD.size
    assert [head[2:6] for head in heads] == [(CONNECTION, number, len(heads), size) for number in range(len(heads))]
    assert b"".join(datagram[MESSAGE_HEAD.size :] for datagram in kernel.taken) == data + bytes(10_000 - 4096)


def test_no_more_messages_wait_than_there_is_room_for(outbound: DatagramOutbound) -> None:
    assert not outbound.add_message(b"x", 1, MOST_COPIES + 1)
    for _ in range(MOST_MESSAGES // MOST_COPIES):
        assert outbound.add_message(b"x", 1, MOST_COPIES)
    assert not outbound.add_message(b"x", 1, 1)


def test_a_chunk_of_more_pieces_than_can_be_counted_is_refused(outbound: DatagramOutbound) -> None:
    with pytest.raises(ValueError, match="too long"):
        add(outbound, bytes(65536 * (SHORTER - CHUNK_HEAD.size)))


def test_of_a_chunk_that_is_sent_again_only_what_the_peer_lacks_goes(
    outbound: DatagramOutbound, kernel: Kernel, done: list[int]
) -> None:
    size = outbound.piece_bytes
    body = os.urandom(10 * size - 7)
    add(outbound, body)
    drain(outbound)
    for _ in range(3):
        outbound.on_nack(NackedChunk(KEY, IMMEDIATE, Cut(10, size), 0b10_0100_1000))
    outbound.on_nack(NackedChunk(KEY, IMMEDIATE + 1, Cut(10, size), 1))
    assert outbound.take_nacks() == {IMMEDIATE: 3 * size}
    assert outbound.take_nacks() == {}
    kernel.taken.clear()
    kernel.calls = 0
    add(outbound, body)
    drain(outbound)
    heads = [CHUNK_HEAD.unpack_from(datagram) for datagram in kernel.taken]
    assert [head[3] for head in heads] == [3, 6, 9]
    assert {head[4] for head in heads} == {10}
    assert [head[8] for head in heads] == [4096 + piece * size for piece in (3, 6, 9)]
    assert [datagram[CHUNK_HEAD.size :] for datagram in kernel.taken] == [
        body[piece * size : (piece + 1) * size] for piece in (3, 6, 9)
    ]
    assert (done, kernel.calls) == ([1, 1], 1)
    kernel.taken.clear()
    outbound.add_chunk(2, memoryview(body), KEY, IMMEDIATE + 1, 4096)
    drain(outbound)
    assert len(kernel.taken) == 10, "of another chunk nothing is known"


def test_whatever_a_peer_says_it_lacks_no_more_goes_than_is_paced_for(
    outbound: DatagramOutbound, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of another slot, of another cut, or of so many chunks that some are forgotten: each chunk has 3000."""
    monkeypatch.setattr(nacks, "MOST_SENT_CHUNKS", 3)
    size = outbound.piece_bytes
    body = bytes(3000 * size)
    told: dict[int, int] = {}
    for immediate in range(6):
        outbound.add_chunk(1, memoryview(body), KEY, immediate, 4096)
        for key, cut in ((KEY + 1, Cut(3000, size)), (KEY, Cut(2, size)), (KEY, Cut(3000, size - 1))):
            outbound.on_nack(NackedChunk(key, immediate, cut, 1))
        if immediate % 2:
            outbound.on_nack(NackedChunk(KEY, immediate, Cut(3000, size), 1))
        told |= outbound.take_nacks()
    drain(outbound)
    for immediate in range(6):
        kernel.taken.clear()
        outbound.add_chunk(1, memoryview(body), KEY, immediate, 4096)
        told |= outbound.take_nacks()
        drain(outbound)
        went = sum(len(datagram) - CHUNK_HEAD.size for datagram in kernel.taken)
        assert went <= min(told.get(immediate, len(body)), len(body))


def test_what_the_peer_should_send_again_is_told_in_as_many_datagrams_as_it_takes(
    outbound: DatagramOutbound, kernel: Kernel
) -> None:
    chunks = [NackedChunk(KEY, number, Cut(800, 1440), 1 << number) for number in range(100)]
    too_long = NackedChunk(KEY, 999, Cut(12_000, 1440), 1)
    outbound.nack([*chunks[:50], too_long, *chunks[50:]])
    assert max(map(len, kernel.taken)) <= SHORTER, "they come through whatever becomes of the path"
    assert {datagram[0] for datagram in kernel.taken} == {NACK}
    named = [chunk for datagram in kernel.taken for chunk in decode_nacks(datagram[CONNECTION_HEAD.size :])]
    assert named == chunks


@pytest.mark.parametrize(
    ("send", "kind", "length"),
    [
        (lambda outbound: outbound.pad(1, DATAGRAM), PADDING, DATAGRAM),
        (lambda outbound: outbound.ping(3, bytes(16)), PING, 30),
        (lambda outbound: outbound.pong(3, 1472), PONG, 16),
    ],
    ids=["padding", "ping", "pong"],
)
def test_a_sign_of_life_that_cannot_go_is_as_good_as_lost(
    outbound: DatagramOutbound, kernel: Kernel, send: Callable[[DatagramOutbound], None], kind: int, length: int
) -> None:
    kernel.answers = [errno.EAGAIN, errno.EMSGSIZE]
    send(outbound)
    send(outbound)
    assert kernel.taken == [], "lost, and not waited for"
    send(outbound)
    (datagram,) = kernel.taken
    assert (datagram[0], len(datagram)) == (kind, length)


def filled(kernel: Kernel, length: int) -> tuple[bytes, set[int]]:
    """The chunk, as its datagrams fill it, and how long these are but for its last."""
    body, lengths = bytearray(length), set()
    for datagram in kernel.taken:
        _, _, _, piece, pieces, size, _, _, offset = CHUNK_HEAD.unpack_from(datagram)
        data = datagram[CHUNK_HEAD.size :]
        assert offset == 4096 + piece * size
        assert len(data) == min(size, length - piece * size)
        body[offset - 4096 : offset - 4096 + len(data)] = data
        if piece + 1 < pieces:
            lengths.add(len(datagram))
    return bytes(body), lengths


@pytest.mark.parametrize(("before", "after"), [(DATAGRAM, SHORTER), (SHORTER, DATAGRAM)])
def test_what_waits_when_the_length_changes_is_cut_anew_and_comes_whole(
    outbound: DatagramOutbound, kernel: Kernel, done: list[int], before: int, after: int
) -> None:
    outbound.set_length(before)
    bodies = [os.urandom(2 * BYTES_PER_TURN + 77), os.urandom(10_000)]
    for number, body in enumerate(bodies):
        outbound.add_chunk(number, memoryview(body), KEY, number, 4096)
    outbound.flush()
    begun = list(kernel.taken)
    outbound.set_length(after)
    drain(outbound)
    assert done == [0, 1]
    second = [datagram for datagram in kernel.taken if CHUNK_HEAD.unpack_from(datagram)[7] == 1]
    kernel.taken = [datagram for datagram in kernel.taken if datagram not in second]
    assert filled(kernel, len(bodies[0])) == (bodies[0], {before, after})
    assert sum(map(len, kernel.taken[len(begun) :])) < len(bodies[0]) * 0.6, "not again what was sent"
    kernel.taken = second
    assert filled(kernel, len(bodies[1])) == (bodies[1], {after})


def test_a_message_that_has_begun_when_the_length_changes_begins_anew(
    outbound: DatagramOutbound, kernel: Kernel
) -> None:
    data = os.urandom(4096)
    kernel.without_segments = errno.EIO
    assert outbound.add_message(data, len(data), 1)
    kernel.answers = [0, 0, errno.EAGAIN]
    outbound.flush()
    begun = len(kernel.taken)
    kernel.answers = []
    outbound.set_length(SHORTER)
    drain(outbound)
    heads = [MESSAGE_HEAD.unpack_from(datagram) for datagram in kernel.taken]
    assert 0 < begun < len(heads)
    assert len({head[6] for head in heads}) == 2, "another message, so that nothing of both is mixed"
    assert b"".join(datagram[MESSAGE_HEAD.size :] for datagram in kernel.taken[begun:]) == data


def test_where_the_device_takes_no_datagrams_of_this_length_any_more_shorter_ones_go_in_batches(
    outbound: DatagramOutbound, kernel: Kernel, done: list[int]
) -> None:
    body = os.urandom(2 * BYTES_PER_TURN)
    add(outbound, body)
    outbound.flush()
    kernel.most_bytes, kernel.calls = SHORTER, 0
    drain(outbound)
    assert filled(kernel, len(body)) == (body, {DATAGRAM, SHORTER})
    assert (done, outbound.segments) == ([1], True)
    assert kernel.calls < 20


def test_one_answer_that_a_datagram_is_too_long_may_be_another_ones_and_changes_nothing(
    outbound: DatagramOutbound, kernel: Kernel
) -> None:
    kernel.answers = [errno.EMSGSIZE]
    body = os.urandom(10_000)
    add(outbound, body)
    drain(outbound)
    assert kernel.chunk() == body


def test_a_device_that_takes_not_even_the_shortest_is_an_error(outbound: DatagramOutbound, kernel: Kernel) -> None:
    kernel.most_bytes = SHORTER - 1
    add(outbound, os.urandom(10_000))
    with pytest.raises(OSError, match="long"):
        drain(outbound)


def test_datagrams_that_the_path_may_not_carry_are_counted_and_no_others(outbound: DatagramOutbound) -> None:
    add(outbound, bytes(10 * outbound.piece_bytes + 1))
    add(outbound, b"short")
    outbound.ping(1, bytes(16))
    drain(outbound)
    assert outbound.take_long_sent() == LongSent(10, DATAGRAM)
    add(outbound, bytes(outbound.piece_bytes - 1))
    drain(outbound)
    assert outbound.take_long_sent() == LongSent(1, DATAGRAM - 1)
    assert outbound.take_long_sent() == LongSent(0, 0)


def test_the_longest_chunk_is_taken_whatever_the_paths_length_becomes_and_a_longer_one_refused(
    outbound: DatagramOutbound,
) -> None:
    longest = outbound.most_chunk_bytes
    assert longest == MOST_PIECES * (SHORTER - CHUNK_HEAD.size)
    body = memoryview(bytearray(longest + 1))
    with pytest.raises(ValueError, match="too long for datagrams"):
        outbound.add_chunk(1, body, KEY, IMMEDIATE, 4096)
    outbound.add_chunk(1, body[:longest], KEY, IMMEDIATE, 4096)
    outbound.set_length(SHORTER)
    assert outbound.waiting
