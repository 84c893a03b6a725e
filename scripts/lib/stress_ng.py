"""Puts Debian's stress-ng into `.venv`: `python -m scripts.lib.stress_ng`.

`scripts/setup` does not: it serves `fedrdma bench protocols --stress cpu` alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.lib.debian import PackageUnavailableError
from scripts.lib.unpacked import UnpackedProgram

STRESS_NG = UnpackedProgram(
    "stress-ng",
    ("stress-ng", "libipsec-mb1", "libjudydebian1", "libsctp1"),
    "usr/bin/stress-ng",
    ["--version"],
)


def main() -> int:
    """Into the environment of this Python; says in one line what came of it."""
    try:
        print(STRESS_NG.provide(Path(sys.prefix)))
    except PackageUnavailableError as reason:
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
