"""Digests of bytes that change while they are being computed."""

from __future__ import annotations

import array

import pytest
import xxhash

from fedrdma_fate.core.actions import ComputeDigest
from fedrdma_fate.core.digest import BLOCK_BYTES, block_digest, chunk_digest, digest_of_blocks, payload_digest
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.verification import DigestBook

PLAN = ChunkPlan(3, 1)
FIRST = PLAN.chunk(0)


@pytest.fixture
def book() -> DigestBook:
    return DigestBook(PLAN)


def test_an_answer_is_known_and_not_asked_for_again(book: DigestBook) -> None:
    assert book.ask(FIRST) == [ComputeDigest(FIRST)]
    assert book.answer(0, 5) == []
    assert book.get(0) == 5
    assert book.ask(FIRST) == []


def test_what_is_being_computed_is_not_asked_for_twice(book: DigestBook) -> None:
    book.ask(FIRST)
    assert book.ask(FIRST) == []


def test_an_answer_about_bytes_that_have_changed_is_dropped_and_asked_for_anew(book: DigestBook) -> None:
    book.ask(FIRST)
    book.forget([0])
    assert book.ask(FIRST) == [], "the outdated computation must end first, or the answers could be mixed up"
    assert book.answer(0, 5) == [ComputeDigest(FIRST)]
    assert book.get(0) is None
    assert book.answer(0, 6) == []
    assert book.get(0) == 6


def test_an_outdated_answer_that_nobody_wants_is_dropped(book: DigestBook) -> None:
    book.ask(FIRST)
    book.forget([0])
    assert book.answer(0, 5) == []
    assert book.get(0) is None


def test_a_digest_that_was_told_is_known_whatever_an_outdated_computation_says(book: DigestBook) -> None:
    book.ask(FIRST)
    book.forget([0])
    book.ask(FIRST)
    book.learn(0, 7)
    assert book.answer(0, 5) == [], "it is known, so nobody wants it computed any more"
    assert book.get(0) == 7


def test_bytes_that_change_twice_are_asked_for_once(book: DigestBook) -> None:
    book.ask(FIRST)
    book.forget([0])
    book.ask(FIRST)
    book.forget([0])
    assert book.answer(0, 5) == []


@pytest.mark.parametrize("index", [0, 2, 99, -1])
def test_an_answer_that_was_not_asked_for_is_ignored(book: DigestBook, index: int) -> None:
    assert book.answer(index, 5) == []
    assert book.get(index) is None


def test_a_book_is_complete_with_every_chunk(book: DigestBook) -> None:
    for chunk in PLAN:
        assert not book.complete
        book.ask(chunk)
        book.answer(chunk.index, 10 + chunk.index)
    assert book.complete
    assert list(book.in_order()) == [10, 11, 12]
    book.forget([1])
    assert not book.complete


def test_a_book_of_an_empty_payload_is_complete() -> None:
    assert DigestBook(ChunkPlan(0, 1)).complete


@pytest.mark.parametrize("length", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES])
def test_the_digest_of_a_chunk_of_one_block_is_that_of_its_bytes(length: int) -> None:
    assert chunk_digest(bytes(length)) == xxhash.xxh3_64_intdigest(bytes(length))


def test_the_digest_of_a_longer_chunk_covers_the_digests_of_its_blocks_in_order() -> None:
    blocks = [b"a" * BLOCK_BYTES, b"b" * BLOCK_BYTES, b"c"]
    expected = xxhash.xxh3_64_intdigest(b"".join(block_digest(block).to_bytes(8, "little") for block in blocks))
    assert chunk_digest(b"".join(blocks)) == expected == digest_of_blocks([block_digest(block) for block in blocks])


def test_the_payload_digest_covers_the_chunk_digests_in_index_order() -> None:
    digests = [chunk_digest(b"a"), chunk_digest(memoryview(b"b"))]
    expected = xxhash.xxh3_64_intdigest(b"".join(digest.to_bytes(8, "little") for digest in digests))
    assert payload_digest(digests) == expected
    assert payload_digest(digests[::-1]) != expected


def test_the_payload_digest_does_not_depend_on_the_byte_order_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    little = payload_digest([1])
    swapped = array.array("Q", [1])
    swapped.byteswap()
    monkeypatch.setattr("sys.byteorder", "big")
    assert payload_digest(swapped) == little
