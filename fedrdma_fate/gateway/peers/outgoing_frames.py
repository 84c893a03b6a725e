"""Frames that wait for their control channel: in order, and some ahead of all others."""

from __future__ import annotations

import asyncio
import collections


class OutgoingFrames(asyncio.Queue["bytes | None"]):
    """A queue; None stands for its end. What is put first goes behind what was put first before."""

    _queue: collections.deque[bytes | None]

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._first = 0
        self._goes_first = False

    def put_first(self, frame: bytes) -> None:
        """Queue a frame ahead of those that were not put first."""
        self._goes_first = True
        try:
            self.put_nowait(frame)
        finally:
            self._goes_first = False

    def _put(self, item: bytes | None) -> None:
        if self._goes_first:
            self._queue.insert(self._first, item)
            self._first += 1
        else:
            self._queue.append(item)

    def _get(self) -> bytes | None:
        self._first = max(0, self._first - 1)
        return self._queue.popleft()
