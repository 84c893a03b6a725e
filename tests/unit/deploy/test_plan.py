"""The testbed's network as a plan: who is joined to whom by which queues; and quantities as people write them."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from deploy.softroce.netem import ENDLESS_PACKETS, qdisc_request
from deploy.softroce.wan import DelayLine, Host, Plan, Wan, plan
from fedrdma_fate.bench.quantities import QuantityError, parse_loss, parse_rate, parse_size, parse_time

WAN = Wan(rate=10**9, nic_rate=10**10, rtt_ns=20_000_000, loss=0.001, buffer_bytes=500_000, exact=True)


def _lines(made: Plan) -> list[str]:
    return [" ".join(command) for command in made.commands]


def _queues(made: Plan) -> list[str]:
    return [line for line in _lines(made) if " tbf " in line]


# --- quantities ---


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_rate, "1gbit", 10**9),
        (parse_rate, "2.5Gbit", 2_500_000_000),
        (parse_rate, "300 kbit", 300_000),
        (parse_time, "20ms", 20_000_000),
        (parse_time, "1.5s", 1_500_000_000),
        (parse_time, "0", 0),
        (parse_size, "4MB", 4_000_000),
        (parse_size, "4MiB", 4 * 2**20),
        (parse_size, "1500", 1500),
        (parse_loss, "0.1%", 0.001),
        (parse_loss, "0", 0.0),
    ],
)
def test_quantities_are_read_as_written(parse: Callable[[str], float], text: str, value: float) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "problem"),
    [
        (parse_rate, "1", "not a rate"),
        (parse_rate, "0gbit", "cannot be zero"),
        (parse_rate, "-1gbit", "not a rate"),
        (parse_rate, "1gib", "not a rate"),
        (parse_rate, "", "not a rate"),
        (parse_time, "20", "not a time"),
        (parse_time, "0.1ns", "whole number"),
        (parse_time, "20ms 10ms", "not a time"),
        (parse_size, "4 megabytes", "not a size"),
        (parse_size, "0", "cannot be zero"),
        (parse_loss, "0.1", "not a loss"),
        (parse_loss, "100%", "loses everything"),
        (parse_loss, "1e1%", "not a loss"),
    ],
)
def test_other_quantities_are_refused(parse: Callable[[str], float], text: str, problem: str) -> None:
    with pytest.raises(QuantityError, match=problem):
        parse(text)


# --- the plan ---


def test_nic_rate_bottleneck_and_buffer_are_queues_of_their_own() -> None:
    assert _queues(plan(WAN, 2)) == [
        "tc -n host0 qdisc add dev eth0 root tbf rate 10000000000bit burst 9678b limit 1073741824b",
        "tc qdisc add dev port0 root tbf rate 1000000000bit burst 8553b limit 500000b",
        "tc -n host1 qdisc add dev eth0 root tbf rate 10000000000bit burst 9678b limit 1073741824b",
        "tc qdisc add dev port1 root tbf rate 1000000000bit burst 8553b limit 500000b",
    ]


def test_half_the_round_trip_and_the_loss_lie_on_each_way_with_a_seed_of_its_own() -> None:
    assert plan(WAN, 2).delay_lines == (
        DelayLine("delay0", 10_000_000, 0.001, 8),
        DelayLine("delay1", 10_000_000, 0.001, 9),
    )


def test_a_delay_line_holds_as_much_as_one_asks_for_and_else_never_drops() -> None:
    assert {line.packets for line in plan(Wan(delay_packets=1000), 2).delay_lines} == {1000}
    assert {line.packets for line in plan(Wan(), 2).delay_lines} == {ENDLESS_PACKETS}
    with pytest.raises(ValueError, match="a delay line of 0 packets"):
        plan(Wan(delay_packets=0), 2)


def test_no_two_seeds_share_a_way() -> None:
    seeds = [line.seed for seed in range(5) for line in plan(Wan(seed=seed), 8).delay_lines]
    assert len(set(seeds)) == len(seeds)


def test_without_rates_nothing_is_shaped() -> None:
    assert _queues(plan(Wan(), 2)) == []


def test_what_a_host_sends_passes_its_delay_line_first() -> None:
    redirects = [line for line in _lines(plan(WAN, 3)) if "redirect" in line]
    assert [line.split()[4] for line in redirects] == ["port0", "port1", "port2"]
    assert [line.split()[-1] for line in redirects] == ["delay0", "delay1", "delay2"]


def test_every_host_knows_all_others_without_asking() -> None:
    known = [line for line in _lines(plan(WAN, 3)) if " neigh add " in line]
    assert len(known) == 6
    assert f"ip -n host2 neigh add 10.77.0.1 lladdr {Host(0).mac} nud permanent dev eth0" in known


def test_each_device_ends_up_with_its_host_after_its_interface_is_up() -> None:
    lines = _lines(plan(WAN, 2))
    assert lines.index("ip -n host1 link set eth0 up") < lines.index(
        "ip netns exec host1 rdma link add rxe1 type rxe netdev eth0"
    )
    assert lines[-2:] == ["rdma dev set rxe0 netns host0", "rdma dev set rxe1 netns host1"]
    assert lines[0] == "rdma system set netns exclusive"


@pytest.mark.parametrize("rate", [10**6, 10**9, 10**11])
def test_a_burst_holds_two_packets_even_after_tc_has_rounded_it_to_microseconds(rate: int) -> None:
    for exact in (True, False):
        burst = Wan(exact=exact).burst_bytes(rate)
        assert burst * 8 * 10**6 // rate * rate / 8 / 10**6 >= 4214 or rate < 10**8
        assert burst >= 2 * 4214


def test_late_timers_are_made_up_for_by_a_burst() -> None:
    assert Wan(exact=False).burst_bytes(10**10) == 1_250_000


@pytest.mark.parametrize(
    ("wan", "hosts", "problem"),
    [
        (Wan(), 1, "1 hosts"),
        (Wan(), 9, "9 hosts"),
        (Wan(mtu=100), 2, "MTU of 100"),
        (Wan(mtu=70_000), 2, "MTU of 70000"),
        (Wan(rate=10**9, buffer_bytes=4000), 2, "does not hold one packet"),
    ],
)
def test_a_network_that_cannot_work_is_refused(wan: Wan, hosts: int, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        plan(wan, hosts)


# --- netem by netlink ---


def test_the_request_for_a_delay_line_has_the_delay_the_loss_and_the_seed() -> None:
    request = qdisc_request(7, delay_ns=10_000_000, loss=0.25, seed=42)
    length, kind = struct.unpack_from("=IH", request)
    assert (length, kind) == (len(request), 36)
    assert struct.unpack_from("=i", request, 20) == (7,)
    assert b"netem\0" in request
    assert struct.pack("=I", 2**30) in request
    assert struct.pack("=HHq", 12, 10, 10_000_000) in request
    assert struct.pack("=HHQ", 12, 14, 42) in request


def test_the_request_for_a_delay_line_has_its_length() -> None:
    # tc_netem_qopt begins with the old latency and the limit
    assert struct.pack("=II", 0, 1000) in qdisc_request(7, 0, 0.0, 0, packets=1000)
    assert struct.pack("=II", 0, 1000) not in qdisc_request(7, 0, 0.0, 0)


def test_the_largest_loss_still_fits_the_kernels_number() -> None:
    assert struct.pack("=I", 2**32 - 1) in qdisc_request(1, 0, 1.0, 0)
