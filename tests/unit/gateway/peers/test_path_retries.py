"""When a path that was given up is tried again, by a clock of the test's."""

from __future__ import annotations

from fedrdma_fate.gateway.peers.path_retries import (
    FIRST_WAIT_SECONDS,
    LONGEST_WAIT_SECONDS,
    SOON_SECONDS,
    STEADY_SECONDS,
    PathRetries,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def wait_of(retries: PathRetries, clock: Clock, transport: str = "udp") -> float:
    """From now on until it is tried."""
    coming = retries.next([transport])
    assert coming is not None
    return coming[1] - clock.now


def test_a_path_that_never_comes_up_is_tried_less_and_less_often_and_never_given_up_for_good() -> None:
    clock = Clock()
    retries = PathRetries(clock)
    waits = []
    for _ in range(8):
        retries.failed("udp")
        waits.append(wait_of(retries, clock))
        clock.now += waits[-1]
        retries.tried("udp")
    assert waits == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0, 600.0]
    assert (waits[0], waits[-1]) == (FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
    told = retries.get("udp")
    assert told is not None
    assert told.trials == 8


def test_while_it_is_tried_or_up_it_is_not_due() -> None:
    retries = PathRetries(Clock())
    retries.tried("udp")
    assert retries.next(["udp"]) is None


def test_one_that_has_served_well_is_tried_soon_and_then_as_the_others() -> None:
    clock = Clock()
    retries = PathRetries(clock)
    retries.failed("udp")
    retries.lost("udp", STEADY_SECONDS, carried=True)
    assert wait_of(retries, clock) == SOON_SECONDS
    retries.failed("udp")
    assert wait_of(retries, clock) == 2 * SOON_SECONDS


def test_one_that_comes_and_goes_is_waited_for_longer_each_time() -> None:
    clock = Clock()
    retries = PathRetries(clock)
    retries.lost("udp", STEADY_SECONDS, carried=True)
    waits = []
    for _ in range(7):
        retries.tried("udp")
        retries.lost("udp", STEADY_SECONDS / 2, carried=True)
        waits.append(wait_of(retries, clock))
    assert waits == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]


def test_to_have_been_up_without_carrying_anything_is_no_service() -> None:
    clock = Clock()
    retries = PathRetries(clock)
    for _ in range(3):
        retries.lost("verbs", 10 * STEADY_SECONDS, carried=False)
    assert wait_of(retries, clock, "verbs") == 4 * FIRST_WAIT_SECONDS


def test_who_waited_long_has_to_serve_as_long() -> None:
    clock = Clock()
    retries = PathRetries(clock)
    for _ in range(4):
        retries.failed("udp")
    retries.lost("udp", 2 * STEADY_SECONDS, carried=True)
    assert wait_of(retries, clock) == 480.0
    retries.lost("udp", 480.0, carried=True)
    assert wait_of(retries, clock) == SOON_SECONDS


def test_a_trial_that_says_nothing_of_the_path_does_not_count_against_it() -> None:
    clock = Clock()
    retries = PathRetries(clock)
    retries.failed("udp")
    retries.tried("udp")
    retries.put_off("udp")
    assert wait_of(retries, clock) == FIRST_WAIT_SECONDS
    retries.put_off("never heard of")
    assert retries.get("never heard of") is None


def test_of_several_the_first_that_is_due_comes_first_and_one_that_was_never_given_up_waits_too() -> None:
    clock = Clock()
    retries = PathRetries(clock)
    retries.failed("verbs")
    retries.failed("verbs")
    assert retries.next(["verbs", "udp"]) == ("udp", clock.now + FIRST_WAIT_SECONDS)
    assert retries.next(["verbs"]) == ("verbs", clock.now + 2 * FIRST_WAIT_SECONDS)
    assert retries.next([]) is None


def test_nothing_is_kept_of_another_run_of_the_peer() -> None:
    clock = Clock()
    retries = PathRetries(clock)
    for _ in range(5):
        retries.failed("udp")
    retries.forget()
    assert wait_of(retries, clock) == FIRST_WAIT_SECONDS
