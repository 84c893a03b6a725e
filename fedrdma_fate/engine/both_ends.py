"""A second thread that does some of a list of things, from its end, while the first does the others from its start.

Never two neighbours at the same time: who opens a record where it lies needs the first bytes of the next for its tag.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class BothEnds:
    """Hands out the numbers below a count, upwards to one thread and downwards to another."""

    def __init__(self, count: int) -> None:
        self._changed = threading.Condition()
        self._next = 0
        self._taken_from = count
        self._is_back_busy = False

    def upwards(self) -> Generator[int, None, None]:
        """Those of the first thread; it waits only for a neighbour that the other one has in hand."""
        while True:
            with self._changed:
                while self._is_back_busy and self._next + 1 == self._taken_from:
                    self._changed.wait()
                if self._next == self._taken_from:
                    return
                self._next += 1
                number = self._next - 1
            yield number

    def downwards(self) -> Generator[int, None, None]:
        """Those of the second thread, which ends next to what the first has in hand."""
        try:
            while True:
                with self._changed:
                    self._is_back_busy = False
                    self._changed.notify()
                    # the one between both is left to the first: it may hold a tag just now
                    if self._taken_from - 1 <= self._next:
                        return
                    self._taken_from -= 1
                    self._is_back_busy = True
                    number = self._taken_from
                yield number
        finally:
            with self._changed:
                self._is_back_busy = False
                self._changed.notify()


class SharedWork:
    """The second thread. To be closed; belongs to the first, which waits for it at the end of each list."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="opening")

    def run(self, do: Callable[[T], bool], things: Sequence[T]) -> list[bool]:
        """What `do` says of each, in their order. Where the second thread gets no turn, the first does all of it."""
        results = [False] * len(things)
        ends = BothEnds(len(things))

        def work(numbers: Generator[int, None, None]) -> None:
            # also where one fails, and what is raised keeps the generator, its number is not in hand any more
            with contextlib.closing(numbers):
                for number in numbers:
                    results[number] = do(things[number])

        other = self._executor.submit(work, ends.downwards())
        try:
            work(ends.upwards())
        finally:
            if not other.cancel():
                other.result()
        return results

    def close(self) -> None:
        """Nothing more will be shared."""
        self._executor.shutdown(wait=False)
