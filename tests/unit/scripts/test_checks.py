"""scripts/test: everything runs, every failure is told, and the closing line counts all of it."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from pathlib import Path

import pytest

from scripts.lib import checks
from scripts.lib.checks import (
    AUDIT,
    KINDS,
    NO_BYTECODE,
    PYTHON310,
    SOURCES,
    STATIC,
    TOOLS_OF_DEVELOPERS,
    TYPES,
    Runner,
    chosen_steps,
    compile_sources,
    parse,
    run_limited,
    workers_for,
)
from scripts.lib.console import CommandError
from scripts.lib.outcomes import (
    MOST_FAILURES,
    Counts,
    Failure,
    Outcome,
    closing_line,
    failed_tests,
    read_failures,
    read_junit,
    summary,
)
from scripts.lib.python310 import Python310, PythonAbsentError
from tests.support.repository import ROOT

GOOD = "def test_good(): pass\n"
BAD = "def test_bad(): assert False\n"
SKIPPED = "import pytest\n@pytest.mark.skip(reason='no card')\ndef test_skipped(): pass\n"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository with tests of two kinds and static checks that do nothing."""
    for kind, source in (("unit", GOOD + SKIPPED), ("property", BAD)):
        (tmp_path / "tests" / kind).mkdir(parents=True)
        (tmp_path / "tests" / kind / "test_it.py").write_text(source)
    (tmp_path / "build" / "test-reports").mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  fate: x\n  slow: x\n  alone: x\n  sweep: x\n")
    monkeypatch.chdir(tmp_path)
    # its runs of pytest take up what they need, which is a third of the time
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    monkeypatch.setattr(checks, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(checks, "STATIC", {"format": ["true"], "lint": ["false"]})
    monkeypatch.setattr(checks, "SIDE_BY_SIDE", {"fault": "worksteal"})
    return tmp_path


def _run(*names: str, fast: bool = False, sweeps: bool = False, arguments: tuple[str, ...] = ()) -> list[Outcome]:
    runner = Runner(fast=fast, sweeps=sweeps, pytest_arguments=arguments)
    for name in names:
        runner.run(name)
    return runner.outcomes


@pytest.mark.usefixtures("tree")
def test_tests_are_counted_by_result() -> None:
    unit, prop = _run("unit", "property")
    assert (unit.counts, unit.good) == (Counts(passed=1, skipped=1), True)
    assert (prop.counts, prop.good) == (Counts(failed=1), False)


@pytest.mark.usefixtures("tree")
def test_a_failed_test_is_told_by_name_and_reason_at_the_end() -> None:
    outcomes = _run("unit", "property")
    assert [failure.test for outcome in outcomes for failure in outcome.failures] == [
        "tests.property.test_it::test_bad"
    ]
    assert failed_tests(outcomes).splitlines()[1:3] == [
        "failed tests:",
        "  property: tests.property.test_it::test_bad",
    ]
    assert "assert False" in failed_tests(outcomes)


def test_a_fixture_that_fails_is_told_as_well(tree: Path) -> None:
    broken = "import pytest\n@pytest.fixture\ndef broken(): raise OSError('disk full')\ndef test_it(broken): pass\n"
    (tree / "tests" / "unit" / "test_it.py").write_text(broken)
    assert "disk full" in failed_tests(_run("unit"))


def test_what_is_told_of_failed_tests_has_a_bound() -> None:
    failures = tuple(Failure(f"test_{number}", "x" * 100_000) for number in range(1000))
    told = failed_tests([Outcome("unit", Counts(failed=1000), 1.0, failures=failures)])
    assert told.endswith(f"… and {1000 - MOST_FAILURES} more")
    assert len(told) < 50_000


def test_where_no_test_failed_nothing_is_told_of_them(tmp_path: Path) -> None:
    assert failed_tests([Outcome("unit", Counts(passed=1), 1.0)]) == ""
    assert read_failures(tmp_path / "none.xml") == ()


ALONE = "import pytest\n@pytest.mark.alone\ndef test_alone(worker_id): assert worker_id == 'master'\n"
BESIDE = "def test_beside(worker_id): assert worker_id != 'master'\n"


@pytest.mark.parametrize(
    ("source", "counts", "note"),
    [
        (ALONE + BESIDE, Counts(passed=2), ""),
        (ALONE, Counts(passed=1), ""),
        (BESIDE, Counts(passed=1), ""),
        ("", Counts(), "none selected"),
        (ALONE + BAD, Counts(passed=1, failed=1), "exit code 1"),
        (BESIDE + ALONE.replace("==", "!="), Counts(passed=1, failed=1), "exit code 1"),
    ],
)
def test_of_some_kinds_tests_run_side_by_side_but_for_those_that_must_be_alone(
    tree: Path, source: str, counts: Counts, note: str
) -> None:
    (tree / "tests" / "fault").mkdir()
    (tree / "tests" / "fault" / "test_it.py").write_text(source)
    (outcome,) = _run("fault")
    assert (outcome.counts, outcome.note) == (counts, note)


def test_kinds_that_wait_run_more_tests_than_there_are_cores_and_others_as_many() -> None:
    assert [workers_for("conformance", cores) for cores in (1, 2, 3, 64)] == [2, 4, 4, 4]
    assert [workers_for("fault", cores) for cores in (1, 2, 64)] == [1, 3, 4]
    assert [workers_for("nic", cores) for cores in (1, 2, 64)] == [1, 2, 4]


WRITES = "import sys\ndef test_it(): assert not sys.dont_write_bytecode\n"


def test_no_interpreter_that_the_steps_start_compiles_what_another_has_compiled(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NO_BYTECODE, "1")
    (tree / "tests" / "unit" / "test_it.py").write_text(WRITES)
    (outcome,) = _run("unit")
    assert outcome.counts == Counts(passed=1)


def test_the_tree_is_compiled_before_guests_see_it(tree: Path) -> None:
    for name in SOURCES:
        (tree / name).mkdir(exist_ok=True)
    (tree / "deploy" / "program.py").write_text("print()\n")
    (tree / "deploy" / "broken.py").write_text("(\n")
    # pytest has bytecode of its own for these
    (tree / "deploy" / "test_program.py").write_text("print()\n")
    compile_sources(Runner(fast=False, pytest_arguments=()).environment)
    assert [path.name.partition(".")[0] for path in tree.glob("deploy/__pycache__/*.pyc")] == ["program"]


@pytest.mark.usefixtures("tree")
def test_a_check_that_was_begun_before_runs_once_and_is_told_when_its_turn_comes(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    command = f"echo found it; echo x >> {shlex.quote(str(ran))}; exit 3"
    monkeypatch.setattr(checks, "STATIC", {"lint": ["sh", "-c", command]})
    runner = Runner(fast=False, pytest_arguments=())
    runner.begin("lint")
    runner.run("lint")
    assert ran.read_text() == "x\n"
    assert (runner.outcomes[0].counts, runner.outcomes[0].note) == (Counts(failed=1), "exit code 3")
    assert b"found it" in capfdbinary.readouterr().out


def test_a_check_that_was_begun_and_hangs_is_stopped_and_one_that_nobody_asks_for_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "STATIC", {"lint": ["sleep", "600"], "format": ["sleep", "600"]})
    monkeypatch.setattr(checks, "DEFAULT_LIMIT_SECONDS", 0.2)
    runner = Runner(fast=False, pytest_arguments=())
    for name in ("lint", "format"):
        runner.begin(name)
    runner.run("lint")
    assert runner.outcomes[0].note.startswith("stopped after")
    process = runner._begun["format"]._process
    runner.end()
    assert process.wait(10) == -15


@pytest.mark.usefixtures("tree")
def test_a_static_check_counts_as_one() -> None:
    good, bad = _run("format", "lint")
    assert good.counts == Counts(passed=1)
    assert bad.counts == Counts(failed=1)
    assert "exit code 1" in bad.note


@pytest.mark.usefixtures("tree")
def test_a_kind_without_tests_is_good_and_says_so() -> None:
    (outcome,) = _run("nic")
    assert outcome.good
    assert outcome.note == "no tests of this kind"


@pytest.mark.usefixtures("tree")
def test_a_run_that_selects_nothing_is_good_and_says_so() -> None:
    (outcome,) = _run("unit", arguments=("-k", "nothing_is_called_this"))
    assert outcome.good
    assert outcome.note == "none selected"


def test_a_test_file_that_does_not_import_fails_its_kind(tree: Path) -> None:
    (tree / "tests" / "unit" / "test_it.py").write_text("import no_such_module\n")
    (outcome,) = _run("unit")
    assert outcome.counts.failed == 1


def test_pytest_that_dies_without_a_report_fails_its_kind(tree: Path) -> None:
    (tree / "tests" / "unit" / "test_it.py").write_text("import os\ndef test_dies(): os._exit(3)\n")
    (outcome,) = _run("unit")
    assert (outcome.counts.failed, outcome.note) == (1, "exit code 3")


@pytest.mark.usefixtures("tree")
def test_a_step_that_hangs_is_stopped_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "STATIC", {"lint": ["sleep", "60"]})
    monkeypatch.setattr(checks, "LIMIT_SECONDS", {"lint": 0.2})
    started = time.monotonic()
    (outcome,) = _run("lint")
    assert time.monotonic() - started < 20
    assert not outcome.good
    assert outcome.note == "stopped after 0 s without a word"


