"""Makes Debian's pyverbs importable in `.venv` where it can be had. Without it there is no RDMA, and all else works.

When Debian's package is installed, its directory is linked. When not, the packages are fetched with apt-get, as any
user may, and unpacked into the environment; nothing of the machine is changed.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from scripts.lib import debian
from scripts.lib.debian import PackageUnavailableError

INSTALLED = Path("/usr/lib/python3/dist-packages/pyverbs")
LIBRARY_PACKAGES = {
    "libnl-3.so.200": "libnl-3-200",
    "libnl-route-3.so.200": "libnl-route-3-200",
    "libibverbs.so.1": "libibverbs1",
    "librdmacm.so.1": "librdmacm1",
    "libpython3.11.so.1.0": "libpython3.11",
}
PACKAGES = ("python3-pyverbs", "ibverbs-providers", *LIBRARY_PACKAGES.values())

# becomes pyverbs/__init__.py: runs in the environment's interpreter, without this repository
_LOADER = """\
\"\"\"Debian's pyverbs with the libraries that it needs beside it, unpacked by scripts/setup of fedrdma-fate.\"\"\"

import ctypes
import os
from pathlib import Path


def _load_libraries(directory):
    for name in {libraries!r}:
        try:
            ctypes.CDLL(name)
        except OSError:
            ctypes.CDLL(str(directory / name))
            if name == "libibverbs.so.1":
                # it would look for its providers in /etc/libibverbs.d
                found = sorted(directory.glob("libibverbs/lib*-rdmav*.so"))
                os.environ.setdefault("IBV_DRIVERS", ":".join(str(path).rpartition("-")[0] for path in found))


_load_libraries(Path(__file__).with_name("debian_libraries"))
"""


def importable(python: Path) -> bool:
    """Whether an interpreter can load pyverbs and the libraries under it."""
    code = "import pyverbs.device, pyverbs.qp"
    return subprocess.run([python, "-c", code], check=False, capture_output=True).returncode == 0


def provide(python: Path, installed: Path = INSTALLED) -> str:
    """Make pyverbs importable for a virtual environment's interpreter; a few words on where it came from.

    Raises:
        PackageUnavailableError: it cannot be had here.
    """
    target = _site_packages(python) / "pyverbs"
    _remove(target)
    if installed.is_dir():
        target.symlink_to(installed)
        if importable(python):
            return "Debian's, linked"
        target.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        debian.fetch(PACKAGES, Path(scratch))
        assemble(Path(scratch), target)
    if not importable(python):
        _remove(target)
        raise PackageUnavailableError("Debian's package does not load in this Python")
    return "Debian's, unpacked into .venv"


def assemble(packages: Path, target: Path) -> None:
    """Unpack the .deb files of a directory into one Python package.

    Raises:
        PackageUnavailableError: dpkg-deb cannot unpack them, or pyverbs is not among them.
    """
    root = debian.unpack(packages)
    source = root / "usr/lib/python3/dist-packages/pyverbs"
    if not source.is_dir():
        raise PackageUnavailableError("Debian's package has another layout")
    shutil.copytree(source, target)
    debian.copy_libraries(root, target / "debian_libraries")
    (target / "__init__.py").write_text(_LOADER.format(libraries=tuple(LIBRARY_PACKAGES)))


def _site_packages(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('platlib'))"
    return Path(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip())


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
