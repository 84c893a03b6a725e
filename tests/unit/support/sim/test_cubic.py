"""The simulator's CUBIC: what a loss takes of its window."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.sim.bottleneck import Bottleneck, BottleneckProfile, Nic
from tests.support.sim.clock import VirtualClock
from tests.support.sim.cubic import CubicFlow

FIRST_WINDOW = 10


class Held(Bottleneck):
    """Keeps what is sent until the test says what becomes of it."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock, BottleneckProfile(1e9), random.Random(1))
        self.segments: list[tuple[Callable[[], None], Callable[[], None] | None]] = []

    def post(self, nic: Nic, length: int, landed: Callable[[], None], lost: Callable[[], None] | None = None) -> None:
        """Keep it."""
        del nic, length
        self.segments.append((landed, lost))

    def lose(self, number: int) -> None:
        """It does not come."""
        lost = self.segments[number][1]
        assert lost is not None
        lost()


@pytest.mark.parametrize(("second", "more"), [(1, 1), (FIRST_WINDOW, 0)], ids=["same window", "next window"])
def test_a_loss_reduces_again_only_of_what_was_sent_after_the_reduction_however_late_it_is_told(
    second: int, more: int
) -> None:
    clock = VirtualClock()
    link = Held(clock)
    CubicFlow(clock, link, until=1.0).start()
    link.lose(0)
    clock.run(0.015)
    assert len(link.segments) == FIRST_WINDOW
    for landed, _ in link.segments[2:]:
        landed()
    clock.run(0.030)
    sent = len(link.segments)
    assert sent > FIRST_WINDOW
    # more than a round trip of the path after the first, as behind a queue
    clock.at(0.050, lambda: link.lose(second))
    clock.run(0.070)
    # what is lost leaves room in a window that is as large as before
    assert len(link.segments) == sent + more