def test_what_a_stopped_step_started_ends_with_it(tmp_path: Path) -> None:
    script = 'sleep 60 & echo $! > "$1/pid"; wait'
    assert run_limited(["sh", "-c", script, "sh", str(tmp_path)], 0.5, {"PATH": "/bin:/usr/bin"}) is None
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(pid)


def test_a_slow_step_that_goes_on_saying_something_is_not_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    # longer in all than it may say nothing, which on a busy machine it does for longer than it sleeps
    script = "for turn in 1 2 3 4 5 6 7 8; do echo $turn; sleep 0.5; done; exit 5"
    assert run_limited(["sh", "-c", script], 3.0, {"PATH": "/bin:/usr/bin"}) == 5
    assert capsys.readouterr().out.split() == list("12345678")


def test_a_step_ends_when_it_ends_although_something_it_started_keeps_its_output_open() -> None:
    started = time.monotonic()
    assert run_limited(["sh", "-c", "sleep 30 & echo done"], 20.0, {"PATH": "/bin:/usr/bin"}) == 0
    assert time.monotonic() - started < 15


def test_a_step_that_closes_its_output_is_waited_for_as_long_as_any_silent_one() -> None:
    assert run_limited(["sh", "-c", "exec >&- 2>&-; sleep 0.5; exit 3"], 20.0, {"PATH": "/bin:/usr/bin"}) == 3
    assert run_limited(["sh", "-c", "exec >&- 2>&-; sleep 30"], 0.5, {"PATH": "/bin:/usr/bin"}) is None


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("source", "good", "note"),
    [(SKIPPED, False, "required, but all were skipped"), (SKIPPED + GOOD, True, ""), (BAD, False, "exit code 1")],
)
def test_a_required_kind_must_really_run(tree: Path, source: str, good: bool, note: str) -> None:
    (tree / "tests" / "unit" / "test_it.py").write_text(source)
    runner = Runner(fast=False, pytest_arguments=(), required=("unit",))
    runner.run("unit")
    (outcome,) = runner.outcomes
    assert (outcome.good, outcome.note) == (good, note)


