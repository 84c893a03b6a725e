"""Which numbers an exact sum takes, up to the last one."""

from __future__ import annotations

import numpy as np
import pytest

from fedrdma_fate.aggregate.arithmetic import Exact, UnfitError
from fedrdma_fate.core.fold import most_whole

PARTIES = 8


def _added(values: list[float], *, whole: bool) -> None:
    result = np.zeros(len(values))
    Exact(PARTIES).add(np.zeros(len(values)), np.array(values), result, whole=whole)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_whole_number_is_added_and_the_next_one_refused(sign: float) -> None:
    most = float(most_whole(PARTIES))

    _added([0.0, sign * most, sign * most], whole=True)
    with pytest.raises(UnfitError, match="larger than a masked one"):
        _added([0.0, sign * (most + 1.0)], whole=True)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_fraction_is_added_and_the_next_one_refused(sign: float) -> None:
    _added([0.5, sign * 1024.0, sign * 1024.0], whole=False)
    with pytest.raises(UnfitError, match="larger than a masked one"):
        _added([0.5, sign * np.nextafter(1024.0, np.inf)], whole=False)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e300])
def test_what_no_masked_number_can_be_is_refused_without_a_warning(number: float, whole: bool) -> None:
    with pytest.raises(UnfitError, match="none, infinite, or larger"), np.errstate(all="raise"):
        _added([1.0, number, 2.0], whole=whole)
