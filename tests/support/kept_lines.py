"""Files of JSON lines to which long runs add: those that were stopped go on where they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def kept_lines(file: Path) -> list[Any]:
    """What an earlier run has written; a last line that was cut off is none.

    Args:
        file: that it wrote; there need be none yet.
    """
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def keep_whole_lines(file: Path) -> list[Any]:
    """The same, and nothing else is left in the file: what is added does not come behind half a line."""
    kept = kept_lines(file)
    file.write_text("".join(json.dumps(each) + "\n" for each in kept))
    return kept
