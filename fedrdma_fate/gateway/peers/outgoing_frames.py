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
        # of those that say anew all that the one before said: the one that is queued, and the latest behind it
        self._told: bytes | None = None
        self._latest: bytes | None = None

    def put_latest(self, frame: bytes) -> int:
        """Queue a frame that says anew all that the one put so before it said: one at a time is queued, and when that
        has gone the latest of those that have come since.

        Returns:
            how long the one is that does not go for it.
        """
        if self._told is None:
            self._told = frame
            self.put_nowait(frame)
            return 0
        dropped, self._latest = len(self._latest or b""), frame
        return dropped

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
        item = self._queue.popleft()
        if item is not None and item is self._told:
            self._told, self._latest = self._latest, None
            if self._told is not None:
                self._queue.append(self._told)
        return item
