"""What has arrived, as a bitmap."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.x.arrival_map import ArrivalMap


def test_a_bitmap_counts_leading_arrivals_and_keeps_the_rest() -> None:
    arrivals = ArrivalMap(5)
    assert [arrivals.add(position) for position in (3, 0, 3, 1)] == [True, True, False, True]
    assert (arrivals.complete, arrivals.beyond, 3 in arrivals, 2 in arrivals) == (2, b"\x02", True, False)
    arrivals.add(2)
    assert (arrivals.complete, arrivals.beyond, arrivals.full) == (4, b"", False)


@pytest.mark.parametrize(("complete", "beyond"), [(6, b""), (-1, b""), (4, b"\x02")])
def test_a_report_beyond_the_plan_is_an_error(complete: int, beyond: bytes) -> None:
    with pytest.raises(IndexError):
        ArrivalMap(5).merge(complete, beyond)
