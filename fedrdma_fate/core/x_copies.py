"""How often a chunk is sent at once when nothing else is left to send: another loss would cost another round trip."""

from __future__ import annotations

import math

ENOUGH = 1e-3
"""Losing all copies of a chunk as rarely as this is worth a round trip now and then."""

MOST_COPIES = 3


def chunk_loss(loss: float, packets: int) -> float:
    """Probability that a chunk of so many packets is lost, each with probability `loss`."""
    return 1 - (1 - min(max(loss, 0.0), 1.0)) ** packets


def copies_of_last(lost: float) -> int:
    """Of a chunk that too few follow to betray its loss.

    Args:
        lost: probability that a chunk is lost.
    """
    return 2 if lost > ENOUGH else 1


def copies_of_repeat(lost: float) -> int:
    """Of a chunk that was lost, with nothing new to send.

    Args:
        lost: probability that a chunk is lost.
    """
    if lost <= ENOUGH:
        return 2
    if lost >= 1.0:
        return MOST_COPIES
    return min(max(math.ceil(math.log(ENOUGH) / math.log(lost)), 2), MOST_COPIES)
