"""Whose turn it is to be in memory: who waits for one site, or sends half a push, keeps none from the others."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from fedrdma_fate.gateway.osx import room
from fedrdma_fate.gateway.osx.room import AnswerRoom, PushPlace, PushRoom
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.support.sites import eventually

SECONDS = 20.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Callers:
    """Threads that each take a place, and have it until they are told to leave."""

    def __init__(self, take: Callable[[object, Callable[[], bool]], contextlib.AbstractContextManager[object]]) -> None:
        self._take = take
        self._threads: list[threading.Thread] = []
        self._leave: list[threading.Event] = []
        self._gone: list[threading.Event] = []
        self.places: dict[int, object] = {}
        self.ended: dict[int, BaseException] = {}

    def come(self, whose: object) -> int:
        number = len(self._threads)
        leave, gone = threading.Event(), threading.Event()
        self._leave.append(leave)
        self._gone.append(gone)

        def run() -> None:
            try:
                with self._take(whose, gone.is_set) as place:
                    self.places[number] = place
                    leave.wait(SECONDS)
            except (EOFError, GatewayError) as error:
                self.ended[number] = error

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()
        return number

    def leave(self, number: int) -> None:
        self._leave[number].set()
        self._threads[number].join(SECONDS)

    def go_away(self, number: int) -> None:
        self._gone[number].set()
        self._threads[number].join(SECONDS)

    def close(self) -> None:
        for leave, gone in zip(self._leave, self._gone, strict=True):
            leave.set()
            gone.set()
        for thread in self._threads:
            thread.join(SECONDS)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pushes(clock: Clock) -> PushRoom:
    return PushRoom(clock)


@pytest.fixture
def cancelled() -> list[str]:
    return []


@pytest.fixture
def callers(pushes: PushRoom, cancelled: list[str]) -> Iterator[Callers]:
    made = Callers(lambda site, gone: pushes.place(str(site), gone, lambda: cancelled.append(str(site))))
    yield made
    made.close()


def has_places(callers: Callers, count: int) -> None:
    eventually(lambda: len(callers.places) == count, SECONDS)


def fill(
    callers: Callers, pushes: PushRoom, site: str, count: int = room.MOST_READ, total_bytes: int = 10
) -> list[int]:
    """So many that are in memory, and wait there."""
    numbers = [callers.come(site) for _ in range(count)]
    eventually(lambda: all(number in callers.places for number in numbers), SECONDS)
    for number in numbers:
        place = callers.places[number]
        assert isinstance(place, PushPlace)
        pushes.has_read(place, total_bytes)
    return numbers


def test_pushes_that_wait_in_memory_for_one_site_keep_out_others_to_it_alone(
    pushes: PushRoom, callers: Callers
) -> None:
    first = fill(callers, pushes, "dead")
    later = callers.come("dead")
    assert callers.come("alive") is not None
    has_places(callers, len(first) + 1)
    assert later not in callers.places
    callers.leave(first[3])
    eventually(lambda: later in callers.places, SECONDS)


def test_while_much_of_a_site_is_in_memory_no_more_is_read(
    pushes: PushRoom, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MOST_SITE_BYTES", 100)
    large = fill(callers, pushes, "b", 1, 100)
    later = callers.come("b")
    callers.come("c")
    has_places(callers, 2)
    assert later not in callers.places
    callers.leave(large[0])
    eventually(lambda: later in callers.places, SECONDS)


def test_pushes_that_are_never_sent_to_their_end_keep_none_waiting_for_long(callers: Callers, clock: Clock) -> None:
    for _ in range(room.MOST_READ):
        callers.come("b")
    has_places(callers, room.MOST_READ)
    later = callers.come("b")
    clock.now += room.PATIENT_SECONDS - 0.1
    assert later not in callers.places
    clock.now += 0.2
    eventually(lambda: later in callers.places, SECONDS)


def test_of_too_many_that_are_slow_the_oldest_is_ended_for_one_that_waits(
    callers: Callers, clock: Clock, cancelled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MOST_SLOW", 1)
    monkeypatch.setattr(room, "MOST_READ", 1)
    for count in (1, 2):
        callers.come("b")
        has_places(callers, count)
        clock.now += room.PATIENT_SECONDS + 1
    later = callers.come("b")
    eventually(lambda: later not in callers.places and not cancelled, SECONDS)
    clock.now += room.SLOW_SECONDS
    eventually(lambda: cancelled, SECONDS)
    callers.leave(0)
    eventually(lambda: later in callers.places, SECONDS)


def test_more_than_may_lie_in_memory_are_refused_and_leave_their_place(
    pushes: PushRoom, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MOST_PUSH_BYTES", 100)
    first = fill(callers, pushes, "b", 1, 60)
    with pushes.place("c", lambda: False, lambda: None) as place, pytest.raises(GatewayError) as refused:
        pushes.has_read(place, 41)
    assert refused.value.code is ErrorCode.LIMIT_REACHED
    callers.leave(first[0])
    fill(callers, pushes, "c", 1, 100)


def test_while_as_much_is_in_memory_as_may_none_is_read_whatever_site_it_is_for(
    pushes: PushRoom, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MOST_PUSH_BYTES", 1000)
    (full,) = fill(callers, pushes, "a", 1, total_bytes=1000)
    waits = callers.come("b")
    # nothing is to happen for as long as its next look takes
    assert not threading.Event().wait(2 * room._LOOK_SECONDS)
    assert waits not in callers.places
    callers.leave(full)
    eventually(lambda: waits in callers.places, SECONDS)


def test_a_site_has_no_more_pushes_than_it_leaves_to_others(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_PUSHES", 8)
    for count in range(4):
        callers.come("dead")
        has_places(callers, count + 1)
    refused = callers.come("dead")
    eventually(lambda: refused in callers.ended, SECONDS)
    error = callers.ended[refused]
    assert isinstance(error, GatewayError)
    assert error.code is ErrorCode.LIMIT_REACHED
    others = [callers.come("alive") for _ in range(2)]
    has_places(callers, 4 + len(others))
    for number in range(4):
        callers.leave(number)
    callers.come("dead")
    has_places(callers, 7)


def test_whoever_goes_away_while_it_waits_leaves_nothing(pushes: PushRoom, callers: Callers) -> None:
    first = fill(callers, pushes, "b")
    waits = callers.come("b")
    eventually(lambda: len(pushes._sites["b"].waiting) == 1, SECONDS)
    callers.go_away(waits)
    assert isinstance(callers.ended[waits], EOFError)
    for number in first:
        callers.leave(number)
    assert (pushes._sites, pushes._count, pushes._bytes) == ({}, 0, 0)


# -- answers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> AnswerRoom:
    monkeypatch.setattr(room, "MOST_ANSWER_BYTES", 100)
    return AnswerRoom()


@pytest.fixture
def takers(answers: AnswerRoom) -> Iterator[Callers]:
    def take(whose: object, gone: Callable[[], bool]) -> contextlib.AbstractContextManager[object]:
        assert isinstance(whose, tuple)
        return answers.taken(whose[0], whose[1], gone)

    made = Callers(take)
    yield made
    made.close()


def test_answers_that_are_not_taken_leave_room_for_those_of_another_party(takers: Callers) -> None:
    takers.come(("slow", 50))
    has_places(takers, 1)
    more = takers.come(("slow", 30))
    takers.come(("other", 50))
    has_places(takers, 2)
    assert more not in takers.places
    takers.leave(0)
    eventually(lambda: more in takers.places, SECONDS)


def test_an_answer_waits_for_the_bytes_of_others_and_one_beyond_all_goes_alone(
    answers: AnswerRoom, takers: Callers
) -> None:
    takers.come(("a", 60))
    has_places(takers, 1)
    late, beyond = takers.come(("b", 41)), takers.come(("c", 500))
    takers.go_away(late)
    assert isinstance(takers.ended[late], EOFError)
    assert beyond not in takers.places
    takers.leave(0)
    eventually(lambda: beyond in takers.places, SECONDS)
    takers.leave(beyond)
    assert answers._of == {}
