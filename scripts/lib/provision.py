"""`scripts/setup`: a virtual environment with everything that requirements.lock names, and this project's wheel.

Safe to repeat: what is up to date is left alone. Standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.lib import aioquic, system, testbed_tools, verbs
from scripts.lib.console import CommandError, fail, say, step
from scripts.lib.debian import PackageUnavailableError
from scripts.lib.iperf3 import IPERF3
from scripts.lib.mosquitto import MOSQUITTO
from scripts.lib.stamps import Stamp, digest_files, wheel_sources
from scripts.lib.uv import Uv, lock_entry

ROOT = Path(__file__).resolve().parents[2]


class Provision:
    """One set-up of the `.venv` in a repository."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.venv = root / ".venv"
        self.python = self.venv / "bin" / "python"
        self.lock = root / "requirements.lock"
        self.stamp = Stamp(self.venv / ".fedrdma-setup.json")

    def run(self) -> None:
        """Bring the environment up to date.

        Raises:
            CommandError: something is missing on this machine, or a download failed.
        """
        lock_digest = digest_files([self.lock], self.root)
        wheel_digest = digest_files(wheel_sources(self.root), self.root)
        usable = self.python.exists() and system.runs_python(self.python, system.LOCKED_PYTHON)
        if not usable or self.stamp.read("lock") != lock_digest:
            self._install_environment()
            self.stamp.write({"lock": lock_digest})
        if self.stamp.read("wheel") != wheel_digest:
            self._install_wheel()
            self.stamp.write({"lock": lock_digest, "wheel": wheel_digest})
        self._provide_pyverbs()
        self._provide_iperf3()
        self._provide_mosquitto()
        self._provide_aioquic()
        self._provide_testbed_tools()

    def _install_environment(self) -> None:
        system.check_platform()
        system.check_room(self.root)
        system.ensure_packages()
        self.stamp.clear()
        with step("virtual environment in .venv"):
            system.make_venv(self.venv)
        uv = Uv(self.python)
        with step("uv, the installer, as locked"):
            uv.install(lock_entry(self.lock.read_text(), "uv"))
        with step("every package of requirements.lock (about 2.5 GB to fetch the first time, 6 GB on disk)"):
            uv.sync(self.lock)

    def _install_wheel(self) -> None:
        with step("fedrdma-fate, built from this tree"):
            output = self.root / "build" / "wheel"
            Uv(self.python).install_wheel(system.build_wheel(self.python, self.root, output))

    def _provide_pyverbs(self) -> None:
        if not verbs.importable(self.python):
            _provide("pyverbs", lambda: verbs.provide(self.python), "everything but RDMA works")

    def _provide_iperf3(self) -> None:
        if not IPERF3.is_there(self.venv):
            without = "fedrdma bench wan leaves out the rows that need it"
            _provide("iperf3", lambda: IPERF3.provide(self.venv), without)

    def _provide_mosquitto(self) -> None:
        if not MOSQUITTO.is_there(self.venv):
            without = "fedrdma bench protocols leaves out the rows that need it"
            _provide("mosquitto", lambda: MOSQUITTO.provide(self.venv), without)

    def _provide_aioquic(self) -> None:
        if not aioquic.is_there(self.venv, self.root):
            without = "fedrdma bench protocols and fate leave out the rows that need it"
            _provide("aioquic", lambda: aioquic.provide(self.venv, self.root), without)

    def _provide_testbed_tools(self) -> None:
        if not testbed_tools.are_there():
            without = "scripts/testbed and the tests in it are left out"
            _provide(testbed_tools.PACKAGE, testbed_tools.provide, without, testbed_tools.remedy())


def _provide(name: str, provide: Callable[[], str], without: str, remedy: str = "") -> None:
    """Put something into the environment that can be done without, and say what came of it."""
    try:
        say(f"==> {name}: {provide()}")
    except (PackageUnavailableError, CommandError) as reason:
        say(f"note: no {name} ({reason}); {without}")
        if remedy:
            say(f"  Run as root:  {remedy}")


@contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Two set-ups of one tree run one after the other."""
    (root / "build").mkdir(exist_ok=True)
    with (root / "build" / "setup.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another set-up of this tree is running; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/setup",
        description="Make .venv with FATE, FATE-LLM, the tools and this project, all as requirements.lock pins them. "
        "Repeat it at will: what is up to date is left alone. Package indexes, find-links and certificates "
        "are taken from pip's settings of this machine (pip config list), or from uv's own UV_* variables.",
        epilog="PYTHON=/path/to/python3.11 chooses the interpreter for a new .venv.",
    )
    parser.parse_args(arguments)
    # the package's .pth hook must not run in interpreters that install the package
    os.environ["FEDRDMA_FATE_DISABLE"] = "1"
    started = time.monotonic()
    try:
        with only_one(ROOT):
            Provision(ROOT).run()
    except CommandError as error:
        return fail(error)
    say(f"set-up is complete: .venv ({time.monotonic() - started:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
