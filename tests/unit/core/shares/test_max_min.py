"""Max-min fair shares."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.core.shares.max_min import max_min

WANTS = st.dictionaries(
    st.text(max_size=3), st.one_of(st.just(math.inf), st.floats(min_value=0, max_value=1e12)), min_size=1, max_size=70
)
TOTALS = st.floats(min_value=1, max_value=1e12)


def test_who_wants_little_keeps_it_and_the_others_share_the_rest() -> None:
    assert max_min(100.0, {"slow": 10.0, "a": math.inf, "b": math.inf}) == {"slow": 10.0, "a": 45.0, "b": 45.0}


def test_what_nobody_wants_is_left() -> None:
    assert max_min(100.0, {"a": 10.0, "b": 20.0}) == {"a": 10.0, "b": 20.0}


@given(TOTALS, WANTS)
def test_nobody_gets_more_than_it_wants_nor_all_together_more_than_there_is(
    total: float, wants: dict[str, float]
) -> None:
    shares = max_min(total, wants)
    assert shares.keys() == wants.keys()
    assert all(0 <= shares[name] <= want for name, want in wants.items())
    assert sum(shares.values()) <= total * (1 + 1e-9)


@given(TOTALS, WANTS)
def test_who_gets_less_than_it_wants_gets_no_less_than_anybody(total: float, wants: dict[str, float]) -> None:
    shares = max_min(total, wants)
    most = max(shares.values())
    unhappy = [name for name, want in wants.items() if shares[name] < want]
    assert all(shares[name] >= most * (1 - 1e-9) for name in unhappy)
    if unhappy:
        assert math.isclose(sum(shares.values()), total, rel_tol=1e-9)
