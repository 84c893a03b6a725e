"""Writing from the end to the start: every byte, how far it has come, and the digests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrdma_fate.core.digest import BLOCK_BYTES, block_digest
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.engine.payload import Payload
from fedrdma_fate.fate import copying
from fedrdma_fate.fate.copying import Placement, write_backwards
from fedrdma_fate.ports import Slot
from tests.support.endpoints import HeapRegion

Array = npt.NDArray[Any]


def layout(arrays: Sequence[Array]) -> tuple[list[Placement], bytes]:
    """Placements one behind the other, the last first, and what they shall write."""
    placements: list[Placement] = []
    at = 0
    for array in arrays:
        storage = array.dtype.newbyteorder("=")
        placements.insert(0, Placement(at, array.nbytes, storage, lambda array=array: array))
        at += array.nbytes
    return placements, b"".join(array.astype(array.dtype.newbyteorder("=")).tobytes() for array in arrays)


def random_array(seed: int, length: int, kind: str) -> Array:
    raw = np.random.default_rng(seed).integers(0, 256, length // 8 * 8, dtype=np.uint8)
    if kind == "bytes":
        return raw
    if kind == "transposed":
        return raw.view(np.uint64)[: raw.size // 16 * 2].reshape(2, -1).T
    return raw.view(">u8") if kind == "big-endian" else raw.view(np.uint32)


def slot_of(body: Array) -> Slot:
    region = HeapRegion(body.nbytes)
    region.view[:] = body.tobytes()
    return region.slot()


lengths = st.one_of(
    st.integers(0, 5000),
    st.integers(BLOCK_BYTES - 16, BLOCK_BYTES + 16),
    st.integers(0, 5 * BLOCK_BYTES),
    st.just(9 * BLOCK_BYTES),
)
arrays_of_all_kinds = st.lists(
    st.builds(
        random_array, st.integers(0, 9), lengths, st.sampled_from(["bytes", "words", "transposed", "big-endian"])
    ),
    max_size=6,
)


@given(arrays_of_all_kinds, st.booleans(), st.booleans())
@settings(max_examples=60)
def test_what_is_told_is_true_and_all_of_it_is_told(arrays: list[Array], threads: bool, digests_wanted: bool) -> None:
    placements, expected = layout(arrays)
    buffer = bytearray(b"\xa5" * len(expected))
    told: list[tuple[int, list[int]]] = []

    def progress(written_from: int, digests: Sequence[int]) -> None:
        assert buffer[written_from:] == expected[written_from:]
        told.append((written_from, list(digests)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "FIRST_PROGRESS_BYTES", BLOCK_BYTES)
        patch.setattr(copying, "_BYTES_PER_THREAD", 1 if threads else 1 << 40)
        patch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
        write_backwards(iter(placements), memoryview(buffer), progress, digests=digests_wanted)

    assert buffer == expected
    steps = [written_from for written_from, _ in told]
    assert steps == sorted(steps, reverse=True)
    assert not expected or steps[-1] == 0
    known = [digest for _, digests in reversed(told) for digest in digests]
    starts = range(0, len(expected), BLOCK_BYTES)
    digests = [block_digest(expected[start : start + BLOCK_BYTES]) for start in starts]
    assert known == (digests if digests_wanted else [])


@given(arrays_of_all_kinds)
@settings(max_examples=20)
def test_without_progress_the_same_is_written(arrays: list[Array]) -> None:
    placements, expected = layout(arrays)
    buffer = bytearray(b"\xa5" * len(expected))
    write_backwards(iter(placements), memoryview(buffer))
    assert buffer == expected


@given(
    st.integers(1, 4 * BLOCK_BYTES + 99),
    st.sampled_from([BLOCK_BYTES, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES // 2, 100_000]),
    st.sampled_from([0, 1, 4096]),
)
@settings(max_examples=60)
def test_digests_made_while_writing_give_the_same_chunk_digests_as_the_bytes(
    length: int, chunk_bytes: int, enable_bytes: int
) -> None:
    body = random_array(1, length + 8, "bytes")[:length]
    told = Payload(slot_of(body), length, written_from=length)
    write_backwards([Placement(0, length, body.dtype, lambda: body)], memoryview(bytearray(length)), told.on_written)
    plain = Payload(slot_of(body), length)
    plan = ChunkPlan(length, chunk_bytes, min(enable_bytes, length - 1))
    assert [told.digest(chunk) for chunk in plan] == [plain.digest(chunk) for chunk in plan]
    assert told.written_from == 0


def test_values_that_cannot_be_had_end_the_writing_with_their_error() -> None:
    def lost() -> Array:
        raise RuntimeError("device lost")

    placements = [Placement(8, 8, np.dtype(np.uint8), lambda: np.zeros(8, np.uint8))]
    placements.append(Placement(0, 8, np.dtype(np.uint8), lost))
    with pytest.raises(RuntimeError, match="device lost"):
        write_backwards(placements, memoryview(bytearray(16)))
