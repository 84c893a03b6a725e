"""Mode `fedrdma-x` between two gateways over real verbs: whole payloads, and how full it keeps the link."""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

import pytest

from tests.support.testbed import program, run_on_hosts

pytestmark = pytest.mark.nic

MIB = 2**20


def transfers(
    size: int, count: int, service: str, mode: str = "fedrdma-x", kernel: str = "nic", **link: str
) -> list[dict[str, Any]]:
    """What host 0 says of each transfer; all must have come whole."""
    module = "deploy.softroce.programs.gateway_transfers"
    command = [sys.executable, "-m", module, mode, str(size), str(count), service]
    path: dict[str, str] = {"rtt": "20ms", **link}
    results = run_on_hosts(command, kernel=kernel, virtual_time=True, memory="2800MB", timeout=200, **path)
    assert [result.exit_status for result in results] == [0, 0], results
    taken, pulled = (json.loads(result.stdout.splitlines()[0]) for result in results)
    assert pulled["right"] == [True] * count
    assert [entry["mode"] for entry in taken] == [mode.removesuffix("-repeat")] * count
    return list(taken)


def share(taken: dict[str, Any], size: int, rate_bps: float) -> float:
    return size * 8 / taken["seconds"] / rate_bps


def test_without_loss_the_link_is_full_from_the_first_transfer_on() -> None:
    first, later = transfers(64 * MIB, 2, "auto", rate="1gbit", buffer="0.5MB")
    assert share(first, 64 * MIB, 1e9) >= 0.90
    assert share(later, 64 * MIB, 1e9) >= 0.91
    assert later["chunks"] < first["chunks"], "what was learnt decides the chunk size"
    (waiting,) = transfers(64 * MIB, 1, "auto", "fedrdma-e", rate="1gbit", buffer="0.5MB")
    assert share(later, 64 * MIB, 1e9) >= 5 * share(waiting, 64 * MIB, 1e9)


def test_ten_gigabits_a_second_are_filled_and_six_times_what_one_chunk_at_a_time_fills() -> None:
    first, *later = transfers(128 * MIB, 4, "auto", rate="10gbit", buffer="4MB")
    # a round trip is a sixth of so short a transfer; a train of datagrams has found the rate for the first
    assert share(first, 128 * MIB, 1e10) >= 0.75
    assert first["resent_bytes"] <= MIB
    # the slowest too: control frames are in time
    shares = [share(taken, 128 * MIB, 1e10) for taken in later]
    assert min(shares) >= 0.79
    (waiting,) = transfers(64 * MIB, 1, "auto", "fedrdma-e", rate="10gbit", buffer="4MB")
    assert min(shares) >= 6 * share(waiting, 64 * MIB, 1e10)


def test_a_hundred_gigabits_a_second_are_filled_but_for_a_round_trip_from_the_first_transfer_on() -> None:
    taken = transfers(256 * MIB, 2, "auto", rate="100gbit", buffer="25MB")
    # the payload takes 22 ms and a round trip 20; a bare RDMA write gets 0.51 (docs/testbed.md)
    assert min(share(each, 256 * MIB, 1e11) for each in taken) >= 0.48
    assert [each["resent_bytes"] for each in taken] == [0, 0]


def test_one_packet_in_a_hundred_lost_costs_little() -> None:
    taken = transfers(32 * MIB, 5, "auto", rate="1gbit", loss="1%", buffer="4MB")
    # the slowest too, though some transfer meets a lost packet of the control channel
    assert min(share(each, 32 * MIB, 1e9) for each in taken) >= 0.76
    # only what was lost is sent again
    assert 0 < statistics.median(each["resent_bytes"] for each in taken) < 0.1 * 32 * MIB


def test_what_is_lost_costs_no_round_trip_once_the_loss_is_known() -> None:
    link = {"rate": "1gbit", "rtt": "100ms", "loss": "1%", "buffer": "4MB"}
    repeated = transfers(2 * MIB, 5, "auto", "fedrdma-x-repeat", **link)
    repaired = transfers(2 * MIB, 5, "auto", **link)
    # 0.117 s are the payload and one round trip, and whatever has to be sent again takes another
    assert statistics.median(each["seconds"] for each in repeated[2:]) > 0.2
    assert statistics.median(each["seconds"] for each in repaired[2:]) < 0.14


# "auto" is uc
@pytest.mark.parametrize("service", ["rc", pytest.param("uc", marks=pytest.mark.sweep)])
def test_both_kinds_of_queue_pairs_carry_it(service: str) -> None:
    _, later = transfers(32 * MIB, 2, service, rate="1gbit", buffer="4MB")
    assert share(later, 32 * MIB, 1e9) >= 0.78
    assert later["resent_bytes"] == 0


def test_a_window_of_128_packets_does_not_hold_it_back() -> None:
    _, later = transfers(128 * MIB, 2, "auto", kernel="stock", rate="10gbit", buffer="4MB")
    # a fixed 40 ms of frames to and fro is a quarter of so short a transfer
    assert share(later, 128 * MIB, 10e9) >= 0.65


# test_verbs_gateways.py has the second path with certificates
@pytest.mark.parametrize(("rtt", "loss"), [("0", "0"), pytest.param("20ms", "0.1%", marks=pytest.mark.sweep)])
def test_payloads_of_all_sizes_come_whole_in_real_time(rtt: str, loss: str) -> None:
    results = run_on_hosts(program("gateway_pair.py", "fedrdma-x"), rtt=rtt, loss=loss, timeout=90)
    assert [result.exit_status for result in results] == [0, 0], results
    pushed, pulled = (json.loads(result.stdout.splitlines()[0]) for result in results)
    assert (pushed["answer"], pulled["right"]) == ("all here", [True] * 5)
    for result in results:
        assert json.loads(result.stdout.splitlines()[1]) == ["fedrdma-x/verbs"] * 5
