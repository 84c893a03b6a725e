"""The testbed's network as a plan: who is joined to whom by which queues."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from deploy.softroce.netem import ENDLESS_PACKETS, DelayLine, qdisc_request
from deploy.softroce.wan import Host, Plan, Wan, plan, reshape
from fedrdma_fate.bench.wan.shaping import Policer, RateTrace

WAN = Wan(rate=10**9, nic_rate=10**10, rtt_ns=20_000_000, loss=0.001, buffer_bytes=500_000, exact=True)


def _lines(made: Plan) -> list[str]:
    return [" ".join(command) for command in made.commands]


def _queues(made: Plan) -> list[str]:
    return [line for line in _lines(made) if " tbf " in line]


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
        (Wan(), 66, "66 hosts"),
        (Wan(mtu=100), 2, "MTU of 100"),
        (Wan(mtu=70_000), 2, "MTU of 70000"),
        (Wan(rate=10**9, buffer_bytes=4000), 2, "does not hold one packet"),
    ],
)
def test_a_network_that_cannot_work_is_refused(wan: Wan, hosts: int, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        plan(wan, hosts)


# --- policers and the way back ---


def test_a_policer_is_a_bucket_whose_queue_holds_one_packet_before_each_bottleneck() -> None:
    wan = Wan(rate=10**9, policer=Policer(5 * 10**8, 100_000), exact=True)
    lines = _lines(plan(wan, 2))
    buckets = [line for line in lines if " police" in line and " tbf " in line]
    assert buckets == [
        f"tc qdisc add dev police{host} root tbf rate 500000000bit burst 100000b limit 4214b" for host in (0, 1)
    ]
    passed = [line for line in lines if line.endswith("dev police1")]
    assert passed == ["tc filter add dev port1 egress protocol all matchall action mirred egress redirect dev police1"]
    assert [line for line in _lines(plan(WAN, 2)) if "police" in line] == []


def test_a_policer_needs_no_bottleneck() -> None:
    assert len(_queues(plan(Wan(policer=Policer(10**9, 100_000)), 2))) == 2


def test_the_way_back_may_have_a_rate_and_a_loss_of_its_own() -> None:
    wan = Wan(rate=10**9, loss=0.1, back_rate=10**7, back_loss=0.2)
    made = plan(wan, 3)
    rates = [line.split()[4:9:4] for line in _lines(made) if " dev port" in line and " tbf " in line]
    assert rates == [["port0", "10000000bit"], ["port1", "1000000000bit"], ["port2", "1000000000bit"]]
    assert [line.loss for line in made.delay_lines] == [0.1, 0.2, 0.2]
    # what is changed leaves it as it is
    changed = reshape(wan, 3)
    assert [command[8] for command in changed.commands] == ["10000000bit", "1000000000bit", "1000000000bit"]
    assert [line.loss for line in plan(Wan(loss=0.1, back_loss=0.0, burst_packets=3), 2).delay_lines] == [0.1, 0.0]


@pytest.mark.parametrize(
    ("wan", "problem"),
    [
        (Wan(back_rate=10**6), "a rate of the way back alone"),
        (Wan(policer=Policer(10**6, 4213)), "burst of 4213 bytes does not hold one packet"),
    ],
)
def test_a_way_back_without_a_way_out_and_a_bucket_below_a_packet_are_refused(wan: Wan, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        plan(wan, 2)


# --- a rate that follows a trace ---

TRACE = RateTrace(((0, 4 * 10**6), (10**8, 12 * 10**6)), 2 * 10**8)


def test_a_trace_begins_with_its_first_rate_and_is_followed_by_all_bottlenecks_that_have_none_of_their_own() -> None:
    made = plan(Wan(rate=12 * 10**6, trace=TRACE, exact=True), 2)
    assert _queues(made)[-1] == "tc qdisc add dev port1 root tbf rate 4000000bit burst 8429b limit 4000000b"
    assert made.traced is not None
    assert (made.traced.netdevs, made.traced.trace, made.traced.limit_bytes) == (("port0", "port1"), TRACE, 4_000_000)
    back = Wan(rate=12 * 10**6, trace=TRACE, back_rate=10**7, exact=True)
    traced = plan(back, 3).traced
    assert traced is not None
    assert traced.netdevs == ("port1", "port2")
    assert [command[4] for command in reshape(back, 3).commands] == ["port0"]
    assert plan(WAN, 2).traced is None


def test_a_rate_other_than_the_trace_s_highest_is_refused() -> None:
    with pytest.raises(ValueError, match="is not the highest of the trace"):
        plan(Wan(rate=4 * 10**6, trace=TRACE), 2)


def test_the_request_for_a_rate_has_the_rate_the_burst_and_the_limit() -> None:
    traced = plan(Wan(rate=12 * 10**6, trace=TRACE, exact=True), 2).traced
    assert traced is not None
    slow, fast = traced.request(7, 8000), traced.request(7, 8 * 10**11)
    assert struct.unpack_from("=i", slow, 20) == (7,)
    assert b"tbf\0" in slow
    for request, rate, burst in ((slow, 1000, 8428), (fast, 10**11, 108_428 - 8_428)):
        # struct tc_ratespec begins with its cells, the link layer (Ethernet) and overheads
        assert struct.pack("=BBHhHI", 0, 1, 0, 0, 0, min(rate, 2**32 - 1)) in request
        assert struct.pack("=HHQ", 12, 4, rate) in request
        assert struct.pack("=HHI", 8, 6, burst) in request
        assert struct.pack("=III", 4_000_000, 0, 0) in request


def test_rates_are_set_when_it_is_time_to(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done = [5.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr("deploy.softroce.rate_trace.set_root_queue", lambda netdev, _: done.append((netdev, now[0])))
    traced = plan(Wan(rate=12 * 10**6, trace=RateTrace(TRACE.points)), 2).traced
    assert traced is not None
    traced.follow(5.0)
    assert done == [("port0", 5.0), ("port1", 5.0), ("port0", 5.1), ("port1", 5.1)]


# --- netem by netlink ---


def line(delay_ns: int = 0, loss: float = 0.0, seed: int = 0, **changes: Any) -> DelayLine:
    return DelayLine("delay0", delay_ns, loss, seed, **changes)


def test_the_request_for_a_delay_line_has_the_delay_the_loss_and_the_seed() -> None:
    request = qdisc_request(7, line(delay_ns=10_000_000, loss=0.25, seed=42))
    length, kind = struct.unpack_from("=IH", request)
    assert (length, kind) == (len(request), 36)
    assert struct.unpack_from("=i", request, 20) == (7,)
    assert b"netem\0" in request
    assert struct.pack("=I", 2**30) in request
    assert struct.pack("=HHq", 12, 10, 10_000_000) in request
    assert struct.pack("=HHQ", 12, 14, 42) in request


def test_the_request_for_a_delay_line_has_its_length() -> None:
    # tc_netem_qopt begins with the old latency and the limit
    assert struct.pack("=II", 0, 1000) in qdisc_request(7, line(packets=1000))
    assert struct.pack("=II", 0, 1000) not in qdisc_request(7, line())


def test_the_largest_loss_still_fits_the_kernels_number() -> None:
    assert struct.pack("=I", 2**32 - 1) in qdisc_request(1, line(loss=1.0))


def test_jitter_keeps_the_order_of_packets_unless_they_may_overtake() -> None:
    jitter, rate = struct.pack("=HHq", 12, 11, 1_000_000), struct.pack("=HHQ", 12, 8, 10**12)
    in_order = qdisc_request(1, line(delay_ns=10_000_000, jitter_ns=1_000_000))
    assert jitter in in_order
    assert rate in in_order
    overtaking = qdisc_request(1, line(delay_ns=10_000_000, jitter_ns=1_000_000, reorders=True))
    assert jitter in overtaking
    assert rate not in overtaking
    assert rate not in qdisc_request(1, line(delay_ns=10_000_000))


def test_bursts_lose_the_same_share_in_rows_of_packets() -> None:
    request = qdisc_request(1, line(loss=0.2, burst_packets=4))
    # it is left after one packet of four, and entered so often that a fifth of all packets is in it
    model = struct.pack("=4I", round(0.25 * 0.25 * 2**32), 2**30, 0, 0)
    assert struct.pack("=HH", 20, 2) + model in request
    # and nothing is lost besides
    assert struct.pack("=I", round(0.2 * 2**32)) not in request
    alone = qdisc_request(1, line(loss=0.2))
    assert struct.pack("=I", round(0.2 * 2**32)) in alone
    assert struct.pack("=HH", 20, 2) not in alone


@pytest.mark.parametrize(
    ("wan", "problem"),
    [
        (Wan(rtt_ns=1_000_000, jitter_ns=500_001), "a jitter of 500001 ns"),
        (Wan(loss=0.1, burst_packets=0.5), "bursts of 0.5 packets"),
        (Wan(burst_packets=3), "bursts of 3 packets"),
    ],
)
def test_a_jitter_longer_than_the_way_and_bursts_of_no_loss_are_refused(wan: Wan, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        plan(wan, 2)


def test_in_slots_everything_goes_on_that_has_come_since_the_last() -> None:
    slot = struct.pack("=HHqqiiqq", 44, 12, 5_000_000, 5_000_000, 0, 0, 0, 0)
    assert slot in qdisc_request(1, line(delay_ns=10_000_000, slot_ns=5_000_000))
    assert slot[:4] not in qdisc_request(1, line(delay_ns=10_000_000))


@pytest.mark.parametrize(("back", "slots"), [(None, [5, 5, 5]), (0, [5, 0, 0]), (20_000_000, [5, 20, 20])])
def test_slots_of_the_way_back_are_those_of_all_but_host_0(back: int | None, slots: list[int]) -> None:
    wan = Wan(rtt_ns=20_000_000, slot_ns=5_000_000, back_slot_ns=back)
    assert [made.slot_ns // 1_000_000 for made in plan(wan, 3).delay_lines] == slots


def test_jitter_order_and_bursts_reach_every_delay_line() -> None:
    wan = Wan(rtt_ns=20_000_000, loss=0.01, jitter_ns=300_000, reorders=True, burst_packets=8)
    assert {(made.jitter_ns, made.reorders, made.burst_packets) for made in plan(wan, 3).delay_lines} == {
        (300_000, True, 8)
    }