@pytest.mark.usefixtures("tree")
def test_a_required_kind_without_tests_fails() -> None:
    runner = Runner(fast=False, pytest_arguments=(), required=("nic",))
    runner.run("nic")
    assert not runner.outcomes[0].good


def test_ci_requires_the_tests_on_real_verbs() -> None:
    assert "--require nic" in (ROOT / ".ci" / "run").read_text()


def test_the_closing_line_adds_everything_up() -> None:
    outcomes = [
        Outcome("lint", Counts(failed=1), 0.5, "exit code 1"),
        Outcome("unit", Counts(passed=20, skipped=2), 3.0),
    ]
    assert closing_line(outcomes, 3.5).strip("= ") == "1 failed, 20 passed, 2 skipped in 3.50s"
    table = summary(outcomes)
    assert "lint         FAILED" in table
    assert "unit         ok" in table


def test_a_run_of_nothing_does_not_claim_to_have_passed() -> None:
    assert closing_line([], 0.0).strip("= ") == "no tests ran in 0.00s"


def test_a_missing_report_counts_nothing(tmp_path: Path) -> None:
    assert read_junit(tmp_path / "none.xml") == Counts()
    (tmp_path / "broken.xml").write_text("<testsuites><testsuite tests=")
    assert read_junit(tmp_path / "broken.xml") == Counts()


