"""`scripts/testbed build-kernel`: builds the testbed's kernels from Debian's kernel source."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.softroce import patches
from deploy.softroce.errors import TestbedError
from deploy.softroce.kernel import CACHE, cached_kernel

FRAGMENT = Path(__file__).with_name("uml.config")
SUITE = "trixie-backports"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
"""What Debian's suites are signed with; without this file apt looks into its own trusted keys."""
OLDEST = (7, 3)
"""Older sources build as well, but their Soft-RoCE works in the first network namespace only (seen with 6.12)."""
WINDOWS = {"stock": patches.STOCK_WINDOW_PACKETS, "nic": patches.NIC_WINDOW_PACKETS}

_TOOLS = {
    "make": "make",
    "gcc": "gcc",
    "flex": "flex",
    "bison": "bison",
    "bc": "bc",
    "xz": "xz-utils",
    "dpkg-deb": "dpkg",
    "apt-get": "apt",
}
_PACKAGE = re.compile(r"linux-source-(\d+)\.(\d+)")

Say = Callable[[str], None]


def build(say: Say, *, suite: str, jobs: int, source: Path | None, configure_only: bool, cache: Path = CACHE) -> None:
    """Fetch, patch, configure and compile; the kernels are then found by `find_kernel`.

    Args:
        suite: of Debian, that has a kernel source new enough.
        source: an unpacked kernel source to use, and change, instead of Debian's.
        configure_only: stop before compiling.

    Raises:
        TestbedError: a tool is missing, the source cannot be had, or a step failed.
    """
    missing = [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]
    if missing:
        raise TestbedError(f"missing on this machine: {', '.join(missing)}.", f"apt-get install {' '.join(missing)}")
    tree = source.resolve() if source else fetch_source(say, suite, cache)
    patches.let_unreliable_connections_recover(tree)
    output = cache / "objects"
    say(f"configuring {tree.name}")
    configure(tree, output)
    if configure_only:
        say(f"configured in {output}; not compiled")
        return
    for flavour, window in WINDOWS.items():
        patches.set_window(tree, window)
        say(f"compiling the {flavour} kernel (the first of two takes about 16 minutes of one core)")
        _make(tree, output, f"-j{jobs}", "linux")
        kernel = cached_kernel(flavour, cache)
        _run("strip", "-o", str(kernel), str(output / "linux"))
        say(f"{kernel}")


def configure(tree: Path, output: Path) -> None:
    """Write the configuration, and check that it has what the fragment asks for.

    Raises:
        TestbedError: it has not, or make failed.
    """
    output.mkdir(parents=True, exist_ok=True)
    _make(tree, output, "x86_64_defconfig")
    with (output / ".config").open("a") as configuration:
        configuration.write(FRAGMENT.read_text())
    _make(tree, output, "olddefconfig")
    unset = unmet(FRAGMENT.read_text(), (output / ".config").read_text())
    if unset:
        raise TestbedError(
            f"this kernel source cannot be configured as needed: {', '.join(unset)} did not take.",
            "An option was renamed, or something it depends on is off: see make menuconfig.",
        )


def unmet(fragment: str, configuration: str) -> list[str]:
    """The settings of a fragment that a configuration does not have."""
    settings = set(configuration.splitlines())
    return [line for line in fragment.splitlines() if line.startswith("CONFIG_") and line not in settings]


def fetch_source(say: Say, suite: str, cache: Path) -> Path:
    """Debian's newest kernel source of a suite, unpacked; one that was unpacked before is kept.

    It comes from the mirror that this machine's apt uses, with lists of its own: the machine's stay as they are.

    Raises:
        TestbedError: apt knows no mirror of Debian, or the suite has no source new enough.
    """
    apt = private_apt(suite, cache / "apt", debian_mirror())
    say(f"reading Debian's {suite}")
    _run("apt-get", "-q", *apt, "update")
    package = newest_source(_run("apt-cache", *apt, "pkgnames", "linux-source-").split(), suite)
    tree = cache / package
    if tree.exists():
        return tree
    say(f"fetching {package} (about 170 MB)")
    scratch = cache / "fetch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    _run("apt-get", "-q", *apt, "download", package, directory=scratch)
    _run("dpkg-deb", "--extract", str(next(scratch.glob("*.deb"))), str(scratch / "root"))
    with tarfile.open(next(scratch.glob("root/usr/src/*.tar.xz"))) as archive:
        archive.extractall(scratch, filter="tar")
    (scratch / package).rename(tree)
    shutil.rmtree(scratch)
    return tree


def newest_source(names: Sequence[str], suite: str) -> str:
    """The package with the newest kernel source, out of all names that begin like one.

    Raises:
        TestbedError: none is new enough.
    """
    versions = [tuple(map(int, match.groups())) for match in map(_PACKAGE.fullmatch, names) if match]
    newest = max(versions, default=(0, 0))
    if newest < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise TestbedError(
            f"Debian's {suite} has no linux-source-{wanted} or newer.",
            "Name a newer suite with --suite, or an unpacked kernel source with --source.",
        )
    return f"linux-source-{newest[0]}.{newest[1]}"


def debian_mirror() -> str:
    """Address of the Debian mirror in this machine's apt configuration.

    Raises:
        TestbedError: there is none.
    """
    targets = _run("apt-get", "indextargets", "--format", "$(LABEL)\t$(REPO_URI)", "Created-By: Packages")
    for line in targets.splitlines():
        label, address = line.split("\t")
        if label == "Debian":
            return address
    raise TestbedError(
        "this machine's apt has no mirror of Debian, or no lists of it yet.",
        "apt-get update, or name an unpacked kernel source with --source.",
    )


def private_apt(suite: str, directory: Path, mirror: str) -> list[str]:
    """Options that make apt use one suite, and keep all it knows of it in a directory of ours."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    (directory / "sources.list").write_text(f"deb {signed}{mirror} {suite} main\n")
    settings = {
        "Dir::State": directory / "state",
        "Dir::Cache": directory / "cache",
        "Dir::Etc::SourceList": directory / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
    }
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


def _make(tree: Path, output: Path, *arguments: str) -> None:
    _run("make", "-s", "-C", str(tree), "ARCH=um", f"O={output}", *arguments)


def _run(*command: str, directory: Path | None = None) -> str:
    environment = os.environ | {"LC_ALL": "C"}
    result = subprocess.run(
        command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=directory, env=environment
    )
    if result.returncode:
        said = "\n".join((result.stdout + result.stderr).strip().splitlines()[-15:])
        shown = [word for word in command if word.isidentifier() or word == command[0]]
        raise TestbedError(f"{' '.join(shown)} failed:", said)
    return result.stdout
