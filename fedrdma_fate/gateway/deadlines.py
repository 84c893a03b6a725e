"""Waiting at most so long."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def within(seconds: float, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which has ended or was cancelled when this returns or raises.

    `asyncio.timeout` needs Python 3.11, and `asyncio.wait_for` before 3.12 returns as if nothing were when its task is
    cancelled just as the work ends: a gateway that stops would then wait for that task.

    Raises:
        TimeoutError: it did not end within so many seconds.
    """
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait([working], timeout=seconds)
        if not working.done():
            raise TimeoutError(f"not done within {seconds:g} s")
        return working.result()
    finally:
        if not working.done():
            working.cancel()
            await asyncio.wait([working])