def test_by_default_everything_but_the_demo_runs() -> None:
    steps = chosen_steps([], fast=False, with_demo=False)
    assert sorted(steps) == sorted([*STATIC, AUDIT, PYTHON310, *KINDS])
    # which runs beside the environment of Python 3.10
    assert steps[steps.index(PYTHON310) + 1] == TYPES
    assert steps[-len(KINDS) :] == list(KINDS)
    assert chosen_steps([], fast=False, with_demo=True)[-1] == "demo"


def test_fast_leaves_out_the_fate_processes(tree: Path) -> None:
    assert {"fate", PYTHON310}.isdisjoint(chosen_steps([], fast=True, with_demo=False))
    (tree / "tests" / "unit" / "test_it.py").write_text("import pytest\n@pytest.mark.slow\n" + BAD + GOOD)
    (outcome,) = _run("unit", fast=True)
    assert outcome.counts == Counts(passed=1)


def test_sweeps_run_only_when_asked_for(tree: Path) -> None:
    (tree / "tests" / "unit" / "test_it.py").write_text("import pytest\n@pytest.mark.sweep\n" + BAD + GOOD)
    (outcome,) = _run("unit")
    assert outcome.counts == Counts(passed=1)
    (outcome,) = _run("unit", sweeps=True)
    assert outcome.counts == Counts(passed=1, failed=1)


def _python310(
    monkeypatch: pytest.MonkeyPatch, trouble: Exception | None = None, *required: str, sweeps: bool = False
) -> Outcome:
    """The step, where its environment is that of this test."""
    return _python310_and(monkeypatch, (), trouble, *required, sweeps=sweeps)[0]


def _python310_and(
    monkeypatch: pytest.MonkeyPatch,
    kinds: tuple[str, ...],
    trouble: Exception | None = None,
    *required: str,
    sweeps: bool = False,
) -> list[Outcome]:
    """The step, and those of some kinds after it."""

    def provide(site: Python310) -> None:
        if trouble is not None:
            raise trouble
        site.python.parent.mkdir(parents=True)
        # not a link, which would not see the packages of the environment that it leads to
        site.python.write_text(f'#!/bin/sh\nTOLD_BY=python310 exec {shlex.quote(sys.executable)} "$@"\n')
        site.python.chmod(0o755)

    monkeypatch.setattr(Python310, "provide", provide)
    runner = Runner(fast=False, pytest_arguments=(), required=required, sweeps=sweeps)
    for name in (PYTHON310, *kinds):
        runner.run(name)
    return runner.outcomes


def test_on_python_3_10_some_kinds_run_and_the_installation_counts_as_one(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "tests" / "fate").mkdir()
    (tree / "tests" / "fate" / "test_fate_flow.py").write_text(GOOD)
    (tree / "tests" / "fate" / "test_launcher.py").write_text(BAD)
    outcome = _python310(monkeypatch, sweeps=True)
    assert outcome.counts == Counts(passed=3, failed=1, skipped=1)
    assert outcome.note == "property: exit code 1; conformance: no tests of this kind"
    reports = {path.name for path in (tree / "build" / "test-reports").iterdir()}
    assert reports == {"python310-unit.xml", "python310-property.xml"}


