"""What a sender measures of a path: the rate at which chunks arrive, and how many packets are lost."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 0.008

SURE_SECONDS = 0.002
"""Over less, the unrest of single packets shows: two of them are 2 % of half a millisecond at 10 Gbit/s."""


class DeliveryMeter:
    """Bytes over time at the receiver, lately: over a few milliseconds, or what it takes to see enough of them.

    Times in seconds of the receiver's clock.
    """

    def __init__(self, least_bytes: int) -> None:
        """
        Args:
            least_bytes: that must have arrived for a rate to mean something.
        """
        self._least_bytes = least_bytes
        self._marks: deque[tuple[float, int]] = deque()

    def rate(self, arrived_at: float, received_bytes: int, *, sure: bool = False) -> float | None:
        """Bytes a second lately; None where that cannot be told.

        Args:
            arrived_at: when the newest chunk arrived.
            received_bytes: all that had arrived by then.
            sure: do not tell it before it can be told well; who knows nothing yet will take anything.
        """
        marks = self._marks
        if marks and (arrived_at < marks[-1][0] or received_bytes == marks[-1][1]):
            return None
        if marks and arrived_at == marks[-1][0]:
            # seen in the same look
            marks.pop()
        marks.append((arrived_at, received_bytes))
        latest_start = arrived_at - WINDOW_SECONDS
        while len(marks) > 2 and marks[1][0] <= latest_start and received_bytes - marks[1][1] >= self._least_bytes:
            marks.popleft()
        since, before = marks[0]
        if received_bytes - before < self._least_bytes or (sure and arrived_at - since < SURE_SECONDS):
            return None
        return (received_bytes - before) / (arrived_at - since)

    def forget(self) -> None:
        """Nothing arrived for a while, whatever the path can carry: begin anew."""
        self._marks.clear()


GAIN = 0.25
"""Weight of a round; of the first few rounds, each as much as those before."""

FULL_ROUND_CHUNKS = 64
"""A round of fewer chunks weighs less."""


class LossMeter:
    """Probability that a packet is lost.

    Attributes:
        loss: the estimate, None while nothing is known.
    """

    def __init__(self, remembered: float | None, *, found: bool = True) -> None:
        """
        Args:
            remembered: the estimate so far.
            found: whether transfers have found it; what is only supposed gives way to the first round.
        """
        self.loss = remembered
        self._rounds = 0.0 if remembered is None or not found else 1 / GAIN

    def on_round(self, lost: int, seen: int, packets: int) -> None:
        """A round is over.

        Args:
            lost: chunks that were.
            seen: chunks lost or arrived.
            packets: of a chunk.
        """
        found = 1 - (1 - lost / seen) ** (1 / packets)
        weight = min(1.0, seen / FULL_ROUND_CHUNKS)
        self._rounds += weight
        gain = weight * max(GAIN, 1 / self._rounds)
        before = 0.0 if self.loss is None else self.loss
        self.loss = before + gain * (found - before)


def chunk_loss(loss: float, packets: int) -> float:
    """Probability that a chunk of so many packets is lost, each with probability `loss`."""
    return 1 - (1 - min(max(loss, 0.0), 1.0)) ** packets
