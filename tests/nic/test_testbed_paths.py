"""Paths of the testbed that are no plain link: each does what it says, to packets that both hosts send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.testbed import HostResult, program, run_on_hosts

pytestmark = pytest.mark.nic

Arrived = list[tuple[int, float, float]]
"""Number, when it was sent, and when it came: seconds after the first could be sent."""
HEADERS_BYTES = 42
"""Ethernet, IPv4 and UDP, which queues count as well."""


def exchange(
    milliseconds: int, size: int, each: int = 1, **wan: Any
) -> tuple[tuple[HostResult, Arrived], tuple[HostResult, Arrived]]:
    """What the WAN did to so many packets, with all headers of so many bytes: host 0 and what came to it, then host 1.

    Args:
        each: packets a millisecond.
    """
    command = program("datagrams_both_ways.py", milliseconds, size - HEADERS_BYTES, each)
    zero, one = run_on_hosts(command, rtt="20ms", virtual_time=True, **wan)
    assert (zero.exit_status, one.exit_status) == (0, 0), (zero, one)
    return (zero, json.loads(zero.stdout)), (one, json.loads(one.stdout))


def test_a_policer_drops_what_exceeds_its_rate_after_a_burst_and_queues_nothing() -> None:
    # 160 Mbit/s for 200 ms into 40 Mbit/s
    milliseconds, size, each = 200, 1000, 20
    _, (one, arrived) = exchange(milliseconds, size, each, rate="1gbit", policer="40mbit:100kB")
    assert len(arrived) * size == pytest.approx(100_000 + 40e6 / 8 * milliseconds / 1000, rel=0.01)
    assert (one.policed, one.lost, one.overflowed) == (milliseconds * each - len(arrived), 0, 0)
    # what the bucket holds goes at once, and meanwhile tokens for a third of it come
    assert [number for number, _, _ in arrived[:120]] == list(range(120))
    # nothing waits for tokens but one packet of the largest size, here four
    late = max(came - sent for _, sent, came in arrived)
    assert 0.010 < late < 0.010 + 4 * size * 8 / 40e6 + each * size * 8 / 1e9


def test_loss_on_the_way_back_loses_nothing_on_the_way_out() -> None:
    (zero, back), (one, out) = exchange(1000, 200, back_loss="10%")
    assert len(out) == 1000
    # the standard deviation of 1,000 packets at 10 % is 9.5
    assert 860 < len(back) < 940
    assert (zero.lost, one.lost) == (0, 1000 - len(back))


def test_loss_on_the_way_out_alone_is_possible_too() -> None:
    (zero, back), (one, out) = exchange(500, 200, loss="10%", back_loss="0")
    assert (len(back), one.lost) == (500, 0)
    assert zero.lost == 500 - len(out) > 20


def test_the_way_back_may_be_slower() -> None:
    # 8 Mbit/s each way, into a buffer that holds all of it
    (_, back), (_, out) = exchange(500, 1000, rate="100mbit", back_rate="4mbit")
    assert len(back) == len(out) == 500
    assert out[-1][2] == pytest.approx(0.5 + 0.010, abs=0.002)
    # but for what passes at once, two packets of the largest size
    assert back[-1][2] == pytest.approx(1.0 + 0.010, abs=0.02)


def test_a_rate_follows_its_trace_and_begins_again() -> None:
    # 32 Mbit/s into 4 and 12 Mbit/s in turns, and a buffer that holds all of it
    milliseconds, size, each = 300, 1000, 4
    trace = "0 4000000\n0.1 12000000\n0.2 repeat\n"
    (_, back), (_, out) = exchange(milliseconds, size, each, rate_trace=trace, back_rate="1gbit")
    assert len(out) == len(back) == milliseconds * each
    assert max(came - sent for _, sent, came in back) < 0.011
    tenths = [sum(tenth / 10 <= came < (tenth + 1) / 10 for _, _, came in out) for tenth in range(1, 7)]
    # the trace has begun a second before the first packet, and each change fills tbf's bucket of two large packets
    assert tenths == pytest.approx([150, 50, 150, 50, 150, 50], abs=10)


def test_the_last_rate_of_a_trace_holds() -> None:
    trace = "0 100000000\n1.05 4000000\n"
    _, (_, out) = exchange(200, 1000, 1, rate_trace=trace)
    fast = sum(came < 0.05 for _, _, came in out)
    # 10 ms on the way, and then 0.5 packets a millisecond
    assert fast == pytest.approx(40, abs=2)
    assert out[-1][2] == pytest.approx(0.05 + 160 / 500, abs=0.03)


def test_cross_traffic_fills_the_way_out_while_it_is_on_and_leaves_it_empty_while_it_is_off() -> None:
    (_, back), (_, out) = exchange(1000, 200, rate="20mbit", buffer="50kB", cross="2:400ms:600ms")
    late = {number: came - sent for number, sent, came in out}
    # flows begin at 0 and 200 ms of each second; the buffer takes 20 ms to drain
    on = [late[number] for number in range(50, 600) if number in late]
    off = [late[number] for number in range(700, 990)]
    assert 0.015 < max(on) < 0.031
    assert max(off) < 0.0105
    # the way back carries acknowledgements besides
    assert len(back) == 1000
    assert max(came - sent for _, sent, came in back) < 0.013


def test_hosts_do_not_see_where_cross_traffic_comes_from() -> None:
    results = run_on_hosts(["bash", "-c", "echo $TESTBED_HOSTS"], cross="1", rate="100mbit")
    assert [result.stdout for result in results] == ["10.77.0.1,10.77.0.2\n"] * 2


def test_what_is_queued_after_a_second_of_silence_is_seen_from_its_beginning() -> None:
    # 32 Mbit/s into 8 Mbit/s for 100 ms, after a second in which the watch has fallen asleep
    milliseconds, size, each = 100, 1000, 4
    (_, _), (one, arrived) = exchange(milliseconds, size, each, rate="8mbit", watch_queues=True)
    assert len(arrived) == milliseconds * each
    assert max(one.queued) == pytest.approx(milliseconds * each * size * 3 / 4, rel=0.05)
    # it is empty again after 400 ms: eight windows of 50 ms, or nine where the first and last are seen in part
    assert len(one.queued) in (8, 9)
    assert one.queued[0] < 50 * each * size * 3 / 4
