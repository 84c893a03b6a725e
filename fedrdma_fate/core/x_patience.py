"""How long a `fedrdma-x` sender waits: for the report of a chunk, and for anything at all."""

from __future__ import annotations

import math

REPORT_SLACK_SECONDS = 0.006
UNKNOWN_RTT = 0.2
MOST_BACKOFF = 16


class Patience:
    """Doubles while nothing new arrives. Times in seconds.

    Attributes:
        last_progress: when something new arrived, or the waiting began.
        backoff: what the patience for a chunk is multiplied by.
    """

    def __init__(self) -> None:
        self.last_progress = 0.0
        self.backoff = 1
        self._backed_off_at = -math.inf

    def on_progress(self, now: float) -> None:
        """Something new arrived."""
        self.last_progress = now
        self.backoff = 1

    def least_seconds(self, round_trip: float) -> float:
        """How long a chunk may be under way, without the doubling; 0 stands for an unknown round trip."""
        return 1.25 * (round_trip or UNKNOWN_RTT) + REPORT_SLACK_SECONDS

    def seconds(self, round_trip: float) -> float:
        """How long a chunk may be under way: tail loss is found by this alone."""
        return self.least_seconds(round_trip) * self.backoff

    def on_overdue(self, now: float, round_trip: float) -> None:
        """Chunks were given up: twice as long from now on, once for all that went out together."""
        if now >= self._backed_off_at + self.seconds(round_trip):
            self.backoff, self._backed_off_at = min(self.backoff * 2, MOST_BACKOFF), now
