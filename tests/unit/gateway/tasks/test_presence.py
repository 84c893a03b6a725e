"""Which parties are there, and when one that is gone counts as having left."""

from __future__ import annotations

from collections.abc import Callable

from fedrdma_fate.gateway.tasks.presence import Presence
from fedrdma_fate.wire.frames import Party

GUEST = Party("guest", "1")


class Timers:
    """Calls that are made when the test says so."""

    def __init__(self) -> None:
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


def test_a_party_that_is_gone_for_long_without_leaving_counts_as_having_left() -> None:
    timers, gone = Timers(), list[tuple[str, Party]]()
    presence = Presence(lambda session, party: gone.append((session, party)), timers.call_later, 60.0)
    for _ in range(2):
        presence.arrive("s", GUEST)
    presence.depart("s", GUEST, left=False)
    assert timers.due == []
    presence.depart("s", GUEST, left=False)
    assert [seconds for seconds, _ in timers.due] == [60.0]
    timers.fire()
    assert gone == [("s", GUEST)]


def test_a_party_that_comes_back_in_time_is_waited_for_no_longer() -> None:
    timers, gone = Timers(), list[tuple[str, Party]]()
    presence = Presence(lambda session, party: gone.append((session, party)), timers.call_later)
    presence.arrive("s", GUEST)
    presence.depart("s", GUEST, left=False)
    presence.arrive("s", GUEST)
    assert timers.due == []
    presence.depart("s", GUEST, left=True)
    assert timers.due == []
    assert gone == []


def test_when_the_gateway_ends_nobody_is_waited_for() -> None:
    timers = Timers()
    presence = Presence(lambda *_: None, timers.call_later)
    presence.arrive("s", GUEST)
    presence.depart("s", GUEST, left=False)
    presence.close()
    assert timers.due == []
