"""Traces of gateways, read while these may be writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def trace_events(path: Path) -> list[dict[str, Any]]:
    """All events of a trace but the one that is being written: of a line that crosses a page, half can be seen."""
    *whole, _ = path.read_text().split("\n")
    return [json.loads(line) for line in whole]
