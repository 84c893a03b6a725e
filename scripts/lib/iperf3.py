"""Puts Debian's iperf3 into `.venv` where the machine has none. Only some rows of `fedrdma bench wan` want it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from scripts.lib import debian
from scripts.lib.debian import PackageUnavailableError

PACKAGES = ("iperf3", "libiperf0", "libsctp1")
_HOME = "lib/iperf3"

_STARTER = """\
#!/bin/sh
# Debian's iperf3 with its libraries, unpacked by scripts/setup of fedrdma-fate
home=$(dirname -- "$0")/../{home}
LD_LIBRARY_PATH=$home${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}} exec "$home/iperf3" "$@"
"""


def is_there(venv: Path) -> bool:
    """Whether the machine or the environment has it."""
    return shutil.which("iperf3") is not None or (venv / "bin" / "iperf3").exists()


def provide(venv: Path) -> str:
    """Put it into a virtual environment; a few words on where it came from.

    Raises:
        PackageUnavailableError: it cannot be had here.
    """
    with tempfile.TemporaryDirectory() as scratch:
        debian.fetch(PACKAGES, Path(scratch))
        install(Path(scratch), venv)
    return "Debian's, unpacked into .venv"


def install(packages: Path, venv: Path) -> None:
    """Unpack the .deb files of a directory into a virtual environment, and leave nothing there if it does not run.

    Raises:
        PackageUnavailableError: iperf3 is not among them, or does not run.
    """
    root, home, starter = debian.unpack(packages), venv / _HOME, venv / "bin" / "iperf3"
    program = root / "usr/bin/iperf3"
    if not program.is_file():
        raise PackageUnavailableError("Debian's package has another layout")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    shutil.copy(program, home / "iperf3")
    debian.copy_libraries(root, home)
    starter.write_text(_STARTER.format(home=_HOME))
    starter.chmod(0o755)
    if subprocess.run([starter, "--version"], check=False, capture_output=True).returncode:
        starter.unlink()
        shutil.rmtree(home)
        raise PackageUnavailableError("Debian's package does not run here")
