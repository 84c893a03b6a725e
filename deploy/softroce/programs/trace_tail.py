"""The events of a gateway's trace, as they come."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.001
PATIENCE_SECONDS = 120.0


class Tail:
    """The lines of a trace as they come."""

    def __init__(self, trace: Path, patience: float = PATIENCE_SECONDS, poll: float = POLL_SECONDS) -> None:
        """Read from its beginning; wait so many seconds for an event at most, and so many between two looks."""
        self._file = trace.open()
        self._rest = ""
        self._patience = patience
        self._poll = poll

    def wait_for_end(self, name: str, times: int = 1) -> list[dict[str, Any]]:
        """Wait until a message is known to be there, at so many peers; the events that say so.

        Raises:
            SystemExit: it will not be, or it takes too long.
        """
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline:
            for event in self._new():
                if event.get("name") == name and event["event"] == "undeliverable":
                    raise SystemExit(f"{name} was not delivered: {event.get('reason')}")
                if event.get("name") == name and event["event"] == "sent":
                    found.append(event)
            if len(found) >= times:
                return found
            time.sleep(self._poll)
        raise SystemExit(f"{name} was not delivered in {self._patience:g} s")

    def _new(self) -> Iterator[dict[str, Any]]:
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        return iter([json.loads(line) for line in lines])
