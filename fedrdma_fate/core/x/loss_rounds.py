"""What is lost of each round trip's chunks: whether it is more than chance, and what the path loses anyway."""

from __future__ import annotations

import dataclasses
import math

from fedrdma_fate.core.path import Sample
from fedrdma_fate.core.x.estimators import LossEstimator, chunk_loss

LEAST_ROUND_CHUNKS = 8
"""A round goes on until so many chunks have arrived or been lost: the loss of fewer is no share."""

HEAVY_LOSS = 0.4
"""Share of a round's chunks lost at which the buffer is overrun: no random loss worth the name does that.
BBR.LossThresh is 0.02, but of packets: a chunk is lost with any of its packets, and there may be a thousand."""

USUAL_LOSS = 0.2
"""So many chunks may any path lose at random, of one packet each: what the mode was measured at."""

CHANCE_DEVIATIONS = 4
"""HEAVY_LOSS is so many standard deviations above what is usual, for of a round of few chunks many may be lost by
chance: at 20 % four of eight once in 18 times, and seven of them once in 12 000. From 64 chunks on it makes no
difference."""

CHUNK_LOSS_GAIN = 1 / 8
"""Weight of a round in the average share of chunks lost: what a smoothed round trip gives a sample (RFC 9002, section
5.3)."""

LOSS_COMPENSATION = 0.5
"""What is lost does not show in the delivery rate. All of them added back, the filter's taste for the largest
sample would overrate the link, which fills the buffer, which loses more."""


@dataclasses.dataclass(frozen=True, slots=True)
class LossRound:
    """A round trip that is over.

    Attributes:
        lost: chunks.
        resolved: chunks lost or arrived.
        least_queue: of it, seconds; infinite where nobody can tell.
    """

    lost: int
    resolved: int
    least_queue: float

    @property
    def share(self) -> float:
        """Of its chunks that were lost."""
        return self.lost / self.resolved


class LossRounds:
    """Counts chunks round trip by round trip. Times in seconds.

    Attributes:
        packets: of a chunk.
        counts_packets: see `Controller`.
        chunk_loss: average share of chunks lost, of rounds without a queue.
        is_measured: transfers have found the loss.
    """

    def __init__(self, remembered: float | None, *, measured: bool) -> None:
        """
        Args:
            remembered: probability that a packet is lost; None: unknown.
            measured: by transfers.
        """
        self.packets = 1
        self.counts_packets = False
        self.chunk_loss = 0.0
        self.is_measured = measured
        self._loss = LossEstimator(remembered, measured=measured)
        self._chunk_loss_before = 0.0
        self._ends = 0.0
        self._arrived = self._lost = 0
        self._least_queue = math.inf

    @property
    def packet_loss(self) -> float | None:
        """Probability that a packet is lost, None while unknown."""
        return self._loss.loss

    @property
    def expected(self) -> float:
        """The share of what is sent that the path is known to lose: of chunks, or of packets where these count."""
        loss = self._loss.loss or 0.0
        return loss if self.counts_packets else chunk_loss(loss, self.packets)

    @property
    def undelivered(self) -> float:
        """The share of what is sent, lately, that the delivery rate does not show."""
        return min(self.chunk_loss, self.expected) if self.counts_packets else self.chunk_loss

    def compensated(self, delivery_rate: float) -> float:
        """The delivery rate with a part of what is lost added back."""
        return delivery_rate / (1 - self.undelivered * LOSS_COMPENSATION)

    def on_sample(self, sample: Sample) -> None:
        """A report has come."""
        self.packets, self.counts_packets = sample.packets_per_chunk, sample.counts_packets
        self._arrived += sample.arrived
        self._lost += sample.lost

    def on_queue(self, seconds: float) -> None:
        """So long a queue was seen."""
        self._least_queue = min(self._least_queue, seconds)

    def end(self, now: float, round_seconds: float) -> LossRound | None:
        """The round that is over, or None: it is not, or of too few chunks, and goes on."""
        if now < self._ends:
            return None
        self._ends = now + round_seconds
        ended = self.take()
        if ended is not None:
            self._least_queue = math.inf
        return ended

    def take(self) -> LossRound | None:
        """What has come so far as a round, and another begins; None: of too few chunks."""
        resolved = self._arrived + self._lost
        if resolved < LEAST_ROUND_CHUNKS:
            return None
        ended = LossRound(self._lost, resolved, self._least_queue)
        self.drop()
        return ended

    def with_overdue(self, chunks: int) -> LossRound:
        """What has come so far of the round, and so many chunks that are overdue, as lost ones."""
        lost = self._lost + chunks
        return LossRound(lost, lost + self._arrived, self._least_queue)

    def drop(self) -> None:
        """What has come so far counts no more."""
        self._arrived = self._lost = 0

    def is_heavy(self, ended: LossRound) -> bool:
        """Whether it lost so much that a buffer was overrun."""
        usual = max(USUAL_LOSS, self.chunk_loss, self.expected)
        by_chance = usual + CHANCE_DEVIATIONS * math.sqrt(usual * (1 - usual) / ended.resolved)
        return ended.share > max(HEAVY_LOSS, 2 * self.chunk_loss, by_chance)

    def on_probe(self) -> None:
        """What is lost from now on may be for a probe."""
        self._chunk_loss_before = self.chunk_loss

    def on_no_room(self) -> None:
        """It was: the average is what it was before. What is known of packets stays, for some may be the path's."""
        self.chunk_loss = self._chunk_loss_before

    def learn(self, ended: LossRound) -> None:
        """What it lost is the path's."""
        self._loss.on_round(ended.lost, ended.resolved, self.packets)
        self.is_measured = True

    def learn_unqueued(self, ended: LossRound) -> None:
        """The same, of a round without a queue: it counts for the average as well."""
        self.chunk_loss += (ended.share - self.chunk_loss) * CHUNK_LOSS_GAIN
        self.learn(ended)
