"""How much of which messages may be missing, as the tasks say that are to get them."""

from __future__ import annotations

import statistics
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

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


class Round:
    """Messages of one name and tag that a task gets of several parties, and what may be missing of them.

    Attributes:
        share: of what may be missing of each.
        joint: what they have together, if anything.
    """

    def __init__(
        self,
        keys: Sequence[MessageKey],
        share: float,
        *,
        jointly: bool = False,
        straggler_wait: float | None = None,
    ) -> None:
        """
        Args:
            keys: of the messages.
            share: of what may be missing of each.
            jointly: it is of all together; see `JointBudget`.
            straggler_wait: how much longer than the others the last is waited for, as a share of the median time of
                their transfers; None: until it has been sent.
        """
        self.share = share
        self.joint = JointBudget(share) if jointly else None
        self._straggler_wait = straggler_wait
        self._awaited = dict.fromkeys(keys)
        self._seconds: list[float] = []

    @property
    def awaited(self) -> tuple[MessageKey, ...]:
        """Messages that have not come."""
        return tuple(self._awaited)

    def forget(self, key: MessageKey) -> None:
        """This message is of another round, or of none."""
        self._awaited.pop(key, None)

    def awaits(self, key: MessageKey) -> bool:
        """Whether this message has not come."""
        return key in self._awaited

    def came(self, key: MessageKey, seconds: float | None) -> tuple[MessageKey, float] | None:
        """A message is here, whose transfer has taken so long, where that is known.

        Returns:
            Where all are here but one: which, and how many seconds more it is waited for. Else None, and where it is
            waited for in any case, or nobody knows how long the others took.
        """
        if key not in self._awaited:
            return None
        del self._awaited[key]
        if seconds is not None:
            self._seconds.append(seconds)
        if len(self._awaited) != 1 or self._straggler_wait is None or not self._seconds:
            return None
        (last,) = self._awaited
        return last, self._straggler_wait * statistics.median(self._seconds)


class Tolerances:
    """Belongs to the event loop's thread; any thread may ask for a `share`, whether a message `is_late`, and `spend`.

    Attributes:
        on_last: called when all messages of a round but one are here: with that one, and for how many seconds it is to
            be waited for before `note_late`.
    """

    def __init__(self) -> None:
        self._rounds: OrderedDict[MessageKey, Round] = OrderedDict()
        self._late: set[MessageKey] = set()
        self.on_last: Callable[[MessageKey, float], object] = lambda _key, _seconds: None

    def begin(self, round_: Round) -> None:
        """A task will get these messages."""
        for key in round_.awaited:
            before = self._rounds.get(key)
            # never without one, for other threads ask
            self._rounds[key] = round_
            self._rounds.move_to_end(key)
            self._late.discard(key)
            if before is not None and before is not round_:
                # so that it keeps nothing alive of what its task repeats
                before.forget(key)
        while len(self._rounds) > MOST_TOLERANCES:
            self._forget(next(iter(self._rounds)))

    def came(self, key: MessageKey, seconds: float | None) -> None:
        """A message is here; its transfer has taken so long, where that is known."""
        if (round_ := self._rounds.get(key)) is not None and (last := round_.came(key, seconds)) is not None:
            self.on_last(*last)

    def note_late(self, key: MessageKey) -> bool:
        """A message has been waited for as long as was said; whether it has not come."""
        round_ = self._rounds.get(key)
        if round_ is None or not round_.awaits(key):
            return False
        self._late.add(key)
        return True

    def is_late(self, key: MessageKey) -> bool:
        """Whether it is not waited for any more, once what is missing of it may be."""
        return key in self._late

    def share(self, key: MessageKey) -> float:
        """How much of it may be missing: 0 where nobody has said so."""
        round_ = self._rounds.get(key)
        return 0.0 if round_ is None else round_.share

    def spend(self, key: MessageKey, whole_bytes: int, total_bytes: int, missing: Ranges) -> bool:
        """Whether these ranges may be missing besides what is of messages that share a budget with it.

        Of a message that was forgotten, since somebody has asked for its `share`, nothing may.
        """
        round_ = self._rounds.get(key)
        if round_ is None:
            return not missing
        return round_.joint is None or round_.joint.spend(whole_bytes, total_bytes, missing)

    def discard(self, key: MessageKey) -> None:
        """It was got."""
        if key in self._rounds:
            self._forget(key)

    def leave(self, session: str, party: Party) -> None:
        """The party's tasks get nothing more of the session."""
        for key in [key for key in self._rounds if key.session == session and key.destination == party]:
            self._forget(key)

    def end(self, session: str) -> None:
        """The session is over."""
        for key in [key for key in self._rounds if key.session == session]:
            self._forget(key)

    def _forget(self, key: MessageKey) -> None:
        self._rounds.pop(key).forget(key)
        self._late.discard(key)
