"""Background tasks that are neither lost nor silent, and calls that are made later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol

logger = logging.getLogger(__name__)


class TimerHandle(Protocol):
    """A call that is going to be made."""

    def cancel(self) -> None:
        """Do not make it."""
        ...


def spawn(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run a coroutine beside the caller; `tasks` keeps it alive, and an exception in it is logged."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)

    def done(finished: asyncio.Task[None]) -> None:
        tasks.discard(finished)
        if not finished.cancelled() and (error := finished.exception()) is not None:
            logger.error("a background task of the gateway died", exc_info=error)

    task.add_done_callback(done)
    return task
