"""How much may be under way on a path so short that a host cannot pace it: a window, clocked by reports.

A host's thread wakes a tenth of a millisecond late, or some milliseconds on a busy one. On a path of 20 ms that is
little. Where a round trip takes no longer than that itself, what a pace loses by it looks like a slow path, and what
the scheduler adds to a round trip like a queue. TCP has no pace there either: what arrives lets as much follow (RFC
5681). The window grows and shrinks by RFC 5681 and RFC 9438, but for what counts as loss, which is BBR's: links lose a
little.
"""

from __future__ import annotations

import math

SHORT_ROUND_TRIP_SECONDS = 0.0018
"""A path with a least round trip below this is short. Ours: threads of a busy host wait as long for their turn, at 10
Gbit/s it holds 2.3 MB, which a window as below fills, and paths of 2 ms are paced well."""

BUSY_ROUND_TRIP_SECONDS = 4 * SHORT_ROUND_TRIP_SECONDS
"""A path is as short where chunks took no longer than this, and a short frame between the two hosts takes less than
SHORT_ROUND_TRIP_SECONDS: of a chunk of 512 KiB what the hosts do for it takes a millisecond, and two on a busy or slow
one. Ours; paced, such a path had more under way than the receiver's socket holds, and stayed paced."""

CHUNK_SHARE = 0.5
"""Of the least round trip that chunks had no more is theirs, whatever is known of the rate: it may be too low."""

FIRST_WINDOW_BYTES = 256 * 1024
"""What the path probe sends at once (`core/path_probe.py`)."""

LEAST_WINDOW_BYTES = 64 * 1024
"""Ours: with a report each 2 ms it still carries 260 Mbit/s, and is what a datagram may have at most."""

MOST_WINDOW_BYTES = 3 * 1024 * 1024
"""What fits the receiver's socket where the kernel gives it what was asked for (4 MiB, `transport/udp`), with room for
what a datagram takes besides its bytes."""

OVERRUN_LOSS = 0.02
"""Of the bytes of a window, beyond which it was too large: BBR.LossThresh, draft-ietf-ccwg-bbr, section 2.7."""

DECREASE_FACTOR = 0.7
"""Of the window stays after a loss: beta of CUBIC, RFC 9438, section 4.6."""

GROWTH_BYTES = 16 * 1024
"""By which a window grows that has once been too large, each time that it has arrived, or by a chunk where that is
less: four packets of 4 KiB, of which RFC 5681 adds one. A chunk of 128 KiB would overrun a buffer of 0.5 MB every
fourth time."""

START_DIVISOR = 2
"""The next flow begins with this part of the window of the one before, for others may have come since, and doubles it
until it is the same again: what a connection knew is shared with the next (RFC 9040, section 6), whose slow start ends
there (RFC 5681, section 3.1)."""


BURST_DIVISOR = 4
"""Where a window has been too large, no more than this part of it goes at once, or FIRST_WINDOW_BYTES: a report that
was waited for lets most of a window go, and what the path and its buffer hold together the buffer alone does not."""


def least_round_trip(of_chunks: float, chunk_seconds: float, of_frames: float | None) -> float:
    """The least round trip of a path, in seconds, without what the two hosts take for a chunk where it is short.

    Args:
        of_chunks: the least that chunks or trains of datagrams took.
        chunk_seconds: what a chunk takes at the rate of the path: its own time; 0: not known.
        of_frames: what a short frame takes between the two hosts; None: not known.
    """
    if of_chunks < SHORT_ROUND_TRIP_SECONDS:
        return of_chunks
    without = max(of_chunks - chunk_seconds, (1 - CHUNK_SHARE) * of_chunks)
    if without < SHORT_ROUND_TRIP_SECONDS:
        return without
    are_near = of_frames is not None and 0 < of_frames < SHORT_ROUND_TRIP_SECONDS
    return of_frames if of_frames and are_near and of_chunks < BUSY_ROUND_TRIP_SECONDS else of_chunks


class ReportClockedWindow:
    """The window of one flow, in bytes.

    Attributes:
        window_bytes: that may be under way.
        overrun: the last one that was judged was too large.
        is_found: one has been too large, of this flow or one before it.
    """

    def __init__(self, remembered_bytes: float = 0.0, *, found: bool = False) -> None:
        """
        Args:
            remembered_bytes: that were under way at last; 0: unknown.
            found: more than that was too much.
        """
        bounded = int(min(max(remembered_bytes, LEAST_WINDOW_BYTES), MOST_WINDOW_BYTES)) if remembered_bytes > 0 else 0
        self.window_bytes = max(-(-bounded // START_DIVISOR), min(bounded or FIRST_WINDOW_BYTES, FIRST_WINDOW_BYTES))
        self.overrun = False
        self.is_found = found
        # what RFC 5681 calls ssthresh
        self._threshold = bounded if found and bounded else math.inf
        self._known = bounded
        self._round_bytes = self.window_bytes
        self._arrived = 0
        self._lost = 0
        self._spared = False

    @property
    def burst_bytes(self) -> float:
        """What may go at once: all, until a window has been too large."""
        return max(self.window_bytes / BURST_DIVISOR, FIRST_WINDOW_BYTES) if self.is_found else math.inf

    @property
    def remembered_bytes(self) -> int:
        """What to remember of it: a flow that was soon over says nothing against what is known."""
        return max(self.window_bytes, self._known)

    def on_sample(self, arrived_bytes: int, lost_bytes: int, chunk_bytes: int) -> bool:
        """A report has come, or chunks are overdue; once in a window it is judged, now or not, by what was lost of it.

        Args:
            arrived_bytes: newly known to have arrived.
            lost_bytes: to be sent again, newly known.
            chunk_bytes: length of a chunk: what it grows by where it has ever been too large.
        """
        self._arrived += arrived_bytes
        self._lost += lost_bytes
        if self.window_bytes < self._threshold and self._lost <= OVERRUN_LOSS * self._round_bytes:
            # as it arrives, for all at once would be more than a buffer holds
            self.window_bytes = int(min(self.window_bytes + arrived_bytes, self._threshold, MOST_WINDOW_BYTES))
        if self._arrived + self._lost < self._round_bytes:
            return False
        self.overrun = self._lost > OVERRUN_LOSS * (self._arrived + self._lost)
        self._arrived = self._lost = 0
        if not self.overrun:
            if self._round_bytes >= self._threshold:
                self.window_bytes = min(self.window_bytes + min(chunk_bytes, GROWTH_BYTES), MOST_WINDOW_BYTES)
            self._spared = False
        elif self._spared:
            # what was under way already when it was made smaller
            self._spared = False
        else:
            self.window_bytes = max(int(self.window_bytes * DECREASE_FACTOR), LEAST_WINDOW_BYTES)
            self._threshold = self._known = self.window_bytes
            self.is_found = self._spared = True
        self._round_bytes = self.window_bytes
        return True
