"""`fedrdma bench unifl figure9` and its siblings: rounds of the simulator, their table and their document."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedrdma_fate.bench.unifl import rounds as rounds_module
from fedrdma_fate.bench.unifl.rounds import FIGURES, ROW_NAMES, Measured, RoundOfAll, play, to_document, to_table
from fedrdma_fate.cli.main import main
from fedrdma_fate.wire.errors import TransportError
from tests.support.sim import unifl

REPOSITORY = Path(__file__).resolve().parents[3]
ENDED = RoundOfAll(2.0, 1.6, 100, 50, [1.0, 2.0])
NOT_ENDED = RoundOfAll(None, 1.6, 0, 0, [1.0])


def test_the_command_knows_the_rows_that_the_simulator_has() -> None:
    assert list(ROW_NAMES) == list(unifl.ROWS)
    assert all(row in ROW_NAMES for figure in FIGURES.values() for row in figure.rows)


def test_ratio_throughput_and_shares_are_of_all_rounds() -> None:
    measured = Measured("fedrdma-x", 0.01, 1000, [ENDED, ENDED])
    assert measured.times_least == pytest.approx(1.25)
    assert measured.throughput_bps == pytest.approx((2 * 1000 - 50) * 8 / 2)
    assert measured.share(lambda one: one.resent_bytes) == pytest.approx(0.05)


def test_a_row_of_which_a_round_has_not_ended_has_no_ratio_and_says_so() -> None:
    measured = Measured("tcp-cubic", 0.01, 1000, [ENDED, NOT_ENDED])
    assert measured.times_least is None
    (row,) = to_table("figure9", [measured]).rows
    assert row[0] == "tcp-cubic (model)"
    assert "not ended" in row
    (told,) = to_document("figure9", 1, [measured])["rows"]
    assert told["is_model"]
    assert told["times_least"] is None
    json.dumps(told, allow_nan=False)


def test_where_the_others_send_by_another_row_the_first_is_told_beside_them() -> None:
    measured = Measured("fedrdma-x", 0.001, 10**6, [RoundOfAll(4.0, 1.0, 0, 0, [1.0, 2.0, 4.0])])
    assert [measured.mbit_of(silos) for silos in (slice(1), slice(1, None))] == [8.0, pytest.approx(8 / 3)]
    (row,) = to_table("figure3", [measured]).rows
    assert row[2:4] == ("8.0 Mbit/s", "2.7 Mbit/s")
    never = Measured("masked", 0.001, 10**6, [RoundOfAll(None, 1.0, 0, 0, [1.0, None])])
    assert never.mbit_of(slice(1, None)) is None
    (row,) = to_table("figure3", [never]).rows
    assert row[2:4] == ("8.0 Mbit/s", "not ended")


def test_only_what_the_paper_s_text_says_is_beside_a_row() -> None:
    figure = FIGURES["figure9"]
    assert figure.stated("fedrdma-x", 0.01) == "not stated"
    assert "40" in figure.stated("fedrdma-x-bounded", 0.01)
    assert "40" not in figure.stated("fedrdma-x-bounded", 0.0)


def test_a_simulator_that_fails_is_reported_with_what_it_said_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise subprocess.CalledProcessError(1, "simulator", stderr="Traceback\nno such world\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(TransportError, match="no such world"):
        play(REPOSITORY, FIGURES["figure2"], "ltp", 0.0, 1, 1, 1000, 60.0)


def test_a_row_that_takes_too_long_is_reported_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def linger(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("simulator", 60.0)

    monkeypatch.setattr(subprocess, "run", linger)
    with pytest.raises(TransportError, match="ltp did not end within 60 s"):
        play(REPOSITORY, FIGURES["figure2"], "ltp", 0.0, 1, 1, 1000, 60.0)


def test_the_command_plays_each_row_at_each_loss_and_writes_what_it_tells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[object, ...]] = []

    def played(*arguments: object) -> Measured:
        asked.append(arguments)
        return Measured(str(arguments[2]), float(str(arguments[3])), 4096, [ENDED])

    monkeypatch.setattr("fedrdma_fate.cli.bench_unifl.play", played)
    told = ["--rows", "ltp,fedrdma-x", "--loss", "0,1%", "--size", "4KiB", "--checkout", str(REPOSITORY)]
    outcome = CliRunner().invoke(main, ["bench", "unifl", "figure9", *told, "--json", "--output", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    assert [each[2:4] for each in asked] == [
        ("ltp", 0.0),
        ("fedrdma-x", 0.0),
        ("ltp", 0.01),
        ("fedrdma-x", 0.01),
    ]
    document = json.loads((tmp_path / "bench-unifl-figure9.json").read_text())
    assert [row["name"] for row in document["rows"]] == ["ltp", "fedrdma-x"] * 2


@pytest.mark.parametrize(
    "told", [["--rows", "quic"], ["--loss", "2"], ["--size", "much"], ["--rounds", "0"], ["--rows", ""]]
)
def test_what_makes_no_sense_is_refused_before_anything_is_played(
    monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    def played(*_: object) -> Measured:
        raise AssertionError

    monkeypatch.setattr("fedrdma_fate.cli.bench_unifl.play", played)
    outcome = CliRunner().invoke(main, ["bench", "unifl", "figure10", *told, "--checkout", str(REPOSITORY)])
    assert outcome.exit_code != 0
    assert not isinstance(outcome.exception, AssertionError)


def test_the_models_are_those_of_others() -> None:
    assert not any(name.startswith("fedrdma") for name in rounds_module._MODELS)
