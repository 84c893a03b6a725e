"""Max-min fair shares: nobody gets more than it can use, and what is left goes to all others alike."""

from __future__ import annotations

from collections.abc import Mapping


def max_min(total: float, wants: Mapping[str, float]) -> dict[str, float]:
    """The share of each: the same for all, but for who wants less (Bertsekas and Gallager, "Data Networks", 6.5.2).

    Args:
        total: what there is.
        wants: what each can use at most; infinite: whatever it gets.
    """
    shares: dict[str, float] = {}
    left = total
    for count, (name, want) in enumerate(sorted(wants.items(), key=lambda item: item[1])):
        shares[name] = min(want, max(left, 0.0) / (len(wants) - count))
        left -= shares[name]
    return shares
