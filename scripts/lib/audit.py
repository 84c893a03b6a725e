"""The step `audit` of `scripts/test`: known weaknesses of the locked packages, by pip-audit.

pip-audit has an environment of its own, `.venv-audit`, since FATE pins a `requests` that it cannot live with. What it
finds in a package that a gateway runs fails the step. FATE and FATE-LLM pin the others; what is known of those is
printed, for whoever runs them to judge; so is what is known of aioquic, which benchmarks alone run.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from scripts.lib import aioquic, system
from scripts.lib.console import CommandError, say, step
from scripts.lib.stamps import Stamp, digest_files
from scripts.lib.uv import Uv

TOOL = "pip-audit>=2.7,<3"
CANARY = "requests==2.19.0"
"""A release with weaknesses that have been public since 2018 (CVE-2018-18074): who knows none of it knows nothing."""
EXPLAINED: Mapping[str, str] = {}
"""Findings in a gateway's packages that do not concern it: their name, and why."""
LIMIT_SECONDS = 300.0
"""One question for each of some 200 packages takes seconds; an index that does not answer must not hold the tests."""


class NoAdvisoriesError(Exception):
    """Nobody here knows of weaknesses; says what was asked."""


@dataclass(frozen=True)
class Finding:
    """One known weakness of one locked release."""

    package: str
    version: str
    name: str
    fixed_in: Sequence[str]

    def __str__(self) -> str:
        fix = f"mended in {', '.join(self.fixed_in)}" if self.fixed_in else "not mended in any release"
        return f"{self.package} {self.version}: {self.name}, {fix}"


def audit(root: Path) -> list[Finding]:
    """Look every locked package up; prints what concerns FATE's own pins and QUIC, and gives what concerns a gateway.

    Raises:
        NoAdvisoriesError: the index of this machine has no word on weaknesses, not even on notorious ones.
        CommandError: pip-audit cannot be installed, or does not run.
    """
    program = _provide(root)
    if not _ask(program, f"{CANARY}\n"):
        raise NoAdvisoriesError(
            f"the package index of this machine knows of no weakness in {CANARY}, so it knows of none"
        )
    for finding in _ask(program, newest_pins((root / aioquic.LOCK).read_text())):
        say(f"    of QUIC in benchmarks: {finding}")
    findings = _ask(program, pins((root / "requirements.lock").read_text()))
    ours = gateway_packages()
    for finding in findings:
        if finding.package not in ours:
            say(f"    pinned by FATE or FATE-LLM: {finding}")
        elif finding.name in EXPLAINED:
            say(f"    {finding}: {EXPLAINED[finding.name]}")
    return [finding for finding in findings if finding.package in ours and finding.name not in EXPLAINED]


def pins(lock: str) -> str:
    """`name==version` of each package in a lock file, a line each."""
    return "".join(f"{pin}\n" for pin in re.findall(r"^([a-z0-9._-]+==[^\s;]+)", lock, flags=re.MULTILINE))


def newest_pins(lock: str) -> str:
    """The same of a lock for several Pythons: of each package the last line, that of the newest."""
    by_name = {pin.partition("==")[0]: pin for pin in pins(lock).splitlines()}
    return "".join(f"{pin}\n" for pin in by_name.values())


def gateway_packages(package: str = "fedrdma-fate") -> frozenset[str]:
    """What the wheel needs without extras, itself left out: names as a lock file writes them."""
    found: set[str] = set()
    waiting = [package]
    while waiting:
        for requirement in _requirements(waiting.pop()):
            if requirement not in found:
                found.add(requirement)
                waiting.append(requirement)
    return frozenset(found)


def _requirements(package: str) -> Iterable[str]:
    try:
        declared = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        # for another Python or system
        return
    for line in declared:
        if "extra ==" not in line:
            name = re.match(r"[A-Za-z0-9._-]+", line)
            if name:
                yield re.sub(r"[-_.]+", "-", name.group()).lower()


def read_findings(report: str) -> list[Finding]:
    """The findings in what `pip-audit --format json` printed.

    Raises:
        CommandError: it is something else.
    """
    try:
        packages = json.loads(report)["dependencies"]
        return [
            Finding(package["name"], package["version"], found["id"], tuple(found["fix_versions"]))
            for package in packages
            for found in package.get("vulns", ())
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"pip-audit printed what is no report: {report[:200]!r}") from error


def _provide(root: Path) -> Path:
    venv, lock = root / ".venv-audit", root / "requirements-audit.lock"
    python, stamp = venv / "bin" / "python", Stamp(venv / ".fedrdma-setup.json")
    digest = digest_files([lock], root)
    if stamp.read("audit") != digest:
        with step("pip-audit in .venv-audit"):
            system.make_venv(venv)
            Uv(python, root / ".venv" / "bin" / "uv").sync(lock)
            stamp.write({"audit": digest})
    return venv / "bin" / "pip-audit"


def _ask(program: Path, requirements: str) -> list[Finding]:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(requirements)
        file.flush()
        options = [
            "--no-deps",
            "--disable-pip",
            "--format=json",
            "--progress-spinner=off",
            f"--requirement={file.name}",
        ]
        try:
            done = subprocess.run(
                [str(program), *options], check=False, capture_output=True, text=True, timeout=LIMIT_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise NoAdvisoriesError(f"no answer from the package index within {LIMIT_SECONDS:.0f} s") from error
    if not done.stdout.strip():
        raise NoAdvisoriesError((done.stderr.strip().splitlines() or ["pip-audit says nothing"])[-1])
    return read_findings(done.stdout)
