"""Whether datagrams still get through: short pings, and their answers. How long they may be: `path_mtu.py`."""

from __future__ import annotations

TICK_SECONDS = 0.15
"""Between two looks; while no answer comes, a ping goes with each."""

TICKS_BETWEEN_PINGS = 2
"""While chunks are sent and answers come: 0.3 s, for three pings notice that a path has become shorter (`path_mtu.py`).
With their headers they take 0.2 % of a link of 1 Mbit/s."""

TICKS_WHEN_IDLE = 100
"""15 s: NATs have to keep a UDP mapping for two minutes, and many do for 30 s only (RFC 4787, section 4.3)."""

TICKS_WHEN_DIALLED_AND_IDLE = 7
"""1.05 s, on the side that dialled: where a NAT has given it a new port, the listening side has to hear of it
(`path_validation.py`) before it gives the link up. 0.5 kbit/s."""

MOST_UNANSWERED = 14
"""Pings in a row, 2.1 s: where a fifth of all datagrams is lost, 14 of them or of their answers are once in two million
times."""

MOST_UNANSWERED_WHILE_HEARD = 67
"""The same, 10 s, while the peer sends messages: it reports as long as chunks come. Pings and answers may stand in a
queue of the path that much longer than 2.1 s, as 4 MB are 6.4 s at 5 Mbit/s."""


class Liveness:
    """Says when to ping, and when the path is lost. `tick` is to be called every TICK_SECONDS."""

    def __init__(self, *, dials: bool = False) -> None:
        """
        Args:
            dials: whether this is the side that dialled.
        """
        self._ticks_when_idle = TICKS_WHEN_DIALLED_AND_IDLE if dials else TICKS_WHEN_IDLE
        self._used = False
        self._heard = False
        self._unanswered = 0
        self._silent = 0
        self._ticks = 0
        self._number = 0

    def on_used(self) -> None:
        """The path is used for more than signs of life."""
        self._used = True

    def on_pong(self, number: int) -> None:
        """A ping was answered; answers to what was never asked are ignored."""
        if 0 < number <= self._number:
            self._unanswered = self._silent = 0

    def on_message(self) -> None:
        """The peer says something else."""
        self._heard = True

    @property
    def lost(self) -> bool:
        """Whether nothing has been answered for too long."""
        return self._silent >= MOST_UNANSWERED or self._unanswered >= MOST_UNANSWERED_WHILE_HEARD

    def tick(self, wanted: bool = False) -> int:
        """Time has passed: the number of the ping to send now, or 0.

        Args:
            wanted: one is to go now in any case.
        """
        self._ticks += 1
        due = TICKS_BETWEEN_PINGS if self._used else self._ticks_when_idle
        if not wanted and not self._unanswered and self._ticks < due:
            return 0
        self._ticks = 0
        self._used = False
        self._unanswered += 1
        self._silent = 0 if self._heard else self._silent + 1
        self._heard = False
        self._number += 1
        return self._number
