"""Which files are below a directory where others write and remove."""

from __future__ import annotations

import os
from pathlib import Path


def files_below(directory: Path) -> list[Path]:
    """The files below a directory as it is looked through; `Path.glob` fails where a directory goes meanwhile.

    Returns:
        their paths, without those of links to directories; none where there is no such directory.
    """
    return [Path(folder) / name for folder, _, names in os.walk(directory) for name in names]


def spilled_below(directory: Path) -> list[Path]:
    """The messages that gateways have spilled: what lies in a directory of one run, but for its lock."""
    found = files_below(directory)
    return [path for path in found if path.parent.name.startswith("fedrdma-") and path.name != "pid"]
