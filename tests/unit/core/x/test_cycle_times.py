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


@pytest.mark.parametrize(("bits", "probe", "trial"), [(1e9, 0.008, 0.008), (10e9, 0.008, 0.004), (100e9, 0.004, 0.004)])
def test_a_rate_that_no_transfer_has_proved_is_tried_no_longer_than_a_small_buffer_bears(
    bits: float, probe: float, trial: float
) -> None:
    times = CycleTimes(bits / 8, 0.02, 16 * 1024, 0)
    assert (times.probe, times.trial) == pytest.approx((probe, trial))
