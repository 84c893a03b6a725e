"""What bounded loss is worth on a simulated path that loses packets."""

from __future__ import annotations

from statistics import median

import pytest

from tests.support.sim.bounded import Path, transfers

pytestmark = pytest.mark.slow

SEEDS = range(1, 6)


def test_of_a_payload_of_which_some_may_be_missing_the_last_losses_are_not_waited_for() -> None:
    path = Path(4, 1, 0.1, 0.1, 0.05)
    whole, bounded = (transfers(path, share, seed=1)[-1] for share in (0.0, path.share))
    assert whole.missing == 0
    assert 0 < bounded.missing <= path.share
    assert whole.seconds >= 1.3 * bounded.seconds


def test_where_as_much_may_be_missing_as_is_lost_it_is_no_slower_and_less_is_sent() -> None:
    path = Path(4, 1, 0.1, 0.01, 0.05)
    whole, bounded = ([transfers(path, share, seed)[-1] for seed in SEEDS] for share in (0.0, path.share))
    assert max(sent.missing for sent in bounded) <= path.share
    assert 1.5 * sum(sent.resent_bytes for sent in bounded) <= sum(sent.resent_bytes for sent in whole)
    # one start may have a chunk more to send again than another: the budget changes what was sent before
    assert median(sent.seconds for sent in bounded) <= 1.01 * median(sent.seconds for sent in whole)
