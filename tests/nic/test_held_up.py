"""Small transfers between two gateways: none waits for a time-out of anything."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.support.testbed import run_on_hosts

pytestmark = pytest.mark.nic

TIME_OUT_SECONDS = 0.2
"""The least after which TCP repeats a packet that nothing follows (Linux; RFC 6298 has a second)."""


def small_transfers(transport: str, *options: str, loss: str = "0") -> dict[str, Any]:
    """What host 0 says of them, on a path of 20 ms."""
    command = [sys.executable, "-m", "deploy.softroce.programs.small_transfers", transport, *options]
    results = run_on_hosts(command, virtual_time=True, rate="1gbit", rtt="20ms", loss=loss)
    assert [result.exit_status for result in results] == [0, 0], results
    return dict(json.loads(results[0].stdout.splitlines()[0]))


@pytest.mark.parametrize("transport", ["verbs", "udp", "tcp"])
def test_where_nothing_is_lost_no_small_transfer_is_held_up(transport: str) -> None:
    seen = small_transfers(transport, "--count", "40")
    # the first of TCP is in slow start
    assert [transfer for transfer in seen["held_up"] if transfer["number"] > 0 or transport != "tcp"] == []


def test_a_request_for_a_slot_waits_for_no_time_out_of_tcp_where_packets_are_lost() -> None:
    seen = small_transfers("udp", "--count", "60", "--ask", "--bytes", "96KiB", loss="5%")
    # a round trip, and repeats by datagrams
    assert seen["worst_parts"]["asking"] < 0.06
    # the rest goes by datagrams all the same
    assert seen["worst"] < TIME_OUT_SECONDS


def test_small_messages_seldom_wait_for_a_time_out_of_tcp_where_packets_are_lost() -> None:
    seen = small_transfers("udp", "--count", "100", "--bytes", "4KiB", loss="5%")
    # one in ten does where nothing follows them; now a frame and what follows it have to be lost
    late = [transfer for transfer in seen["held_up"] if transfer["seconds"] > TIME_OUT_SECONDS]
    assert len(late) <= 3
