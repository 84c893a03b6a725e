"""Where time after time nearly nothing comes, the rate is too high for anything to come whole."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.path import PathState, Sample
from fedrdma_fate.core.x.rate_control import RateController
from fedrdma_fate.core.x.starvation import STARVED_CHUNKS, Starvation

RATE = 100e6
RTT = 0.02


def test_on_a_path_of_which_no_transfer_has_shown_anything_one_silence_is_enough() -> None:
    starvation = Starvation()
    starvation.on_arrived(3)
    assert [starvation.on_overdue(STARVED_CHUNKS // 4, is_known=False) for _ in range(4)] == [False] * 3 + [True]


def test_what_is_overdue_in_the_same_silence_counts_once() -> None:
    starvation = Starvation()
    assert starvation.on_overdue(STARVED_CHUNKS, is_known=False)
    assert not any(starvation.on_overdue(STARVED_CHUNKS, is_known=False) for _ in range(10))


def test_on_a_path_that_has_carried_the_rate_it_takes_another_silence_behind_the_first() -> None:
    starvation = Starvation()
    assert not starvation.on_overdue(3 * STARVED_CHUNKS, is_known=True)
    starvation.on_arrived(4)
    assert starvation.on_overdue(STARVED_CHUNKS, is_known=True)


def test_a_path_that_stood_still_once_is_believed_to_carry_what_it_did() -> None:
    starvation = Starvation()
    assert not starvation.on_overdue(3 * STARVED_CHUNKS, is_known=True)
    for _ in range(20):
        # after it some go astray, as ever
        starvation.on_arrived(100)
        assert not starvation.on_overdue(10, is_known=True)
    assert not starvation.on_overdue(3 * STARVED_CHUNKS, is_known=True), "the first of its own"


@pytest.mark.parametrize("is_known", [False, True])
def test_nothing_is_concluded_where_some_come_or_few_are_overdue(is_known: bool) -> None:
    starvation = Starvation()
    for _ in range(20):
        starvation.on_arrived(STARVED_CHUNKS // 4)
        assert not starvation.on_overdue(STARVED_CHUNKS, is_known=is_known)
    assert not Starvation().on_overdue(STARVED_CHUNKS - 1, is_known=is_known)


def starved(rtt: float, *, proved: bool = False, counts_packets: bool = False) -> float:
    """What is left of the rate when a few chunks have come, and a window is overdue."""
    control = RateController(PathState(RATE, RTT, 0.0 if proved else None), proved=proved)
    control.on_time(0.0)
    control.on_sample(Sample(rtt, None, 4, 0, 4, counts_packets), rtt)
    for number in range(STARVED_CHUNKS // 4):
        control.on_overdue(4, 2 * rtt + number * 0.001)
    return control.bandwidth / RATE


def test_a_rate_that_lets_nothing_through_is_halved_on_a_path_that_no_transfer_has_measured() -> None:
    assert starved(RTT) == 0.5


def test_it_stays_where_transfers_have_found_it_the_latest_were_late_or_packets_count() -> None:
    assert starved(RTT, proved=True) == 1
    assert starved(3 * RTT) == 1
    assert starved(RTT, counts_packets=True) == 1
