"""A program that sees a small tmpfs of its own, in a mount namespace that ends with it, and can fill it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT

IN_NAMESPACE = ("unshare", "--map-root-user", "--mount", "sh", "-c")

COMMON = """
import contextlib, os, sys
from pathlib import Path

shared, elsewhere = Path(sys.argv[1]), Path(sys.argv[2])
MIB = 1 << 20

def fill(leave=0):
    '''Take all there is, but for so many bytes.'''
    with (shared / "filler").open("wb", buffering=0) as filler:
        with contextlib.suppress(OSError):
            while filler.write(bytes(4096)):
                pass
        filler.truncate(filler.tell() - leave)
"""


def in_small_tmpfs(tmp_path: Path, program: str, *arguments: str, size: str = "4m") -> list[str]:
    """What a program prints that sees a small tmpfs of its own, in a mount namespace that ends with it."""
    shared, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    shared.mkdir()
    elsewhere.mkdir()
    mount = f"mount -t tmpfs -o size={size} none {shared}"
    if not shutil.which("unshare") or subprocess.run([*IN_NAMESPACE, mount], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted in a user namespace here")
    python = [sys.executable, "-c", COMMON + program, str(shared), str(elsewhere), *arguments]
    done = subprocess.run(
        [*IN_NAMESPACE, f'{mount} && exec "$@"', "sh", *python], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout}{done.stderr[-3000:]}"
    return done.stdout.splitlines()
