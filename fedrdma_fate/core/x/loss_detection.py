"""Which of the chunks under way are lost: overtaken by later ones, or not reported in time."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterable

REORDERING = 3
"""A chunk overtaken on its own queue pair by this many later ones is lost."""


@dataclasses.dataclass(slots=True)
class Flight:
    """One sending of the chunk at a position.

    Attributes:
        position: of the chunk.
        length: bytes.
        queue_pair: it went by.
        sent_at: when, seconds.
        again: whether the chunk had been sent before, so that its arrival may be that of an earlier sending.
        number: counts the sendings of its queue pair.
        over: whether it is known to have arrived, or taken for lost.
    """

    position: int
    length: int
    queue_pair: int
    sent_at: float
    again: bool
    number: int = 0
    over: bool = False


class FlightBook:
    """Every sending that is neither known to have arrived nor taken for lost."""

    def __init__(self, queue_pairs: int) -> None:
        self.bytes_in_flight = 0
        self._by_position: dict[int, Flight] = {}
        self._queues: list[deque[Flight]] = [deque() for _ in range(queue_pairs)]
        self._sent = [0] * queue_pairs
        self._newest = [0] * queue_pairs

    def __len__(self) -> int:
        return len(self._by_position)

    @property
    def oldest_sent_at(self) -> float | None:
        """When the sending was that has been under way for longest."""
        for queue in self._queues:
            while queue and queue[0].over:
                queue.popleft()
        return min((queue[0].sent_at for queue in self._queues if queue), default=None)

    def depart(self, flight: Flight) -> None:
        """A chunk goes out."""
        self._sent[flight.queue_pair] += 1
        flight.number = self._sent[flight.queue_pair]
        self._by_position[flight.position] = flight
        self._queues[flight.queue_pair].append(flight)
        self.bytes_in_flight += flight.length

    def arrive(self, position: int, now: float, least_rtt: float) -> Flight | None:
        """The chunk at this position has arrived; its flight, if it was this one that can have brought it."""
        flight = self._by_position.pop(position, None)
        if flight is None:
            return None
        self._end(flight)
        if flight.again and now - flight.sent_at < least_rtt:
            # too early: an earlier sending, taken for lost, arrived after all
            return None
        self._newest[flight.queue_pair] = max(self._newest[flight.queue_pair], flight.number)
        return flight

    def overtaken(self) -> list[int]:
        """Positions now taken for lost because later chunks of their queue pair have arrived."""
        lost: list[int] = []
        for queue, newest in zip(self._queues, self._newest, strict=True):
            while queue and (queue[0].over or queue[0].number + REORDERING <= newest):
                flight = queue.popleft()
                if not flight.over:
                    lost.append(self._lose(flight))
        return lost

    def older_than(self, moment: float) -> list[int]:
        """Positions now taken for lost because they were sent before `moment`."""
        lost: list[int] = []
        for queue in self._queues:
            while queue and (queue[0].over or queue[0].sent_at <= moment + 1e-9):
                flight = queue.popleft()
                if not flight.over:
                    lost.append(self._lose(flight))
        return lost

    def clear(self) -> Iterable[int]:
        """The data path is gone; the positions that were under way."""
        positions = list(self._by_position)
        self._by_position.clear()
        for queue in self._queues:
            queue.clear()
        self.bytes_in_flight = 0
        return positions

    def _lose(self, flight: Flight) -> int:
        del self._by_position[flight.position]
        self._end(flight)
        return flight.position

    def _end(self, flight: Flight) -> None:
        flight.over = True
        self.bytes_in_flight -= flight.length


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
