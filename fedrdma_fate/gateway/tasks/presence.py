"""Which parties have tasks attached; a party that has been gone for long without leaving is taken to have left."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from fedrdma_fate.gateway.background import TimerHandle
from fedrdma_fate.wire.frames import Party

ABSENCE_SECONDS = 3600.0
"""A killed job leaves messages behind that nobody will pull; after so long they are dropped."""


@dataclasses.dataclass(slots=True)
class _Tasks:
    """The tasks of a party in a session: how many, and what is called when there have been none for long."""

    count: int = 0
    timer: TimerHandle | None = None


class Presence:
    """Counts the tasks of each party in each session. Belongs to the event loop's thread."""

    def __init__(
        self,
        on_absent: Callable[[str, Party], object],
        call_later: Callable[[float, Callable[[], None]], TimerHandle],
        absence: float = ABSENCE_SECONDS,
    ) -> None:
        """
        Args:
            on_absent: called with a session and a party that counts as having left it.
            call_later: calls something on this thread after so many seconds.
            absence: seconds without any task after which it does.
        """
        self._on_absent = on_absent
        self._call_later = call_later
        self._absence = absence
        self._present: dict[tuple[str, Party], _Tasks] = {}

    def arrive(self, session: str, party: Party) -> None:
        """A task attached."""
        tasks = self._present.setdefault((session, party), _Tasks())
        tasks.count += 1
        if tasks.timer is not None:
            tasks.timer.cancel()
            tasks.timer = None

    def expect(self, session: str, party: Party) -> None:
        """Something waits for this party; it counts as gone from now on if it has no task."""
        if (session, party) not in self._present:
            self._present[session, party] = _Tasks()
            self._wait_for(session, party)

    def depart(self, session: str, party: Party, *, left: bool) -> None:
        """A task ended; `left` says whether its party has left the session."""
        tasks = self._present[session, party]
        tasks.count -= 1
        if tasks.count:
            return
        if left:
            del self._present[session, party]
        else:
            self._wait_for(session, party)

    def close(self) -> None:
        """Cancel what was to be called."""
        for tasks in self._present.values():
            if tasks.timer is not None:
                tasks.timer.cancel()
        self._present.clear()

    def _wait_for(self, session: str, party: Party) -> None:
        self._present[session, party].timer = self._call_later(self._absence, lambda: self._absent(session, party))

    def _absent(self, session: str, party: Party) -> None:
        del self._present[session, party]
        self._on_absent(session, party)
