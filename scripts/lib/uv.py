"""Drives uv inside a virtual environment, with this machine's own index settings."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.lib.console import CommandError, say
from scripts.lib.indexes import read_pip_config, uv_environment, uv_flags

ATTEMPTS = 3
PAUSE_SECONDS = 5.0

_NETWORK_REMEDY = """\
Look at the messages above. If a download failed: check the network and run the command again, it goes on from there.
If this machine reaches packages through an index or mirror of its own, tell pip once:
  pip config set global.index-url URL
If a source package failed to build: apt-get install build-essential python3.11-dev"""


def lock_entry(lock: str, name: str) -> str:
    """The lines of one package in a lock file, its hashes included.

    Raises:
        CommandError: the lock does not name it.
    """
    entry = re.search(rf"^{re.escape(name)}==[^\n]*(?:\n[ \t]+[^\n]*)*", lock, flags=re.MULTILINE)
    if entry is None:
        raise CommandError(f"requirements.lock does not name {name}.", "Write it anew:  scripts/lock")
    return entry.group() + "\n"


def run_with_retries(command: Sequence[str], environment: dict[str, str], what: str) -> None:
    """Run a command that uses the network, up to ATTEMPTS times.

    Raises:
        CommandError: every attempt failed.
    """
    for attempt in range(1, ATTEMPTS + 1):
        if subprocess.run(command, check=False, env=environment, stdin=subprocess.DEVNULL).returncode == 0:
            return
        if attempt < ATTEMPTS:
            pause = PAUSE_SECONDS * attempt
            say(f"    {what} failed; attempt {attempt + 1} of {ATTEMPTS} in {pause:g} s")
            time.sleep(pause)
    raise CommandError(f"{what} failed {ATTEMPTS} times.", _NETWORK_REMEDY)


class Uv:
    """uv, for the virtual environment of `python`; it lies there too, unless said otherwise."""

    def __init__(self, python: Path, program: Path | None = None) -> None:
        self.python = python
        self.program = program or python.parent / "uv"

    def install(self, entry: str) -> None:
        """Put uv itself there, with pip, by the lines that lock it.

        Raises:
            CommandError: pip could not.
        """
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
            requirements.write(entry)
            requirements.flush()
            options = ["--quiet", "--no-deps", "--require-hashes", "--disable-pip-version-check"]
            command = [str(self.python), "-m", "pip", "install", *options, "-r", requirements.name]
            run_with_retries(command, dict(os.environ), "installing uv")

    def sync(self, lock: Path, build_lock: Path | None = None) -> None:
        """Make the environment hold exactly what the lock names, hashes checked, also of what builds sources.

        Args:
            lock: what to install.
            build_lock: names what builds sources, where `lock` does not.

        Raises:
            CommandError: it could not after several attempts.
        """
        options = ["--require-hashes", "--require-build-hashes", "--preview-features=build-dependency-hashes"]
        options.append(f"--build-constraints={build_lock or lock}")
        run_with_retries(*self._pip("sync", *options, str(lock)), "installing the locked packages")

    def add(self, lock: Path) -> None:
        """Install what a lock names beside what is there, hashes checked.

        Raises:
            CommandError: it could not after several attempts.
        """
        options = ["--quiet", "--no-deps", "--require-hashes", f"--requirements={lock}"]
        run_with_retries(*self._pip("install", *options), "installing the locked packages")

    def put(self, lock: Path, directory: Path) -> None:
        """Put what a lock names into a directory of its own, hashes checked; nothing is built.

        Raises:
            CommandError: it could not after several attempts.
        """
        options = ["--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", f"--requirements={lock}"]
        run_with_retries(*self._pip("install", f"--target={directory}", *options), "installing the locked packages")

    def install_wheel(self, wheel: Path) -> None:
        """Install one wheel, replacing an earlier one of the same name; nothing is fetched.

        Raises:
            CommandError: it could not.
        """
        command = [str(self.program), "pip", "install", f"--python={self.python}"]
        command += ["--quiet", "--no-deps", "--no-index", "--reinstall", str(wheel)]
        if subprocess.run(command, check=False).returncode:
            raise CommandError(f"installing {wheel.name} failed.", "Remove .venv and run scripts/setup again.")

    def compile(self, *arguments: str) -> None:
        """`uv pip compile` with these arguments.

        Raises:
            CommandError: it could not after several attempts.
        """
        run_with_retries(*self._pip("compile", *arguments), "resolving the dependencies")

    def _pip(self, subcommand: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
        pip = read_pip_config(self.python)
        environment = dict(os.environ) | uv_environment(pip, os.environ)
        where = [] if subcommand == "compile" else [f"--python={self.python}"]
        return [str(self.program), "pip", subcommand, *where, *uv_flags(pip), *arguments], environment
