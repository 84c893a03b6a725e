"""A run whose gateway is killed behind each record of its journal, one after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.support.twin import run_virtually

History = Callable[..., Coroutine[Any, Any, int]]
"""Of a directory, the site that is killed, behind which of its writes (0: behind none), and settings of the twin: one
run, which judges itself, and how many writes there are."""


def kill_behind_each(history: History, killed: str, least: int, **settings: Any) -> None:
    """Play it without a kill, then with one behind each write that it then had, which are at least so many.

    Raises:
        AssertionError: behind which write something went wrong.
    """
    writes = _play(history, killed, 0, **settings)
    assert writes >= least
    for behind in range(1, writes + 1):
        try:
            _play(history, killed, behind, **settings)
        except BaseException as error:
            raise AssertionError(f"killed behind write {behind} of {writes}") from error


def _play(history: History, killed: str, behind: int, **settings: Any) -> int:
    with tempfile.TemporaryDirectory() as directory:
        return run_virtually(history(Path(directory), killed, behind, **settings))
