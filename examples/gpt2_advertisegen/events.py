"""What a silo reports while it works, as JSON lines that the job process follows."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedrdma_fate.obs.trace import Trace

FATE_TIMINGS = "fate.arch.trace._profile"
"""Logger of FATE's own federation timers: a line when a put or get starts, and one when it is done."""

_TIMING = re.compile(r"\[federation\.(remote|get)\.([^.]+)\.(.+?)\]\(.*?\)(?:->|<-)(\[.*\]) (start|done)$")
_PARTY = re.compile(r"\('([^']*)', '([^']*)'\)")
_ROUND = re.compile(r"aggregation-(\d+)$")


class EventReader:
    """Follows a file of JSON lines that another process writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read_new(self) -> Iterator[dict[str, Any]]:
        """The events that were completed since the last call; none while there is no file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                fresh = file.read()
        except FileNotFoundError:
            return
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            yield json.loads(line)


class FateTimers:
    """Pairs the start and done lines of FATE's federation timers."""

    def __init__(self) -> None:
        self._started: dict[tuple[str, str, str, str], float] = {}

    def line(self, message: str, at: float) -> dict[str, Any] | None:
        """One line of FATE's, logged at `at` (Unix seconds): the `put` or `get` that is done with it, if any."""
        match = _TIMING.match(message)
        if match is None:
            return None
        key = ("put" if match[1] == "remote" else "get", match[2], match[3], match[4])
        if match[5] == "start":
            self._started[key] = at
        elif key in self._started:
            op, name, tag, listed = key
            peers = [f"{role}:{party_id}" for role, party_id in _PARTY.findall(listed)]
            begin = self._started.pop(key)
            return {"event": op, "name": name, "tag": tag, "peers": peers, "begin": begin, "end": at}
        return None


class FateTimings(logging.Handler):
    """Turns FATE's timers into `put` and `get` events.

    So a put or get is timed where FATE itself starts and ends it, serialisation included, whatever carries it.
    """

    def __init__(self, events: Trace) -> None:
        super().__init__(logging.DEBUG)
        self._events = events
        self._timers = FateTimers()

    def emit(self, record: logging.LogRecord) -> None:
        """One line of FATE's."""
        done = self._timers.line(record.getMessage(), record.created)
        if done is not None:
            self._events.emit(done.pop("event"), **done)

    def attach(self) -> None:
        """Listen to FATE's timers, and keep their lines out of every other log."""
        logger = logging.getLogger(FATE_TIMINGS)
        logger.setLevel(logging.DEBUG)
        logger.addHandler(self)
        logger.propagate = False


def round_of_tag(tag: str) -> int | None:
    """The round that a message's tag belongs to, None before the first."""
    match = _ROUND.search(tag)
    return int(match[1]) if match else None


def read_events(path: Path) -> list[Mapping[str, Any]]:
    """All events of a file, none when there is no file."""
    return list(EventReader(path).read_new())
