"""`scripts/test`: every check and every kind of test, one after the other, and one summary at the end."""

from __future__ import annotations

import argparse
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from scripts.lib.audit import NoAdvisoriesError, audit
from scripts.lib.console import CommandError, fail, say
from scripts.lib.outcomes import (
    Counts,
    Failure,
    Outcome,
    closing_line,
    failed_tests,
    read_failures,
    read_junit,
    summary,
)
from scripts.lib.provision import only_one
from scripts.lib.python310 import Python310, PythonAbsentError

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(".venv/bin/python")
REPORTS = Path("build/test-reports")

STATIC: dict[str, list[str]] = {
    "format": ["ruff", "format", "--check", "."],
    "lint": ["ruff", "check", "."],
    "types": ["mypy", "fedrdma_fate", "examples", "scripts", "deploy"],
    "imports": ["lint-imports", "--no-cache"],
}
TYPES = "types"
"""The check that takes half a minute of one core: it runs beside what makes the environment of Python 3.10."""
KINDS = ("unit", "property", "conformance", "matrix", "fault", "fate", "nic", "bench")
AUDIT = "audit"
"""The step that looks the locked packages up for known weaknesses."""
PYTHON310 = "python310"
"""The step that runs some of them on Python 3.10, in the environment that FATE's guide makes."""
ON_PYTHON310: dict[str, dict[str, str]] = {
    "unit": {"fate": "tests/fate/test_fate_flow.py", "unit": "tests/unit"},
    "property": {"property": "tests/property"},
    "conformance": {"conformance": "tests/conformance"},
}
"""Its runs, by the kind that says how their tests run beside each other, and what they run of which kinds. One job is
enough to see that FATE takes the backend there. It takes minutes of little more than a core, so it begins first, and
unit tests run beside it."""
SWEEPS_ON_PYTHON310 = frozenset({"property"})
"""Of these, only with sweeps: random histories of code that all other tests run there as well."""
TOOLS_OF_DEVELOPERS = ("tests/unit/deploy", "tests/unit/docs", "tests/unit/scripts", "tests/unit/support")
"""Not run on Python 3.10, for nothing of what they test is in the wheel."""
LEFT_AFTER_PYTHON310: dict[str, tuple[str, ...]] = {
    "unit": TOOLS_OF_DEVELOPERS,
    "conformance": (),
    "fate": ("tests/fate", "--ignore=tests/fate/test_fate_flow.py"),
}
"""What is left of these kinds when they have run on Python 3.10, which is FATE's: faults, property tests and all that
starts processes run the same code in the development environment."""
SLOWEST = ("--durations=10", "--durations-min=10")
"""The tests of a step that take long stand at its end, in seconds: where to look when all of them take too long."""
SIDE_BY_SIDE: dict[str, str] = {
    "unit": "worksteal",
    "property": "worksteal",
    "conformance": "worksteal",
    "matrix": "worksteal",
    "fault": "worksteal",
    "nic": "worksteal",
    # what the tests of a group look at is made once for all of them, and takes a minute or more
    "fate": "loadgroup",
    "bench": "loadgroup",
}
"""Kinds whose tests may run beside each other, but for those marked `alone`, and how they are dealt out."""
MOST_WORKERS = 4
WORKERS_FOR_A_CORE: dict[str, float] = {"conformance": 2.0, "fault": 1.5}
"""Kinds whose tests wait for a good part of their time, and leave a core idle meanwhile. In real time they have to keep
limits, so no more than that; guests of nic had too little with 1.5. Those of the others compute: one worker for a core,
and never more than MOST_WORKERS."""
LIMIT_SECONDS: dict[str, float] = {"fate": 1500.0, "nic": 1500.0, "demo": 900.0}
DEFAULT_LIMIT_SECONDS = 600.0
"""A step that prints nothing for so long is stopped; how long it takes in all depends on the machine. Some tests take
minutes, and those that start FATE processes a quarter of an hour, without a word."""
LOOK_SECONDS = 0.1
"""Between two looks at whether a silent step has ended."""
FAST_MARKERS = "not fate and not slow"
PYTEST_NO_TESTS = 5
NONE_SELECTED = "none selected"
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""What the steps do without: tests start some thousand interpreters, each of which would compile anew what it imports.
That is half of the time that the import of a gateway or of torch takes."""
_ALONE = re.compile(r"^(@|pytestmark\b.*)pytest\.mark\.alone\b", re.MULTILINE)
"""Where a file marks tests so: not where it writes down what one looks like."""
SOURCES = ("fedrdma_fate", "deploy", "examples", "scripts", "tests")
COMPILED_BY_PYTEST = r"/test_[^/]*\.py$"
"""Which has bytecode of its own for them, with what its asserts say."""


def run_limited(command: Sequence[str], limit: float, environment: dict[str, str]) -> int | None:
    """Run a command with its output on ours; its exit code, or None when it was stopped after `limit` silent seconds.

    What it started ends with it.
    """
    process = _start(command, environment, subprocess.PIPE)
    assert process.stdout is not None
    try:
        return process.wait() if _pass_on(process, process.stdout.fileno(), limit) else None
    finally:
        _end_group(process)
        process.stdout.close()


def _start(command: Sequence[str], environment: dict[str, str], output: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """With a session, and so a process group, of its own, so that what it started can be ended with it."""
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _pass_on(process: subprocess.Popen[bytes], output: int, limit: float) -> bool:
    """Print what a command prints until it ends; False when it is silent for too long."""
    heard = time.monotonic()
    poll = select.poll()
    poll.register(output, select.POLLIN)
    while True:
        ready = poll.poll(LOOK_SECONDS * 1000)
        if ready and (block := os.read(output, 65536)):
            sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
            heard = time.monotonic()
            continue
        # what it started may have its output open still, or it has closed its own
        if process.poll() is not None:
            return True
        if time.monotonic() - heard > limit:
            return False
        if ready:
            time.sleep(LOOK_SECONDS)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    os.killpg(process.pid, 15)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()


class Begun:
    """A check that runs beside other steps, and is asked for later."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 read when the check is asked for
        self._process = _start(command, environment, self._output)

    def wait(self, limit: float) -> int | None:
        """Print what it has printed; its exit code, or None when it was stopped after so many seconds more."""
        try:
            code: int | None = self._process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        self.end()
        with self._output:
            self._output.seek(0)
            sys.stdout.buffer.write(self._output.read())
        sys.stdout.buffer.flush()
        return code

    def end(self) -> None:
        """It is not waited for any more."""
        _end_group(self._process)


