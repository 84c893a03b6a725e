"""The kernel's timers as descriptors for poll, finer than its milliseconds; `os` has them only from Python 3.13 on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    def set(self, seconds: float) -> None:
        self.seconds, self.nanoseconds = divmod(int(seconds * 1e9), 1_000_000_000)


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("first", _Timespec))


class Timer:
    """A descriptor, `fileno`, that becomes readable once after some seconds, or again and again."""

    def __init__(self, interval: float = 0.0) -> None:
        """Make it.

        Args:
            interval: seconds between two expirations, the first one interval from now; 0: none before `set`.

        Raises:
            OSError: the kernel gives no timer.
        """
        self._library = ctypes.CDLL(None, use_errno=True)
        # the flags of timerfd are those of open
        self.fileno: int = self._library.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fileno < 0:
            raise OSError(ctypes.get_errno(), "cannot make a timer")
        self._setting = _Setting()
        if interval:
            self._setting.interval.set(interval)
            self.set(interval)

    def set(self, seconds: float) -> None:
        """Expire after so many seconds, and not at what was set before."""
        # nothing but zeros would disarm it
        self._setting.first.set(max(seconds, 1e-9))
        self._library.timerfd_settime(self.fileno, 0, ctypes.byref(self._setting), None)

    def expired(self) -> bool:
        """Whether it has expired since it was asked last; it is readable no longer."""
        with contextlib.suppress(BlockingIOError):
            return bool(os.read(self.fileno, 8))
        return False

    def close(self) -> None:
        """Give the descriptor back; may be repeated."""
        if self.fileno >= 0:
            os.close(self.fileno)
            self.fileno = -1
