"""Background tasks are neither lost nor silent."""

from __future__ import annotations

import asyncio
import logging

import pytest

from fedrdma_fate.gateway.background import spawn


def test_an_exception_in_a_background_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise KeyError("a bug")

    async def scenario() -> None:
        tasks: set[asyncio.Task[None]] = set()
        task = spawn(tasks, fail())
        assert tasks == {task}
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert tasks == set()

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "a background task of the gateway died" in caplog.text
