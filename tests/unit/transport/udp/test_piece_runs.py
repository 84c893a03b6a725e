"""Pieces of a chunk that come in one batch: taken together where they are in order, and one by one where not."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from fedrdma_fate.transport.udp.cuts import Cut
from fedrdma_fate.transport.udp.packets import CHUNK, CHUNK_HEAD, VERSION
from fedrdma_fate.transport.udp.piece_runs import PieceRuns
from fedrdma_fate.transport.udp.reassembly import ChunkAssembly
from tests.support.endpoints import HeapRegion

KEY, IMMEDIATE, SIZE, AT = 7, 9, 100, 13
BODY = random.Random(1).randbytes(10 * SIZE)
CUT = Cut(10, SIZE)


def datagram(piece: int, **other: int) -> bytes:
    said = {"key": KEY, "immediate": IMMEDIATE, "offset": AT + piece * SIZE, "pieces": 10, **other}
    head = CHUNK_HEAD.pack(
        CHUNK, VERSION, 5, piece, said["pieces"], SIZE, said["key"], said["immediate"], said["offset"]
    )
    return head + BODY[piece * SIZE : (piece + 1) * SIZE]


def run_length(datagrams: Sequence[bytes]) -> int:
    return len(PieceRuns().run_of(memoryview(b"".join(datagrams)), CHUNK_HEAD.size + SIZE))


def assembly() -> tuple[ChunkAssembly, memoryview]:
    made, slot = ChunkAssembly(), HeapRegion(2000).slot()
    made.open(KEY, 1, slot)
    return made, slot.view


def take(made: ChunkAssembly, first: int, end: int, *, offset: int | None = None) -> bool | None:
    run = PieceRuns().run_of(
        memoryview(b"".join(datagram(piece) for piece in range(first, end))), CHUNK_HEAD.size + SIZE
    )
    return made.take_run(first, CUT, KEY, IMMEDIATE, AT + first * SIZE if offset is None else offset, run)


def test_a_run_is_of_one_chunk_and_in_order() -> None:
    assert run_length([datagram(piece) for piece in range(2, 9)]) == 7
    assert run_length([datagram(0), datagram(1), datagram(3)]) == 2
    assert run_length([datagram(0), datagram(1)[:90]]) == 1, "the last may be shorter"


@pytest.mark.parametrize(
    "other", [{"key": 8}, {"immediate": 8}, {"offset": 0}, {"pieces": 11}], ids=["key", "chunk", "place", "cut"]
)
def test_what_names_another_chunk_or_place_ends_a_run(other: dict[str, int]) -> None:
    assert run_length([datagram(0), datagram(1, **other), datagram(2)]) == 1


def test_a_chunk_that_comes_in_runs_is_whole_when_all_of_it_lies_there() -> None:
    made, slot = assembly()
    assert take(made, 4, 10) is False
    assert take(made, 0, 4) is True
    assert slot[AT : AT + len(BODY)] == BODY
    assert made.received_bytes(KEY) == len(BODY)


@pytest.mark.parametrize("offset", [2000 - 2 * SIZE + 1, 1 << 63])
def test_a_run_beyond_its_slot_is_not_taken(offset: int) -> None:
    made, slot = assembly()
    assert take(made, 0, 2, offset=offset) is None
    assert not any(slot)


def test_a_run_of_a_slot_that_is_closed_is_not_taken() -> None:
    made, _ = assembly()
    made.close(1)
    assert take(made, 0, 2) is None


def test_of_a_run_of_which_some_has_come_nothing_is_written_over() -> None:
    made, slot = assembly()
    assert made.take(1, CUT, KEY, IMMEDIATE, AT + SIZE, memoryview(bytes(SIZE))) is False
    assert take(made, 0, 3) is None
    assert not any(slot)
    assert made.received_bytes(KEY) == SIZE


def test_a_run_of_more_pieces_than_the_chunk_has_is_not_taken() -> None:
    made, slot = assembly()
    run = PieceRuns().run_of(memoryview(b"".join(datagram(piece) for piece in range(3))), CHUNK_HEAD.size + SIZE)
    assert made.take_run(8, CUT, KEY, IMMEDIATE, AT, run) is None
    assert not any(slot)
