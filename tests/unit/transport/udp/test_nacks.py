"""Negative acknowledgements: what they say, what they may not say, and how much of it is remembered."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.transport.udp import nacks
from fedrdma_fate.transport.udp.cuts import Cut, cut_for
from fedrdma_fate.transport.udp.nacks import NackedChunk, NackedChunks, decode_nacks, encode_nacks
from fedrdma_fate.transport.udp.packets import CONNECTION_HEAD, NACK, NACK_CHUNK_HEAD, VERSION
from fedrdma_fate.transport.udp.reassembly import ChunkAssembly
from tests.support.endpoints import HeapRegion

CONNECTION = 0xABCDEF0123456789
WORDS = st.integers(0, 0xFFFFFFFF)
CHUNKS = st.integers(1, 3000).flatmap(
    lambda pieces: st.builds(
        NackedChunk,
        WORDS,
        WORDS,
        st.builds(Cut, st.just(pieces), st.integers(1, 0xFFFF)),
        st.integers(1, (1 << pieces) - 1),
    )
)


@given(st.lists(CHUNKS, max_size=8), st.integers(10, 1472))
def test_as_many_as_fit_a_datagram_are_told_and_understood(chunks: list[NackedChunk], most_bytes: int) -> None:
    datagram, named = encode_nacks(CONNECTION, chunks, most_bytes)
    assert len(datagram) <= most_bytes
    assert CONNECTION_HEAD.unpack_from(datagram) == (NACK, VERSION, CONNECTION)
    assert list(decode_nacks(datagram[CONNECTION_HEAD.size :])) == chunks[:named]
    if named < len(chunks):
        assert len(datagram) + NACK_CHUNK_HEAD.size + -(-chunks[named].cut.pieces // 8) > most_bytes


@pytest.mark.parametrize(
    "body",
    [
        b"\1",
        bytes(11),
        NACK_CHUNK_HEAD.pack(1, 2, 10, 100) + b"\1",
        NACK_CHUNK_HEAD.pack(1, 2, 2, 100) + b"\4",
        NACK_CHUNK_HEAD.pack(1, 2, 2, 100) + b"\0",
        NACK_CHUNK_HEAD.pack(1, 2, 0, 100),
        NACK_CHUNK_HEAD.pack(1, 2, 2, 0) + b"\1",
    ],
    ids=[
        "a-byte",
        "half-a-head",
        "half-a-bitmap",
        "a-piece-too-many",
        "nothing-missing",
        "no-pieces",
        "pieces-without-bytes",
    ],
)
def test_what_no_receiver_says_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"bitmap|cut short"):
        list(decode_nacks(body))


SIZE, LENGTH = 100, 450
"""Of the pieces, and of the chunk: five pieces."""


def nacked_chunks(missing: int = 0b10110) -> NackedChunks:
    nacked = NackedChunks()
    assert nacked.on_sent(1, 2, LENGTH) is None
    assert nacked.note(NackedChunk(1, 2, Cut(5, SIZE), missing), SIZE, ())
    return nacked


def test_the_latest_word_on_a_chunk_counts() -> None:
    nacked = nacked_chunks()
    assert nacked.missing_pieces(1, 2, LENGTH, SIZE) == [1, 2, 4]
    nacked.on_sent(1, 2, LENGTH)
    assert nacked.note(NackedChunk(1, 2, Cut(5, SIZE), 0b100), SIZE, ()) == SIZE
    assert nacked.missing_pieces(1, 2, LENGTH, SIZE) == [2]


def test_what_has_gone_again_and_again_without_another_word_goes_whole() -> None:
    nacked = nacked_chunks()
    for _ in range(nacks.MOST_UNANSWERED_REPEATS):
        assert nacked.take_repeated() == []
        assert nacked.missing_pieces(1, 2, LENGTH, SIZE) == [1, 2, 4]
        assert nacked.on_sent(1, 2, LENGTH) is None
    # not before who counts what is sent has been told
    assert nacked.missing_pieces(1, 2, LENGTH, SIZE) == [1, 2, 4]
    assert nacked.take_repeated() == [2]
    assert list(nacked.missing_pieces(1, 2, LENGTH, SIZE)) == list(range(5))
    nacked.on_sent(1, 2, LENGTH)
    assert nacked.take_repeated() == [], "once"


def test_and_not_as_long_as_the_peer_says_what_it_lacks() -> None:
    nacked = nacked_chunks()
    for _ in range(3 * nacks.MOST_UNANSWERED_REPEATS):
        nacked.on_sent(1, 2, LENGTH)
        nacked.note(NackedChunk(1, 2, Cut(5, SIZE), 0b100), SIZE, ())
        assert nacked.take_repeated() == []
    assert nacked.missing_pieces(1, 2, LENGTH, SIZE) == [2]


def test_a_chunk_of_which_less_goes_than_the_peer_has_thrown_away_comes_whole_all_the_same() -> None:
    """It was repaired, was found damaged, and has to come again: of what comes twice nothing is said, nor of a chunk
    that nothing follows. Only what it lacked once went, until the transfer was given up."""
    body, region = bytes(range(200)) * 2, HeapRegion(1024)
    assembly, nacked, cut = ChunkAssembly(), NackedChunks(), cut_for(400, SIZE)
    assembly.open(1, 1, region.slot(0, 1024))

    def send(pieces: Iterable[int]) -> bool:
        nacked.on_sent(1, 2, len(body))
        came = [assembly.take(at, cut, 1, 2, at * SIZE, memoryview(body)[at * SIZE : (at + 1) * SIZE]) for at in pieces]
        return True in came

    assert not send([0, 1, 3]), "one is lost"
    assembly.take(0, Cut(1, SIZE), 1, 3, 500, memoryview(body)[:SIZE])
    [told] = assembly.take_nacks()
    assert nacked.note(told, SIZE, ()) == SIZE
    assert send(nacked.missing_pieces(1, 2, len(body), SIZE))
    sendings = 1
    while not send(nacked.missing_pieces(1, 2, len(body), SIZE)):
        nacked.take_repeated()
        sendings += 1
        assert sendings <= nacks.MOST_UNANSWERED_REPEATS
    assert bytes(region.slot(0, 400).view) == body


@pytest.mark.parametrize(
    ("key", "immediate", "length", "size"), [(1, 3, LENGTH, SIZE), (3, 2, LENGTH, SIZE), (1, 2, LENGTH + 100, SIZE)]
)
def test_of_what_nothing_is_known_all_pieces_go(key: int, immediate: int, length: int, size: int) -> None:
    assert list(nacked_chunks().missing_pieces(key, immediate, length, size)) == list(range(-(-length // size)))


def test_what_is_missing_is_known_also_where_the_chunk_is_cut_otherwise_now() -> None:
    # bytes 100 to 300 and 400 to 450
    assert nacked_chunks().missing_pieces(1, 2, LENGTH, 60) == [1, 2, 3, 4, 6, 7]
    assert list(nacked_chunks().missing_pieces(1, 2, LENGTH, 150)) == [0, 1, 2]
    assert nacked_chunks(0b00001).missing_pieces(1, 2, LENGTH, 150) == [0]


@pytest.mark.parametrize(
    ("key", "immediate", "cut"),
    [(3, 2, Cut(5, SIZE)), (1, 3, Cut(5, SIZE)), (1, 2, Cut(6, SIZE)), (1, 2, Cut(2, SIZE)), (1, 2, Cut(8, 60))],
    ids=["other-slot", "other-chunk", "more-pieces", "fewer-pieces", "never-cut-so"],
)
def test_pieces_of_what_was_never_sent_or_cut_so_are_no_word_of_a_chunk(key: int, immediate: int, cut: Cut) -> None:
    nacked = NackedChunks()
    nacked.on_sent(1, 2, LENGTH)
    assert nacked.note(NackedChunk(key, immediate, cut, 0b1), SIZE, [70]) == 0
    assert list(nacked.missing_pieces(1, 2, LENGTH, SIZE)) == list(range(5))


@given(st.data(), st.integers(1, 5000), st.integers(1, 300), st.integers(1, 300))
def test_sender_and_receiver_agree_on_what_is_missing_after_a_change_of_the_cut(
    data: st.DataObject, length: int, old_size: int, new_size: int
) -> None:
    old, new = cut_for(length, old_size), cut_for(length, new_size)
    missing = data.draw(st.integers(1, old.all))
    nacked = NackedChunks()
    nacked.on_sent(1, 2, length)
    told_bytes = nacked.note(NackedChunk(1, 2, old, missing), new_size, [old_size])
    told = set(nacked.missing_pieces(1, 2, length, new_size))
    assert sum(len(span(piece, new, length)) for piece in told) <= told_bytes <= length, (
        "what goes is no more than told"
    )
    lacking = {at for piece in range(old.pieces) if missing >> piece & 1 for at in span(piece, old, length)}
    assert told == {piece for piece in range(new.pieces) if lacking & set(span(piece, new, length))}


def span(piece: int, cut: Cut, length: int) -> range:
    return range(piece * cut.size, min((piece + 1) * cut.size, length))


def test_of_too_many_chunks_the_oldest_is_forgotten_and_it_is_told_that_all_of_it_would_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nacks, "MOST_SENT_CHUNKS", 2)
    nacked = NackedChunks()
    forgotten = []
    for immediate in range(4):
        forgotten.append(nacked.on_sent(1, immediate, 150))
        if immediate != 1:
            nacked.note(NackedChunk(1, immediate, Cut(2, SIZE), 0b10), SIZE, ())
    assert forgotten == [None, None, 0, None], "of the second no less was told"
    assert [len(nacked.missing_pieces(1, immediate, 150, SIZE)) for immediate in range(4)] == [2, 2, 1, 1]
