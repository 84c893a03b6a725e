"""What came of the steps of `scripts/test`, and how it is told."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

MOST_FAILURES = 20
"""Failed tests that are told once more at the end; more have one cause, mostly."""
MOST_REASON = 1500
"""Characters of the reason of one: what an assertion compared, but not all of two long lists."""


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """Tests by result. A check that is no test (ruff, mypy, …) counts as one."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def with_a_failure(self) -> Counts:
        """These counts, with one failure at least: for a run that failed without a failed test."""
        return dataclasses.replace(self, failed=max(self.failed, 1))

    def __str__(self) -> str:
        named = ((self.failed, "failed"), (self.passed, "passed"), (self.skipped, "skipped"))
        return ", ".join(f"{count} {name}" for count, name in named if count) or "no tests ran"


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed, and the reason that pytest gave."""

    test: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One step: its counts, how long it took in seconds, a word where there is something to say, and what failed."""

    name: str
    counts: Counts
    seconds: float
    note: str = ""
    failures: tuple[Failure, ...] = ()

    @property
    def good(self) -> bool:
        return self.counts.failed == 0


def read_junit(report: Path) -> Counts:
    """The counts in a JUnit file that pytest wrote; none when it was stopped before it could."""
    try:
        suites = ElementTree.parse(report).getroot().iter("testsuite")  # noqa: S314 - pytest wrote it
        return sum((_suite_counts(suite) for suite in suites), Counts())
    except (OSError, ElementTree.ParseError):
        return Counts()


def read_failures(report: Path) -> tuple[Failure, ...]:
    """The tests that failed, from a JUnit file that pytest wrote; none when it was stopped before it could."""
    try:
        cases = ElementTree.parse(report).getroot().iter("testcase")  # noqa: S314 - pytest wrote it
        return tuple(failure for case in cases for failure in _failures_of(case))
    except (OSError, ElementTree.ParseError):
        return ()


def _failures_of(case: ElementTree.Element) -> list[Failure]:
    test = f"{case.get('classname', '')}::{case.get('name', '')}".removeprefix("::")
    return [Failure(test, found.get("message", "")) for kind in ("failure", "error") for found in case.findall(kind)]


def _suite_counts(suite: ElementTree.Element) -> Counts:
    total, skipped = int(suite.get("tests", "0")), int(suite.get("skipped", "0"))
    failed = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
    return Counts(passed=max(0, total - failed - skipped), failed=failed, skipped=skipped)


def summary(outcomes: Sequence[Outcome]) -> str:
    """A table of all steps."""
    lines = ["", f"{'step':<13}{'result':<9}{'seconds':>8}  counts"]
    for outcome in outcomes:
        result = "ok" if outcome.good else "FAILED"
        note = f" ({outcome.note})" if outcome.note else ""
        lines.append(f"{outcome.name:<13}{result:<9}{outcome.seconds:>8.1f}  {outcome.counts}{note}")
    return "\n".join(lines)


def failed_tests(outcomes: Sequence[Outcome]) -> str:
    """Which tests failed, and why, so that who sees only the end of the output knows; empty where none did."""
    failures = [(outcome.name, failure) for outcome in outcomes for failure in outcome.failures]
    lines = [line for name, failure in failures[:MOST_FAILURES] for line in _told(name, failure)]
    if len(failures) > MOST_FAILURES:
        lines.append(f"… and {len(failures) - MOST_FAILURES} more")
    return "\n".join(["", "failed tests:", *lines]) if lines else ""


def _told(step: str, failure: Failure) -> list[str]:
    reason = failure.reason[:MOST_REASON].splitlines()
    return [f"  {step}: {failure.test}", *(f"      {line}" for line in reason)]


def closing_line(outcomes: Sequence[Outcome], seconds: float) -> str:
    """The last line, as pytest writes it, over all steps."""
    total = sum((outcome.counts for outcome in outcomes), Counts())
    return f"{f' {total} in {seconds:.2f}s ':=^79}"
