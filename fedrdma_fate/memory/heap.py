"""How memory that is not used any more is kept, or given back: so that a process does not grow with what has been."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc

# parameters of mallopt, of <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

ARENAS = 1
"""For all threads: each more is a heap of its own, whose holes no other thread fills. By them a gateway's dozen threads
grew with every hour. They share Python's lock, so they seldom wait for this one."""

LARGE_BYTES = 4 << 20
"""From here on a block is mapped, and given back when it is freed, and so is as much at the end of the heap. Left to
itself, glibc raises that to what was freed, up to 32 MiB, and large blocks leave holes in the heap. Smaller, and each
message of a data path (1 MiB over gRPC) would take pages that the kernel has to clear first."""


GIVE_BACK_SECONDS = 5.0
"""Between two times that free pages are given back: a millisecond or two in each, and in between a busy gateway fills
some megabytes of them. Without it, what lies free between what is in use grew for days."""


def keep_little() -> None:
    """Let this process give back what it frees; to be called before it has threads.

    Does nothing where the C library has no such settings (musl).
    """
    # where there is no C library to ask, or it has no such function
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in (
            (_M_ARENA_MAX, ARENAS),
            (_M_MMAP_THRESHOLD, LARGE_BYTES),
            (_M_TRIM_THRESHOLD, LARGE_BYTES),
        ):
            mallopt(parameter, value)


def give_back_free_pages() -> None:
    """Give the kernel back what lies free between what is in use: after work for which much was made and freed again.

    Takes a millisecond for some ten megabytes. Does nothing where the C library has no such function (musl).
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def look_only_for_new_cycles() -> None:
    """Take all objects that there are out of Python's search for unused cycles; to be called when all has begun.

    It looks at everything only when there is a quarter more than the last time, and a gateway begins with some hundred
    thousand objects: what refers to itself, and to other things, would be kept for hours.
    """
    gc.collect()
    gc.freeze()


async def keep_giving_back() -> None:
    """Give free pages back now and then, for ever; in a thread, for the event loop has better to do."""
    while True:
        await asyncio.sleep(GIVE_BACK_SECONDS)
        await asyncio.to_thread(give_back_free_pages)
