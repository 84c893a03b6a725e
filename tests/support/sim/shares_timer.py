"""Wakes whoever drives shares of a simulated link when they want it."""

from __future__ import annotations

import functools
from collections.abc import Callable

from fedrdma_fate.core.shares.receive_shares import ReceiveShares
from tests.support.sim.clock import VirtualClock


class SharesTimer:
    """The earliest moment that the shares have asked for, in virtual time."""

    def __init__(self, clock: VirtualClock, shares: ReceiveShares, wake: Callable[[], object]) -> None:
        """
        Args:
            clock: virtual time.
            shares: that are driven.
            wake: called at that moment.
        """
        self._clock = clock
        self._shares = shares
        self._wake = wake
        self._due: float | None = None

    def set(self) -> None:
        """The shares may want to be looked at sooner now."""
        due = self._shares.timer()
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            self._clock.at(due, functools.partial(self._on_due, due))

    def _on_due(self, due: float) -> None:
        if due == self._due:
            self._due = None
            self._wake()
