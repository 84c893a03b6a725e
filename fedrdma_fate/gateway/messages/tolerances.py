"""How much of which messages may be missing, as the tasks say that are to get them."""

from __future__ import annotations

import threading
from collections import OrderedDict

from fedrdma_fate.core.held import Ranges, bytes_in, merged
from fedrdma_fate.wire.frames import MessageKey, Party

MOST_TOLERANCES = 1 << 16
"""Messages at once: sixteen of each party of the largest session. Of one that is forgotten nothing will be missing."""


class JointBudget:
    """What may be missing of some messages together: what is missing of one already may be of each for nothing.

    Secure aggregation leaves out for all what one has lost. Places are counted from the ends of the payloads, for in
    front of the same arrays what has to be whole may differ by some bytes. Any thread may spend.
    """

    def __init__(self, share: float) -> None:
        """
        Args:
            share: of what may be missing of one of them.
        """
        self._share = share
        self._spent: dict[int, Ranges] = {}
        self._turn = threading.Lock()

    def spend(self, whole_bytes: int, total_bytes: int, missing: Ranges) -> bool:
        """Whether this may be missing, too; it is spent then."""
        lossy_bytes = total_bytes - whole_bytes
        if lossy_bytes <= 0:
            return not missing
        with self._turn:
            before = self._spent.get(lossy_bytes, ())
            after = merged((*before, *((total_bytes - end, total_bytes - start) for start, end in missing)))
            spent = {**self._spent, lossy_bytes: after}
            # payloads of other lengths have other arrays: nothing of theirs is the same
            shares = (bytes_in(ranges) / lossy for lossy, ranges in spent.items())
            if after != before and sum(shares) > self._share:
                return False
            self._spent = spent
            return True


class Tolerances:
    """Belongs to the event loop's thread; any thread may ask for a `share`, and `spend`."""

    def __init__(self) -> None:
        self._shares: OrderedDict[MessageKey, tuple[float, JointBudget | None]] = OrderedDict()

    def add(self, key: MessageKey, share: float, joint: JointBudget | None = None) -> None:
        """A task will get this message, and lets so much of what may be missing be so.

        Args:
            key: of the message.
            share: of what may be missing of it.
            joint: what it has together with others.
        """
        self._shares[key] = share, joint
        self._shares.move_to_end(key)
        while len(self._shares) > MOST_TOLERANCES:
            self._shares.popitem(last=False)

    def share(self, key: MessageKey) -> float:
        """How much of it may be missing: 0 where nobody has said so."""
        return self._shares.get(key, (0.0, None))[0]

    def spend(self, key: MessageKey, whole_bytes: int, total_bytes: int, missing: Ranges) -> bool:
        """Whether these ranges may be missing besides what is of messages that share a budget with it."""
        joint = self._shares.get(key, (0.0, None))[1]
        return joint is None or joint.spend(whole_bytes, total_bytes, missing)

    def discard(self, key: MessageKey) -> None:
        """It was got."""
        self._shares.pop(key, None)

    def leave(self, session: str, party: Party) -> None:
        """The party's tasks get nothing more of the session."""
        for key in [key for key in self._shares if key.session == session and key.destination == party]:
            del self._shares[key]

    def end(self, session: str) -> None:
        """The session is over."""
        for key in [key for key in self._shares if key.session == session]:
            del self._shares[key]
