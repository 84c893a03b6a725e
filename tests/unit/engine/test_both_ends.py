"""A second thread that opens chunks: each once, and no two neighbours at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from fedrdma_fate.engine.both_ends import BothEnds, SharedWork

PATIENCE_SECONDS = 10.0
"""For the other thread's turn; longer, and it does not come."""


@pytest.fixture
def shared() -> Iterator[SharedWork]:
    work = SharedWork()
    yield work
    work.close()


def test_each_is_done_once_and_answered_for_in_order(shared: SharedWork) -> None:
    done: list[int] = []

    def is_even(number: int) -> bool:
        done.append(number)
        return number % 2 == 0

    for count in range(20):
        done.clear()
        assert shared.run(is_even, range(count)) == [number % 2 == 0 for number in range(count)]
        assert sorted(done) == list(range(count))


def test_two_threads_are_at_it_at_the_same_time(shared: SharedWork) -> None:
    both = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    def meet(number: int) -> bool:
        if number in (0, 9):
            both.wait()
        return True

    assert all(shared.run(meet, range(10)))


def test_never_are_two_neighbours_in_hand_at_once(shared: SharedWork) -> None:
    lock = threading.Lock()
    in_hand: set[int] = set()
    met: list[tuple[int, int]] = []

    def look(number: int) -> bool:
        with lock:
            met.extend((number, other) for other in in_hand if abs(number - other) <= 1)
            in_hand.add(number)
        # so that the other thread comes to its next while this one is in hand
        threading.Event().wait(1e-5)
        with lock:
            in_hand.remove(number)
        return True

    for count in range(1, 60):
        shared.run(look, range(count))
    assert not met


def test_the_second_thread_leaves_what_is_next_to_what_the_first_has_in_hand() -> None:
    ends = BothEnds(3)
    first, second = ends.upwards(), ends.downwards()
    assert next(first) == 0
    assert next(second) == 2
    assert next(second, None) is None, "1 is next to 0, which is in hand"
    assert list(first) == [1]


def test_the_first_thread_waits_for_a_neighbour_in_hand() -> None:
    ends = BothEnds(2)
    first, second = ends.upwards(), ends.downwards()
    assert next(second) == 1
    taken: list[int] = []
    waiting = threading.Thread(target=lambda: taken.extend(first))
    waiting.start()
    assert taken == []
    assert next(second, None) is None
    waiting.join(PATIENCE_SECONDS)
    assert taken == [0]


def test_what_fails_in_either_thread_is_raised_in_the_first_which_waits_for_the_other(shared: SharedWork) -> None:
    def fails_at(bad: int) -> Callable[[int], bool]:
        meeting = threading.Barrier(2, timeout=PATIENCE_SECONDS)

        def do(number: int) -> bool:
            if number in (0, 9):
                meeting.wait()
            if number == bad:
                raise ValueError(number)
            return True

        return do

    for bad in (0, 9):
        with pytest.raises(ValueError, match=str(bad)):
            shared.run(fails_at(bad), range(10))
    assert shared.run(lambda _: True, range(10)) == [True] * 10


def test_where_the_second_thread_gets_no_turn_the_first_does_all(shared: SharedWork) -> None:
    held = threading.Event()
    # it has something else in hand
    busy = shared._executor.submit(held.wait, PATIENCE_SECONDS)
    try:
        assert shared.run(lambda _: True, range(10)) == [True] * 10
    finally:
        held.set()
    assert busy.result()
