"""Plain progress lines and errors that say what to do."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator


class CommandError(Exception):
    """Something is missing or failed, and what the reader can do about it.

    Attributes:
        message: what happened.
        remedy: what to do; may have several lines.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


def say(text: str) -> None:
    """Print one line at once, also into a pipe."""
    print(text, flush=True)


def fail(error: CommandError) -> int:
    """Print an error and its remedy on standard error; the exit code to end with."""
    print(f"error: {error.message}", file=sys.stderr)
    for line in error.remedy.splitlines():
        print(f"  {line}", file=sys.stderr)
    sys.stderr.flush()
    return 1


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Announce a step, and say how long it took when it succeeds."""
    say(f"==> {title}")
    started = time.monotonic()
    yield
    say(f"    done in {time.monotonic() - started:.1f} s")
