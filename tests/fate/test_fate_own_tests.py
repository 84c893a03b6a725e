"""Some of FATE's own test scripts over gateways; `python -m tests.support.fate_own_tests` runs all, and compares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fate_own_tests import chosen, gateways_of, make_tree, run_script

pytestmark = [pytest.mark.fate, pytest.mark.timeout(300)]

MOST_SECONDS = 200.0
"""They take 18 and 21 on two cores with as much other load."""


# FATE's homo-NN is what test_fate_flow.py runs, and test_stopped_job.py
@pytest.mark.parametrize("name", [pytest.param("test_homo_nn_binary", marks=pytest.mark.sweep), "test_sshe_nn_layer"])
def test_a_script_of_fate_s_own_ends_well_over_gateways(tmp_path: Path, hooks_in_children: None, name: str) -> None:
    del hooks_in_children
    [script] = chosen([name])
    make_tree(tmp_path / "fate", None)

    with gateways_of([script], tmp_path / "gateways") as silos:
        result = run_script(script, tmp_path / "fate", tmp_path / "run", silos, MOST_SECONDS)

        assert result.ended, result
        assert result.messages > 0
        assert {message[0] for message in silos.pushed()} == {message[0] for message in silos.delivered()}


def test_a_script_that_fate_s_own_code_ends_ends_over_gateways_with_the_same_words(
    tmp_path: Path, hooks_in_children: None
) -> None:
    del hooks_in_children
    [script] = chosen(["test_agglayer"])
    make_tree(tmp_path / "fate", None)

    with gateways_of([script], tmp_path / "gateways") as silos:
        result = run_script(script, tmp_path / "fate", tmp_path / "run", silos, MOST_SECONDS)

    assert " failed: TypeError: AggLayer" in result.outcome
