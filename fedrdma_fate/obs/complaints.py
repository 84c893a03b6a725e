"""Complaints about peers and tasks: whoever gives cause for them again and again does not fill the log."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable

WINDOW_SECONDS = 60.0
"""Between two lines about the same: one line a minute shows that trouble goes on."""

MOST_SUBJECTS = 256
"""Pairs of kind and subject that are told apart: more than a site has peers and users. Others share one a kind."""

MOST_KINDS = 64
"""Kinds are named in the code, so there are few of them; a bound all the same."""

MOST_CHARACTERS = 200
"""Of what somebody else says: enough for a name, a tag and two parties, and no way to fill a disk."""

EACH_TELLS = 20
"""Lines in each window about what ends or fails, one by one: a message, a connection. A page tells enough."""

OTHERS = "others"
"""Stands for all subjects beyond `MOST_SUBJECTS`."""


def cut(text: object, most: int = MOST_CHARACTERS) -> str:
    """Text of somebody else as it may stand in a log: at most `most` characters, control characters escaped."""
    whole = str(text)
    kept = whole[:most]
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in kept)
    if len(shown) > most or len(whole) > most:
        return f"{shown[:most]}… ({len(whole)} characters)"
    return shown


@dataclasses.dataclass(slots=True)
class _Subject:
    """What was complained of a subject.

    Attributes:
        since: when the first line of this window was written.
        lines: how many were.
        repeated: how often there was cause for the same besides.
        logger: where the line went.
        level: of the line.
    """

    since: float
    lines: int
    repeated: int
    logger: logging.Logger
    level: int


class Complaints:
    """Logs the first complaint of a kind about a subject at once, and counts further ones; any thread may complain.

    When a window has passed, one line says how often it was repeated; the next complaint is then logged anew.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        count: Callable[[str, str], object] = lambda _kind, _about: None,
        window: float = WINDOW_SECONDS,
    ) -> None:
        """
        Args:
            clock: seconds, of any origin.
            count: called for each complaint, with its kind and its subject, or OTHERS.
            window: seconds between two lines about the same.
        """
        self._clock = clock
        self._count = count
        self._window = window
        self._subjects: dict[tuple[str, str], _Subject] = {}
        self._kinds: set[str] = set()
        self._lock = threading.Lock()

    def add(
        self,
        logger: logging.Logger,
        kind: str,
        about: str,
        message: str,
        *values: object,
        level: int = logging.WARNING,
        lines: int = 1,
        trace: bool = False,
    ) -> bool:
        """Complain; whether that was logged, and not just counted.

        Args:
            logger: where to.
            kind: what of, a short word of the code's own.
            about: of whom: a peer's site as configured here, or a user.
            message: with a %s for each value.
            values: each is cut to `MOST_CHARACTERS`.
            level: of the line; what is less than a warning is not counted as a complaint.
            lines: how many are logged in each window, where each tells something of its own.
            trace: whether a traceback goes with a line: of the exception that is being handled.
        """
        with self._lock:
            key = self._key(kind, about)
            now = self._clock()
            known = self._subjects.get(key)
            if known is None or now - known.since >= self._window:
                if known is not None:
                    self._sum_up(key, known)
                known = self._subjects[key] = _Subject(now, 0, 0, logger, level)
            fresh = known.lines < lines
            if fresh:
                known.lines += 1
            else:
                known.repeated += 1
        if level >= logging.WARNING:
            self._count(*key)
        if fresh:
            logger.log(level, message, *(cut(value) for value in values), exc_info=trace)
        return fresh

    def sum_up(self, *, all_of_them: bool = False) -> None:
        """Log how often complaints were repeated whose window has passed; to be called now and then, and at the end."""
        with self._lock:
            now = self._clock()
            for key, known in list(self._subjects.items()):
                if all_of_them or now - known.since >= self._window:
                    self._sum_up(key, known)
                    del self._subjects[key]

    def _key(self, kind: str, about: str) -> tuple[str, str]:
        if kind not in self._kinds:
            if len(self._kinds) >= MOST_KINDS:
                kind = OTHERS
            self._kinds.add(kind)
        about = cut(about)
        if (kind, about) not in self._subjects and len(self._subjects) >= MOST_SUBJECTS:
            about = OTHERS
        return kind, about

    def _sum_up(self, key: tuple[str, str], known: _Subject) -> None:
        if known.repeated:
            kind, about = key
            known.logger.log(known.level, "%s of %s: repeated %d times", kind, about, known.repeated)
