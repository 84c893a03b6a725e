"""What the doctor says of FATE and of our hooks, by reports and by what a fresh interpreter sees here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fate.arch.computing.serdes._restricted_serdes import Whitelist
from fate.arch.config import cfg

from fedrdma_fate.doctor import fate_report
from fedrdma_fate.doctor.fate import check_fate, check_hooks, check_tables
from fedrdma_fate.doctor.fate_report import FateReport, ask_fresh_interpreter, read_report

GOOD = FateReport(hooked=True, fate="2.2.0", registered=True, flow="2.2.0", flow_registered=True)
ABSENT = FateReport(hooked=True)


def changed(**changes: object) -> FateReport:
    return FateReport(**{**{name: getattr(GOOD, name) for name in GOOD.__struct_fields__}, **changes})


def test_a_supported_fate_that_knows_us_is_fine() -> None:
    assert (check_fate(GOOD).level, check_fate(GOOD).found) == ("ok", "FATE 2.2.0, FATE Flow 2.2.0")
    assert check_hooks(GOOD).level == "ok"


def test_fate_without_fate_flow_is_fine() -> None:
    report = changed(flow=None, flow_registered=False)
    assert (check_fate(report).found, check_hooks(report).level) == ("FATE 2.2.0", "ok")


def test_a_host_without_fate_is_fine_for_a_gateway() -> None:
    assert check_fate(ABSENT).level == check_hooks(ABSENT).level == "ok"


def test_another_version_of_fate_is_an_error_with_what_does_not_match() -> None:
    finding = check_fate(changed(fate="2.1.0", mismatch="fate is version 2.1.0, not 2.2.0"))
    assert finding.level == "error"
    assert "not 2.2.0" in finding.found
    assert "FEDRDMA_FATE_DISABLE" in finding.remedy


@pytest.mark.parametrize(
    ("changes", "level", "word"),
    [
        ({"hooked": False}, "error", "fedrdma_fate.pth"),
        ({"disabled": True, "hooked": False}, "warning", "FEDRDMA_FATE_DISABLE"),
        ({"registered": False}, "error", "FATE does not know"),
        ({"flow_registered": False}, "error", "FATE Flow does not know"),
        ({"registered": False, "flow_registered": False}, "error", "FATE and FATE Flow"),
    ],
)
def test_hooks_that_are_not_in_place_are_told(changes: dict[str, object], level: str, word: str) -> None:
    finding = check_hooks(changed(**changes))
    assert finding.level == level
    assert word in f"{finding.found} {finding.remedy}"
    assert finding.remedy


def test_tables_of_a_peer_are_checked_also_where_fate_does_not_restrict_the_sites_own() -> None:
    finding = check_tables(changed(tables="unrestricted"))
    assert finding.level == "ok"
    assert "a peer's tables are checked" in finding.found
    assert "the site's own are unpickled unrestricted" in finding.found


def test_tables_that_are_restricted_to_a_list_are_fine() -> None:
    finding = check_tables(changed(tables="restricted", table_names="/etc/names.yaml"))
    assert finding.level == "ok"
    assert "/etc/names.yaml" in finding.found


def test_a_restriction_that_does_not_restrict_is_a_warning() -> None:
    finding = check_tables(changed(tables="restricted", table_names="/n.yaml", table_names_problem="lets all through"))
    assert finding.level == "warning"
    assert "/n.yaml lets all through" in finding.found


def test_tables_are_no_matter_without_fate_and_unknown_where_nothing_was_seen() -> None:
    assert check_tables(ABSENT).level == "ok"
    assert check_tables(FateReport(crash="no")).level == "error"
    assert check_tables(changed(tables="")).level == "warning"


@pytest.mark.parametrize(
    ("listed", "problem"),
    [
        ("{}", ""),
        ("collections: [OrderedDict]", ""),
        ("fate.*: []", "below fate."),
        ("torch.storage: [_load_from_bytes]", "unpickles whatever"),
        ("- a list", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_the_report_tells_what_the_restriction_of_tables_lets_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str | None, problem: str
) -> None:
    names = tmp_path / "names.yaml"
    if listed is not None:
        names.write_text(listed)
    for name, value in {
        "loaded": False,
        "deserialize_whitelist": {},
        "deserialize_glob_whitelist": set(),
        "get_whitelist_path": classmethod(lambda _cls: str(names)),
    }.items():
        monkeypatch.setattr(Whitelist, name, value)

    with cfg.temp_override({"safety.serdes.restricted_type": "restricted"}):
        report = fate_report.look()

    assert (report.tables, report.table_names) == ("restricted", str(names))
    assert problem in report.table_names_problem
    assert bool(report.table_names_problem) is bool(problem)


def test_an_interpreter_that_crashes_is_an_error_with_its_last_line() -> None:
    report = read_report("", "Traceback\nImportError: no module\n")
    assert report.crash == "ImportError: no module"
    assert check_fate(report).level == check_hooks(report).level == "error"
    assert "ImportError" in check_fate(report).found


def test_what_fate_prints_before_the_report_is_passed_over() -> None:
    assert read_report('hello\n{"fate": "2.2.0"}\n', "").fate == "2.2.0"


def test_an_interpreter_that_says_nothing_is_reported_as_such() -> None:
    assert read_report("", "").crash == "it says nothing"


def test_an_interpreter_that_cannot_be_started_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert "No such file" in ask_fresh_interpreter().crash


def test_an_interpreter_that_does_not_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fate_report, "REPORT_TIMEOUT_SECONDS", 0.0)
    assert "does not end" in ask_fresh_interpreter().crash


def test_a_fresh_interpreter_reports_the_fate_of_this_environment() -> None:
    report = ask_fresh_interpreter()
    assert report.crash == ""
    assert report.fate is not None
    assert report.mismatch == ""
    # whether the .pth file is installed is the environment's business, that hooks work where they are is ours
    assert report.registered is report.hooked
    # FATE's default, which the environment of the tests leaves as it is
    assert (report.tables, report.table_names) == ("unrestricted", "")


def test_a_fresh_interpreter_does_not_take_the_current_directory_for_an_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "fate").mkdir()
    (tmp_path / "fate" / "__init__.py").write_text("__version__ = 'from the current directory'\n")
    monkeypatch.chdir(tmp_path)
    assert ask_fresh_interpreter().fate != "from the current directory"


def test_a_fresh_interpreter_sees_that_the_hooks_are_switched_off() -> None:
    report = ask_fresh_interpreter({**os.environ, "FEDRDMA_FATE_DISABLE": "1"})
    assert (report.disabled, report.hooked, report.registered) == (True, False, False)
