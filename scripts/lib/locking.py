"""`scripts/lock`: requirements.lock from pyproject.toml, with hashes and without a single address."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.lib import system
from scripts.lib.console import CommandError, fail, say, step
from scripts.lib.uv import Uv, lock_entry

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = (
    "--python-version=3.11",
    "--all-extras",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-annotate",
    "--no-header",
    "--quiet",
)


def check_no_address(lock: str) -> None:
    """A lock must serve every machine, whatever index it uses.

    Raises:
        CommandError: a line holds an address.
    """
    addressed = [line for line in lock.splitlines() if "://" in line]
    if addressed:
        raise CommandError(
            f"the resolved lock names an address: {addressed[0].strip()}",
            "Depend on released versions only, not on direct references.",
        )


def write_lock(root: Path, extra: Sequence[str]) -> None:
    """Resolve pyproject.toml and replace requirements.lock.

    Raises:
        CommandError: the dependencies do not resolve, or uv cannot be had.
    """
    lock = root / "requirements.lock"
    uv = Uv(root / ".venv" / "bin" / "python")
    if not uv.program.exists():
        with step("uv, the resolver"):
            system.ensure_packages()
            system.make_venv(root / ".venv")
            uv.install(lock_entry(lock.read_text(), "uv"))
    with tempfile.TemporaryDirectory() as directory, step("resolving pyproject.toml with all extras"):
        candidate = Path(directory, lock.name)
        # uv keeps the versions that it finds in the output file, unless asked to upgrade
        shutil.copyfile(lock, candidate)
        uv.compile(str(root / "pyproject.toml"), *OPTIONS, *extra, f"--output-file={candidate}")
        resolved = candidate.read_text()
        check_no_address(resolved)
        lock.write_text(resolved)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/lock",
        description="Write requirements.lock anew from pyproject.toml. Versions already locked are kept where they "
        "still fit.",
    )
    parser.add_argument("--upgrade", action="store_true", help="take the newest version of everything that may move")
    parser.add_argument("--upgrade-package", action="append", default=[], metavar="NAME", help="only of this package")
    options = parser.parse_args(arguments)
    os.environ["FEDRDMA_FATE_DISABLE"] = "1"
    extra = ["--upgrade"] if options.upgrade else []
    extra += [f"--upgrade-package={name}" for name in options.upgrade_package]
    try:
        write_lock(ROOT, extra)
    except CommandError as error:
        return fail(error)
    say("requirements.lock is written; scripts/setup installs it")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
