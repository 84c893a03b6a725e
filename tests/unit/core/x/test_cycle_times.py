"""How long the phases of a cycle take."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.x.competition import LEAST_SAMPLES
from fedrdma_fate.core.x.cycle_times import CycleTimes


@pytest.mark.parametrize(("rate", "seconds"), [(125e6, 0.03), (2.5e6, 0.03), (2e5, 12 * 1442 / 2e5)])
def test_a_cruise_has_round_trips_of_enough_chunks_to_tell_of_others(rate: float, seconds: float) -> None:
    times = CycleTimes(rate, 0.004, 1442, 0)
    assert times.cruise == pytest.approx(seconds)
    assert times.cruise / 2 / times.chunk > LEAST_SAMPLES
