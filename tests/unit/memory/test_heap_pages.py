"""What a process has freed goes back to the kernel."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys

import pytest

from fedrdma_fate.memory import heap
from tests.support.twin import run_virtually

PROGRAM = """
from fedrdma_fate.memory.heap import give_back_free_pages, keep_little

def private():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

keep_little()
# longer than what Python keeps in arenas of its own; some stay, so that the heap does not become shorter
blocks = [bytes(2000) for _ in range(30_000)]
kept = blocks[::100]
del blocks
before = private()
give_back_free_pages()
print(before - private(), len(kept))
"""


def test_pages_that_are_free_between_what_is_in_use_are_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    given_back_kib, _ = map(int, done.stdout.split())
    assert given_back_kib > 20_000


async def _give_back_for(seconds: float) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(heap.keep_giving_back(), seconds)


def test_free_pages_are_given_back_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[None] = []
    monkeypatch.setattr(heap, "give_back_free_pages", lambda: times.append(None))
    run_virtually(_give_back_for(3.5 * heap.GIVE_BACK_SECONDS))
    assert len(times) == 3
