"""A foreign flow beside silos that send without end."""

from __future__ import annotations

import pytest

from tests.support.sim.beside_cubic import main


def test_a_line_for_each_number_of_silos_and_together_they_have_no_more_than_the_link(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["--silos", "1", "2", "--rate", "1e7", "--buffer", "20000", "--seconds", "1"])
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[1].strip() for row in rows] == ["1", "2"]
    for row in rows:
        foreign, ours = float(row[3]), float(row[4])
        assert 0 < foreign < 1
        assert 0.5 < foreign + ours <= 1.0
