"""What a window of time has shown of a link that several share."""

from __future__ import annotations

import dataclasses
import math

from fedrdma_fate.core.x.loss_rounds import CHANCE_DEVIATIONS

ALIKE = 0.02
"""Two windows show the same where what was let through has changed by no more: a trial begins between two such."""

SAME_LOSS = 0.5
"""Of what was lost, and of what came: a full buffer that is sent what came through it loses nothing, and one that is
sent an eighth of a hundred times too much passes eight times the share."""

SHORT_CHUNKS = 4
"""Where there are so many times as many as if they were as long as shares are made for, the link is a slow one, and a
chunk a packet."""

FEW_CHUNKS = 64
"""Of fewer one window alone shows little of what is lost."""


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """What a window of time has shown, of all who use what they may.

    Attributes:
        allowed: bytes a second that were let through.
        arrived: bytes a second that came, of these senders.
        all_arrived: the same of all senders.
        lost_share: of what all senders have sent, what did not come at its turn.
        common_loss: the median of the senders' own such shares, the lower of two in the middle.
        free_missing_share: what did not arrive of what was let through to those that no foreign flow holds up.
        others_lost_share: the same as `lost_share`, without the sender that lost most.
        chunks: that all senders have sent, as if of those that shares are made for.
        seconds: how long it was.
        sent_chunks: that all senders have sent, by the size that they have; 0: not known.
    """

    allowed: float
    arrived: float
    all_arrived: float
    lost_share: float
    common_loss: float = 1.0
    free_missing_share: float = 1.0
    others_lost_share: float = 0.0
    chunks: float = 0.0
    seconds: float = 0.0
    sent_chunks: float = 0.0

    @property
    def missing_share(self) -> float:
        """What of it did not arrive: lost, or in a queue."""
        return 1 - self.arrived / self.allowed

    @property
    def queued_share(self) -> float:
        """What of it was not lost, and did not arrive; what is told to be lost may have gone in the window before."""
        return max(self.missing_share - self.lost_share, 0.0)

    @property
    def all_sent(self) -> float:
        """Bytes a second that all senders have sent, those that did not come among them."""
        return self.all_arrived / (1 - self.lost_share) if self.lost_share < 1 else math.inf

    def is_like(self, other: Window) -> bool:
        """Whether as much was let through."""
        return abs(self.allowed - other.allowed) <= ALIKE * other.allowed

    def is_less_than(self, other: Window) -> bool:
        """Whether less was let through."""
        return self.allowed < (1 - ALIKE) * other.allowed

    def towards(self, window: Window, weight: float) -> Window:
        """The mean of this and another of such a weight."""

        def mean(ours: float, its: float) -> float:
            return ours + (its - ours) * weight

        return Window(
            mean(self.allowed, window.allowed),
            mean(self.arrived, window.arrived),
            mean(self.all_arrived, window.all_arrived),
            mean(self.lost_share, window.lost_share),
            mean(self.common_loss, window.common_loss),
            mean(self.free_missing_share, window.free_missing_share),
            mean(self.others_lost_share, window.others_lost_share),
            window.chunks,
            window.seconds,
            window.sent_chunks,
        )

    def has_less_missing_than(self, before: Window, share: float) -> bool:
        """Whether so much less is lost, or stays in a queue."""
        fallen = max(before.missing_share - self.missing_share, before.lost_share - self.lost_share)
        return fallen >= share

    def loses_as_much_as(self, before: Window) -> bool:
        """Whether as large a share is lost as before."""
        as_much = self.lost_share >= SAME_LOSS * before.lost_share
        return as_much and SAME_LOSS * (1 - self.lost_share) <= 1 - before.lost_share

    def chance(self, usual_loss: float) -> float:
        """The standard deviation of what is lost, each chunk by itself; 0 where their size is not known."""
        return math.sqrt(usual_loss * (1 - usual_loss) / self.sent_chunks) if self.sent_chunks else 0.0

    def rare(self, usual_loss: float) -> float:
        """So much more than usual is hardly lost by chance."""
        return CHANCE_DEVIATIONS * self.chance(usual_loss)

    @property
    def has_few_chunks(self) -> bool:
        """Whether it shows little by itself."""
        return 0 < self.sent_chunks < FEW_CHUNKS

    @property
    def has_short_chunks(self) -> bool:
        """Whether they are those of a slow link. On others a CUBIC flow yields what is tried for, and does not get it
        back."""
        return self.sent_chunks > SHORT_CHUNKS * self.chunks
