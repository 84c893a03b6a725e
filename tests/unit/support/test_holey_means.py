"""What aggregation with holes takes beside aggregation without."""

from __future__ import annotations

import numpy as np
import pytest

holey_means = pytest.importorskip("tests.support.holey_means", exc_type=ImportError, reason="FATE is missing")


def test_so_many_chunks_are_missing_and_none_reaches_beyond_its_array() -> None:
    arrays = [np.zeros((70, 1000)), np.zeros((1, 10))]
    assert holey_means.holes_of(arrays, 0.0, 1) == {}
    all_of_it = holey_means.holes_of(arrays, 1.0, 1)
    assert sum(end - start for start, end in all_of_it[0]) == 70_000
    assert all_of_it[1] == ((0, 10),)
    assert holey_means.holes_of(arrays, 0.3, 1) != holey_means.holes_of(arrays, 0.3, 2)


def test_a_line_for_each_kind_and_share(capsys: pytest.CaptureFixture[str]) -> None:
    holey_means.main(["--bytes", "800000", "--silos", "3", "--missing", "0.1", "--repeats", "1"])
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == ["plain", "masked"]
