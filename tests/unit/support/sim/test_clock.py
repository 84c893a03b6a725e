"""Virtual time."""

from __future__ import annotations

from tests.support.sim.clock import VirtualClock


def test_events_run_in_the_order_of_their_time_and_of_their_arrival() -> None:
    clock, seen = VirtualClock(), []
    for name, when in [("late", 2.0), ("first", 1.0), ("second", 1.0)]:
        clock.at(when, lambda name=name: seen.append((name, clock.now)))
    clock.run()
    assert seen == [("first", 1.0), ("second", 1.0), ("late", 2.0)]


def test_an_event_may_bring_about_others() -> None:
    clock, seen = VirtualClock(), []
    clock.at(1.0, lambda: clock.after(0.5, lambda: seen.append(clock.now)))
    clock.run()
    assert seen == [1.5]


def test_nothing_happens_in_the_past() -> None:
    clock, seen = VirtualClock(), []
    clock.at(5.0, lambda: clock.at(1.0, lambda: seen.append(clock.now)))
    clock.run()
    assert seen == [5.0]


def test_a_run_stops_before_what_lies_behind_its_end() -> None:
    clock, seen = VirtualClock(), []
    clock.at(1.0, lambda: seen.append(1))
    clock.at(3.0, lambda: seen.append(3))
    clock.run(until=2.0)
    assert seen == [1]
    clock.run()
    assert seen == [1, 3]
