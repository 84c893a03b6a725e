"""How many packets a path loses, from the chunks that it lost round by round, and from transfer to transfer."""

from __future__ import annotations

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
