"""Finds a User Mode Linux kernel with Soft-RoCE for the testbed."""

from __future__ import annotations

import lzma
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from deploy.softroce.errors import NoKernelError

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "testbed"
VARIABLE = "FEDRDMA_TESTBED_KERNEL"
FLAVOURS = ("nic", "stock")
"""`nic`: queue pairs have a window like a network card's; `stock`: Soft-RoCE's own, 128 packets."""


def cached_kernel(flavour: str, cache: Path = CACHE) -> Path:
    """Where a kernel of this flavour lies once it was built or unpacked."""
    return cache / f"linux-uml-{flavour}"


def find_kernel(
    choice: str, *, environment: Mapping[str, str] = os.environ, root: Path = ROOT, cache: Path = CACHE
) -> Path:
    """The kernel to boot: by its path, from $FEDRDMA_TESTBED_KERNEL, built here, or ready beside the repository.

    Args:
        choice: a flavour, or the path of a kernel.

    Raises:
        NoKernelError: there is none; says how to get one.
    """
    if choice not in FLAVOURS:
        return _usable(Path(choice), "--kernel")
    named = environment.get(VARIABLE)
    if named:
        return _usable(Path(named), VARIABLE)
    kernel = cached_kernel(choice, cache)
    if not kernel.exists():
        packed = next(_packed(choice, root), None)
        if packed is None:
            raise NoKernelError(
                f"there is no {choice} kernel for the testbed.",
                f"Build one (about 16 minutes of one core):  scripts/testbed build-kernel\n"
                f"or name one:  {VARIABLE}=/path/to/linux",
            )
        _unpack(packed, kernel)
    return kernel


def _usable(kernel: Path, source: str) -> Path:
    if not os.access(kernel, os.X_OK) or kernel.is_dir():
        raise NoKernelError(f"{kernel} ({source}) is no program.", "Name a User Mode Linux kernel, made executable.")
    return kernel.resolve()


def _packed(flavour: str, root: Path) -> Iterator[Path]:
    for path in sorted((root.parent / "shared" / "testbed").glob("linux-uml-*.xz"), reverse=True):
        if path.stem.endswith("-nic") == (flavour == "nic"):
            yield path


def _unpack(packed: Path, kernel: Path) -> None:
    kernel.parent.mkdir(parents=True, exist_ok=True)
    temporary = kernel.with_name(f"{kernel.name}.{os.getpid()}")
    with lzma.open(packed) as source, temporary.open("wb") as target:
        shutil.copyfileobj(source, target)
    temporary.chmod(0o755)
    temporary.replace(kernel)
