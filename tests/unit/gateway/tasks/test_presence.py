"""Which sessions have tasks, and when one that has none is looked at."""

from __future__ import annotations

from collections.abc import Callable

from fedrdma_fate.gateway.tasks.presence import Presence
from fedrdma_fate.wire.frames import Party

GUEST, HOST = Party("guest", "1"), Party("host", "2")


class Timers:
    """Calls that are made when the test says so, and a clock that stands still meanwhile."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timers.Handle:
        entry = (seconds, call)
        self.due.append(entry)
        return Timers.Handle(self, entry)

    class Handle:
        def __init__(self, timers: Timers, entry: tuple[float, Callable[[], None]]) -> None:
            self._timers, self._entry = timers, entry

        def cancel(self) -> None:
            if self._entry in self._timers.due:
                self._timers.due.remove(self._entry)

    def fire(self) -> None:
        due, self.due = self.due, []
        for _, call in due:
            call()


class Watched:
    """Presence with a patience of a minute, and the sessions that it found idle."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.idle: list[str] = []
        self.presence = Presence(self.idle.append, self.timers.call_later, lambda: self.timers.now, 60.0)


def test_a_session_is_looked_at_when_its_last_task_has_been_gone_for_long_whoever_it_was() -> None:
    watched = Watched()
    watched.presence.arrive("s", GUEST)
    watched.presence.arrive("s", HOST)
    assert not watched.presence.depart("s", GUEST)
    assert watched.timers.due == []
    assert watched.presence.depart("s", HOST)
    assert [seconds for seconds, _ in watched.timers.due] == [60.0]
    watched.timers.fire()
    assert watched.idle == ["s"]


def test_after_a_standstill_tasks_that_came_meanwhile_attach_first() -> None:
    watched = Watched()
    watched.presence.expect("s")
    watched.timers.now += 4000
    watched.timers.fire()
    assert watched.idle == []
    watched.presence.arrive("s", GUEST)
    assert watched.timers.due == []
    watched.presence.depart("s", GUEST)
    watched.timers.now += 60
    watched.timers.fire()
    assert watched.idle == ["s"]


def test_a_session_whose_task_comes_back_in_time_is_not_looked_at() -> None:
    watched = Watched()
    watched.presence.arrive("s", GUEST)
    watched.presence.depart("s", GUEST)
    watched.presence.arrive("s", GUEST)
    assert watched.timers.due == []
    assert watched.presence.tasks("s") == {GUEST: 1}


def test_a_session_that_is_only_expected_is_looked_at_once() -> None:
    watched = Watched()
    watched.presence.expect("s")
    watched.presence.expect("s")
    assert len(watched.timers.due) == 1
    assert "s" in watched.presence


def test_a_session_with_tasks_is_not_forgotten() -> None:
    watched = Watched()
    watched.presence.arrive("s", GUEST)
    watched.presence.forget("s")
    assert watched.presence.has_tasks("s")
    watched.presence.depart("s", GUEST)
    watched.presence.forget("s")
    assert list(watched.presence) == []
    assert watched.timers.due == []


def test_it_is_told_for_how_long_a_session_has_had_no_task() -> None:
    watched = Watched()
    watched.timers.now += 5
    watched.presence.arrive("s", GUEST)
    watched.timers.now += 7
    assert watched.presence.idle_seconds("s") == 0
    assert watched.presence.idle_seconds("unknown") == 12, "no longer than the gateway has been there to see it"
    watched.presence.depart("s", GUEST)
    watched.timers.now += 3
    assert watched.presence.idle_seconds("s") == 3
    assert watched.presence.age("s") == 10


def test_when_the_gateway_ends_nothing_is_looked_at() -> None:
    watched = Watched()
    watched.presence.arrive("s", GUEST)
    watched.presence.depart("s", GUEST)
    watched.presence.close()
    assert watched.timers.due == []
