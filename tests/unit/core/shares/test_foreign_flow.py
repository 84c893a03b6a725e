"""Whether a receiver finds out that somebody is on its link who keeps to no share of it, and what it leaves them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from fedrdma_fate.core.shares.foreign_flow import (
    JUDGED_WINDOWS,
    LEARNT_WINDOWS,
    LEFT_SECONDS,
    RETURNED_SECONDS,
    ForeignFlow,
)
from fedrdma_fate.core.shares.link_rate import DOUBTED_WINDOWS, MOST_HOLD_WINDOWS, PACED_SHARE, LinkRate
from fedrdma_fate.core.shares.receive_shares import ReceiveShares
from fedrdma_fate.core.shares.window import Window

CHUNKS = 150
SECONDS = 0.02
LINK = 100.0


def play(flow: ForeignFlow, losses: Iterable[float]) -> list[float]:
    """What is left to it after each window that has lost so much."""
    parts = []
    for lost in losses:
        flow.on_window(lost, CHUNKS, SECONDS, lost)
        parts.append(flow.part)
    return parts


def found() -> ForeignFlow:
    """One that has just been seen."""
    flow = ForeignFlow()
    play(flow, [0.0] * LEARNT_WINDOWS + [0.04] * 3)
    assert flow.part == 1
    return flow


def test_where_all_lose_and_nobody_did_before_a_part_is_left_to_somebody_else() -> None:
    flow = ForeignFlow()
    assert play(flow, [0.0] * LEARNT_WINDOWS + [0.04, 0.0, 0.03, 0.05])[-4:] == [0, 0, 0, 1]


@pytest.mark.parametrize("losses", [[0.04, 0.04], [0.007] * 8, [0.04, *[0.0] * 8, 0.04, 0.04]])
def test_a_burst_or_a_chunk_now_and_then_is_nobody(losses: list[float]) -> None:
    assert not any(play(ForeignFlow(), [0.0] * LEARNT_WINDOWS + losses))


def test_what_is_lost_before_it_is_known_what_is_usual_is_no_sign() -> None:
    assert not any(play(ForeignFlow(), [0.04] * LEARNT_WINDOWS))


@pytest.mark.parametrize("loss", [0.001, 0.04, 0.2])
def test_chance_is_nobody(loss: float) -> None:
    chance = random.Random(1)
    lost = [sum(chance.random() < loss for _ in range(CHUNKS)) / CHUNKS for _ in range(1000)]
    assert not any(play(ForeignFlow(), lost))


def lossy_windows(loss: float, senders: int, each: int, seed: int) -> list[tuple[float, float]]:
    """What each of many windows has lost by chance: of all but the one that lost most, and of all."""
    chance, windows = random.Random(seed), []
    for _ in range(1000):
        lost = sorted(sum(chance.random() < loss for _ in range(each)) for _ in range(senders))
        windows.append((sum(lost[:-1]) / each / (senders - 1), sum(lost) / each / senders))
    return windows


@pytest.mark.parametrize("loss", [0.01, 0.05, 0.1, 0.2])
def test_of_few_chunks_on_a_slow_link_chance_is_nobody(loss: float) -> None:
    for seed in range(8):
        flow = ForeignFlow()
        for others, everybody in lossy_windows(loss, senders=4, each=4, seed=seed):
            # of 4 KiB: a quarter of the chunks that windows count by
            flow.on_window(others, 4, SECONDS, everybody)
            assert not flow.part


def test_who_begins_beside_a_path_that_loses_at_random_is_seen() -> None:
    flow = ForeignFlow()
    for others, everybody in lossy_windows(0.05, senders=4, each=40, seed=1):
        flow.on_window(others, CHUNKS, SECONDS, everybody)
    assert play(flow, [0.2] * 3)[-1] == 1


def test_where_as_much_is_lost_though_a_part_is_left_it_is_taken_back_and_counts_as_usual() -> None:
    flow = found()
    parts = play(flow, [0.04] * 10 * JUDGED_WINDOWS)
    assert parts[JUDGED_WINDOWS - 2] == 1
    assert not any(parts[JUDGED_WINDOWS - 1 :])


def test_after_the_last_sign_it_is_left_its_part_for_a_while_which_is_taken_back_bit_by_bit() -> None:
    flow = found()
    parts = play(flow, [0.0] * (round((LEFT_SECONDS + RETURNED_SECONDS) / SECONDS) + 1))
    assert parts[round(LEFT_SECONDS / SECONDS) - 2] == 1
    assert 0.4 < parts[round((LEFT_SECONDS + RETURNED_SECONDS / 2) / SECONDS)] < 0.6
    assert max(a - b for a, b in itertools.pairwise(parts)) < 0.01
    assert parts[-1] == 0


def test_a_sign_while_it_is_taken_back_leaves_it_all_of_a_part_again() -> None:
    flow = found()
    play(flow, [0.0] * round((LEFT_SECONDS + RETURNED_SECONDS / 2) / SECONDS))
    assert 0 < flow.part < 1
    assert play(flow, [1 / CHUNKS]) == [1]


def test_after_a_round_half_of_it_is_left() -> None:
    flow = found()
    flow.on_rest()
    flow.on_rest()
    assert flow.part == 0.25


def lose(rate: LinkRate, windows: int, lost: float, others: float) -> set[float]:
    """Windows that lose so much of what goes, and of what all but one send; what was tried for in them.

    What the link does not carry is queued.
    """
    gains = set()
    for _ in range(windows):
        gains.add(rate.gain)
        allowed = rate.shared_out or 0.0
        arrived = min(allowed, LINK) * (1 - lost)
        seen = Window(allowed, arrived, arrived, lost, others_lost_share=others, chunks=CHUNKS, seconds=SECONDS)
        rate.on_window(seen)
    return gains


def until_trial(rate: LinkRate) -> None:
    """Until more is tried for."""
    for _ in range(MOST_HOLD_WINDOWS + 2):
        if rate.gain > 1:
            return
        lose(rate, 1, 0.0, 0.0)
    raise AssertionError("nothing was tried for")


def settled() -> LinkRate:
    """A link that is known well: a trial for more has found nothing, and is long over."""
    rate = LinkRate()
    rate.on_probed(LINK)
    lose(rate, 2 * LEARNT_WINDOWS, 0.0, 0.0)
    until_trial(rate)
    lose(rate, 1 + DOUBTED_WINDOWS, 0.0, 0.0)
    assert rate.gain == 1
    return rate


def test_a_link_that_is_shared_with_somebody_is_taken_for_no_slower_and_nothing_is_tried_for() -> None:
    rate = settled()
    known = rate.rate
    lose(rate, 3, 0.04, 0.04)
    assert rate.foreign.part == 1
    # what it leaves, and takes, makes up for what trials would let through
    assert lose(rate, JUDGED_WINDOWS - 1, 0.0, 0.0) == {1.0}
    assert rate.rate == known


def test_one_sender_that_loses_alone_loses_to_nobody_on_the_link_of_all() -> None:
    rate = settled()
    lose(rate, 20, 0.04, 0.0)
    assert rate.foreign.part == 0


def test_what_a_trial_for_more_has_lost_was_lost_to_nobody() -> None:
    rate = settled()
    until_trial(rate)
    lose(rate, DOUBTED_WINDOWS, 0.04, 0.04)
    assert rate.foreign.part == 0


def test_of_what_is_sent_over_many_ways_nobody_is_found_on_the_link() -> None:
    rate = LinkRate(least_hold=4)
    rate.on_probed(LINK)
    lose(rate, 2 * LEARNT_WINDOWS, 0.0, 0.0)
    lose(rate, 20, 0.04, 0.04)
    assert rate.foreign.part == 0


def receiving(turns: bool) -> ReceiveShares:
    """What is received of eight, who all send, over a link of 100 MB/s that somebody else fills as well."""
    shares = ReceiveShares(1e8, turns=turns)
    names = [str(number) for number in range(8)]
    shares.link.foreign.part = 1.0
    for name in names:
        shares.join(name, 0.0, SECONDS)
    for name in names:
        shares.on_begin(name, 1, 0.0, 1 << 30)
    shares.settle(0.0)
    return shares


@pytest.mark.parametrize("turns", [False, True])
def test_the_link_is_shared_as_if_there_were_one_sender_more(turns: bool) -> None:
    shares = receiving(turns)
    total = sum(sender.share for sender in shares.senders.values())
    assert total == pytest.approx(PACED_SHARE * 1e8 * 8 / 9)


def test_who_has_not_begun_knows_the_part_that_leaves_room_for_it() -> None:
    shares = receiving(turns=False)
    shares.join("8", 0.0, SECONDS)
    # of those that begin on top of eight each has a sixteenth, where nobody else is there
    assert shares.senders["8"].share == pytest.approx(PACED_SHARE * 1e8 / 17)
