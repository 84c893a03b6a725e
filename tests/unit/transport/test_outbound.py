"""How writes are cut into pieces and kept in mind."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from fedrdma_fate.core.digest import BLOCK_BYTES
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import RemoteSlot, Slot
from fedrdma_fate.transport.exposure import ProtocolViolation
from fedrdma_fate.transport.outbound import LARGEST_PIECE, Outbound
from fedrdma_fate.transport.stream_frames import (
    HEAD_BYTES,
    INLINE_BYTES,
    SEQUENCE_WINDOW,
    Head,
    Op,
    ack_head,
    unpack_head,
)
from fedrdma_fate.transport.tcp_streams import StreamWriter

MIB = 1024 * 1024
TARGET = RemoteSlot(key=1, address=1000, length=64 * MIB)


@pytest.fixture
def region() -> Iterator[SharedRegion]:
    made = SharedRegion.create("region", 8 * MIB)
    made.view[:] = os.urandom(8 * MIB)
    yield made
    made.close()


def _drain(outbound: Outbound) -> list[tuple[Head, Slot | None]]:
    pieces = []
    while (piece := outbound.take()) is not None:
        pieces.append((unpack_head(piece.head[:HEAD_BYTES]), piece.source))
    return pieces


@pytest.mark.parametrize(("length", "streams"), [(4 * MIB, 2), (MIB, 2), (2 * MIB, 4)])
def test_a_chunk_is_striped_evenly_over_the_streams(region: SharedRegion, length: int, streams: int) -> None:
    outbound = Outbound(streams)
    outbound.post_write(1, Slot(region, 0, length), TARGET, 0)
    share = length // streams
    pieces = [(head.piece_at, head.piece_length) for head, _ in _drain(outbound)]
    assert pieces == [(number * share, share) for number in range(streams)]


@pytest.mark.parametrize("length", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * MIB + 5, 8 * MIB])
@pytest.mark.parametrize("streams", [1, 2, 7])
def test_pieces_cover_the_write_once_and_keep_to_their_bounds(region: SharedRegion, length: int, streams: int) -> None:
    outbound = Outbound(streams)
    outbound.post_write(1, Slot(region, 8 * MIB - length, length), TARGET, 24)
    at = 0
    for head, source in _drain(outbound):
        assert (head.address, head.length, head.piece_at) == (1024, length, at)
        assert source == Slot(region, 8 * MIB - length + at, head.piece_length)
        at += head.piece_length
        assert head.piece_length <= LARGEST_PIECE
        assert head.piece_length >= BLOCK_BYTES or at == length
    assert at == length


def test_acks_go_ahead_of_data(region: SharedRegion) -> None:
    outbound = Outbound(1)
    outbound.post_write(1, Slot(region, 0, 100), TARGET, 0)
    outbound.acknowledge(ack_head(41))
    outbound.acknowledge(ack_head(42))
    piece = outbound.take()
    assert piece is not None
    heads = [unpack_head(piece.head[at : at + HEAD_BYTES]) for at in range(0, len(piece.head), HEAD_BYTES)]
    assert [(head.op, head.sequence) for head in heads] == [(Op.ACK, 41), (Op.ACK, 42), (Op.WRITE, 0)]


def test_no_more_writes_are_begun_than_the_receiver_keeps_books_for() -> None:
    outbound = Outbound(1)
    for number in range(SEQUENCE_WINDOW + 1):
        outbound.post_bytes(number, b"x", TARGET, 0, 0)
    assert len(_drain(outbound)) == SEQUENCE_WINDOW
    assert not outbound.waiting
    outbound.acknowledged(Head(Op.ACK, sequence=5))
    assert not outbound.waiting
    outbound.acknowledged(Head(Op.ACK, sequence=0))
    assert len(_drain(outbound)) == 1


def test_a_write_that_was_not_sent_whole_cannot_be_acknowledged(region: SharedRegion) -> None:
    outbound = Outbound(2)
    outbound.post_write(1, Slot(region, 0, 4 * MIB), TARGET, 0)
    outbound.take()
    with pytest.raises(ProtocolViolation, match="not under way"):
        outbound.acknowledged(Head(Op.ACK, sequence=0))


def test_a_peer_that_reads_no_acks_is_cut_off_before_memory_grows() -> None:
    outbound = Outbound(1)
    for sequence in range(SEQUENCE_WINDOW):
        outbound.acknowledge(ack_head(sequence))
    with pytest.raises(ProtocolViolation, match="not read"):
        outbound.acknowledge(ack_head(SEQUENCE_WINDOW))


def test_large_data_does_not_go_inline() -> None:
    outbound = Outbound(1)
    with pytest.raises(ValueError, match=str(INLINE_BYTES)):
        outbound.post_bytes(1, bytes(INLINE_BYTES + 1), TARGET, 0, 0)
    assert outbound.take() is None


@pytest.mark.parametrize("refused", [False, True])
def test_bytes_arrive_the_same_where_the_kernel_refuses_sendfile(
    region: SharedRegion, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    calls = []

    def sendfile(*_: int) -> int:
        calls.append(1)
        raise OSError(22, "Invalid argument")

    if refused:
        monkeypatch.setattr(os, "sendfile", sendfile)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        outbound = Outbound(1)
        outbound.post_write(1, Slot(region, 4096, MIB), TARGET, 0)
        writer = StreamWriter(ours, outbound, zero_copy=True)
        received = bytearray()
        while len(received) < HEAD_BYTES + MIB:
            writer.send()
            received += theirs.recv(MIB)
    assert received[HEAD_BYTES:] == region.view[4096 : 4096 + MIB]
    assert len(calls) == refused


def test_a_region_that_gives_no_more_bytes_is_an_error_and_no_endless_loop(
    region: SharedRegion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sendfile", lambda *_: 0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        outbound = Outbound(1)
        outbound.post_write(1, Slot(region, 4 * MIB, MIB), TARGET, 0)
        with pytest.raises(OSError, match="shorter"):
            StreamWriter(ours, outbound, zero_copy=True).send()
