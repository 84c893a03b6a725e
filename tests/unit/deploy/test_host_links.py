"""Links of single hosts of the testbed: how they are written, and which queues they become."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.softroce.__main__ import make_parser, make_run
from deploy.softroce.guest import count_drops, set_queues
from deploy.softroce.host_links import HostLink, parse_host_link
from deploy.softroce.netem import bottleneck_request, qdisc_request
from deploy.softroce.run import _sampling_seconds
from deploy.softroce.schedule import parse_change, steps
from deploy.softroce.wan import MAX_HOSTS, Plan, Step, Wan, plan, reshape
from fedrdma_fate.bench.wan.shaping import Policer, RateTrace
from fedrdma_fate.quantities import QuantityError

WAN = Wan(rate=10**9, nic_rate=10**10, rtt_ns=20_000_000, buffer_bytes=500_000, exact=True)


def _wan(*own: str, **changes: Any) -> Wan:
    settings = {"rate": 10**9, "nic_rate": 10**10, "rtt_ns": 20_000_000, "buffer_bytes": 500_000, "exact": True}
    return Wan(**{**settings, **changes}, own=tuple(map(parse_host_link, own)))


def _lines(made: Plan) -> list[str]:
    return [" ".join(command) for command in made.commands]


def test_a_link_is_read_as_written() -> None:
    assert parse_host_link("3:rate=700mbit, rtt=40ms,loss=1%,buffer=100kB,nic-rate=1gbit") == HostLink(
        3, rate=7 * 10**8, nic_rate=10**9, rtt_ns=40_000_000, loss=0.01, buffer_bytes=100_000
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is not HOST:KEY=VALUE"),
        ("rate=700mbit", "is not HOST:KEY=VALUE"),
        ("x:rate=700mbit", "'x:rate=700mbit' is not HOST:KEY=VALUE"),
        ("-1:rate=700mbit", "is not HOST:KEY=VALUE"),
        ("1234:rate=700mbit", "is not HOST:KEY=VALUE"),
        ("3:", "host 3: '' is not KEY=VALUE with a key of rate, nic-rate, rtt, loss, buffer"),
        ("3:rate", "host 3: 'rate' is not KEY=VALUE"),
        ("3:mtu=1500", "host 3: 'mtu=1500' is not KEY=VALUE"),
        ("3:rate=fast", "host 3: rate: 'fast' is not a rate"),
        ("3:rate=0bit", "host 3: rate: '0bit': a rate cannot be zero"),
        ("3:rtt=40", "host 3: rtt: '40' is not a time"),
        ("3:loss=1", "host 3: loss: '1' is not a loss"),
        ("3:loss=100%", "host 3: loss: '100%' loses everything"),
        ("3:rtt=-1ms", "host 3: rtt: '-1ms' is not a time"),
        ("3:buffer=much", "host 3: buffer: 'much' is not a size"),
        ("3:rtt=1ms,rtt=2ms", "host 3: rtt is given twice"),
    ],
)
def test_what_is_no_link_is_refused_by_key_and_value(text: str, problem: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_host_link(text)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("wan", "problem"),
    [
        (_wan("3:rate=1mbit"), "the link of host 3: there are hosts 0 to 2"),
        (_wan("1:rate=1mbit", "1:rtt=40ms"), "the link of host 1 is given twice"),
        (_wan("1:rtt=9ms"), "the link of host 1: rtt=9000000ns is shorter than the others' way"),
        (_wan("1:loss=1%", loss=0.02), "the link of host 1: loss=1% is less than all packets suffer, 2%"),
        (_wan("1:buffer=1MB", rate=None), "the link of host 1: buffer=1000000B without a rate"),
        (_wan("1:buffer=4000B"), "the link of host 1: buffer=4000B does not hold one packet"),
        (
            _wan("1:rtt=40ms", policer=Policer(10**6, 10**5)),
            "the link of host 1: an rtt or a loss of its own goes with",
        ),
        (_wan("1:rtt=12ms", jitter_ns=5_000_000), "the link of host 1: rtt=12000000ns leaves no room for a jitter"),
    ],
)
def test_a_link_that_cannot_be_is_refused_with_its_host(wan: Wan, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        plan(wan, 3)


def test_a_rate_of_its_own_is_in_front_of_the_host_and_behind_it() -> None:
    made = plan(_wan("1:rate=100mbit,buffer=50kB"), 3)
    bottlenecks = [line.split()[4:13] for line in _lines(made) if " dev port" in line and " tbf " in line]
    assert [(words[0], words[4], words[8]) for words in bottlenecks] == [
        ("port0", "1000000000bit", "500000b"),
        ("port1", "100000000bit", "50000b"),
        ("port2", "1000000000bit", "500000b"),
    ]
    assert [(line.rate_bps, line.buffer_bytes, line.tokens_bytes) for line in made.delay_lines] == [
        (None, 0, 0),
        (10**8, 50_000, 8441),
        (None, 0, 0),
    ]


def test_a_card_fits_to_the_rate_of_its_host_unless_somebody_says_how_fast_cards_are(tmp_path: Path) -> None:
    kernel = tmp_path / "linux"
    kernel.write_text("")
    kernel.chmod(0o755)

    def cards(*options: str) -> list[str]:
        arguments = ["run", "--kernel", str(kernel), "--rate", "1gbit", *options, "--", "true"]
        made = plan(make_run(make_parser().parse_args(arguments)).wan, 2)
        return [line.split()[10] for line in _lines(made) if line.startswith("tc -n host") and " tbf " in line]

    assert cards("--host", "1:rate=5gbit") == ["10000000000bit", "50000000000bit"]
    assert cards("--host", "1:rate=5gbit", "--nic-rate", "6gbit") == ["6000000000bit", "6000000000bit"]
    assert cards("--host", "1:nic-rate=1mbit") == ["10000000000bit", "1000000bit"]


def test_a_round_trip_of_its_own_is_half_on_each_way() -> None:
    made = plan(_wan("1:rtt=60ms"), 2)
    assert {line.netdev: line.delay_ns for line in made.delay_lines} == {
        "delay0": 10_000_000,
        "delay1": 30_000_000,
        # behind the 10 ms of the sender
        "down1": 20_000_000,
    }
    passed = [line for line in _lines(made) if line.endswith("dev down1") and "redirect" in line]
    assert passed == ["tc filter add dev port1 egress protocol all matchall action mirred egress redirect dev down1"]


def test_a_shorter_round_trip_of_its_own_is_shorter_on_the_way_from_the_host() -> None:
    assert {line.netdev: line.delay_ns for line in plan(_wan("1:rtt=12ms"), 2).delay_lines} == {
        "delay0": 10_000_000,
        "delay1": 2_000_000,
        "down1": 0,
    }


def test_a_loss_of_its_own_holds_both_ways_whatever_all_packets_suffer() -> None:
    losses = {line.netdev: line.loss for line in plan(_wan("1:loss=10%", loss=0.01), 2).delay_lines}
    assert (losses["delay0"], losses["delay1"]) == (0.01, 0.1)
    assert (1 - losses["delay0"]) * (1 - losses["down1"]) == pytest.approx(0.9)


def test_no_two_ways_of_a_full_testbed_share_a_seed_and_the_first_hosts_keep_theirs() -> None:
    own = [f"{host}:loss=1%" for host in range(MAX_HOSTS)]
    seeds = [line.seed for seed in (0, 1, 2, 2**32) for line in plan(_wan(*own, seed=seed), MAX_HOSTS).delay_lines]
    assert len(set(seeds)) == len(seeds)
    assert max(seeds) < 2**64
    assert [line.seed for line in plan(Wan(seed=3), 8).delay_lines] == list(range(24, 32))


def test_a_change_of_all_links_leaves_what_a_host_has_of_its_own() -> None:
    (step,) = steps(_wan("1:rate=100mbit,rtt=60ms"), 2, [parse_change("1s:rate=500mbit,rtt=30ms")])
    assert [command[8] for command in step.commands] == ["500000000bit", "100000000bit"]
    assert {line.netdev: line.delay_ns for line in step.delay_lines} == {
        "delay0": 15_000_000,
        "delay1": 30_000_000,
        "down1": 15_000_000,
    }
    with pytest.raises(ValueError, match="the link of host 1: loss=1%"):
        steps(_wan("1:loss=1%"), 2, [parse_change("1s:loss=2%")])


def test_a_trace_leaves_a_rate_of_its_own_alone() -> None:
    wan = _wan("1:rate=100mbit", trace=RateTrace(((0, 10**9),)))
    traced = plan(wan, 3).traced
    assert traced is not None
    assert traced.netdevs == ("port0", "port2")
    assert [command[4] for command in reshape(wan, 3).commands] == ["port1"]


def test_a_rate_of_its_own_needs_no_rate_of_the_others() -> None:
    bottlenecks = [line for line in _lines(plan(_wan("1:rate=1mbit", rate=None), 2)) if " dev port" in line]
    assert [line.split()[4] for line in bottlenecks if " tbf " in line] == ["port1"]


def test_buffers_are_looked_at_as_often_as_the_fastest_of_them_needs(tmp_path: Path) -> None:
    kernel = tmp_path / "linux"
    kernel.write_text("")
    kernel.chmod(0o755)
    common = ["run", "--kernel", str(kernel), "--rate", "1gbit", "--buffer", "500kB", "--watch-queues"]
    usual, small = (
        _sampling_seconds(make_run(make_parser().parse_args([*common, *more, "--", "true"])))
        for more in ([], ["--host", "1:buffer=250kB"])
    )
    assert (usual, small) == (pytest.approx(0.0004), pytest.approx(0.0002))


def test_the_queue_behind_a_host_is_inside_its_delay_line() -> None:
    (_, line, *_) = plan(_wan("1:rate=100mbit,buffer=50kB"), 2).delay_lines
    outer, inner = qdisc_request(7, line), bottleneck_request(7, line)
    # struct tcmsg: interface, handle, parent
    assert struct.unpack_from("=iII", outer, 20) == (7, 0x10000, 0xFFFFFFFF)
    assert struct.unpack_from("=iII", inner, 20) == (7, 0, 0x10001)
    assert b"netem\0" in outer
    assert b"tbf\0" in inner
    assert struct.pack("=HHQ", 12, 4, 12_500_000) in inner
    assert struct.pack("=III", 50_000, 0, 0) in inner


def _queue(dev: str, kind: str, drops: int) -> dict[str, Any]:
    return {"dev": dev, "kind": kind, "drops": drops}


def test_what_overflows_behind_a_host_is_not_told_as_lost() -> None:
    queues = [
        _queue("delay3", "netem", 12),
        _queue("delay3", "tbf", 7),
        _queue("down3", "netem", 2),
        _queue("port3", "tbf", 4),
        _queue("port3", "clsact", 1),
        _queue("eth0", "tbf", 1),
        _queue("police10", "tbf", 9),
        _queue("wan", "noqueue", 0),
    ]
    assert count_drops(queues) == {"lost": {"3": 7}, "overflowed": {"3": 11}, "policed": {"10": 9}}


def test_commands_of_one_tool_go_to_one_process_and_one_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], str | None]] = []

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        asked.append((list(command), options.get("input")))
        failed = "bad" in (options.get("input") or "")
        return SimpleNamespace(
            returncode=failed, stdout="", stderr="no such thing\nCommand failed -:2\n" if failed else ""
        )

    monkeypatch.setattr("subprocess.run", run)
    commands = [
        "ip link add a",
        "ip link set a up",
        "ip -n h link set b up",
        "ip netns exec h rdma x",
        "rdma y",
        "rdma z",
    ]
    set_queues(Step(tuple(tuple(command.split()) for command in commands), ()))
    assert asked == [
        (["ip", "-batch", "-"], "link add a\nlink set a up\n"),
        (["ip", "-n", "h", "link", "set", "b", "up"], None),
        (["ip", "netns", "exec", "h", "rdma", "x"], None),
        (["rdma", "y"], None),
        (["rdma", "z"], None),
    ]
    with pytest.raises(RuntimeError, match=r"^tc qdisc add bad: no such thing"):
        set_queues(Step((("tc", "qdisc", "show"), ("tc", "qdisc", "add", "bad")), ()))
