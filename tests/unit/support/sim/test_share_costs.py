"""What sharing costs, in rounds of the simulator."""

from __future__ import annotations

import pytest

from tests.support.sim.incast import Case
from tests.support.sim.share_costs import cost_of, main


def test_of_each_round_the_shares_that_were_told_and_their_time_are_counted() -> None:
    first, second = cost_of(Case(4, 1e9, total=2 << 20), 2)
    for cost in (first, second):
        assert 0.07 < cost.virtual_seconds < 0.09
        assert 0 < cost.told < 40
        assert cost.seconds > 0


def test_the_program_prints_a_line_a_round(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--silos", "2", "--size", "65536", "--rounds", "2"])
    assert [line.split("|")[2].strip() for line in capsys.readouterr().out.splitlines()[2:]] == ["1", "2"]
