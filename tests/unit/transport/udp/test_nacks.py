"""Negative acknowledgements: what they say, what they may not say, and how much of it is remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.transport.udp import nacks
from fedrdma_fate.transport.udp.nacks import NackedChunk, NackedChunks, decode_nacks, encode_nacks
from fedrdma_fate.transport.udp.packets import NACK, NACK_HEAD, VERSION

CONNECTION = 0xABCDEF0123456789
WORDS = st.integers(0, 0xFFFFFFFF)
CHUNKS = st.integers(1, 3000).flatmap(
    lambda pieces: st.builds(NackedChunk, WORDS, WORDS, st.just(pieces), st.integers(1, (1 << pieces) - 1))
)


@given(st.lists(CHUNKS, max_size=8), st.integers(10, 1472))
def test_as_many_as_fit_a_datagram_are_told_and_understood(chunks: list[NackedChunk], most_bytes: int) -> None:
    datagram, named = encode_nacks(CONNECTION, chunks, most_bytes)
    assert len(datagram) <= most_bytes
    assert NACK_HEAD.unpack_from(datagram) == (NACK, VERSION, CONNECTION)
    assert list(decode_nacks(datagram[NACK_HEAD.size :])) == chunks[:named]
    if named < len(chunks):
        assert len(datagram) + 10 + -(-chunks[named].pieces // 8) > most_bytes


@pytest.mark.parametrize(
    "body",
    [b"\1", bytes(9), bytes(8) + b"\x0a\0" + b"\1", bytes(8) + b"\x02\0" + b"\4", bytes(8) + b"\x02\0\0", bytes(10)],
    ids=["a-byte", "half-a-head", "half-a-bitmap", "a-piece-too-many", "nothing-missing", "no-pieces"],
)
def test_what_no_receiver_says_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"bitmap|cut short"):
        list(decode_nacks(body))


def test_the_latest_word_on_a_chunk_counts() -> None:
    nacked = NackedChunks()
    nacked.note(NackedChunk(1, 2, 5, 0b10110))
    assert nacked.missing_pieces(1, 2, 5) == [1, 2, 4]
    nacked.note(NackedChunk(1, 2, 5, 0b100))
    assert nacked.missing_pieces(1, 2, 5) == [2]


@pytest.mark.parametrize(("key", "immediate", "pieces"), [(1, 3, 5), (3, 2, 5), (1, 2, 6)])
def test_of_what_nothing_is_known_all_pieces_go(key: int, immediate: int, pieces: int) -> None:
    nacked = NackedChunks()
    nacked.note(NackedChunk(1, 2, 5, 0b10110))
    assert list(nacked.missing_pieces(key, immediate, pieces)) == list(range(pieces))


def test_of_too_many_chunks_the_oldest_word_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nacks, "MOST_NACKED_CHUNKS", 2)
    nacked = NackedChunks()
    for immediate in range(3):
        nacked.note(NackedChunk(1, immediate, 2, 0b10))
    assert [len(nacked.missing_pieces(1, immediate, 2)) for immediate in range(3)] == [2, 1, 1]