class Runner:
    """Runs the chosen steps and keeps what came of each."""

    def __init__(
        self,
        *,
        fast: bool,
        pytest_arguments: Sequence[str],
        required: Sequence[str] = (),
        sweeps: bool = False,
        python: Path | None = None,
        report_prefix: str = "",
    ) -> None:
        """
        Args:
            fast: leave out what is marked as slow, or as running FATE.
            pytest_arguments: for every run of pytest.
            required: steps that fail where no test ran.
            sweeps: also run what is marked as one.
            python: runs the tests, `.venv`'s when None.
            report_prefix: of the names of the reports.
        """
        self.fast = fast
        self.required = frozenset(required)
        self.sweeps = sweeps
        self.pytest_arguments = list(pytest_arguments)
        self.outcomes: list[Outcome] = []
        self._failures: list[Failure] = []
        self._ran_on_python310: set[str] = set()
        self._begun: dict[str, Begun] = {}
        self.python = python or PYTHON
        self.report_prefix = report_prefix
        self.environment = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
        # not resolved to the end: the interpreter of an environment is a link to one outside
        self.environment["PATH"] = f"{self.python.parent.resolve()}{os.pathsep}{self.environment.get('PATH', '')}"

    def run(self, name: str) -> None:
        """Run one step by its name; a failure is recorded, never raised."""
        say(f"\n==> {name}")
        started = time.monotonic()
        self._failures = []
        if name in self._ran_on_python310:
            counts, note = self._left_after_python310(name)
        elif name in KINDS:
            counts, note = self._as_required(name, *self._pytest(name, f"tests/{name}"))
        elif name == AUDIT:
            counts, note = self._audit()
        elif name == PYTHON310:
            counts, note = self._as_required(name, *self._python310())
        else:
            counts, note = self._command(name)
        self.outcomes.append(Outcome(name, counts, time.monotonic() - started, note, tuple(self._failures)))

    def begin(self, name: str) -> None:
        """Have a static check run beside the steps before it."""
        self._begun[name] = Begun(STATIC[name], self.environment)

    def end(self) -> None:
        """What was begun, and never asked for, goes on no longer."""
        while self._begun:
            self._begun.popitem()[1].end()

    def _command(self, name: str) -> tuple[Counts, str]:
        command = STATIC.get(name, ["scripts/demo", "--preset", "tiny"])
        begun = self._begun.pop(name, None)
        limit = self._limit(name)
        code = run_limited(command, limit, self.environment) if begun is None else begun.wait(limit)
        note = "" if code == 0 else self._problem(name, code)
        return Counts(passed=int(code == 0), failed=int(code != 0)), note

    def _audit(self) -> tuple[Counts, str]:
        try:
            with only_one(ROOT):
                findings = audit(ROOT)
        except NoAdvisoriesError as reason:
            say(f"not audited: {reason}")
            return Counts(), f"not audited: {reason}"
        except CommandError as error:
            fail(error)
            return Counts(failed=1), "not audited"
        for finding in findings:
            say(f"    {finding}")
        return Counts(passed=int(not findings), failed=len(findings)), ""

    def _python310(self) -> tuple[Counts, str]:
        """Some kinds of tests on Python 3.10; that FATE takes the wheel there, unchanged itself, counts as one more."""
        site = Python310(Path.cwd())
        try:
            with only_one(site.root):
                site.provide()
        except PythonAbsentError as reason:
            say(f"python 3.10: {reason}")
            return Counts(), f"python 3.10: {reason}"
        except CommandError as error:
            fail(error)
            return Counts(failed=1), "not installed"
        inner = Runner(
            fast=False,
            pytest_arguments=[*(f"--ignore={path}" for path in TOOLS_OF_DEVELOPERS), *self.pytest_arguments],
            sweeps=self.sweeps,
            python=site.python,
            report_prefix=f"{PYTHON310}-",
        )
        counts, notes = Counts(passed=1), []
        for kind, every in ON_PYTHON310.items():
            if kind in SWEEPS_ON_PYTHON310 and not self.sweeps:
                continue
            paths = {each: path for each, path in every.items() if Path(path).exists()}
            what = ", ".join(paths.values())
            say(f"\n==> {PYTHON310}: {what}")
            started = time.monotonic()
            more, note = inner._pytest(kind, *paths.values())
            say(f"{PYTHON310}: {what}: {more} in {time.monotonic() - started:.1f} s")
            counts += more
            self._failures += inner._failures
            inner._failures = []
            notes += [f"{kind}: {note}"] if note else []
            if not note and more.passed and not self.sweeps:
                self._ran_on_python310.update(paths)
        return counts, "; ".join(notes)

    def _left_after_python310(self, kind: str) -> tuple[Counts, str]:
        """What Python 3.10 has not run of a kind; where it failed to, the kind is run as if it had not tried."""
        left = LEFT_AFTER_PYTHON310[kind]
        counts, note = self._pytest(kind, *left) if left else (Counts(), "")
        return counts, note or "the others ran on Python 3.10"

    def _pytest(self, kind: str, *paths: str) -> tuple[Counts, str]:
        if not any(Path(path).is_file() or any(Path(path).rglob("test_*.py")) for path in paths):
            return Counts(), "no tests of this kind"
        if kind not in SIDE_BY_SIDE:
            return self._pytest_run(kind, paths, kind, ())
        workers = f"--numprocesses={workers_for(kind, len(os.sched_getaffinity(0)))}"
        together, note = self._pytest_run(kind, paths, kind, ("not alone",), workers, f"--dist={SIDE_BY_SIDE[kind]}")
        if not any(_some_run_alone(Path(path)) for path in paths):
            return together, note
        alone, note_alone = self._pytest_run(kind, paths, f"{kind}-alone", ("alone",))
        if NONE_SELECTED in (note, note_alone):
            return together + alone, note if note_alone == NONE_SELECTED else note_alone
        return together + alone, note or note_alone

    def _pytest_run(
        self, kind: str, paths: Sequence[str], name: str, markers: Sequence[str], *options: str
    ) -> tuple[Counts, str]:
        report = REPORTS / f"{self.report_prefix}{name}.xml"
        left_out = [FAST_MARKERS] if self.fast else []
        left_out += [] if self.sweeps else ["not sweep"]
        expression = " and ".join([*markers, *left_out])
        command = [str(self.python), "-u", "-m", "pytest", *paths, f"--junitxml={report}", *SLOWEST, "-m", expression]
        if sys.stdout.isatty():
            command.append("--color=yes")
        code = run_limited([*command, *options, *self.pytest_arguments], self._limit(kind), self.environment)
        counts = read_junit(report)
        self._failures += read_failures(report)
        if code == PYTEST_NO_TESTS:
            return counts, NONE_SELECTED
        if code == 0:
            return counts, ""
        return counts.with_a_failure(), self._problem(kind, code)

    def _as_required(self, kind: str, counts: Counts, note: str) -> tuple[Counts, str]:
        if kind not in self.required or counts.passed or counts.failed:
            return counts, note
        return counts.with_a_failure(), note or "required, but all were skipped"

    def _limit(self, name: str) -> float:
        return LIMIT_SECONDS.get(name, DEFAULT_LIMIT_SECONDS)

    def _problem(self, name: str, code: int | None) -> str:
        return f"stopped after {self._limit(name):.0f} s without a word" if code is None else f"exit code {code}"


