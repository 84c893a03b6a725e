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


def test_a_foreign_flow_beside_four_that_share_a_link_has_about_as_much_as_one_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # CUBIC takes seconds from one loss to the next: over three it has 0.38 of the link, over six 0.10
    main(["--silos", "4", "--rate", "1e8", "--buffer", "50000", "--seconds", "20"])
    row = capsys.readouterr().out.splitlines()[2].split("|")
    foreign, ours = float(row[3]), float(row[4])
    assert foreign >= 0.8 / 5
    assert ours >= 4 / 5 * 0.85
