"""Delivery rate sampling as BBR wants it: what was delivered between a chunk's sending and its acknowledgement.

draft-ietf-ccwg-bbr-06, section 4.1. A packet there is a chunk here, and an acknowledgement a report. Lengths in bytes,
times in seconds.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """What was known when a chunk went out (section 4.1.2.1.2).

    Attributes:
        sent_at: when that was.
        delivered: so far.
        delivered_at: when the latest of it was.
        first_sent_at: when the chunk went out whose acknowledgement came last.
        lost: so far.
        in_flight: this chunk included.
        is_limited: there was too little to send.
    """

    sent_at: float
    delivered: int
    delivered_at: float
    first_sent_at: float
    lost: int
    in_flight: int
    is_limited: bool


@dataclasses.dataclass(frozen=True, slots=True)
class LostChunk:
    """A chunk that is declared lost.

    Attributes:
        length: of the chunk.
        in_flight: when it went out, the chunk included.
        lost_since: what was declared lost since it went out, the chunk included.
        is_limited: there was too little to send then.
    """

    length: int
    in_flight: int
    lost_since: int
    is_limited: bool


@dataclasses.dataclass(frozen=True, slots=True)
class RateSample:
    """What a report says of the flight that it acknowledges (section 4.1.2.1.3).

    Attributes:
        newly_acked: by this report.
        total_delivered: of the transfer.
        in_flight: now.
        newly_lost: what was declared lost.
        prior_delivered: when the newest acknowledged chunk went out.
        delivered: since then.
        rate: bytes a second; 0: unknown.
        sent_in_flight: when that chunk went out.
        lost: since that chunk went out.
        is_limited: there was too little to send when it did.
    """

    newly_acked: int
    total_delivered: int
    in_flight: int
    newly_lost: tuple[LostChunk, ...] = ()
    prior_delivered: int = 0
    delivered: int = 0
    rate: float = 0.0
    sent_in_flight: int = 0
    lost: int = 0
    is_limited: bool = False


class FlightRecorder:
    """Makes a rate sample of each report.

    Attributes:
        is_limited: there is too little to send.
    """

    def __init__(self) -> None:
        self.is_limited = False
        self._delivered = self._lost = 0
        self._delivered_at = self._first_sent_at = 0.0
        self._newest: Snapshot | None = None
        self._newly_acked = 0
        self._newly_lost: list[LostChunk] = []

    def on_sent(self, length: int, in_flight: int, now: float) -> Snapshot:
        """A chunk goes out; `in_flight` is before it."""
        if not in_flight:
            self._first_sent_at = self._delivered_at = now
        return Snapshot(
            now,
            self._delivered,
            self._delivered_at,
            self._first_sent_at,
            self._lost,
            in_flight + length,
            self.is_limited,
        )

    def on_acknowledged(self, snapshot: Snapshot, length: int, delivered_at: float) -> None:
        """A chunk has arrived."""
        self._delivered += length
        self._newly_acked += length
        self._delivered_at = max(self._delivered_at, delivered_at)
        if self._newest is None or snapshot.sent_at >= self._newest.sent_at:
            self._newest = snapshot

    def on_lost(self, snapshot: Snapshot, length: int) -> None:
        """A chunk is declared lost."""
        self._lost += length
        lost_since = self._lost - snapshot.lost
        self._newly_lost.append(LostChunk(length, snapshot.in_flight, lost_since, snapshot.is_limited))

    def take(self, in_flight: int, min_rtt: float) -> RateSample:
        """The sample of what came since the last one.

        Args:
            in_flight: now.
            min_rtt: least round trip; over less nothing can be told of a rate.
        """
        newest, acked, lost = self._newest, self._newly_acked, tuple(self._newly_lost)
        self._newest, self._newly_acked = None, 0
        self._newly_lost.clear()
        if newest is None:
            return RateSample(acked, self._delivered, in_flight, lost)
        delivered = self._delivered - newest.delivered
        interval = max(newest.sent_at - newest.first_sent_at, self._delivered_at - newest.delivered_at)
        self._first_sent_at = max(self._first_sent_at, newest.sent_at)
        return RateSample(
            acked,
            self._delivered,
            in_flight,
            lost,
            newest.delivered,
            delivered,
            delivered / interval if interval > 0 and interval >= min_rtt else 0.0,
            newest.in_flight,
            self._lost - newest.lost,
            newest.is_limited,
        )
