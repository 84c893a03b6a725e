"""A descriptor that becomes readable at a beat, for poll; CPython 3.11 does not offer the kernel's timers itself."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("first", _Timespec))


class Heartbeat:
    """Ticks every so many seconds."""

    def __init__(self, seconds: float) -> None:
        """Start it.

        Raises:
            OSError: the kernel gives no timer.
        """
        library = ctypes.CDLL(None, use_errno=True)
        # the flags of timerfd are those of open
        self.fileno: int = library.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fileno < 0:
            raise OSError(ctypes.get_errno(), "cannot make a timer")
        whole = int(seconds)
        beat = _Timespec(whole, int((seconds - whole) * 1e9))
        library.timerfd_settime(self.fileno, 0, ctypes.byref(_Setting(beat, beat)), None)

    def ticked(self) -> bool:
        """Whether it has ticked since it was asked last."""
        with contextlib.suppress(BlockingIOError):
            return bool(os.read(self.fileno, 8))
        return False

    def close(self) -> None:
        """Give the descriptor back; may be repeated."""
        if self.fileno >= 0:
            os.close(self.fileno)
            self.fileno = -1
