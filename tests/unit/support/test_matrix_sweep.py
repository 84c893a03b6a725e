"""A sweep over the matrix of faults that takes hours, and goes on where it was stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fedrdma_fate.wire.frames import Mode
from tests.support import matrix_sweep
from tests.support.matrix import MESSAGES, Outcome, cells


def test_each_seed_of_each_cell_is_run_once_and_no_seed_waits_for_the_last_one() -> None:
    ran = [(seed, cell) for first, count, *cell in matrix_sweep.blocks(5, 45) for seed in range(first, first + count)]
    assert len(ran) == 45 * len(cells())
    assert {seed for seed, _ in ran} == set(range(5, 50))
    assert len({(seed, *cell) for seed, cell in ran}) == len(ran)
    assert max(seed for seed, _ in ran[: 20 * len(cells())]) == 24


def test_a_sweep_that_was_stopped_goes_on_and_a_line_that_was_cut_off_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.jsonl"
    monkeypatch.setattr(matrix_sweep, "cells", lambda: cells()[:3])
    monkeypatch.setattr(sys, "argv", ["matrix_sweep", str(file), "--seeds", "1", "--processes", "1"])
    assert matrix_sweep.main() == 0
    whole, table = file.read_text(), capsys.readouterr().out
    assert [line.split()[1] for line in table.splitlines()[1:]] == ["3", "3"]
    file.write_text(whole[:-10])
    assert matrix_sweep.main() == 0
    assert file.read_text() == whole
    assert capsys.readouterr().out == table


def test_what_is_wrong_in_a_run_fails_the_sweep_and_is_told_with_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = [3, 1, "silent", "fedrdma", "tcp"]
    wrong = {"block": block, "cell": "silent;fedrdma;tcp;1;1;7;0;0;1;0;0;0;0", "wrong": ["lost: m1 (seed 3)"]}
    file = tmp_path / "sweep.jsonl"
    file.write_text(json.dumps(wrong) + "\n")
    monkeypatch.setattr(matrix_sweep, "cells", list)
    monkeypatch.setattr(sys, "argv", ["matrix_sweep", str(file), "--processes", "1"])
    assert matrix_sweep.main() == 1
    told, _, row, _ = capsys.readouterr().out.splitlines()
    assert told == "silent; fedrdma; tcp; lost: m1 (seed 3)"
    assert row.split() == ["silent", "1", "1", "7", "0", "0", "1", "0", "0", "0", "0"]


def test_a_run_that_raises_is_an_error_of_its_seed_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    real = matrix_sweep.run_once

    def run_once(fault: str, mode: Mode, path: str, seed: int) -> Outcome:
        if seed == 1:
            raise KeyError("token")
        return real(fault, mode, path, seed)

    monkeypatch.setattr(matrix_sweep, "run_once", run_once)
    result = matrix_sweep.run_block((0, 3, "none", "fedrdma", "tcp"))
    assert result["wrong"] == ["error: KeyError('token') (seed 1)"]
    assert result["cell"].split(";")[5] == str(2 * MESSAGES)
