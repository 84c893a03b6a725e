"""Digests of blocks, chunks and payloads, and digests by number in little memory."""

from __future__ import annotations

import array
import random
import tracemalloc

import pytest
import xxhash

from fedrdma_fate.core.digest import (
    BLOCK_BYTES,
    DigestTable,
    block_digest,
    chunk_digest,
    digest_of_blocks,
    payload_digest,
)
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.engine.payload import Payload
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import Slot


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


LARGEST = (1 << 64) - 1


def test_what_was_put_in_is_there_until_it_is_forgotten() -> None:
    table = DigestTable(3)
    assert 1 not in table
    with pytest.raises(KeyError):
        table[1]
    assert table.get(1) is None
    table[1] = LARGEST
    assert 1 in table
    assert table[1] == table.get(1) == LARGEST
    table.discard(1)
    table.discard(1)
    assert table.get(1) is None


def test_it_is_complete_when_every_number_has_a_digest_however_often_it_was_told() -> None:
    table = DigestTable(2)
    table[0] = 5
    table[0] = 6
    assert not table.complete
    table[1] = 7
    assert table.complete
    assert list(table.in_order()) == [6, 7]
    table.discard(0)
    assert not table.complete
    assert DigestTable(0).complete


@pytest.mark.parametrize("number", [3, 10])
def test_a_number_beyond_the_last_is_an_error(number: int) -> None:
    table = DigestTable(3)
    with pytest.raises(IndexError):
        table[number] = 1
    with pytest.raises(IndexError):
        _ = number in table
    assert table.get(number) is None


def test_a_gigabyte_in_the_smallest_chunks_takes_less_than_a_megabyte() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        table = DigestTable(65_536)
        for number in range(65_536):
            table[number] = random.getrandbits(64)
        assert tracemalloc.get_traced_memory()[0] - before < 700_000
    finally:
        tracemalloc.stop()


def test_a_payload_keeps_little_for_each_chunk_of_one_packet() -> None:
    region = SharedRegion.create("region", 1 << 20)
    try:
        plan = ChunkPlan(1 << 20, 1442)
        payload = Payload(Slot(region, 0, 1 << 20), 1 << 20)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for chunk in plan:
            payload.digest(chunk)
        assert tracemalloc.get_traced_memory()[0] - before < 16 * plan.count
    finally:
        tracemalloc.stop()
        region.close()


@pytest.mark.parametrize("chunk_bytes", [1000, 1024, 1442, 16_384, 20_000, 65_536])
def test_a_payload_knows_the_digests_of_its_chunks_however_it_is_cut(chunk_bytes: int) -> None:
    region = SharedRegion.create("region", 1 << 18)
    try:
        total = 200_001
        region.view[:total] = random.Random(1).randbytes(total)
        payload = Payload(Slot(region, 0, total), total)
        for plan in (ChunkPlan(total, chunk_bytes), ChunkPlan(total, 50_000), ChunkPlan(total, chunk_bytes, 7)):
            right = [chunk_digest(payload.part(chunk).view) for chunk in plan]
            assert [payload.digest(chunk) for chunk in plan] == right
        region.view[:total] = bytes(total)
        assert [payload.digest(chunk) for chunk in plan] == right, "each is computed once"
    finally:
        region.close()
