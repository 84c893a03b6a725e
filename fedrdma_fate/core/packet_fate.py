"""Whether messages of several packets come through a path as single packets do.

RDMA over unreliable connections drops a message whole when its packets come out of order. On a path where packets
overtake each other, chunks of several packets never come, while messages of one packet, and TCP, do.

A test is a series of moments. In each go as many short messages as a long one has packets, which the peer answers one
by one, and a long one, now ahead of them and now behind. A host that is busy, or a queue that is full, drops packets of
both alike: a moment of which a short message is missing says nothing of its long one. Chance alone loses a message of n
packets as it loses n single ones: the long ones fail when far fewer come than that leaves.
"""

from __future__ import annotations

import dataclasses
import enum
import math

MOMENTS = 16
"""Of a test, each with a long message. With 8 short ones each a packet is lost once in 43 times at most when all are
answered (the rule of three)."""

INTERVAL_SECONDS = 0.06
"""Between two moments. All take 0.9 s."""

ANSWER_SECONDS = 0.3
"""For the last answers: longer than most round trips. What comes later counts as lost, in the path's favour."""

MOST_PACKETS = 8
"""Of a long message, and short ones of a moment. More would tell less of a path that loses some; and 8 of 1 KiB, 16
times, are 1 Mbit/s."""

LEAST_EXPECTED = 6.0
"""Long messages that loss alone would let come, on the average. By a chance of 1 in 400 none of six comes."""

FAILING_SHARE = 0.25
"""They fail where fewer than this share of those comes: packets that overtake each other leave a few in order."""


class Fate(enum.Enum):
    """What became of a test."""

    PASSES = "long messages come as short ones do, or it cannot be told"
    LONG_ONES_FAIL = "short messages come, and long ones do not"
    SILENT = "nothing comes"


@dataclasses.dataclass(slots=True)
class _Moment:
    """What was sent at once: numbers of short messages that are not answered, and whether there was a long one."""

    pending: set[int]
    has_long: bool


class PacketTest:
    """One test. Times in seconds of one clock."""

    def __init__(self, first_number: int, now: float) -> None:
        """
        Args:
            first_number: of the first message; they count up.
            now: when it begins.
        """
        self._next = first_number
        self._due = now
        self._moments: list[_Moment] = []
        self._long: set[int] = set()
        self._singles_sent = self._answered_singles = self._answered_long = 0

    @property
    def due(self) -> float:
        """When to call `on_time`."""
        return self._due

    @property
    def next_number(self) -> int:
        """That of the next message, and so of the next test's first."""
        return self._next

    def on_time(self, now: float) -> list[tuple[int, bool]]:
        """What to send now, at once and in this order: numbers, and whether the message is a long one."""
        if now < self._due or len(self._moments) >= MOMENTS:
            return []
        is_long_first = len(self._moments) % 2 == 1
        numbers = range(self._next, self._next + MOST_PACKETS + 1)
        self._next = numbers.stop
        long = numbers[0] if is_long_first else numbers[-1]
        self._moments.append(_Moment(set(numbers) - {long}, has_long=True))
        self._long.add(long)
        self._singles_sent += MOST_PACKETS
        self._due = now + (INTERVAL_SECONDS if len(self._moments) < MOMENTS else ANSWER_SECONDS)
        return [(number, number == long) for number in numbers]

    def on_unsent(self, number: int) -> None:
        """A message of the latest moment could not be sent, for too many wait on this host: no path has lost it."""
        moment = self._moments[-1]
        if number in self._long:
            self._long.discard(number)
            moment.has_long = False
        elif number in moment.pending:
            # stays pending: of this moment nothing is concluded
            self._singles_sent -= 1

    def on_answer(self, number: int) -> None:
        """The peer has got it; other numbers are of an earlier test, or made up."""
        if number in self._long:
            self._long.discard(number)
            self._answered_long += 1
            return
        for moment in self._moments:
            if number in moment.pending:
                moment.pending.discard(number)
                self._answered_singles += 1

    def fate(self, now: float, packets: int) -> Fate | None:
        """What became of it; None as long as it is not over.

        Args:
            now: seconds.
            packets: that a long message has, MOST_PACKETS at most but where those are very short.
        """
        if len(self._moments) < MOMENTS or now < self._due:
            return None
        if not self._answered_singles and not self._answered_long:
            return Fate.SILENT
        counted = sum(moment.has_long and not moment.pending for moment in self._moments)
        expected = counted * least_chance(self._answered_singles, self._singles_sent) ** packets
        fails = expected >= LEAST_EXPECTED and self._answered_long < FAILING_SHARE * expected
        return Fate.LONG_ONES_FAIL if packets > 1 and fails else Fate.PASSES


def least_chance(came: int, sent: int) -> float:
    """How probable it is at least that one comes, when so many of so many came: two standard deviations below."""
    if not sent:
        return 0.0
    share = came / sent
    return max(0.0, min(share - 2 * math.sqrt(share * (1 - share) / sent), 1 - 3 / sent))
