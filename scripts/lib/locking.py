"""`scripts/lock`: the lock files, with hashes and without a single address.

requirements.lock is made of pyproject.toml, requirements-py310.lock of what FATE's guide installs, without us, and
requirements-py310-tests.lock of what our wheel and the tests need beside it; requirements-audit.lock is pip-audit's
own, and requirements-quic.lock aioquic's, for every Python from 3.10 on.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.lib import aioquic, system
from scripts.lib.audit import TOOL
from scripts.lib.console import CommandError, fail, say, step
from scripts.lib.python310 import BUNDLED, GUIDE, TOOLS, VERSION, Python310
from scripts.lib.uv import Uv, lock_entry

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = (
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


def write_locks(root: Path, extra: Sequence[str]) -> None:
    """Resolve pyproject.toml, and what FATE's guide installs, and replace the lock files.

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
    with step("resolving pyproject.toml with all extras"):
        _resolve(uv, root / "pyproject.toml", lock, [python_version(system.LOCKED_PYTHON), "--all-extras", *extra])
    with tempfile.TemporaryDirectory() as directory, step("resolving what FATE's guide installs"):
        site, source = Python310(root), Path(directory, "requirements.in")
        source.write_text(f"{GUIDE}\n{BUNDLED}\n")
        _resolve(uv, source, site.lock, [python_version(VERSION), *extra])
        source.write_text("\n".join(TOOLS))
        options = [python_version(VERSION), f"--constraints={site.lock}", str(root / "pyproject.toml"), *extra]
        _resolve(uv, source, site.tools_lock, options)
    with tempfile.TemporaryDirectory() as directory, step("resolving pip-audit"):
        source = Path(directory, "requirements.in")
        source.write_text(f"{TOOL}\n")
        _resolve(uv, source, root / "requirements-audit.lock", [python_version(system.LOCKED_PYTHON), *extra])
    with tempfile.TemporaryDirectory() as directory, step("resolving aioquic"):
        source = Path(directory, "requirements.in")
        source.write_text(f"{aioquic.WANTED}\n")
        _resolve(uv, source, root / aioquic.LOCK, [python_version(VERSION), "--universal", *extra])


def python_version(version: tuple[int, int]) -> str:
    """The option of uv that says for which Python to resolve."""
    return f"--python-version={version[0]}.{version[1]}"


def _resolve(uv: Uv, source: Path, lock: Path, options: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        candidate = Path(directory, lock.name)
        # uv keeps the versions that it finds in the output file, unless asked to upgrade
        if lock.exists():
            shutil.copyfile(lock, candidate)
        uv.compile(str(source), *OPTIONS, *options, f"--output-file={candidate}")
        resolved = candidate.read_text()
        check_no_address(resolved)
        lock.write_text(resolved)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/lock",
        description="Write requirements.lock anew from pyproject.toml, the two of Python 3.10 from what FATE's "
        "guide installs, and those of pip-audit and aioquic. Versions already locked are kept where they still fit.",
    )
    parser.add_argument("--upgrade", action="store_true", help="take the newest version of everything that may move")
    parser.add_argument("--upgrade-package", action="append", default=[], metavar="NAME", help="only of this package")
    options = parser.parse_args(arguments)
    os.environ["FEDRDMA_FATE_DISABLE"] = "1"
    extra = ["--upgrade"] if options.upgrade else []
    extra += [f"--upgrade-package={name}" for name in options.upgrade_package]
    try:
        write_locks(ROOT, extra)
    except CommandError as error:
        return fail(error)
    say("the lock files are written; scripts/setup and scripts/test install them")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
