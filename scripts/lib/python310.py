"""`.venv-py310`: FATE on Python 3.10 as its own guide installs it, and this project's wheel put into it by pip.

What pip made of the guide's command is locked in requirements-py310.lock: the same tomorrow, and quick from uv's cache.
Nothing of FATE's may change when the wheel comes: versions, and what `pip check` says.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.lib import system
from scripts.lib.console import CommandError, step
from scripts.lib.interpreters import find_python
from scripts.lib.stamps import Stamp, digest_files, wheel_sources
from scripts.lib.uv import Uv, run_with_retries

VERSION = (3, 10)
GUIDE = "fate_client[fate,fate_flow]==2.2.0"
"""What FATE's guide says to install, after `conda create python=3.10`."""
BUNDLED = "setuptools==65.5.0"
"""Comes with an environment of Python 3.10; FATE Flow imports its `pkg_resources`, which later ones lack."""
TOOLS = ("pytest>=8,<9", "pytest-timeout", "pytest-xdist", "hypothesis", "matplotlib")
"""What the tests need besides the wheel, where requirements.lock may name versions that Python 3.10 is too old for."""

_REMEDY = "Give our dependencies in pyproject.toml bounds that FATE's versions meet."


class PythonAbsentError(Exception):
    """There is no Python 3.10 here; says where it was looked for."""


class Python310:
    """The environment of a repository."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.venv = root / ".venv-py310"
        self.python = self.venv / "bin" / "python"
        self.lock = root / "requirements-py310.lock"
        self.tools_lock = root / "requirements-py310-tests.lock"
        self.development_lock = root / "requirements.lock"
        self.uv = Uv(self.python, root / ".venv" / "bin" / "uv")
        self.stamp = Stamp(self.venv / ".fedrdma-setup.json")

    def provide(self) -> None:
        """Bring it up to date; does nothing where it is.

        Raises:
            PythonAbsentError: no Python 3.10 was found.
            CommandError: something could not be installed, or the wheel changes FATE's environment.
        """
        locks = [self.lock, self.tools_lock, self.development_lock]
        digest = digest_files([*locks, *wheel_sources(self.root)], self.root)
        if system.runs_python(self.python, VERSION) and self.stamp.read("site") == digest:
            return
        interpreter = find_python(VERSION, os.environ)
        if interpreter is None:
            raise PythonAbsentError("not found on PATH, in /usr, pyenv or uv; PYTHON310=/path/to/python3.10 names one")
        self.stamp.clear()
        self._install_fate(interpreter)
        self._install_wheel()
        self._install_tools()
        self.stamp.write({"site": digest})

    def _install_fate(self, interpreter: Path) -> None:
        with step("virtual environment of Python 3.10 in .venv-py310"):
            system.make_venv(self.venv, interpreter, VERSION)
        with step("FATE as its guide installs it, as requirements-py310.lock pins it"):
            self.uv.sync(self.lock, build_lock=self.development_lock)
        with step(f"pip install {GUIDE}: nothing is left to do"), self._nothing_replaced():
            self._pip_install(GUIDE)

    def _install_wheel(self) -> None:
        with step("pip install of the wheel: only adds to FATE's environment"):
            output = self.root / "build" / "wheel-py310"
            wheel = system.build_wheel(self.uv.program.with_name("python"), self.root, output)
            with self._nothing_replaced():
                self._pip_install(str(wheel))

    def _install_tools(self) -> None:
        with step("pytest and what else the tests need"), self._nothing_replaced():
            self.uv.add(self.tools_lock)

    def _pip_install(self, what: str) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
            # versions of what is added; of what FATE has, pip itself has to keep them
            constraints.write(pins_of_others(self.tools_lock.read_text(), self.lock.read_text()))
            constraints.flush()
            command = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            run_with_retries([*command, f"--constraint={constraints.name}", what], _environment(), "pip install")

    @contextmanager
    def _nothing_replaced(self) -> Iterator[None]:
        """After what is done inside, all that was installed is there as it was, and `pip check` says the same.

        Raises:
            CommandError: it is not, or does not.
        """
        packages, complaints = self._pip("freeze", "--all"), self._pip("check")
        yield
        if lost := sorted(set(packages) - set(self._pip("freeze", "--all"))):
            raise CommandError(f"this replaced what FATE had: {', '.join(lost)}.", _REMEDY)
        if (now := self._pip("check")) != complaints:
            raise CommandError(f"pip check says now: {'; '.join(now)}.", _REMEDY)

    def _pip(self, *arguments: str) -> list[str]:
        command = [str(self.python), "-m", "pip", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=_environment())
        if not done.stdout:
            raise CommandError(f"pip {arguments[0]} says nothing: {done.stderr.strip()}")
        return done.stdout.splitlines()


def _environment() -> dict[str, str]:
    # the package's .pth hook must not run in interpreters that install the package
    return {**os.environ, "FEDRDMA_FATE_DISABLE": "1"}


def pins_of_others(lock: str, fate: str) -> str:
    """The pins of a lock, without hashes, of packages that FATE's own lock does not name."""
    theirs = {name for name, _ in _pins(fate)}
    return "".join(f"{name}=={version}\n" for name, version in _pins(lock) if name not in theirs)


def _pins(lock: str) -> Sequence[tuple[str, str]]:
    return re.findall(r"^([a-z0-9-]+)==([^\s;]+)", lock, flags=re.MULTILINE)
