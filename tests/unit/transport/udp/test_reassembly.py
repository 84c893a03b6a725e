"""Pieces of chunks and messages, in any order, more than once, or of nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.core.x.loss_detection import REORDERING_THRESHOLD_CHUNKS
from fedrdma_fate.transport.udp import reassembly
from fedrdma_fate.transport.udp.cuts import Cut, cut_for
from fedrdma_fate.transport.udp.nacks import NackedChunk
from fedrdma_fate.transport.udp.reassembly import MOST_RECUTS, REORDERING_LOOKS, ChunkAssembly, MessageAssembly
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES
from tests.support.endpoints import HeapRegion

KEY, GRANT, IMMEDIATE = 7, 3, 0x00500001
SIZE = 100


def opened(length: int = 4096, guard: int = 64) -> tuple[ChunkAssembly, HeapRegion]:
    region = HeapRegion(length + 2 * guard)
    assembly = ChunkAssembly()
    assembly.open(KEY, GRANT, region.slot(guard, length))
    return assembly, region


def pieces_of(body: bytes, at: int = 0, size: int = SIZE) -> list[tuple[int, Cut, int, memoryview]]:
    cut = cut_for(len(body), size)
    return [(i, cut, at + i * size, memoryview(body)[i * size : (i + 1) * size]) for i in range(cut.pieces)]


def take(assembly: ChunkAssembly, piece: int, pieces: int, immediate: int = IMMEDIATE, key: int = KEY) -> bool | None:
    """A piece of two bytes."""
    return assembly.take(piece, Cut(pieces, 2), key, immediate, 2 * piece, memoryview(b"ab"))


@given(st.integers(1, 2000), st.integers(0, 500), st.randoms(use_true_random=False))
def test_a_chunk_is_whole_once_when_its_last_piece_is_there_however_they_come(
    length: int, at: int, shuffled: random.Random
) -> None:
    assembly, region = opened()
    body = shuffled.randbytes(length)
    pieces = pieces_of(body, at)
    shuffled.shuffle(pieces)
    *first, last = pieces
    for piece, cut, offset, data in first * 2:
        assert assembly.take(piece, cut, KEY, IMMEDIATE, offset, data) is False
    piece, cut, offset, data = last
    assert assembly.take(piece, cut, KEY, IMMEDIATE, offset, data) is True
    assert bytes(region.view[64 + at : 64 + at + length]) == body
    assert not any(region.view[:64])
    assert not any(region.view[64 + at + length :])


@pytest.mark.parametrize(
    ("piece", "count", "size", "key", "offset", "length"),
    [
        (0, 1, 10, 8, 0, 10),
        (0, 0, 10, KEY, 0, 10),
        (2, 2, 10, KEY, 0, 10),
        (0, 2, 2, KEY, 4095, 2),
        (0, 1, 1, KEY, 1 << 63, 1),
        (0, 2, 10, KEY, 0, 9),
        (1, 2, 10, KEY, 10, 11),
        (0, 1, 0, KEY, 0, 10),
    ],
    ids=[
        "other-key",
        "no-pieces",
        "beyond-the-last",
        "beyond-the-slot",
        "far-beyond",
        "shorter-than-it-says",
        "longer-than-it-says",
        "without-bytes",
    ],
)
def test_a_piece_that_belongs_nowhere_is_dropped(
    piece: int, count: int, size: int, key: int, offset: int, length: int
) -> None:
    assembly, region = opened()
    assert assembly.take(piece, Cut(count, size), key, IMMEDIATE, offset, memoryview(b"x" * length)) is None
    assert not any(region.view)


def test_a_slot_that_was_closed_takes_nothing_and_nothing_of_it_is_kept() -> None:
    assembly, region = opened()
    first, second = pieces_of(b"x" * 2 * SIZE)
    assert assembly.take(first[0], first[1], KEY, IMMEDIATE, first[2], first[3]) is False
    assembly.close(GRANT)
    region.view[:] = bytes(len(region.view))
    assert assembly.take(second[0], second[1], KEY, IMMEDIATE, second[2], second[3]) is None
    assert not any(region.view)
    assembly.open(KEY, GRANT + 1, region.slot(0, 4096))
    assert assembly.take(second[0], second[1], KEY, IMMEDIATE, second[2], second[3]) is False, "half of it came before"


@given(st.integers(1, 2000), st.lists(st.integers(40, 400), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_of_a_chunk_that_is_cut_otherwise_than_before_what_has_come_stays(
    length: int, sizes: list[int], shuffled: random.Random
) -> None:
    assembly, region = opened()
    body = shuffled.randbytes(length)
    *first, last = sizes
    there: set[int] = set()
    for size in first:
        pieces = pieces_of(body, 0, size)
        for piece, cut, offset, data in shuffled.sample(pieces, len(pieces) // 2):
            if assembly.take(piece, cut, KEY, IMMEDIATE, offset, data):
                assert bytes(region.view[64 : 64 + length]) == body
                return
            there |= set(range(offset, offset + len(data)))
    told: list[bool | None] = []
    for piece, cut, offset, data in pieces_of(body, 0, last):
        told.append(assembly.take(piece, cut, KEY, IMMEDIATE, offset, data))
        there |= set(range(offset, offset + len(data)))
        if True in told:
            assert there == set(range(length)), "never whole before all of it is there"
            break
    assert bytes(region.view[64 : 64 + length]) == body
    assert told.count(True) == 1


def test_after_a_change_of_the_cut_only_what_is_missing_has_to_come() -> None:
    assembly, region = opened()
    body = random.Random(4).randbytes(1000)
    long, short = pieces_of(body, 0, 250), pieces_of(body, 0, 100)
    for index in (0, 3):
        piece, cut, offset, data = long[index]
        assert assembly.take(piece, cut, KEY, IMMEDIATE, offset, data) is False
    assert [assembly.take(p, c, KEY, IMMEDIATE, o, d) for p, c, o, d in short[2:8]] == [False] * 5 + [True]
    assert bytes(region.view[64:1064]) == body


def test_a_chunk_that_is_cut_otherwise_again_and_again_begins_anew() -> None:
    assembly, _ = opened()
    for changes in range(MOST_RECUTS + 2):
        data = memoryview(bytes(100 + changes))
        assert assembly.take(0, Cut(3, len(data)), KEY, IMMEDIATE, 0, data) is False
    assert take(assembly, 1, 3) is False


def test_pieces_of_no_chunk_that_could_be_do_not_make_it_whole() -> None:
    assembly, _ = opened()
    assert assembly.take(0, Cut(2, 1000), KEY, IMMEDIATE, 0, memoryview(bytes(1000))) is False
    assert take(assembly, 0, 2) is False, "all of it would have been there before"


def test_of_chunks_that_never_become_whole_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassembly, "MOST_PARTIAL_CHUNKS", 3)
    assembly, _ = opened()
    for immediate in range(4):
        take(assembly, 0, 2, immediate)
    assert take(assembly, 1, 2, 0) is False
    assert take(assembly, 1, 2, 3) is True


def whole_chunks(assembly: ChunkAssembly, count: int) -> None:
    """So many that come in one piece."""
    for immediate in range(count):
        assert assembly.take(0, Cut(1, 1), KEY, 1000 + immediate, 0, memoryview(b"x")) is True


def test_pieces_are_missed_when_a_chunk_behind_theirs_is_whole_and_are_told_once() -> None:
    assembly, _ = opened()
    assert take(assembly, 1, 4) is False
    assert assembly.take_nacks() == [], "the others are on their way"
    whole_chunks(assembly, 1)
    assert assembly.take_nacks() == [NackedChunk(KEY, IMMEDIATE, Cut(4, 2), 0b1101)]
    whole_chunks(assembly, 10)
    assert assembly.take_nacks() == []
    assert take(assembly, 3, 4) is False
    whole_chunks(assembly, 1)
    assert assembly.take_nacks() == [NackedChunk(KEY, IMMEDIATE, Cut(4, 2), 0b0101)], "more of it came, and not all"


def test_of_chunks_in_a_row_that_a_full_buffer_broke_all_are_told_with_the_first_whole_one_behind_them() -> None:
    assembly, _ = opened()
    for immediate in range(REORDERING_THRESHOLD_CHUNKS + 2):
        assert take(assembly, 0, 2, immediate) is False
    assert assembly.take_nacks() == []
    # by this one the sender takes all for lost but those right in front of it
    whole_chunks(assembly, 1)
    told = [nack.immediate for nack in assembly.take_nacks()]
    assert told == list(range(REORDERING_THRESHOLD_CHUNKS + 2))


def test_what_came_is_counted_whether_its_chunk_is_whole_or_not_and_once() -> None:
    assembly, region = opened()
    assert assembly.received_bytes(KEY) == 0
    for _ in range(2):
        assert take(assembly, 1, 3) is False
    whole_chunks(assembly, 3)
    assert assembly.received_bytes(KEY) == 2 + 3
    assembly.open(KEY + 1, GRANT + 1, region.slot(0, 4096))
    assert assembly.received_bytes(KEY + 1) == 0, "each slot by itself"


def test_where_nothing_comes_behind_pieces_are_missed_after_some_looks() -> None:
    assembly, _ = opened()
    assert take(assembly, 0, 2) is False
    assert [assembly.take_nacks() for _ in range(REORDERING_LOOKS)] == [[]] * REORDERING_LOOKS
    assert assembly.take_nacks() == [NackedChunk(KEY, IMMEDIATE, Cut(2, 2), 0b10)]


def test_looks_that_come_too_soon_after_each_other_are_no_sign_of_a_missing_piece() -> None:
    assembly, _ = opened()
    assert take(assembly, 0, 2) is False
    assert [assembly.take_nacks(counts=False) for _ in range(3 * REORDERING_LOOKS)] == [[]] * 3 * REORDERING_LOOKS
    whole_chunks(assembly, 1)
    assert assembly.take_nacks(counts=False) == [NackedChunk(KEY, IMMEDIATE, Cut(2, 2), 0b10)], "but a whole chunk is"


def test_nothing_is_missed_of_chunks_that_are_whole_or_of_slots_that_are_closed() -> None:
    assembly, region = opened()
    for number, cut, offset, data in pieces_of(b"x" * 3 * SIZE):
        assembly.take(number, cut, KEY, IMMEDIATE, offset, data)
    assembly.open(KEY + 1, GRANT + 1, region.slot(0, 4096))
    take(assembly, 0, 2, IMMEDIATE, KEY + 1)
    assembly.close(GRANT + 1)
    whole_chunks(assembly, 10)
    assert assembly.take_nacks() == []


@given(st.integers(0, 3 * DATAGRAM_BYTES), st.integers(100, 5000), st.randoms(use_true_random=False))
def test_of_a_message_the_first_bytes_are_kept_and_the_rest_has_to_come(
    length: int, size: int, shuffled: random.Random
) -> None:
    body = shuffled.randbytes(length)
    cut = cut_for(max(1, length), size)
    pieces = [(i, memoryview(body)[i * size : (i + 1) * size]) for i in range(cut.pieces)]
    shuffled.shuffle(pieces)
    assembly = MessageAssembly()
    for number, data in pieces[:-1] * 2:
        assert assembly.take(number, cut, 9, data) is None
    number, data = pieces[-1]
    assert assembly.take(number, cut, 9, data) == body[:DATAGRAM_BYTES]


def test_of_messages_that_never_become_whole_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassembly, "MOST_PARTIAL_MESSAGES", 2)
    assembly = MessageAssembly()
    for number in range(3):
        assert assembly.take(0, Cut(2, 2), number, memoryview(b"ab")) is None
    assert assembly.take(1, Cut(2, 2), 0, memoryview(b"cd")) is None
    assert assembly.take(1, Cut(2, 2), 2, memoryview(b"cd")) == b"abcd"
