"""Puts Debian's RabbitMQ and Erlang into `.venv`: `python -m scripts.lib.rabbitmq`.

`scripts/setup` does not: 32 MB to fetch and 65 MB on disk serve a few rows of `fedrdma bench protocols` alone. The
command has it done when one of them is first asked for (`provide_rabbitmq`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.lib import debian
from scripts.lib.debian import PackageUnavailableError

PACKAGES = (
    "rabbitmq-server",
    "erlang-base",
    "erlang-asn1",
    "erlang-crypto",
    "erlang-eldap",
    "erlang-inets",
    "erlang-mnesia",
    "erlang-os-mon",
    "erlang-parsetools",
    "erlang-public-key",
    "erlang-runtime-tools",
    "erlang-ssl",
    "erlang-syntax-tools",
    "erlang-tools",
    "erlang-xmerl",
)
"""What Debian's rabbitmq-server names of Erlang, and asn1, which public-key is made with."""
HOME = "lib/rabbitmq"
"""In the virtual environment; below it all lies as in the packages."""
_KEPT = ("usr/lib/erlang", "usr/lib/rabbitmq/lib")
_TRIAL_SECONDS = 60.0
"""Erlang that has not started and ended by then does not run here."""


def provide(venv: Path) -> str:
    """Put it into a virtual environment; a few words on where it came from.

    Raises:
        PackageUnavailableError: it cannot be had here.
    """
    with tempfile.TemporaryDirectory() as scratch:
        debian.fetch(PACKAGES, Path(scratch))
        install(Path(scratch), venv)
    return f"Debian's, unpacked into {venv.name}"


def install(packages: Path, venv: Path) -> None:
    """Unpack the .deb files of a directory into a virtual environment, and leave nothing there if Erlang does not run.

    Raises:
        PackageUnavailableError: they have another layout, or do not run.
    """
    root, home = debian.unpack(packages), venv / HOME
    if not all((root / part).is_dir() for part in _KEPT):
        raise PackageUnavailableError("Debian's packages have another layout")
    home.parent.mkdir(parents=True, exist_ok=True)
    # beside its place, so that it is there whole or not at all, whoever else unpacks it now
    with tempfile.TemporaryDirectory(dir=home.parent) as beside:
        made = Path(beside, "made")
        for part in _KEPT:
            shutil.copytree(root / part, made / part, symlinks=True)
        _try(made / "usr/lib/erlang")
        if home.exists():
            home.rename(Path(beside, "former"))
        made.rename(home)


def _try(erlang: Path) -> None:
    """Start Erlang, and end it.

    Raises:
        PackageUnavailableError: it does not run.
    """
    binaries = next(iter(erlang.glob("erts-*/bin")), erlang)
    place = {"ROOTDIR": str(erlang), "BINDIR": str(binaries), "EMU": "beam", "PROGNAME": "erl"}
    command = [str(binaries / "erlexec"), "-noshell", "-boot", "start_clean", "-eval", "crypto:start(), halt(0)."]
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **place},
            timeout=_TRIAL_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PackageUnavailableError("Debian's Erlang does not run here") from error
    if done.returncode:
        raise PackageUnavailableError("Debian's Erlang does not run here")


def main() -> int:
    """Into the environment of this Python; says in one line what came of it."""
    try:
        print(provide(Path(sys.prefix)))
    except PackageUnavailableError as reason:
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
