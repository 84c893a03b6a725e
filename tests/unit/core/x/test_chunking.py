"""`fedrdma-x`: how large chunks are, and how the immediate value names them."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.digest import BLOCK_BYTES
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.chunking import (
    LARGEST_X_CHUNK_BYTES,
    LEAST_CHUNK_BYTES,
    MOST_CHUNKS_PER_SECOND,
    SLOW_PATH_RATE,
    SMALLEST_CHUNK_BYTES,
    SMALLEST_TOLERANT_CHUNK_BYTES,
    WIDE_WINDOW_BYTES,
    best_chunk_bytes,
    chunk_of_immediate,
    filling_chunk_bytes,
    first_chunk_bytes,
    immediate_of,
    least_chunk_bytes,
    loses_many_chunks,
    short_path_chunk_bytes,
    tolerant_chunk_bytes,
    whole_blocks,
    whole_datagrams,
)
from fedrdma_fate.core.x.loss_detection import REORDERING_THRESHOLD_CHUNKS
from fedrdma_fate.core.x.short_path import DECREASE_FACTOR, FIRST_WINDOW_BYTES, MOST_WINDOW_BYTES


def test_chunks_shrink_with_loss_and_grow_with_rate_within_bounds() -> None:
    assert best_chunk_bytes(125e6, 0.01, 4096, 1 << 30) == SMALLEST_CHUNK_BYTES
    assert best_chunk_bytes(1.25e9, 0.001, 4096, 1 << 30) == 128 * 1024
    assert best_chunk_bytes(1e15, 0.0, 4096, 1 << 30) == LARGEST_X_CHUNK_BYTES
    assert best_chunk_bytes(12.2e9, 0.0, 4096, 1 << 30) == 512 * 1024, "the power of two that is nearest"
    assert best_chunk_bytes(1.22e9, 0.01, 4096, 1 << 30) == 32 * 1024, "that below, where it costs repeats"
    assert best_chunk_bytes(1.25e9, None, 4096, 1 << 30) == best_chunk_bytes(1.25e9, 0.01, 4096, 1 << 30)


@pytest.mark.parametrize("mtu", [1024, 1188, 1442, 4096, 8942])
@pytest.mark.parametrize("loss", [None, 0.05, 0.2])
def test_on_a_slow_path_that_loses_packets_a_chunk_is_one_packet(loss: float | None, mtu: int) -> None:
    assert best_chunk_bytes(625e3, loss, mtu, 2_340_000) == mtu


def test_of_what_may_miss_something_chunks_are_shorter_where_they_are_short_and_not_too_many() -> None:
    assert tolerant_chunk_bytes(SMALLEST_CHUNK_BYTES, 1.25e8) == SMALLEST_TOLERANT_CHUNK_BYTES
    assert tolerant_chunk_bytes(SMALLEST_CHUNK_BYTES, 1.25e9) == SMALLEST_CHUNK_BYTES, "at 10 Gbit/s"
    for usual in (1442, 2 * SMALLEST_CHUNK_BYTES, LARGEST_X_CHUNK_BYTES):
        assert tolerant_chunk_bytes(usual, 1.25e8) == usual


def test_of_short_packets_so_many_make_a_chunk_that_a_loss_of_one_in_a_hundred_takes_many() -> None:
    assert not loses_many_chunks(0.01, 4096)
    assert loses_many_chunks(0.01, 1472)
    assert loses_many_chunks(None, 1024), "as if it were one in a hundred"
    assert not loses_many_chunks(0.001, 1024)
    assert loses_many_chunks(0.05, 8192)


def test_below_16_kib_a_chunk_is_whole_packets() -> None:
    assert best_chunk_bytes(2.5e6, 0.0, 1442, 1 << 20) == 2 * 1442
    assert best_chunk_bytes(9.9e6, 0.05, 1200, 1 << 20) == 2 * 1200, "more would be work for the processor"
    assert best_chunk_bytes(9.9e6, 0.05, 256, 1 << 20) == 6 * 256


@pytest.mark.parametrize("rate", [1e4, 625e3, 2.5e6, 9.9e6, 12.5e6, 32e6, 125e6, 1.25e9, 12.5e9])
@pytest.mark.parametrize("mtu", [256, 1024, 1442, 4096, 8942, 65_000])
def test_no_loss_has_the_ends_post_more_chunks_than_they_can(rate: float, mtu: int) -> None:
    for loss in (None, 0.0, 0.01, 0.2):
        chunk = best_chunk_bytes(rate, loss, mtu, 1 << 20)
        assert chunk >= LEAST_CHUNK_BYTES
        if rate <= SLOW_PATH_RATE:
            assert rate / chunk <= MOST_CHUNKS_PER_SECOND
        else:
            assert chunk >= SMALLEST_CHUNK_BYTES


def test_where_a_packet_is_longer_than_the_smallest_chunk_of_fast_paths_that_is_the_least() -> None:
    assert least_chunk_bytes(1.0, 65_000) == SMALLEST_CHUNK_BYTES == best_chunk_bytes(1.0, 0.2, 65_000, 1 << 20)


def test_a_huge_payload_is_not_cut_into_more_chunks_than_an_immediate_can_name() -> None:
    assert ChunkPlan(1 << 40, best_chunk_bytes(1.0, 1.0, 4096, 1 << 40)).count <= 1 << 20


def test_an_immediate_names_tag_and_chunk() -> None:
    assert chunk_of_immediate(immediate_of(4095, (1 << 20) - 1)) == (4095, (1 << 20) - 1)
    assert immediate_of(4095, (1 << 20) - 1) == 0xFFFFFFFF


@pytest.mark.parametrize(("tag", "index"), [(4096, 0), (-1, 0), (0, 1 << 20), (0, -1)])
def test_what_does_not_fit_an_immediate_is_refused(tag: int, index: int) -> None:
    with pytest.raises(ValueError):
        immediate_of(tag, index)


@pytest.mark.parametrize(
    ("rate", "most_chunks", "chunk_bytes"),
    [
        (1.25e9, None, LEAST_CHUNK_BYTES),
        (1.25e9, 1 << 20, SMALLEST_CHUNK_BYTES),
        (1.25e9, 512, 128 * 1024),
        (1.25e9, 128, 512 * 1024),
        (1.25e12, 1, LARGEST_X_CHUNK_BYTES),
    ],
)
def test_few_chunks_under_way_have_to_be_large_to_fill_the_path(
    rate: float, most_chunks: int | None, chunk_bytes: int
) -> None:
    assert filling_chunk_bytes(rate, 0.02, most_chunks) == chunk_bytes


@pytest.mark.parametrize("mtu", [1442, 8942, 65_475])
def test_where_datagrams_are_repaired_the_first_chunk_is_no_shorter_than_one(mtu: int) -> None:
    assert first_chunk_bytes(mtu, repairs_packets=True) == max(mtu, SMALLEST_CHUNK_BYTES)


def test_where_trains_told_nothing_the_first_chunk_is_a_packet_for_that_path_loses_many() -> None:
    assert first_chunk_bytes(1024, repairs_packets=False, lost_trains=True) == 1024
    assert first_chunk_bytes(1024, repairs_packets=False) == 4096
    assert first_chunk_bytes(1442, repairs_packets=True, lost_trains=True) == SMALLEST_CHUNK_BYTES


def test_chunks_of_datagrams_are_whole_ones_and_long_ones_whole_batches() -> None:
    assert whole_datagrams(16 * 1024, 1440) == 11 * 1440
    assert whole_datagrams(128 * 1024, 1440) == 2 * 44 * 1440
    assert whole_datagrams(64 * 1024, 65_475) == 65_475
    assert whole_datagrams(256 * 1024, 65_475) == 4 * 65_475
    assert whole_datagrams(1000, 1440) == 1440


def test_chunks_of_two_blocks_of_the_digest_and_more_are_whole_ones() -> None:
    assert whole_blocks(2 * BLOCK_BYTES) == 2 * BLOCK_BYTES
    assert whole_blocks(3 * BLOCK_BYTES - 1) == 2 * BLOCK_BYTES
    assert whole_blocks(2 * BLOCK_BYTES - 1) == 0, "shorter ones are as long as datagrams have it"


def test_on_a_short_path_chunks_are_long_where_it_is_fast() -> None:
    window, usual = 3 << 20, SMALLEST_CHUNK_BYTES
    assert short_path_chunk_bytes(usual, 12.5e6, window) == usual
    assert usual < short_path_chunk_bytes(usual, 300e6, window) < 256 * 1024
    assert short_path_chunk_bytes(usual, 5e9, window) == 512 * 1024
    assert short_path_chunk_bytes(1440, 2.5e6, 0) == 1440, "on a slow one they are what they are elsewhere"


def test_on_a_short_path_the_first_window_holds_several_chunks() -> None:
    assert short_path_chunk_bytes(128 * 1024, 1.2e9, 0) <= FIRST_WINDOW_BYTES / 4


def test_on_a_short_path_a_window_that_was_found_holds_many_chunks_for_losses_are_told_by_those_that_follow() -> None:
    for window in (1 << 20, WIDE_WINDOW_BYTES - 1):
        assert window / 4 >= 3 * short_path_chunk_bytes(64 * 1024, 5e9, window)


def test_on_a_short_path_a_wide_window_has_few_long_chunks_also_when_it_has_once_been_too_large() -> None:
    # each costs the hosts as much as some batches of datagrams: 256 MB are to be 500 of them, not 1000 or 2000
    for window in (MOST_WINDOW_BYTES, MOST_WINDOW_BYTES * DECREASE_FACTOR):
        chunk = whole_datagrams(short_path_chunk_bytes(128 * 1024, 1.1e9, window), 65_475)
        assert 300 * 1024 < chunk <= window / (REORDERING_THRESHOLD_CHUNKS + 1)
