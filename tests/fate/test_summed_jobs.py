"""FATE's homo-NN over gateways that add: what it learns is what it learns without, and by rank the same bits."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.repository import ROOT

# three jobs of five processes: tens of seconds, and more on a busy host
# one worker runs the job, for all tests that look at it
pytestmark = [pytest.mark.fate, pytest.mark.timeout(900), pytest.mark.xdist_group("summed jobs")]

CLIENTS, ROUNDS = 4, 2
ROWS = ("fate", "rank", "sites-3")


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """What came of a job of four clients at two sites, in each way."""
    asked = ["--clients", str(CLIENTS), "--rounds", str(ROUNDS), "--hidden", "256", "--rows", ",".join(ROWS), "--json"]
    command = [sys.executable, "-m", "tests.support.summed_jobs", *asked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {row["row"]: row for row in json.loads(done.stdout)["rows"]}


def test_a_job_learns_the_same_with_sums_as_without(rows: dict[str, dict[str, Any]]) -> None:
    alone = rows["fate"]
    assert alone["accuracy"] > 0.3
    assert alone["rounds"] == ROUNDS
    for row in rows.values():
        assert row["accuracy"] == pytest.approx(alone["accuracy"], abs=1e-3)
        assert row["loss"] == pytest.approx(alone["loss"], rel=1e-5)


def test_by_rank_the_arbiter_has_the_bits_of_fate_alone_in_each_round(rows: dict[str, dict[str, Any]]) -> None:
    alone, by_rank = rows["fate"], rows["rank"]
    assert by_rank["aggregates"] == alone["aggregates"]
    assert by_rank["model"] == alone["model"]
    assert (alone["added"], by_rank["added"]) == (0, CLIENTS * ROUNDS)


def test_each_of_the_two_sites_sends_one_sum_a_round_from_the_first_on_into_a_region_of_three_updates(
    rows: dict[str, dict[str, Any]],
) -> None:
    alone, sites = rows["fate"], rows["sites-3"]
    assert (alone["up_transfers"], sites["up_transfers"]) == (CLIENTS * ROUNDS, 2 * ROUNDS)
    assert sites["up_bytes"] < 0.51 * alone["up_bytes"]
    assert sites["added"] == CLIENTS * ROUNDS
    assert sites["spilled_bytes"] == 0
