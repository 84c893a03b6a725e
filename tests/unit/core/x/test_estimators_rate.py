"""The rate at which chunks arrive, told by reports."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.x.estimators import SURE_SECONDS, WINDOW_SECONDS, DeliveryMeter

CHUNK = 100_000


def rates(meter: DeliveryMeter, spacing: float, count: int, at: float = 0.0, received: int = 0) -> list[float | None]:
    """What it says while chunks arrive at even distances."""
    return [meter.rate(at + number * spacing, received + (number + 1) * CHUNK) for number in range(count)]


@pytest.mark.parametrize("spacing", [1e-5, 1e-3, WINDOW_SECONDS, 2.0])
def test_any_rate_can_be_told_after_some_chunks(spacing: float) -> None:
    told = rates(DeliveryMeter(4 * CHUNK), spacing, 40)
    assert told[:4] == [None] * 4
    assert told[4:] == pytest.approx([CHUNK / spacing] * 36)


def test_chunks_that_are_seen_in_one_look_count_to_the_moment_before_the_next() -> None:
    meter = DeliveryMeter(4 * CHUNK)
    told = [meter.rate(look * 1e-3, (8 * look + each) * CHUNK) for look in range(10) for each in range(1, 9)]
    assert told[:8] == [None] * 8
    assert told[15::8] == pytest.approx([8 * CHUNK / 1e-3] * 9)
    assert max(rate for rate in told if rate is not None) == pytest.approx(8 * CHUNK / 1e-3)


def test_who_wants_to_be_sure_is_told_nothing_before_single_packets_matter_no_more() -> None:
    meter = DeliveryMeter(4 * CHUNK)
    spacing = SURE_SECONDS / 10
    told = [meter.rate(number * spacing, (number + 1) * CHUNK, sure=True) for number in range(30)]
    assert told[:10] == [None] * 10
    assert told[11:] == pytest.approx([CHUNK / spacing] * 19)


def test_a_change_shows_within_the_window() -> None:
    meter = DeliveryMeter(4 * CHUNK)
    rates(meter, 1e-3, 100)
    slower = rates(meter, 4e-3, 10, at=0.1, received=100 * CHUNK)
    assert slower[-1] == pytest.approx(CHUNK / 4e-3)


def test_after_a_silence_that_was_noticed_only_what_came_since_counts() -> None:
    meter = DeliveryMeter(4 * CHUNK)
    rates(meter, 1e-3, 20)
    meter.forget()
    after = rates(meter, 1e-3, 8, at=3.0, received=20 * CHUNK)
    assert after[:4] == [None] * 4
    assert after[4:] == pytest.approx([CHUNK / 1e-3] * 4)


def test_a_report_that_comes_late_says_nothing() -> None:
    meter = DeliveryMeter(4 * CHUNK)
    rates(meter, 1e-3, 20)
    assert meter.rate(0.01, 10 * CHUNK) is None