def workers_for(kind: str, cores: int) -> int:
    """How many tests of a kind run beside each other on so many cores."""
    return min(int(cores * WORKERS_FOR_A_CORE.get(kind, 1.0)), MOST_WORKERS)


def compile_sources(environment: Mapping[str, str]) -> None:
    """Compile the tree once: guests of the testbed see the machine's files, and what they write is lost with them."""
    # by all cores; a file that does not compile is for the steps to tell
    command = [str(PYTHON), "-m", "compileall", "-qq", "-j", "0", "-x", COMPILED_BY_PYTEST, *SOURCES]
    subprocess.run(command, env=environment, check=False)


def _some_run_alone(path: Path) -> bool:
    """Whether a test there is marked so: to have pytest find out that none is takes as long as to collect them all."""
    files = [path] if path.is_file() else path.rglob("*.py")
    return any(_ALONE.search(file.read_text()) for file in files)


def chosen_steps(only: Sequence[str], *, fast: bool, with_demo: bool) -> list[str]:
    """The steps to run, in order."""
    every = [*(name for name in STATIC if name != TYPES), AUDIT, PYTHON310, TYPES, *KINDS, "demo"]
    if only:
        return [name for name in every if name in only]
    left_out = {"fate", PYTHON310} if fast else set()
    left_out |= set() if with_demo else {"demo"}
    return [name for name in every if name not in left_out]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/test",
        description="Set up .venv, then run ruff, mypy, import-linter, pip-audit and pytest. A failed step does not "
        "stop the others; the summary at the end names each, and its last line counts them all. The step python310 "
        "makes .venv-py310, FATE on Python 3.10 as its guide installs it, where a Python 3.10 is found "
        "(PYTHON310=/path/to/python3.10 names one), and runs unit and conformance tests of what is in the wheel and "
        "one FATE job there. What ran there is not run once more in .venv, but with --sweeps.",
        epilog="What follows -- goes to every pytest run, for example:  scripts/test --only unit -- -k trace -x  "
        "(with --numprocesses=0 no test runs beside another)",
    )
    parser.add_argument(
        "--fast", action="store_true", help="leave out what starts FATE processes or is marked slow, and Python 3.10"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="KIND",
        choices=[*STATIC, AUDIT, *KINDS, PYTHON310, "demo"],
        help=f"only this step; may be repeated: {', '.join([*STATIC, AUDIT, *KINDS, PYTHON310, 'demo'])}",
    )
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="KIND",
        choices=[*KINDS, PYTHON310],
        help="fail when no test of this kind really ran, for example because all were skipped; may be repeated",
    )
    parser.add_argument(
        "--sweeps", action="store_true", help="also the tests of every combination, which take many minutes more"
    )
    parser.add_argument("--with-demo", action="store_true", help="also run scripts/demo on its smallest preset")
    parser.add_argument("pytest_arguments", nargs="*", metavar="-- ARGUMENT", help="arguments for pytest")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    os.chdir(ROOT)
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    started = time.monotonic()
    runner = Runner(
        fast=options.fast, pytest_arguments=options.pytest_arguments, required=options.require, sweeps=options.sweeps
    )
    interrupted = False
    try:
        compile_sources(runner.environment)
        steps = chosen_steps(options.only, fast=options.fast, with_demo=options.with_demo)
        for name in steps:
            if name == PYTHON310 and TYPES in steps:
                runner.begin(TYPES)
            runner.run(name)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        runner.end()
    if told := failed_tests(runner.outcomes):
        say(told)
    say(summary(runner.outcomes) + ("\ninterrupted: the steps after these did not run" if interrupted else ""))
    say(closing_line(runner.outcomes, time.monotonic() - started))
    return 0 if not interrupted and all(outcome.good for outcome in runner.outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
