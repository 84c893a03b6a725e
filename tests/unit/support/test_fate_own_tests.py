"""What the table of FATE's own tests says of a script that ends, fails or waits, and that a run goes on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support import fate_own_tests
from tests.support.fate_own_tests import (
    HEADING,
    SCRIPTS,
    Kept,
    Result,
    Script,
    chosen,
    make_tree,
    row,
    run_parties,
)

SCRIPT = Script("python/fate/ml/some/test/test_some.py", fate_own_tests.TWO)
FAILS = "import sys; print('so far'); raise ValueError('a cause | and more')"
WAITS = "import time; time.sleep(60)"


def outcome(tmp_path: Path, most_seconds: float = 30.0, **programs: str) -> str:
    commands = {name: [sys.executable, "-c", program] for name, program in programs.items()}
    told, seconds = run_parties(commands, tmp_path, os.environ, tmp_path, most_seconds)
    assert seconds < 30
    return told


def test_a_script_has_ended_when_all_its_parties_have_ended_well(tmp_path: Path) -> None:
    assert outcome(tmp_path, guest="print(1)", host="print(2)") == "ended"
    assert (tmp_path / "guest.out").read_text() == "1\n"


def test_of_a_script_that_fails_the_party_and_its_last_words_are_told_and_nobody_waits_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fate_own_tests, "GRACE_SECONDS", 0.1)

    assert outcome(tmp_path, guest=FAILS, host=WAITS) == "guest failed: ValueError: a cause | and more"


def test_of_a_script_that_does_not_end_it_is_told_who_still_ran(tmp_path: Path) -> None:
    assert outcome(tmp_path, most_seconds=1.0, guest="", host=WAITS) == "host still ran after 1 s"


def test_the_table_tells_whether_the_parties_printed_the_same(tmp_path: Path) -> None:
    del tmp_path
    one, other = Result("ended", 1.0, 0, {"guest": "0.9"}), Result("ended", 2.4, 7, {"guest": "0.8"})
    failed = Result("guest failed: a | b", 3.0, 1, {"guest": "0.9"})

    def told(standalone: Result, gateways: Result) -> list[str]:
        cells = row(SCRIPT, {"standalone": standalone, "gateways": gateways}, "")
        assert len(cells) == len(HEADING)
        return cells

    assert told(one, one)[-1] == "same"
    assert told(one, other) == ["fate/ml/some/test/test_some.py", "ended", "1 s", "ended", "2 s", "7", "other"]
    assert told(one, failed)[3:] == ["guest failed: a / b", "3 s", "1", ""]
    assert len(row(SCRIPT, {}, "not in FATE's package")) == len(HEADING)


def test_results_are_kept_for_the_next_run(tmp_path: Path) -> None:
    result = Result("ended", 1.0, 3, {"guest": "0.9"})
    Kept(tmp_path / "results").keep(SCRIPT, "gateways", result)

    assert Kept(tmp_path / "results").of(SCRIPT, "gateways") == result
    assert Kept(tmp_path / "results").of(SCRIPT, "standalone") is None
    assert Kept(None).of(SCRIPT, "gateways") is None


def test_scripts_are_chosen_by_a_part_of_their_name_and_a_word_that_fits_none_is_refused() -> None:
    assert chosen([]) == list(SCRIPTS)
    assert {script.launched for script in chosen(["launchers"])} == {True}
    with pytest.raises(SystemExit, match="no script"):
        chosen(["test_agg", "no-such"])


def test_without_fate_s_source_the_scripts_of_its_package_are_there_and_the_others_are_named(tmp_path: Path) -> None:
    pytest.importorskip("fate", reason="FATE is not installed")
    make_tree(tmp_path, None)

    here = {script.name for script in SCRIPTS if not script.wants and not script.lacks(tmp_path)}

    assert here == {script.name for script in SCRIPTS if not script.wants and script.name.startswith("fate/ml/nn/")}
    assert (tmp_path / "examples" / "data" / "breast_hetero_guest.csv").read_text().count("\n") == 570


def test_a_directory_that_is_no_source_of_fate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no source of FATE"):
        make_tree(tmp_path / "root", tmp_path)
