"""Debian packages, fetched and unpacked as any user may: nothing of the machine is changed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

APT_OPTIONS = ("-q", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20")


class PackageUnavailableError(Exception):
    """Something cannot be had from Debian here; says why in a few words."""


def fetch(packages: Sequence[str], directory: Path) -> None:
    """Download packages, without those that they depend on, into a directory.

    Raises:
        PackageUnavailableError: this is no Debian, or the download failed.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise PackageUnavailableError("this is no Debian")
    # apt's own unprivileged user is to write here
    directory.chmod(0o755)
    download = ["apt-get", *APT_OPTIONS, "download", *packages]
    try:
        _quiet(download, "apt-get download failed", directory)
    except PackageUnavailableError:
        if os.geteuid() != 0:
            raise
        # a fresh machine has no package lists yet
        _quiet(["apt-get", *APT_OPTIONS, "update"], "apt-get update failed", directory)
        _quiet(download, "apt-get download failed", directory)


def unpack(directory: Path) -> Path:
    """Unpack the .deb files of a directory over each other; where they lie now.

    Raises:
        PackageUnavailableError: dpkg-deb cannot unpack one.
    """
    root = directory / "root"
    for package in sorted(directory.glob("*.deb")):
        _quiet(["dpkg-deb", "--extract", str(package), str(root)], f"{package.name} cannot be unpacked")
    return root


def copy_libraries(root: Path, target: Path) -> None:
    """Copy the shared libraries of unpacked packages into one directory."""
    for libraries in (*root.glob("lib/*-linux-gnu"), *root.glob("usr/lib/*-linux-gnu")):
        shutil.copytree(libraries, target, symlinks=True, dirs_exist_ok=True)


def _quiet(command: Sequence[str], problem: str, directory: Path | None = None) -> None:
    result = subprocess.run(
        command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=directory
    )
    if result.returncode:
        said = [line for line in result.stderr.splitlines() if line.startswith(("E:", "dpkg-deb: error"))]
        raise PackageUnavailableError(f"{problem}: {said[0]}" if said else problem)
