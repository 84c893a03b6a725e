"""What the set-up needs of the machine: its kind, room, Debian packages, a virtual environment, a wheel."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from scripts.lib.console import CommandError, say, step

LOCKED_PYTHON = (3, 11)
"""What requirements.lock was resolved for, and `.venv` is made of."""

ROOM_BYTES = 7 * 2**30
"""What the environment takes on disk, with some slack."""


def check_platform() -> None:
    """The lock file was resolved for one kind of machine.

    Raises:
        CommandError: this is another kind.
    """
    found = f"{platform.system()} {platform.machine()}"
    if found != "Linux x86_64":
        raise CommandError(
            f"requirements.lock is for Linux x86_64, this is {found}.",
            "Use a Linux x86_64 machine, or write the lock anew for this one with scripts/lock.",
        )


def check_room(root: Path) -> None:
    """Warn when the file system of the repository looks too small; packages linked from a cache take less."""
    free = shutil.disk_usage(root).free
    if free < ROOM_BYTES:
        say(f"warning: {free / 2**30:.1f} GiB are free here; the environment takes about {ROOM_BYTES / 2**30:.0f} GiB")


def runs_python(python: Path, version: tuple[int, int]) -> bool:
    """Whether this is an interpreter that starts, and is of this version."""
    check = f"import sys; sys.exit(sys.version_info[:2] != {version!r})"
    try:
        return subprocess.run([python, "-S", "-c", check], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def missing_packages() -> list[str]:
    """Debian packages without which a virtual environment cannot be made or source packages cannot be built."""
    missing = []
    if not (_has_module("venv") and _has_module("ensurepip")):
        missing.append("python3.11-venv")
    if not (shutil.which("gcc") and shutil.which("g++")):
        missing.append("build-essential")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        missing.append("python3.11-dev")
    return missing


def ensure_packages() -> None:
    """Install what `missing_packages` names, when that is possible here.

    Raises:
        CommandError: it is not; says which command to run.
    """
    missing = missing_packages()
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    remedy = f"Run as root:  apt-get update && {' '.join(command)}"
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise CommandError(f"missing on this machine: {', '.join(missing)}.", remedy)
    with step(f"Debian packages {', '.join(missing)}"):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for apt in (["apt-get", "update", "-q"], command):
            if subprocess.run(apt, check=False, env=environment, stdin=subprocess.DEVNULL).returncode:
                raise CommandError(f"{' '.join(apt[:2])} failed.", f"Look at its messages above. {remedy}")
    still = missing_packages()
    if still:
        raise CommandError(
            f"{', '.join(still)} were installed, but {sys.executable} does not find them.",
            "Choose the distribution's own interpreter:  PYTHON=/usr/bin/python3.11 scripts/setup",
        )


def make_venv(venv: Path, interpreter: Path = Path(sys.executable), version: tuple[int, int] = LOCKED_PYTHON) -> None:
    """A virtual environment of an interpreter, with pip; an existing one of this version is kept.

    Raises:
        CommandError: `venv` is something else, or cannot be made.
    """
    if venv.exists() and not (venv / "pyvenv.cfg").exists():
        raise CommandError(f"{venv} exists and is not a virtual environment.", f"Move it away:  mv {venv} {venv}.old")
    kept = runs_python(venv / "bin" / "python", version)
    options = [] if kept else ["--clear"]
    result = subprocess.run([interpreter, "-m", "venv", *options, venv], check=False, capture_output=True, text=True)
    if result.returncode:
        raise CommandError(f"python -m venv failed: {(result.stdout + result.stderr).strip()}")


def build_wheel(python: Path, root: Path, output: Path) -> Path:
    """Build the project's wheel with the locked build backend.

    Raises:
        CommandError: the build failed.
    """
    shutil.rmtree(output, ignore_errors=True)
    command = [str(python), "-m", "hatchling", "build", "-t", "wheel", "-d", str(output)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root)
    wheels = list(output.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        raise CommandError(f"building the wheel failed:\n{(result.stdout + result.stderr).strip()}")
    return wheels[0]


def _has_module(name: str) -> bool:
    """Debian's interpreter has `venv` and `ensurepip` only with its -venv package, so they are really imported."""
    return subprocess.run([sys.executable, "-c", f"import {name}"], check=False, capture_output=True).returncode == 0
