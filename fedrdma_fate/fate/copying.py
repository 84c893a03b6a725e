"""Copies many arrays with several threads: one core alone does not fill the memory bus."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

Copy = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Target and source, of equal shape."""

PIECE_BYTES = 8 * 2**20
"""Arrays are cut into pieces of this size, so that the threads end together."""

_MOST_THREADS = 4
_BYTES_PER_THREAD = 16 * 2**20
"""Below, starting a thread costs more than it saves."""


def pieces(target: memoryview, values: npt.NDArray[Any], storage: np.dtype[Any]) -> Iterator[Copy]:
    """The copies that write an array's values, as `storage` items in C order, into a buffer of just their length."""
    if not target.nbytes:
        return
    if values.flags.c_contiguous and values.dtype == storage:
        raw: npt.NDArray[np.uint8] = values.reshape(-1).view(np.uint8)
        into: npt.NDArray[np.uint8] = np.frombuffer(target, np.uint8)
        for start in range(0, raw.size, PIECE_BYTES):
            yield into[start : start + PIECE_BYTES], raw[start : start + PIECE_BYTES]
    else:
        yield np.ndarray(values.shape, storage, buffer=target), values


def copy_all(copies: Iterator[Copy], total_bytes: int) -> None:
    """Make all copies; the iterator is asked by one thread at a time.

    Args:
        copies: what to copy.
        total_bytes: about how much that is.
    """
    turn = threading.Lock()

    def work() -> None:
        while (copy := _next(copies, turn)) is not None:
            np.copyto(*copy)

    cores = len(os.sched_getaffinity(0))
    helpers = min(_MOST_THREADS, cores, total_bytes // _BYTES_PER_THREAD) - 1
    if helpers < 1:
        work()
        return
    with ThreadPoolExecutor(helpers, thread_name_prefix="copy") as pool:
        others = [pool.submit(work) for _ in range(helpers)]
        work()
    for other in others:
        other.result()


def _next(copies: Iterator[Copy], turn: threading.Lock) -> Copy | None:
    with turn:
        return next(copies, None)
