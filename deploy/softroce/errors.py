"""What goes wrong in the testbed, and what to do about it."""

from __future__ import annotations


class TestbedError(Exception):
    """Something is missing or failed.

    Attributes:
        message: what happened.
        remedy: what to do; may have several lines, or none.
    """

    __test__ = False
    """Not a test case, whatever its name says to pytest."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class NoKernelError(TestbedError):
    """There is no kernel to boot a guest with."""


class GuestError(TestbedError):
    """The guest did not come up, or went down before its programs ended."""
