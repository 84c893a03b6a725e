"""GPT-2 on AdvertiseGen, submitted at one of two FATE Flows and trained at both, beside the job over standalone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.gpt2_between_sites import TUNINGS, WAYS, beside_standalone, rows

pytestmark = [pytest.mark.fate, pytest.mark.slow, pytest.mark.sweep, pytest.mark.timeout(3600)]


def test_two_sites_train_the_weights_of_standalone_over_both_engines(tmp_path: Path, hooks_in_children: None) -> None:
    del hooks_in_children
    found = list(rows(tmp_path / "run", WAYS, TUNINGS, ["--preset", "tiny"]))
    beside = {(each.way, each.tuning): each.beside_standalone for each in beside_standalone(tmp_path / "run")}

    assert [(row.way, row.tuning) for row in found] == [(way, tuning) for way in WAYS for tuning in TUNINGS]
    for row in found:
        assert row.same_at_both
        assert 0 < row.communication["guest:9999"] < row.task_seconds <= row.seconds
        if row.way != "standalone":
            assert row.calls is not None
            assert row.calls.between > 0
            assert row.calls.refused == 0
            difference = beside[row.way, row.tuning]
            assert difference.most_ulps <= 1
            # two rounds: masked weights one way, their mean the other
            assert row.moved_bytes > 2 * (16 + 8) * difference.weights
