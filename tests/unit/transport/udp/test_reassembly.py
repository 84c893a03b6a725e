"""Pieces of chunks and messages, in any order, more than once, or of nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.core.x.loss_detection import REORDERING_THRESHOLD_CHUNKS
from fedrdma_fate.transport.udp import reassembly
from fedrdma_fate.transport.udp.nacks import NackedChunk
from fedrdma_fate.transport.udp.reassembly import REORDERING_LOOKS, ChunkAssembly, MessageAssembly
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES
from tests.support.endpoints import HeapRegion

KEY, GRANT, IMMEDIATE = 7, 3, 0x00500001
SIZE = 100


def opened(length: int = 4096, guard: int = 64) -> tuple[ChunkAssembly, HeapRegion]:
    region = HeapRegion(length + 2 * guard)
    assembly = ChunkAssembly()
    assembly.open(KEY, GRANT, region.slot(guard, length))
    return assembly, region


def pieces_of(body: bytes, at: int = 0) -> list[tuple[int, int, int, memoryview]]:
    count = -(-len(body) // SIZE)
    return [(i, count, at + i * SIZE, memoryview(body)[i * SIZE : (i + 1) * SIZE]) for i in range(count)]


@given(st.integers(1, 2000), st.integers(0, 500), st.randoms(use_true_random=False))
def test_a_chunk_is_whole_once_when_its_last_piece_is_there_however_they_come(
    length: int, at: int, shuffled: random.Random
) -> None:
    assembly, region = opened()
    body = shuffled.randbytes(length)
    pieces = pieces_of(body, at)
    shuffled.shuffle(pieces)
    *first, last = pieces
    for piece, count, offset, data in first * 2:
        assert assembly.take(piece, count, KEY, IMMEDIATE, offset, data) is False
    piece, count, offset, data = last
    assert assembly.take(piece, count, KEY, IMMEDIATE, offset, data) is True
    assert bytes(region.view[64 + at : 64 + at + length]) == body
    assert not any(region.view[:64])
    assert not any(region.view[64 + at + length :])


@pytest.mark.parametrize(
    ("piece", "count", "key", "offset", "length"),
    [(0, 1, 8, 0, 10), (0, 0, KEY, 0, 10), (2, 2, KEY, 0, 10), (0, 2, KEY, 4095, 2), (0, 1, KEY, 1 << 63, 1)],
    ids=["other-key", "no-pieces", "beyond-the-last", "beyond-the-slot", "far-beyond"],
)
def test_a_piece_that_belongs_nowhere_is_dropped(piece: int, count: int, key: int, offset: int, length: int) -> None:
    assembly, region = opened()
    assert assembly.take(piece, count, key, IMMEDIATE, offset, memoryview(b"x" * length)) is None
    assert not any(region.view)


def test_a_slot_that_was_closed_takes_nothing_and_nothing_of_it_is_kept() -> None:
    assembly, region = opened()
    first, second = pieces_of(b"x" * 2 * SIZE)
    assert assembly.take(first[0], 2, KEY, IMMEDIATE, first[2], first[3]) is False
    assembly.close(GRANT)
    region.view[:] = bytes(len(region.view))
    assert assembly.take(second[0], 2, KEY, IMMEDIATE, second[2], second[3]) is None
    assert not any(region.view)
    assembly.open(KEY, GRANT + 1, region.slot(0, 4096))
    assert assembly.take(second[0], 2, KEY, IMMEDIATE, second[2], second[3]) is False, "half of it came before"


def test_a_chunk_that_is_cut_otherwise_than_before_begins_anew() -> None:
    assembly, _ = opened()
    assert assembly.take(0, 2, KEY, IMMEDIATE, 0, memoryview(b"ab")) is False
    assert assembly.take(1, 3, KEY, IMMEDIATE, 2, memoryview(b"cd")) is False
    assert assembly.take(2, 3, KEY, IMMEDIATE, 4, memoryview(b"ef")) is False
    assert assembly.take(0, 3, KEY, IMMEDIATE, 0, memoryview(b"ab")) is True


def test_of_chunks_that_never_become_whole_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassembly, "MOST_PARTIAL_CHUNKS", 3)
    assembly, _ = opened()
    for immediate in range(4):
        assembly.take(0, 2, KEY, immediate, 0, memoryview(b"ab"))
    assert assembly.take(1, 2, KEY, 0, 2, memoryview(b"cd")) is False
    assert assembly.take(1, 2, KEY, 3, 2, memoryview(b"cd")) is True


def whole_chunks(assembly: ChunkAssembly, count: int) -> None:
    """So many that come in one piece."""
    for immediate in range(count):
        assert assembly.take(0, 1, KEY, 1000 + immediate, 0, memoryview(b"x")) is True


def test_pieces_are_missed_when_chunks_behind_theirs_are_whole_and_are_told_once() -> None:
    assembly, _ = opened()
    assert assembly.take(1, 4, KEY, IMMEDIATE, 2, memoryview(b"ab")) is False
    whole_chunks(assembly, REORDERING_THRESHOLD_CHUNKS - 1)
    assert assembly.take_nacks() == [], "they may be late"
    whole_chunks(assembly, 1)
    assert assembly.take_nacks() == [NackedChunk(KEY, IMMEDIATE, 4, 0b1101)]
    whole_chunks(assembly, 10)
    assert assembly.take_nacks() == []
    assert assembly.take(3, 4, KEY, IMMEDIATE, 6, memoryview(b"ab")) is False
    whole_chunks(assembly, REORDERING_THRESHOLD_CHUNKS)
    assert assembly.take_nacks() == [NackedChunk(KEY, IMMEDIATE, 4, 0b0101)], "more of it came, and not all"


def test_what_came_is_counted_whether_its_chunk_is_whole_or_not_and_once() -> None:
    assembly, region = opened()
    assert assembly.received_bytes(KEY) == 0
    for _ in range(2):
        assert assembly.take(1, 3, KEY, IMMEDIATE, 2, memoryview(b"ab")) is False
    whole_chunks(assembly, 3)
    assert assembly.received_bytes(KEY) == 2 + 3
    assembly.open(KEY + 1, GRANT + 1, region.slot(0, 4096))
    assert assembly.received_bytes(KEY + 1) == 0, "each slot by itself"


def test_where_nothing_comes_behind_pieces_are_missed_after_some_looks() -> None:
    assembly, _ = opened()
    assert assembly.take(0, 2, KEY, IMMEDIATE, 0, memoryview(b"ab")) is False
    assert [assembly.take_nacks() for _ in range(REORDERING_LOOKS)] == [[]] * REORDERING_LOOKS
    assert assembly.take_nacks() == [NackedChunk(KEY, IMMEDIATE, 2, 0b10)]


def test_nothing_is_missed_of_chunks_that_are_whole_or_of_slots_that_are_closed() -> None:
    assembly, region = opened()
    for number, count, offset, data in pieces_of(b"x" * 3 * SIZE):
        assembly.take(number, count, KEY, IMMEDIATE, offset, data)
    assembly.open(KEY + 1, GRANT + 1, region.slot(0, 4096))
    assembly.take(0, 2, KEY + 1, IMMEDIATE, 0, memoryview(b"ab"))
    assembly.close(GRANT + 1)
    whole_chunks(assembly, 10)
    assert assembly.take_nacks() == []


@given(st.integers(0, 3 * DATAGRAM_BYTES), st.integers(100, 5000), st.randoms(use_true_random=False))
def test_of_a_message_the_first_bytes_are_kept_and_the_rest_has_to_come(
    length: int, size: int, shuffled: random.Random
) -> None:
    body = shuffled.randbytes(length)
    count = max(1, -(-length // size))
    pieces = [(i, memoryview(body)[i * size : (i + 1) * size]) for i in range(count)]
    shuffled.shuffle(pieces)
    assembly = MessageAssembly()
    for number, data in pieces[:-1] * 2:
        assert assembly.take(number, count, 9, size, data) is None
    number, data = pieces[-1]
    assert assembly.take(number, count, 9, size, data) == body[:DATAGRAM_BYTES]


def test_of_messages_that_never_become_whole_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassembly, "MOST_PARTIAL_MESSAGES", 2)
    assembly = MessageAssembly()
    for number in range(3):
        assert assembly.take(0, 2, number, 2, memoryview(b"ab")) is None
    assert assembly.take(1, 2, 0, 2, memoryview(b"cd")) is None
    assert assembly.take(1, 2, 2, 2, memoryview(b"cd")) == b"abcd"
