"""Chunks and datagrams, which mode `fedrdma-x` travels by: the same over every transport."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fedrdma_fate.core.x.chunking import immediate_of
from fedrdma_fate.gateway.peers.path_keys import SEALED_IN_SLOT
from fedrdma_fate.ports import CompletionKind
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES, PADDED_DATAGRAM_BYTES
from fedrdma_fate.wire.errors import ErrorCode, TransferError
from tests.conformance.pairs import Pair, await_loss

KIB, MIB = 1024, 1024 * 1024


@pytest.mark.parametrize("length", [1, 16 * KIB, 64 * KIB + 1, 4 * MIB])
def test_a_chunk_lands_whole_in_its_place_and_brings_its_immediate(pair: Pair, length: int) -> None:
    pair.active.fill(0, length, seed=length)
    margin = pair.passive.bytes_at(0, length + 8192)
    margin[:] = 0xEE
    target = pair.passive.expose(3, 4096, length)
    pair.active.write_chunk(11, 0, length, target, 0, 0xFFF_FFFFF)
    pair.pump(lambda: pair.active.done == [11] and pair.passive.chunks == [0xFFF_FFFFF])
    assert np.array_equal(margin[4096 : 4096 + length], pair.active.bytes_at(0, length))
    assert (margin[:4096] == 0xEE).all()
    assert (margin[4096 + length :] == 0xEE).all()


def test_each_of_many_chunks_is_told_once_and_lies_in_its_place(pair: Pair) -> None:
    pair.active.fill(0, 16 * MIB, seed=2)
    pair.passive.bytes_at(0, 16 * MIB)[:] = 0
    target = pair.passive.expose(1, 0, 16 * MIB)
    size, posted = 64 * KIB, 0
    # no more at once than the receiver has room to be told of, as a sender keeps to a window
    for first in range(0, 256, 64):
        for number in range(first, first + 64):
            pair.active.write_chunk(number, number * size, size, target, number * size, 5 << 20 | number)
        posted = first + 64
        pair.pump(lambda count=posted: len(pair.active.done) == len(pair.passive.chunks) == count)  # type: ignore[misc]
    assert Counter(pair.active.done) == Counter(range(256))
    assert Counter(pair.passive.chunks) == Counter(5 << 20 | number for number in range(256))
    assert np.array_equal(pair.passive.bytes_at(0, 16 * MIB), pair.active.bytes_at(0, 16 * MIB))
    assert pair.passive.immediates == [], "a chunk is no header"


def test_chunks_writes_and_a_header_come_through_side_by_side(pair: Pair) -> None:
    pair.active.fill(0, 8 * MIB, seed=3)
    chunks, writes = pair.passive.expose(1, 0, 4 * MIB), pair.passive.expose(2, 4 * MIB, 4 * MIB)
    for number in range(32):
        at = number * 128 * KIB
        pair.active.write_chunk(number, at, 128 * KIB, chunks, at, number)
        pair.active.write(100 + number, 4 * MIB + at, 128 * KIB, writes, at)
    pair.active.endpoint.post_bytes(999, b"header", writes, 0, 2)
    pair.pump(lambda: len(pair.active.done) == 65 and len(pair.passive.chunks) == 32 and pair.passive.immediates == [2])
    assert np.array_equal(pair.passive.bytes_at(0, 4 * MIB), pair.active.bytes_at(0, 4 * MIB))
    assert len(pair.passive.of(CompletionKind.LANDED)) == 32 * pair.hints, "a chunk is not hinted at too"


def test_whoever_posts_seals_where_the_list_of_such_transports_says_so(pair: Pair) -> None:
    assert pair.active.endpoint.sealed_by_poster == (pair.active.endpoint.transport in SEALED_IN_SLOT)


def test_both_ends_see_the_same_chunk_service(pair: Pair) -> None:
    service = pair.active.endpoint.chunk_service
    assert service == pair.passive.endpoint.chunk_service
    assert service.queue_pairs >= 1
    assert service.mtu_bytes >= 256


@pytest.mark.parametrize(("offset", "length"), [(4096, 1), (0, 4097), (-1, 1), (4095, 2)])
def test_a_chunk_beyond_its_target_is_refused_and_harms_nothing(pair: Pair, offset: int, length: int) -> None:
    target = pair.passive.expose(1, 0, 4096)
    with pytest.raises(TransferError) as caught:
        pair.active.write_chunk(1, 0, length, target, offset, 1)
    assert caught.value.code is ErrorCode.GRANT_VIOLATION
    pair.active.write_chunk(2, 0, 100, target, 0, 2)
    pair.pump(lambda: pair.passive.chunks == [2])


def test_a_chunk_into_a_withdrawn_slot_writes_nothing(pair: Pair) -> None:
    late, other = pair.passive.expose(1, 0, 4096), pair.passive.expose(2, 4096, 4096)
    pair.passive.bytes_at(0, 4096)[:] = 0xEE
    pair.active.bytes_at(0, 4096)[:] = 0x11
    pair.passive.endpoint.withdraw(1)
    pair.active.write_chunk(1, 0, 4096, late, 0, 1)
    if pair.active.endpoint.chunk_service.reliable:
        await_loss(lambda: (pair.active.progress(), pair.passive.progress()))  # type: ignore[func-returns-value]
    else:
        # nobody is told, and what comes behind it is not harmed
        pair.active.write_chunk(2, 0, 4096, other, 0, 2)
        pair.pump(lambda: pair.passive.chunks == [2])
    assert (pair.passive.bytes_at(0, 4096) == 0xEE).all()


def test_a_chunk_into_a_slot_that_drains_writes_nothing_and_harms_nothing(pair: Pair) -> None:
    service = pair.active.endpoint.chunk_service
    if service.reliable and not service.drains:
        # to write there breaks the link, as into a withdrawn slot
        return
    late, other = pair.passive.expose(1, 0, 4096), pair.passive.expose(2, 4096, 4096)
    pair.passive.bytes_at(0, 4096)[:] = 0xEE
    pair.active.bytes_at(0, 4096)[:] = 0x11
    pair.passive.endpoint.drain(1)
    pair.active.write_chunk(1, 0, 4096, late, 0, 1)
    pair.active.write_chunk(2, 0, 4096, other, 0, 2)
    pair.pump(lambda: 2 in pair.passive.chunks)
    assert (pair.passive.bytes_at(0, 4096) == 0xEE).all()
    assert (pair.passive.bytes_at(4096, 4096) == 0x11).all()


def test_where_the_transport_counts_what_comes_it_counts_what_was_written(pair: Pair) -> None:
    target = pair.passive.expose(1, 0, 8192)
    for number, length in enumerate((4096, 1000)):
        pair.active.write_chunk(number, 0, length, target, 4096 * number, immediate_of(1, number))
    pair.pump(lambda: len(pair.passive.chunks) == 2)
    counted = [each.received_bytes for each in pair.passive.of(CompletionKind.CHUNK_IMMEDIATE)]
    assert set(counted) == {None} or (counted[0] in (4096, 1000) and counted[1] == 5096)
    if pair.passive.endpoint.transport in ("udp", "verbs"):
        assert None not in counted, "shares are counted by it"


def test_a_datagram_comes_whole_or_is_said_not_to_be_there(pair: Pair) -> None:
    if pair.active.endpoint.post_datagram(b"report"):
        pair.pump(lambda: bool(pair.passive.of(CompletionKind.DATAGRAM)))
        assert [entry.data for entry in pair.passive.of(CompletionKind.DATAGRAM)] == [b"report"]
        assert not pair.active.endpoint.post_datagram(bytes(1 << 20)), "too long for one"
        assert not pair.active.endpoint.post_datagram(b"train", 1 << 20), "too many at once"
    else:
        pair.active.progress()
        assert pair.active.completions == []


def test_a_train_of_datagrams_comes_whole_and_another_after_it(pair: Pair) -> None:
    for train in (bytes(4096), b"second"):
        if not pair.active.endpoint.post_datagram(train, 64):
            assert pair.active.endpoint.chunk_service.self_paced
            return
        pair.pump(lambda: len(pair.passive.of(CompletionKind.DATAGRAM)) >= 64)
        assert [entry.data for entry in pair.passive.of(CompletionKind.DATAGRAM)] == [train] * 64
        pair.passive.completions.clear()


def test_a_train_of_padded_datagrams_comes_without_the_padding(pair: Pair) -> None:
    train = b"d" * DATAGRAM_BYTES
    if not pair.active.endpoint.post_datagram(train, 64, PADDED_DATAGRAM_BYTES - DATAGRAM_BYTES):
        assert pair.active.endpoint.chunk_service.self_paced
        return
    pair.pump(lambda: len(pair.passive.of(CompletionKind.DATAGRAM)) >= 64)
    assert [entry.data for entry in pair.passive.of(CompletionKind.DATAGRAM)] == [train] * 64
