"""Finds an interpreter of a certain Python on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from scripts.lib.system import runs_python


def find_python(version: tuple[int, int], environment: Mapping[str, str]) -> Path | None:
    """The first that starts: $PYTHON310 for 3.10, then `python3.10` on PATH, in /usr, of pyenv, and of uv."""
    for candidate in _candidates(version, environment):
        if runs_python(candidate, version):
            return candidate
    return None


def _candidates(version: tuple[int, int], environment: Mapping[str, str]) -> Iterator[Path]:
    major, minor = version
    name = f"python{major}.{minor}"
    if chosen := environment.get(f"PYTHON{major}{minor}"):
        yield Path(chosen)
    for directory in (environment.get("PATH", ""), "/usr/bin", "/usr/local/bin"):
        # a directory without the program, or pyenv's stand-in for a version that is not active, is passed over
        if found := shutil.which(name, path=directory):
            yield Path(found)
    home = environment.get("HOME", "/nonexistent")
    pyenv = Path(environment.get("PYENV_ROOT") or f"{home}/.pyenv", "versions")
    yield from sorted(pyenv.glob(f"{major}.{minor}.*/bin/{name}"), reverse=True)
    data = environment.get("XDG_DATA_HOME") or f"{home}/.local/share"
    uv = Path(environment.get("UV_PYTHON_INSTALL_DIR") or f"{data}/uv/python")
    yield from sorted(uv.glob(f"cpython-{major}.{minor}.*/bin/{name}"), reverse=True)
