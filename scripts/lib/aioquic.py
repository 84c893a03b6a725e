"""Puts aioquic into `.venv`, with all that it needs, in a directory of its own: `python -m scripts.lib.aioquic`.

Beside FATE's pins it cannot be installed: its pyopenssl wants a newer `typing-extensions` than FATE Flow pins. Rows of
`fedrdma bench protocols` and `fedrdma bench fate` put the directory before all others, in processes of their own.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from scripts.lib.console import CommandError, fail
from scripts.lib.stamps import Stamp, digest_files
from scripts.lib.uv import Uv

ROOT = Path(__file__).resolve().parents[2]
WANTED = "aioquic>=1.3,<2"
"""1.3 is the last for Python 3.10, and the lock names a later one for others."""
LOCK = "requirements-quic.lock"
HOME = "lib/aioquic"
"""In the virtual environment; `fedrdma_fate.bench.protocols.brokers` looks there."""
_STAMP = ".fedrdma-setup.json"


def is_there(venv: Path, root: Path) -> bool:
    """Whether the environment has what the lock names."""
    return Stamp(venv / HOME / _STAMP).read("lock") == digest_files([root / LOCK], root)


def provide(venv: Path, root: Path) -> str:
    """Put it into a virtual environment; a few words on where it lies.

    Raises:
        CommandError: it cannot be had here.
    """
    home = venv / HOME
    home.parent.mkdir(parents=True, exist_ok=True)
    # beside its place, so that it is there whole or not at all, whoever else installs it now
    with tempfile.TemporaryDirectory(dir=home.parent) as beside:
        made = Path(beside, "made")
        Uv(venv / "bin" / "python", root / ".venv" / "bin" / "uv").put(root / LOCK, made)
        Stamp(made / _STAMP).write({"lock": digest_files([root / LOCK], root)})
        if home.exists():
            home.rename(Path(beside, "former"))
        made.rename(home)
    return f"as {LOCK} pins it, in {venv.name}/{HOME}"


def main() -> int:
    """Into the environment of this Python; says in one line what came of it."""
    try:
        print(provide(Path(sys.prefix), ROOT))
    except CommandError as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
