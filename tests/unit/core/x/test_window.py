"""`fedrdma-x`: how much may be under way, and how large chunks then have to be."""

from __future__ import annotations

import dataclasses
import math

import pytest

from fedrdma_fate.core.actions import Action, PostChunk
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.chunking import LARGEST_X_CHUNK_BYTES, SMALLEST_CHUNK_BYTES, filling_chunk_bytes
from fedrdma_fate.core.x.rate_control import RateController
from fedrdma_fate.core.x.sender import XSender, XSendSettings

CHUNK = 16 * 1024
COUNT = 256
FAST = PathState(rate=1.25e9, min_rtt=0.02, loss=0.0)
RELIABLE = XSendSettings(tag=1, reliable=True)


def posted(actions: list[Action]) -> list[PostChunk]:
    return [action for action in actions if isinstance(action, PostChunk)]


def most_under_way(settings: XSendSettings) -> int:
    """Chunks that were under way at once at most; each arrives a round trip after it was sent."""
    sender = XSender(1, ChunkPlan(COUNT * CHUNK, CHUNK), settings, RateController(FAST))
    under_way, most, now = [(0.0, post) for post in posted(sender.start(0.0))], 0, 0.0
    while sender.arrived_bytes < COUNT * CHUNK:
        most = max(most, len(under_way))
        arrives = under_way[0][0] + FAST.min_rtt if under_way else math.inf
        due = sender.timer()
        if due is not None and due < arrives:
            now = max(now, due)
            actions = sender.on_timer(now)
        else:
            now = max(now, arrives)
            actions = sender.on_write_done(under_way.pop(0)[1].work_request, now)
        under_way += [(now, post) for post in posted(actions)]
    return most


@pytest.mark.parametrize("service", [RELIABLE, dataclasses.replace(RELIABLE, paced=False, window_bytes=1 << 30)])
def test_no_more_chunks_are_sent_than_the_queue_pairs_take(service: XSendSettings) -> None:
    assert most_under_way(service) > 128
    assert most_under_way(dataclasses.replace(service, most_chunks=128)) == 128


def test_a_window_that_was_set_by_hand_is_kept_to() -> None:
    assert most_under_way(dataclasses.replace(RELIABLE, window_bytes=10 * CHUNK)) == 10


def test_a_window_below_one_chunk_lets_one_go_at_a_time() -> None:
    assert most_under_way(dataclasses.replace(RELIABLE, window_bytes=1)) == 1


@pytest.mark.parametrize(
    ("rate", "most_chunks", "chunk_bytes"),
    [
        (1.25e9, None, SMALLEST_CHUNK_BYTES),
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
