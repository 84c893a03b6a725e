"""What bounded loss is worth on a simulated path that loses packets."""

from __future__ import annotations

import pytest

from tests.support.sim.bounded import Path, transfers

pytestmark = pytest.mark.slow


def test_of_a_payload_of_which_some_may_be_missing_the_last_losses_are_not_waited_for() -> None:
    path = Path(4, 1, 0.1, 0.1, 0.05)
    whole, bounded = (transfers(path, share, seed=1)[-1] for share in (0.0, path.share))
    assert whole.missing == 0
    assert 0 < bounded.missing <= path.share
    assert whole.seconds >= 1.3 * bounded.seconds


def test_where_repair_chunks_make_up_for_all_losses_nothing_is_missing_that_may_be() -> None:
    path = Path(4, 1, 0.1, 0.01, 0.05)
    whole, bounded = (transfers(path, share, seed=1)[-1] for share in (0.0, path.share))
    assert bounded.missing == 0
    assert bounded.seconds <= whole.seconds
