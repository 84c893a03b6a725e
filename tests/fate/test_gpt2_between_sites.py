"""GPT-2 on AdvertiseGen, submitted at one of two FATE Flows and trained at both, beside the job over standalone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.gpt2_between_sites import TUNINGS, WAYS, rows

pytestmark = [pytest.mark.fate, pytest.mark.slow, pytest.mark.sweep, pytest.mark.timeout(3600)]


def test_two_sites_train_the_weights_of_standalone_over_both_engines(tmp_path: Path, hooks_in_children: None) -> None:
    del hooks_in_children
    found = list(rows(tmp_path / "run", WAYS, TUNINGS, ["--preset", "tiny"]))

    assert [(row.way, row.tuning) for row in found] == [(way, tuning) for way in WAYS for tuning in TUNINGS]
    for row in found:
        assert row.same_at_both
        assert row.beside_standalone is not None
        assert row.beside_standalone.most_ulps <= 1
        assert 0 < row.communication["guest:9999"] < row.task_seconds <= row.seconds
        if row.way != "standalone":
            assert row.calls is not None
            assert row.calls.between > 0
            assert row.calls.refused == 0
            # two rounds: masked weights one way, their mean the other
            assert row.moved_bytes > 2 * (16 + 8) * row.beside_standalone.weights
