"""Which sessions have living tasks at this gateway, and since when one has none."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator

from fedrdma_fate.gateway.background import TimerHandle
from fedrdma_fate.wire.frames import Party

LATE_SECONDS = 1.0
"""A look that comes later than this shows that the process stood still, as a suspended host has it do: tasks that have
come meanwhile attach first."""


@dataclasses.dataclass(slots=True)
class _Life:
    """A session here.

    Attributes:
        since: when it was first heard of.
        idle_since: since when it has had no task.
        tasks: how many each party has.
        timer: of the look at it, while it has none.
    """

    since: float
    idle_since: float
    tasks: Counter[Party] = dataclasses.field(default_factory=Counter)
    timer: TimerHandle | None = None

    def stop(self) -> None:
        """Cancel the look at it."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Presence:
    """Counts the tasks of each session. Belongs to the event loop's thread."""

    def __init__(
        self,
        on_idle: Callable[[str], object],
        call_later: Callable[[float, Callable[[], None]], TimerHandle],
        clock: Callable[[], float],
        patience: float,
    ) -> None:
        """
        Args:
            on_idle: called with a session that has had no task here for so long; it says by `look_again` or `forget`
                what becomes of it.
            call_later: calls something on this thread after so many seconds.
            clock: seconds, of any origin.
            patience: seconds without any task after which a session is looked at.
        """
        self._on_idle = on_idle
        self._call_later = call_later
        self._clock = clock
        self._patience = patience
        self._began = clock()
        self._sessions: dict[str, _Life] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._sessions)

    def __contains__(self, session: str) -> bool:
        return session in self._sessions

    def arrive(self, session: str, party: Party) -> None:
        """A task attached."""
        life = self._of(session)
        life.tasks[party] += 1
        life.stop()

    def expect(self, session: str) -> None:
        """Something waits here for a party of this session, which may have no task yet."""
        if session not in self._sessions:
            self._of(session)
            self.look_again(session, self._patience)

    def depart(self, session: str, party: Party) -> bool:
        """A task ended; whether that was the last one of its session here."""
        life = self._sessions[session]
        life.tasks[party] -= 1
        if not life.tasks[party]:
            del life.tasks[party]
        if life.tasks:
            return False
        life.idle_since = self._clock()
        self.look_again(session, self._patience)
        return True

    def look_again(self, session: str, seconds: float) -> None:
        """See what becomes of a session without tasks when so much time has passed."""
        life = self._sessions[session]
        life.stop()

        due = self._clock() + seconds

        def look() -> None:
            if self._clock() - due > LATE_SECONDS:
                self.look_again(session, LATE_SECONDS)
            else:
                self._on_idle(session)

        life.timer = self._call_later(seconds, look)

    def forget(self, session: str) -> None:
        """Nothing is left here of a session, unless it has tasks. May be repeated."""
        life = self._sessions.get(session)
        if life is not None and not life.tasks:
            life.stop()
            del self._sessions[session]

    def has_tasks(self, session: str) -> bool:
        """Whether any task of it is attached."""
        return session in self._sessions and bool(self._sessions[session].tasks)

    def tasks(self, session: str) -> dict[Party, int]:
        """How many tasks each party has that has any."""
        return dict(self._sessions[session].tasks)

    def age(self, session: str) -> float:
        """Seconds since it was first heard of here."""
        return self._clock() - self._sessions[session].since

    def idle_seconds(self, session: str) -> float:
        """For how long it has had no task here, 0 while it has one; of an unknown one as long as the gateway knows."""
        if self.has_tasks(session):
            return 0.0
        life = self._sessions.get(session)
        return self._clock() - (self._began if life is None else life.idle_since)

    def close(self) -> None:
        """Look no more."""
        for life in self._sessions.values():
            life.stop()
        self._sessions.clear()

    def _of(self, session: str) -> _Life:
        now = self._clock()
        return self._sessions.setdefault(session, _Life(now, now))
