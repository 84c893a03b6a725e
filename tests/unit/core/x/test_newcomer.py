"""A queue that grows although room is left is somebody's who has just begun to send."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fedrdma_fate.core.x.newcomer import Newcomer, Sign

RTT = 0.02
LEAST = 0.001


def signs(newcomer: Newcomer, rounds: Sequence[float], *, since: float = 0.0, spacing: float = 0.002) -> list[Sign]:
    """Ten reports of each round, the queue so long: what they say beside nothing."""
    found = []
    for number in range(10 * len(rounds)):
        sign = newcomer.on_queue(rounds[number // 10], LEAST, RTT, since + number * spacing)
        if sign is not Sign.NONE:
            found.append(sign)
    return found


def test_a_queue_that_grows_round_by_round_is_suspected_and_then_found() -> None:
    assert signs(Newcomer(), [0.0, 0.0005]) == []
    assert signs(Newcomer(), [0.0, 0.0011]) == [Sign.SUSPECTED]
    assert signs(Newcomer(), [0.0, 0.0011, 0.0022])[:2] == [Sign.SUSPECTED, Sign.FOUND]


@pytest.mark.parametrize("after", [0.0, 0.0011, 0.0013])
def test_a_queue_that_drains_or_stays_is_suspected_once(after: float) -> None:
    assert signs(Newcomer(), [0.0011, after, after, after]) == [Sign.SUSPECTED]


def test_a_queue_that_comes_back_is_suspected_again_and_one_that_stays_is_not() -> None:
    assert signs(Newcomer(), [0.0015, 0.0, 0.0, 0.0015]) == [Sign.SUSPECTED] * 2
    assert signs(Newcomer(), [0.0015, 0.0015, 0.0015, 0.004]) == [Sign.SUSPECTED]


def test_reports_that_are_late_together_are_one_and_two_late_ones_are_no_queue() -> None:
    assert signs(Newcomer(), [0.005], spacing=0.0001) == []
    newcomer = Newcomer()
    for number in range(100):
        late = number % 5 < 2
        assert newcomer.on_queue(0.005 if late else 0.0, LEAST, RTT, number * 0.002) is Sign.NONE


def test_what_is_forgotten_does_not_count() -> None:
    newcomer = Newcomer()
    assert signs(newcomer, [0.0011]) == [Sign.SUSPECTED]
    newcomer.clear()
    assert signs(newcomer, [0.0022], since=0.02) == [Sign.SUSPECTED]
