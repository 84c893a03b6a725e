"""What a receiver's link carries, where its packets are lost at random."""

from __future__ import annotations

import random
import statistics

import pytest

from fedrdma_fate.core.shares.link_rate import LinkRate
from fedrdma_fate.core.shares.window import Window

CHUNK = 1024
"""Bytes: a packet of RDMA."""

WINDOW_SECONDS = 0.02
BUFFER_BYTES = 375_000
"""50 ms of a link of 60 Mbit/s, as FedComm's have."""


def play(
    rate: LinkRate,
    link: float,
    loss: float,
    windows: int,
    seed: int,
    *,
    behind: bool = False,
    used: list[float] | None = None,
) -> list[float]:
    """The total, as a share of a link that loses at random what goes to it, or has passed it, after each window.

    `used` is told how much of the link was.
    """
    chance, queue, found = random.Random(seed), 0.0, []
    for _ in range(windows):
        allowed = rate.shared_out
        assert allowed is not None
        sent = int(allowed * WINDOW_SECONDS / CHUNK)
        lost = 0 if behind else sum(chance.random() < loss for _ in range(sent))
        queue += (sent - lost) * CHUNK
        came = min(queue, link * WINDOW_SECONDS)
        dropped = max(queue - came - BUFFER_BYTES, 0.0)
        queue -= came + dropped
        if used is not None:
            used.append(came / WINDOW_SECONDS / link)
        passed = sum(chance.random() < loss for _ in range(int(came / CHUNK))) * CHUNK if behind else 0
        came -= passed
        gone = lost * CHUNK + dropped + passed
        share, arrived = gone / (came + gone), came / WINDOW_SECONDS
        chunks = (came + gone) / CHUNK
        rate.on_window(
            Window(allowed, arrived, arrived, share, common_loss=share, seconds=WINDOW_SECONDS, sent_chunks=chunks)
        )
        found.append((rate.rate or 0.0) / link)
    return found


def rate_of(chunks: int) -> float:
    """Bytes a second of a link that carries so many chunks in a window."""
    return chunks * CHUNK / WINDOW_SECONDS


@pytest.mark.parametrize(("chunks", "loss"), [(120, 0.05), (120, 0.1), (40, 0.05), (120, 0.01)])
def test_a_link_that_trains_have_told_an_eighth_too_low_is_found_in_half_a_second(chunks: int, loss: float) -> None:
    windows = []
    for seed in range(12):
        rate, link = LinkRate(), rate_of(chunks)
        rate.on_probed(0.87 * link)
        found = play(rate, link, loss, 100, seed)
        windows.append(next((number for number, share in enumerate(found) if share >= 0.96), 100))
    # of fewer chunks chance takes more
    assert statistics.median(windows) * WINDOW_SECONDS <= (0.5 if chunks > 100 else 0.7)


@pytest.mark.parametrize(("chunks", "loss"), [(120, 0.05), (120, 0.01), (40, 0.1), (150, 0.02)])
def test_a_link_that_is_full_is_not_taken_for_more_than_can_be_sent_to_it_for_what_chance_loses(
    chunks: int, loss: float
) -> None:
    means = []
    for seed in range(12):
        rate, link = LinkRate(), rate_of(chunks)
        rate.on_probed(link)
        means.append(statistics.mean(play(rate, link, loss, 200, seed)[50:]))
    # what is lost before it takes none of it
    assert 0.98 <= statistics.mean(means) <= 1.02 / (1 - loss)


@pytest.mark.parametrize(("chunks", "loss"), [(120, 0.05), (120, 0.1), (60, 0.05), (60, 0.1), (60, 0.2)])
def test_where_packets_are_lost_in_front_of_it_a_link_is_sent_what_makes_up_for_most_of_that(
    chunks: int, loss: float
) -> None:
    means = []
    for seed in range(12):
        rate, link = LinkRate(), rate_of(chunks)
        rate.on_probed((1 - loss) * link)
        means.append(statistics.mean(play(rate, link, loss, 200, seed)[100:]))
    assert statistics.mean(means) * (1 - loss) >= 0.95


@pytest.mark.parametrize(("chunks", "loss"), [(120, 0.05), (120, 0.1), (60, 0.05), (60, 0.1)])
def test_a_link_that_loses_in_front_of_its_queue_is_kept_full_from_the_first_half_second_on(
    chunks: int, loss: float
) -> None:
    used: list[float] = []
    for seed in range(12):
        rate, link = LinkRate(), rate_of(chunks)
        rate.on_probed(0.9 * link)
        of_it: list[float] = []
        play(rate, link, loss, 175, seed, used=of_it)
        used.append(statistics.mean(of_it[25:]))
    assert statistics.mean(used) >= 0.985


@pytest.mark.parametrize(("chunks", "loss"), [(120, 0.05), (120, 0.1), (60, 0.05), (60, 0.1)])
def test_where_they_are_lost_behind_it_a_link_is_sent_no_more_than_it_carries(chunks: int, loss: float) -> None:
    means = []
    for seed in range(12):
        rate, link = LinkRate(), rate_of(chunks)
        rate.on_probed((1 - loss) * link)
        means.append(statistics.mean(play(rate, link, loss, 200, seed, behind=True)[100:]))
    assert 0.93 <= statistics.mean(means) <= 1.02


def test_a_fifth_that_is_lost_at_random_from_the_first_window_on_is_no_overrun() -> None:
    for seed in range(12):
        rate, link = LinkRate(), rate_of(120)
        rate.on_probed(link)
        assert statistics.mean(play(rate, link, 0.2, 200, seed)[100:]) >= 0.9, seed


def test_a_link_that_has_become_a_tenth_is_found_though_it_loses_at_random_besides() -> None:
    rate, link = LinkRate(), rate_of(400)
    rate.on_probed(link)
    play(rate, link, 0.05, 50, 1)
    assert play(rate, link / 10, 0.05, 60, 2)[-1] <= 1.4


@pytest.mark.parametrize("chunks", [40, 120])
def test_a_link_that_loses_a_fifth_and_has_become_a_half_is_not_overrun_for_ever(chunks: int) -> None:
    """Its queue fills so slowly that what is lost meanwhile looks usual: of 40 chunks it went on for good."""
    for seed in range(12):
        rate, link = LinkRate(), rate_of(chunks)
        rate.on_probed(0.95 * link)
        assert play(rate, link, 0.2, 150, seed)[-1] * 0.8 >= 0.9, seed
        assert max(play(rate, link / 2, 0.2, 200, seed + 100)[150:]) * 0.8 <= 1.15, seed
