"""Programs of Debian packages, unpacked into a virtual environment with their libraries: no root, nothing installed."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.lib import debian
from scripts.lib.debian import PackageUnavailableError

_STARTER = """\
#!/bin/sh
# Debian's {name} with its libraries, unpacked by scripts/setup of fedrdma-fate
home=$(dirname -- "$0")/../{home}
LD_LIBRARY_PATH=$home${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}} exec "$home/{name}" "$@"
"""


@dataclasses.dataclass(frozen=True, slots=True)
class UnpackedProgram:
    """One program.

    Attributes:
        name: of it.
        packages: that hold it and its libraries.
        place: of the program in the packages.
        trial: arguments with which it shows that it runs.
        trial_status: with which it ends then.
        system_path: where the machine's own may be beside the user's path.
    """

    name: str
    packages: Sequence[str]
    place: str
    trial: Sequence[str]
    trial_status: int = 0
    system_path: str = ""

    def is_there(self, venv: Path) -> bool:
        """Whether the machine or the environment has it."""
        on_path = shutil.which(self.name) or shutil.which(self.name, path=self.system_path)
        return on_path is not None or (venv / "bin" / self.name).exists()

    def provide(self, venv: Path) -> str:
        """Put it into a virtual environment; a few words on where it came from.

        Raises:
            PackageUnavailableError: it cannot be had here.
        """
        with tempfile.TemporaryDirectory() as scratch:
            debian.fetch(self.packages, Path(scratch))
            self.install(Path(scratch), venv)
        return "Debian's, unpacked into .venv"

    def install(self, packages: Path, venv: Path) -> None:
        """Unpack the .deb files of a directory into a virtual environment, and leave nothing there if it does not run.

        Raises:
            PackageUnavailableError: the program is not among them, or does not run.
        """
        at = f"lib/{self.name}"
        root, home, starter = debian.unpack(packages), venv / at, venv / "bin" / self.name
        program = root / self.place
        if not program.is_file():
            raise PackageUnavailableError("Debian's package has another layout")
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        shutil.copy(program, home / self.name)
        debian.copy_libraries(root, home)
        starter.write_text(_STARTER.format(name=self.name, home=at))
        starter.chmod(0o755)
        if subprocess.run([starter, *self.trial], check=False, capture_output=True).returncode != self.trial_status:
            starter.unlink()
            shutil.rmtree(home)
            raise PackageUnavailableError("Debian's package does not run here")
