"""Many hosts of the testbed, and links of single hosts that differ from the others'."""

from __future__ import annotations

import json

import pytest

from tests.support.testbed import program, run_on_hosts

pytestmark = pytest.mark.nic


def test_a_link_of_its_own_has_the_round_trip_the_loss_and_the_rate_that_were_asked_for() -> None:
    link = "1:rate=1mbit,rtt=60ms,loss=20%,buffer=50kB"
    results = run_on_hosts(program("round_trips.py", 60), rtt="20ms", rate="1gbit", host=[link], virtual_time=True)
    assert [result.exit_status for result in results] == [0, 0], results
    answer: dict[str, object] = json.loads(results[0].stdout)
    trips = answer["milliseconds"]
    assert isinstance(trips, list)
    # 46 bytes of a frame each way, at 1 Mbit/s
    assert all(trip is None or trip == pytest.approx(60.0, abs=1.0) for trip in trips)
    # 36 % of round trips, with a standard deviation of 4 of 60
    assert 9 <= trips.count(None) <= 34
    sender, receiver = results
    assert (sender.lost, receiver.overflowed) == (0, 0)
    assert receiver.lost >= trips.count(None)


def test_the_largest_testbed_that_is_measured_in_comes_up() -> None:
    hosts = 17
    assert [result.exit_status for result in run_on_hosts(["true"], hosts=hosts, virtual_time=True)] == [0] * hosts
