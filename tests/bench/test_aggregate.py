"""`fedrdma bench aggregate`: that its rows sum what they say, and that a wrong sum is no row."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from fedrdma_fate.bench import aggregate, aggregate_node
from fedrdma_fate.bench.aggregate import ROWS, measure_aggregate
from fedrdma_fate.bench.aggregate_hierarchy import LEAVES, leaves_for, over_grpc
from fedrdma_fate.bench.aggregate_node import Neighbours
from fedrdma_fate.bench.aggregate_ray import is_installed, with_ray
from fedrdma_fate.bench.aggregate_setting import AggregateSetting, check, make_update, pairs_of
from fedrdma_fate.bench.aggregate_sites import sites
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.cli.main import main

SETTING = AggregateSetting("small", 20_000, 3, 4, "tcp")


def test_every_row_sums_and_the_document_has_all_that_is_measured() -> None:
    outcome = CliRunner().invoke(main, ["bench", "aggregate", "--parameters", "20000", "--updates", "3", "--json"])

    assert outcome.exit_code == 0, outcome.output
    rows = {row["name"]: row for row in json.loads(outcome.stdout)["rows"]}
    assert tuple(rows) == tuple(name for name in ROWS if name != "ray" or is_installed())
    keys = {"name", "model", "updates", "seconds", "after_last_seconds", "cpu_seconds", "waiting_bytes"}
    keys |= {"up_bytes", "down_bytes", "after_arrival_seconds"}
    for name, row in rows.items():
        assert set(row) == keys
        assert row["seconds"] >= row["after_last_seconds"] > 0
        if name not in ("copy", "add", "add-exact", "add-fate"):
            assert row["cpu_seconds"] > 0
        if name in ("slots", "slots-rank", "fate", "tree"):
            # the last update, or what waits for it, lay there
            assert row["waiting_bytes"] >= SETTING.update_bytes
        assert (row["up_bytes"] is None) == (name not in ("sites", "sites-tree", "sites-alone"))
        assert (row["after_arrival_seconds"] is None) == (name not in ("slots", "slots-rank", "fate"))
        if row["after_arrival_seconds"] is not None:
            # two clocks
            assert 0 < row["after_arrival_seconds"] < row["seconds"] + 1


def test_two_sites_send_and_get_each_a_payload_once_and_without_that_once_for_each_party() -> None:
    setting = AggregateSetting("small", 20_000, 8, 9, "tcp")
    update = make_update(setting)

    once, alone = (sites(setting, update, "row", once=once) for once in (True, False))

    assert once.down_bytes == 2 * setting.update_bytes
    assert alone.down_bytes == 8 * setting.update_bytes
    # a footer besides, of each update or sum
    assert once.up_bytes is not None
    assert alone.up_bytes is not None
    assert 2 * setting.update_bytes < once.up_bytes < 2.1 * setting.update_bytes
    assert 8 * setting.update_bytes < alone.up_bytes < 8.1 * setting.update_bytes


@pytest.mark.sweep
@pytest.mark.parametrize("number", [2, 3])
def test_in_a_tree_one_payload_comes_to_the_arbiters_site_and_one_goes_to_each(number: int) -> None:
    setting = AggregateSetting("small", 20_000, 8, 9, "tcp", number)

    row = sites(setting, make_update(setting), "row", once=True, tree=True)

    assert row.up_bytes is not None
    assert setting.update_bytes < row.up_bytes < 1.1 * setting.update_bytes
    assert row.down_bytes == number * setting.update_bytes


def test_fewer_updates_than_sites_are_no_row() -> None:
    setting = AggregateSetting("small", 20_000, 3, 4, "tcp", 4)
    with pytest.raises(RowError, match="3 updates are too few for 4 sites"):
        sites(setting, make_update(setting), "row", once=True)


@pytest.mark.parametrize("party", range(3))
@pytest.mark.parametrize("times", [0, 2])
def test_a_sum_in_which_a_party_is_not_exactly_once_is_found(party: int, times: int) -> None:
    update = make_update(SETTING)
    planes = pairs_of(update, SETTING)
    counts = [times if rank == party else 1 for rank in range(3)]
    # as many as there should be, so that only who is in it differs
    counts[(party + 1) % 3] = 2 - times + counts[(party + 1) % 3] - 1
    sums = [(sum(counts) * fraction, sum(counts) * whole) for fraction, whole in planes]
    sums[0][1][:3] += counts

    with pytest.raises(RowError, match="wrong"):
        check(SETTING, update, sums)


def test_the_sum_of_all_is_right() -> None:
    update = make_update(SETTING)
    sums = [(3 * fraction, 3 * whole) for fraction, whole in pairs_of(update, SETTING)]
    sums[0][1][:3] += 1

    check(SETTING, update, sums)
    assert np.all(sums[0][1] == np.rint(sums[0][1]))


def test_a_row_that_fails_says_why_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RowError("no room")

    monkeypatch.setattr(aggregate, "_sum", fails)

    measured, failures = measure_aggregate(SETTING, ["slots", "copy", "add"], lambda _: None)

    assert [row.name for row in measured] == ["copy", "add"]
    assert failures == {"slots": "no room"}


@pytest.mark.parametrize("updates", [2, 3, 4, 9])
def test_every_update_has_one_leaf(updates: int) -> None:
    parts = leaves_for(AggregateSetting("small", 20_000, updates, updates, "tcp"))

    assert sorted(rank for part in parts for rank in part) == list(range(updates))
    assert len(parts) == min(updates, LEAVES)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_sum_that_a_node_has_wrong_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Neighbours, "fetch", lambda *_: iter([bytes(SETTING.update_bytes)]))

    with pytest.raises(RowError, match="wrong"):
        over_grpc(SETTING, make_update(SETTING), broker=False, proxies=False)


def test_a_node_that_does_not_answer_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate_node, "_CALL_SECONDS", 0.0)

    with pytest.raises(RowError, match="does not answer"):
        over_grpc(SETTING, make_update(SETTING), broker=False, proxies=False)


@pytest.mark.skipif(is_installed(), reason="Ray is installed")
def test_without_ray_its_row_says_so() -> None:
    with pytest.raises(RowError, match="not installed"):
        with_ray(SETTING, make_update(SETTING))


def test_a_row_that_there_is_not_is_refused_by_name() -> None:
    outcome = CliRunner().invoke(main, ["bench", "aggregate", "--rows", "slots,lazy"])

    assert outcome.exit_code != 0
    assert "'lazy'" in outcome.output
