"""What finds the rate of a `fedrdma-x` transfer, as its sender and the path's memory see it."""

from __future__ import annotations

from typing import Protocol

from fedrdma_fate.core.path import PathState, Sample

LEAST_RATE = 125_000.0
"""Bytes a second, 1 Mbit/s: one chunk of 16 KiB every 0.13 s, so that a path that recovers is found out about."""

LEAST_SHARED_RATE = 20_000.0
"""The same of what a sender is let through beside others, 160 kbit/s: a packet each 75 ms, so that a share of nothing
is none, and 30 silos share 5 Mbit/s. By 1 Mbit/s seven of them would overrun that link by two fifths."""


class Controller(Protocol):
    """Paces one flow of one path. Times in seconds of one clock, rates in payload bytes a second.

    What the receiver allows at most need not be its business: the sender holds to both (`XSender.bound_rate`), and does
    not show it what was delivered no faster for that, unless it is more than the path is known to carry. It is told for
    what it means: others send, or have ended.

    Attributes:
        chunk_bytes: size of the flow's chunks.
        counts_packets: whether of a chunk that lost packets only these go again, and delivery rates are of packets.
        needs_rate_samples: whether what it is told of a report is to have a rate sample (`flight_recorder.py`).
    """

    chunk_bytes: int
    counts_packets: bool
    needs_rate_samples: bool

    @property
    def known(self) -> bool:
        """Whether a rate is known; until one is, a packet train goes unpaced."""

    @property
    def settled(self) -> bool:
        """Whether a rate is known that transfers have proved."""

    @property
    def sampled(self) -> bool:
        """Whether it has seen how fast chunks arrive: else its state teaches nothing."""

    @property
    def report_clocked(self) -> bool:
        """Whether to pace nothing, and have `window_bytes` under way: the path is too short to be paced."""

    @property
    def rate(self) -> float:
        """What to pace at."""

    @property
    def bandwidth(self) -> float:
        """What the path is known to carry, whatever of it is used now; 0 while that is unknown."""

    @property
    def window_bytes(self) -> float:
        """Most bytes in flight."""

    @property
    def burst_bytes(self) -> float:
        """Most bytes that may go at once."""

    @property
    def catch_up_bytes(self) -> float:
        """Most bytes that may go at once of what a late host has not sent."""

    @property
    def rtt(self) -> float:
        """Latest round trip, 0 when unknown."""

    @property
    def min_rtt(self) -> float:
        """Least round trip, 0 when unknown."""

    @property
    def report_delay(self) -> float:
        """How long a report may be held up on its way back, seconds; 0 where that is not told from a queue."""

    @property
    def loss(self) -> float:
        """Probability that a packet is lost, as transfers have found it."""

    @property
    def least_sample_bytes(self) -> int:
        """Of how much, at least, it wants delivery rates to be taken; 0: of as little as tells a rate."""

    def on_bound(self, most: float) -> None:
        """The flow is let send no more than this, in bytes a second; infinite: all."""

    def on_catch_up(self, late: float, now: float) -> None:
        """As much as that goes now; what becomes of it may be told later by so much."""

    def on_time(self, now: float) -> None:
        """Called before anything is paced: time has passed."""

    def on_sample(self, sample: Sample, now: float) -> None:
        """Take in what a report taught."""

    def on_overdue(self, chunks: int, now: float) -> None:
        """So many chunks are overdue at once: lost, unless a host or the path stands still."""

    def state(self) -> PathState | None:
        """What to remember for the next transfer; None when nothing was learnt."""


class MakeController(Protocol):
    """Makes the controller of a transfer that begins."""

    def __call__(self, remembered: PathState | None = None, *, proved: bool = True) -> Controller:
        """
        Args:
            remembered: what is known of the path; None: nothing.
            proved: that was found by transfers, and not only estimated.
        """
