"""`fedrdma bench lifl figure4|figure7|figure13`: that each system is measured, beside what the paper states."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from fedrdma_fate.bench import aggregate_node
from fedrdma_fate.bench.aggregate_node import Neighbours
from fedrdma_fate.bench.aggregate_setting import AggregateSetting
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.lifl import figure4, figure7, figure13
from fedrdma_fate.bench.lifl.figure8 import NOT_STATED
from fedrdma_fate.bench.lifl.hops import Moved, over_stages, setting_of
from fedrdma_fate.cli.main import main

SMALL = ["--parameters", "40000", "--json"]
SETTING = AggregateSetting("small", 10_000, 2, 3, "tcp")


def _rows(*arguments: str) -> dict[str, dict[str, Any]]:
    outcome = CliRunner().invoke(main, ["bench", "lifl", *arguments])
    assert outcome.exit_code == 0, outcome.output
    return {row["system"]: row for row in json.loads(outcome.stdout)["rows"]}


def test_figure_4_has_a_round_by_each_system_and_only_the_paper_s_own_size_has_its_numbers() -> None:
    rows = _rows("figure4", *SMALL, "--updates", "3")

    assert list(rows) == list(figure4.SYSTEMS)
    for row in rows.values():
        assert row["seconds"] > 0
        assert row["cpu_seconds"] > 0
        assert row["times_ours"] == pytest.approx(row["seconds"] / rows["ours"]["seconds"])
        assert row["paper"] == NOT_STATED


def test_figure_7_has_a_hop_by_each_system() -> None:
    rows = _rows("figure7", *SMALL, "--repeats", "2")

    assert list(rows) == list(figure7.SYSTEMS)
    for row in rows.values():
        # and what brings each plane to a multiple of 64 bytes
        assert 160_000 <= row["update_bytes"] < 170_000
        assert row["seconds"] >= row["least_seconds"] > 0
        assert row["cpu_seconds"] > 0
        assert row["times_ours"] == pytest.approx(row["seconds"] / rows["ours"]["seconds"])
    assert rows["SL"]["paper"] == "6 × ours, 2 × SF"


def test_figure_13_has_what_queues_an_update_by_each_system() -> None:
    rows = _rows("figure13", *SMALL, "--repeats", "2")

    assert list(rows) == list(figure13.SYSTEMS)
    assert rows["ours"]["times_ours"] == [1.0, 1.0, 1.0]
    for row in rows.values():
        assert row["seconds"] >= row["least_seconds"] > 0
        assert row["cpu_seconds"] > 0
    # of ours the slot that it lies in
    assert rows["ours"]["memory_bytes"] >= 160_000


def test_only_what_the_paper_s_text_states_is_in_its_column() -> None:
    assert {model: figure7.stated(model, "SF") for model in ("resnet18", "resnet152")} == {
        "resnet18": NOT_STATED,
        "resnet152": "3 × ours",
    }
    assert figure7.stated("resnet152", "ours") == NOT_STATED


def test_a_system_that_was_not_measured_is_named_and_nothing_is_compared_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object, **__: object) -> Any:
        raise RowError("no gateway")

    def moves(*_: object, **__: object) -> Moved:
        return Moved(2.0, 1.0, 1.0, 1000, 2.0)

    monkeypatch.setattr(figure4, "sum_of_all_at_once", fails)
    monkeypatch.setattr(figure7, "_in_shared_memory", fails)
    monkeypatch.setattr(figure13, "updates_one_by_one", fails)
    for figure in (figure7, figure13):
        monkeypatch.setattr(figure, "over_stages", moves)

    rounds, failures = figure4.figure4(SETTING, lambda _: None)
    assert failures == {"ours": "no gateway"}
    assert {each.times_ours for each in rounds} == {None}
    assert figure4.to_table(rounds, SETTING).rows[0][2] == ""
    moved, failures = figure7.figure7([SETTING], 1, lambda _: None)
    assert failures == {"small, ours": "no gateway", "small, ours, in place": "no gateway"}
    assert [row[3] for row in figure7.to_tables(moved)[0].rows] == ["1.00", "1.00", "1.00"]
    queued, failures = figure13.figure13([SETTING], 1, lambda _: None)
    assert failures == {"small, ours": "no gateway"}
    assert {each.times_ours for each in queued} == {None}
    assert figure13.to_tables(queued)[0].rows[0][3] == ""


def test_an_update_that_came_otherwise_than_it_was_sent_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Neighbours, "fetch", lambda *_: iter([bytes(SETTING.update_bytes)]))

    with pytest.raises(RowError, match="another update"):
        over_stages(SETTING, (), 1)


def test_a_node_that_does_not_answer_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate_node, "_CALL_SECONDS", 0.0)

    with pytest.raises(RowError, match="does not answer"):
        over_stages(SETTING, ("store",), 1)


def test_an_update_is_as_long_as_its_model_says() -> None:
    assert setting_of("resnet152", None, 4, 8).parameters == 60_192_808 // 4
    assert setting_of("resnet18", None, 16, 8).parameters == 11_689_512
    assert setting_of("resnet18", 40_000, 4, 2).model == "40000 parameters"


def test_a_model_that_there_is_not_is_refused_by_name() -> None:
    outcome = CliRunner().invoke(main, ["bench", "lifl", "figure7", "--models", "resnet18,alexnet"])

    assert outcome.exit_code != 0
    assert "'alexnet'" in outcome.output
