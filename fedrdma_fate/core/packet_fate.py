"""Whether messages of several packets come through a path as single packets do.

RDMA over unreliable connections drops a message whole when its packets come out of order. On a path where packets
overtake each other, chunks of several packets never come, while messages of one packet, and TCP, do.

A test is a series of short messages, which the peer answers one by one, and of long ones between them. Chance alone
loses a message of n packets as it loses n single ones: the long ones fail when far fewer come than that leaves.
"""

from __future__ import annotations

import enum
import math

SINGLES = 48
"""Short messages of a test. When all are answered, a packet is lost once in 16 times at most (the rule of three)."""

SINGLES_A_LONG_ONE = 3
"""After so many follows a long one."""

INTERVAL_SECONDS = 0.02
"""Between two short ones: 0.06 Mbit/s. All take a second."""

ANSWER_SECONDS = 0.3
"""For the last answers: longer than most round trips. What comes later counts as lost, in the path's favour."""

MOST_PACKETS = 8
"""Of a long message. More would tell less of a path that loses some; and 8 of 1 KiB, 16 times, are 1 Mbit/s."""

LEAST_EXPECTED = 6.0
"""Long messages that loss alone would let come, on the average. By a chance of 1 in 400 none of six comes."""

FAILING_SHARE = 0.25
"""They fail where fewer than this share of those comes: packets that overtake each other leave a few in order."""


class Fate(enum.Enum):
    """What became of a test."""

    PASSES = "long messages come as short ones do, or it cannot be told"
    LONG_ONES_FAIL = "short messages come, and long ones do not"
    SILENT = "nothing comes"


class PacketTest:
    """One test. Times in seconds of one clock."""

    def __init__(self, first_number: int, now: float) -> None:
        """
        Args:
            first_number: of the first message; they count up.
            now: when it begins.
        """
        self._next = first_number
        self._singles_sent = 0
        self._due = now
        self._long: dict[int, bool] = {}
        self._answered_singles = self._answered_long = 0
        self._long_sent = 0
        self._pending: set[int] = set()

    @property
    def due(self) -> float:
        """When to call `on_time`."""
        return self._due

    @property
    def next_number(self) -> int:
        """That of the next message, and so of the next test's first."""
        return self._next

    def on_time(self, now: float) -> list[tuple[int, bool]]:
        """What to send now: numbers, and whether the message is a long one."""
        if now < self._due or self._singles_sent >= SINGLES:
            return []
        sent = [(self._number(is_long=False), False)]
        self._singles_sent += 1
        if self._singles_sent % SINGLES_A_LONG_ONE == 0:
            sent.append((self._number(is_long=True), True))
            self._long_sent += 1
        self._due = now + (INTERVAL_SECONDS if self._singles_sent < SINGLES else ANSWER_SECONDS)
        return sent

    def on_answer(self, number: int) -> None:
        """The peer has got it; other numbers are of an earlier test, or made up."""
        if number in self._pending:
            self._pending.discard(number)
            if self._long[number]:
                self._answered_long += 1
            else:
                self._answered_singles += 1

    def fate(self, now: float, packets: int) -> Fate | None:
        """What became of it; None as long as it is not over.

        Args:
            now: seconds.
            packets: that a long message has.
        """
        if self._singles_sent < SINGLES or now < self._due:
            return None
        if not self._answered_singles and not self._answered_long:
            return Fate.SILENT
        expected = self._long_sent * least_chance(self._answered_singles, SINGLES) ** packets
        fails = expected >= LEAST_EXPECTED and self._answered_long < FAILING_SHARE * expected
        return Fate.LONG_ONES_FAIL if packets > 1 and fails else Fate.PASSES

    def _number(self, *, is_long: bool) -> int:
        number = self._next
        self._next += 1
        self._long[number] = is_long
        self._pending.add(number)
        return number


def least_chance(came: int, sent: int) -> float:
    """How probable it is at least that one comes, when so many of so many came: two standard deviations below."""
    share = came / sent
    return max(0.0, min(share - 2 * math.sqrt(share * (1 - share) / sent), 1 - 3 / sent))
