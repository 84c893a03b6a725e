"""A descriptor that becomes readable after a time finer than the milliseconds of poll."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("first", _Timespec))


class Alarm:
    """Rings once after so many seconds; CPython 3.11 does not offer the kernel's timers itself."""

    def __init__(self) -> None:
        """Make it.

        Raises:
            OSError: the kernel gives no timer.
        """
        self._library = ctypes.CDLL(None, use_errno=True)
        # the flags of timerfd are those of open
        self.fileno: int = self._library.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fileno < 0:
            raise OSError(ctypes.get_errno(), "cannot make a timer")
        self._setting = _Setting()

    def set(self, seconds: float) -> None:
        """Ring after so many seconds, and not at what was set before."""
        nanoseconds = max(1, int(seconds * 1e9))
        first = self._setting.first
        first.seconds, first.nanoseconds = divmod(nanoseconds, 1_000_000_000)
        self._library.timerfd_settime(self.fileno, 0, ctypes.byref(self._setting), None)

    def silence(self) -> None:
        """It has rung, and shall be readable no longer."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fileno, 8)

    def close(self) -> None:
        """Give the descriptor back; may be repeated."""
        if self.fileno >= 0:
            os.close(self.fileno)
            self.fileno = -1