def test_what_is_in_no_wheel_is_not_tried_on_python_3_10_and_random_histories_only_in_sweeps(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in TOOLS_OF_DEVELOPERS:
        (tree / folder).mkdir()
        (tree / folder / "test_tool.py").write_text(BAD)
    assert _python310(monkeypatch).counts == Counts(passed=2, skipped=1)


def test_what_ran_on_python_3_10_is_not_run_once_more_but_in_sweeps(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in TOOLS_OF_DEVELOPERS:
        (tree / folder).mkdir()
        (tree / folder / f"test_{Path(folder).name}.py").write_text(GOOD)
    (tree / "tests" / "fate").mkdir()
    (tree / "tests" / "fate" / "test_fate_flow.py").write_text(GOOD)
    (tree / "tests" / "fate" / "test_launcher.py").write_text(GOOD)
    (tree / "tests" / "conformance").mkdir()
    (tree / "tests" / "conformance" / "test_it.py").write_text(GOOD)
    kinds = ("unit", "conformance", "fate")
    _, *once = _python310_and(monkeypatch, kinds)
    assert [outcome.counts.passed for outcome in once] == [4, 0, 1]
    assert {outcome.note for outcome in once} == {"the others ran on Python 3.10"}
    shutil.rmtree(tree / ".venv-py310")
    _, *twice = _python310_and(monkeypatch, kinds, sweeps=True)
    assert [outcome.counts.passed for outcome in twice] == [5, 1, 2]


def test_what_could_not_run_or_failed_on_python_3_10_is_run_as_if_it_had_not_been_tried(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _python310_and(monkeypatch, ("unit",), PythonAbsentError("none"))[1].counts == Counts(passed=1, skipped=1)
    (tree / "tests" / "unit" / "test_it.py").write_text(GOOD + BAD)
    assert _python310_and(monkeypatch, ("unit",))[1].counts == Counts(passed=1, failed=1)


def test_tests_on_python_3_10_run_by_its_interpreter_which_is_first_on_their_path(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "import os\ndef test_told(): assert os.environ['TOLD_BY'] == 'python310'\n"
    first = "import shutil\ndef test_first(): assert '.venv-py310' in shutil.which('python')\n"
    (tree / "tests" / "unit" / "test_it.py").write_text(told + first)
    assert _python310(monkeypatch).counts == Counts(passed=3)


@pytest.mark.usefixtures("tree")
def test_without_a_python_3_10_the_step_is_good_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = _python310(monkeypatch, PythonAbsentError("not found on PATH"))
    assert (outcome.good, outcome.counts, outcome.note) == (True, Counts(), "python 3.10: not found on PATH")
    assert "python 3.10: not found on PATH" in capsys.readouterr().out.splitlines()
    assert "no tests ran (python 3.10: not found on PATH)" in summary([outcome])


@pytest.mark.usefixtures("tree")
def test_where_python_3_10_is_required_its_absence_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _python310(monkeypatch, PythonAbsentError("not found on PATH"), PYTHON310).good


@pytest.mark.usefixtures("tree")
def test_an_environment_of_python_3_10_that_cannot_be_made_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = _python310(monkeypatch, CommandError("this replaced what FATE had: numpy==1.26.4."))
    assert (outcome.counts, outcome.note) == (Counts(failed=1), "not installed")
    assert "numpy==1.26.4" in capsys.readouterr().err


def test_only_takes_the_named_steps_in_their_usual_order() -> None:
    assert chosen_steps(["unit", "format"], fast=False, with_demo=False) == ["format", "unit"]


def test_arguments_after_the_dashes_go_to_pytest() -> None:
    options = parse(["--only", "unit", "--", "-k", "trace", "-x"])
    assert options.only == ["unit"]
    assert options.pytest_arguments == ["-k", "trace", "-x"]


def test_an_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--only", "units"])
    assert "invalid choice: 'units'" in capsys.readouterr().err


def test_every_folder_of_tests_is_a_kind_that_runs() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py"))}
    assert folders <= set(KINDS)
