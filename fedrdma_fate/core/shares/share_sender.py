"""One of those who share a link: what it has announced, what it was told, and what comes of it."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple


class Arrivals(NamedTuple):
    """What has come of one sender so far.

    Attributes:
        received_bytes: payload, what came twice counted twice.
        lost_bytes: of chunks that were overtaken.
        at: when the latest came, seconds.
        chunk_bytes: of the transfer that it belongs to; 0: not known.
    """

    received_bytes: int = 0
    lost_bytes: int = 0
    at: float = 0.0
    chunk_bytes: int = 0


NO_ARRIVALS = Arrivals()


@dataclasses.dataclass(slots=True, eq=False)
class Sender:
    """One of those who may send.

    Attributes:
        place: which part of a chunk's time it waits before its first, so that not all begin at once.
        round_trip: seconds; None while unknown.
        path_rate: what the way to it carries, where that is known from before; infinite: it is not.
        transfers: announced, and not ended.
        silent: whether nothing has come for long.
        share: what it was told, bytes a second; infinite: no bound.
        usable: what it can use; infinite while it uses what it has.
        arrived_rate: bytes a second, in the latest window.
        ignores: whether it sends more than it may.
        in_turn: whether it may send more than the least, where they take turns.
        asked: who has asked first has the least number.
        announced_bytes: of its transfers, since it last had none.
        due_bytes: what will have come of it when these have.
        turn_at: when its turn began, seconds.
        turn_transfers: that it had announced by then.
        train_rate: at which a train of its own came; infinite: none has.
        least_share: the least that it may have kept to in the latest window: what it was told, or was told before.
        begun_at: when it began, or went silent, seconds.
        come: what has come of it.
        come_before: what had when the window under way began; None: it did not send then.
        lost_rate: bytes a second that were overtaken, in the latest window.
        is_exact: whether that window's rates are from one arrival to another.
        changed_at: when it was told its share, seconds.
        usual_unused: of what is let through to it, what usually does not come.
        lately_unused: whether it used less than its share in the latest window that could be judged.
    """

    place: float
    round_trip: float | None = None
    path_rate: float = math.inf
    transfers: set[int] = dataclasses.field(default_factory=set)
    silent: bool = False
    share: float = math.inf
    usable: float = math.inf
    arrived_rate: float = 0.0
    ignores: bool = False
    in_turn: bool = True
    asked: int = 0
    announced_bytes: int = 0
    due_bytes: int = 0
    turn_at: float = -math.inf
    turn_transfers: set[int] = dataclasses.field(default_factory=set)
    train_rate: float = math.inf
    least_share: float = math.inf
    begun_at: float = 0.0
    come: Arrivals = NO_ARRIVALS
    come_before: Arrivals | None = None
    lost_rate: float = 0.0
    is_exact: bool = False
    changed_at: float = -math.inf
    usual_unused: float = 0.0
    lately_unused: bool = False

    @property
    def known_rate(self) -> float:
        """What the way to it, or from it, is known to carry."""
        return min(self.path_rate, self.train_rate)

    @property
    def allowed(self) -> float:
        """What is let through: to whom all is given that its way carries, that."""
        return min(self.share, self.path_rate)

    @property
    def unused(self) -> float:
        """What of that has not come, in the latest window."""
        return max(0.0, 1 - self.arrived_rate / self.allowed)

    @property
    def active(self) -> bool:
        """Whether it sends, or has said lately that it will."""
        return bool(self.transfers) and not self.silent

    @property
    def left_bytes(self) -> int:
        """Of what it has announced, what has not come."""
        return max(self.due_bytes - self.come.received_bytes, 0)
