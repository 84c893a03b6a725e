"""Small parts of the gateway: the watchdog, attendance, routes, the context's ids, background tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.peers.watchdog import TICKS, until_silent
from fedrdma_fate.gateway.routing import Routes
from fedrdma_fate.gateway.tasks.presence import Attendance
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import Party

GUEST = Party("guest", "1")


class Life:
    """A peer's signs of life, by a clock of the test's own."""

    def __init__(self, signs: dict[int, float]) -> None:
        self.signs = signs
        self.ticks = 0
        self.pings = 0
        self.last = 0.0

    async def sleep(self, seconds: float) -> None:
        assert seconds == 5.0
        self.ticks += 1
        self.last = self.signs.get(self.ticks, self.last)
        assert self.ticks < 50, "it is never given up"

    def ping(self) -> None:
        self.pings += 1

    def watch(self) -> None:
        asyncio.run(until_silent(5.0 * TICKS, lambda: self.last, self.ping, self.sleep))


def test_a_silent_peer_is_given_up_after_the_time_out() -> None:
    life = Life({})
    life.watch()
    assert life.ticks == TICKS
    assert life.pings == TICKS


def test_a_sign_of_life_begins_the_count_anew() -> None:
    life = Life({3: 1.0, 6: 2.0})
    life.watch()
    assert life.ticks == 6 + TICKS


def test_a_peer_that_speaks_now_and_then_is_kept() -> None:
    life = Life({tick: float(tick) for tick in range(0, 60, TICKS - 1)})
    with pytest.raises(AssertionError, match="never given up"):
        life.watch()


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
    attendance = Attendance(lambda session, party: gone.append((session, party)), timers.call_later, 60.0)
    for _ in range(2):
        attendance.arrive("s", GUEST)
    attendance.part("s", GUEST, left=False)
    assert timers.due == []
    attendance.part("s", GUEST, left=False)
    assert [seconds for seconds, _ in timers.due] == [60.0]
    timers.fire()
    assert gone == [("s", GUEST)]


def test_a_party_that_comes_back_in_time_is_waited_for_no_longer() -> None:
    timers, gone = Timers(), list[tuple[str, Party]]()
    attendance = Attendance(lambda session, party: gone.append((session, party)), timers.call_later)
    attendance.arrive("s", GUEST)
    attendance.part("s", GUEST, left=False)
    attendance.arrive("s", GUEST)
    assert timers.due == []
    attendance.part("s", GUEST, left=True)
    assert timers.due == []
    assert gone == []


def test_when_the_gateway_ends_nobody_is_waited_for() -> None:
    timers = Timers()
    attendance = Attendance(lambda *_: None, timers.call_later)
    attendance.arrive("s", GUEST)
    attendance.part("s", GUEST, left=False)
    attendance.close()
    assert timers.due == []


@pytest.fixture
def routes() -> Routes:
    peers = [{"site": "b", "parties": ["2", "host:1"]}]
    return Routes(parse_config({"site": "a", "parties": ["1"], "security": "off", "peers": peers}))


def test_a_role_goes_before_a_whole_party(routes: Routes) -> None:
    assert routes.site_of(Party("host", "1")) == "b"
    assert routes.site_of(Party("guest", "1")) == "a"
    assert routes.is_local(Party("guest", "1"))
    assert not routes.is_local(Party("host", "1"))


def test_a_party_that_no_site_serves_is_refused_with_those_that_are_known(routes: Routes) -> None:
    assert routes.find(Party("guest", "7")) is None
    with pytest.raises(GatewayError) as caught:
        routes.site_of(Party("guest", "7"))
    assert caught.value.code is ErrorCode.WRONG_PARTY
    assert "known: 1, 2, host:1" in caught.value.remedy


def test_transfer_ids_of_two_runs_do_not_meet() -> None:
    firsts = {GatewayContext.__dataclass_fields__["next_transfer"].default_factory() for _ in range(100)}  # type: ignore[misc]
    assert len(firsts) == 100
    assert all(0 <= first < 2**52 for first in firsts)


def test_an_exception_in_a_background_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise KeyError("a bug")

    async def scenario() -> None:
        tasks: set[asyncio.Task[None]] = set()
        task = spawn(tasks, fail())
        assert tasks == {task}
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert tasks == set()

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "a background task of the gateway died" in caplog.text
