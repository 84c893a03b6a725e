"""Changes of the testbed's WAN while programs run: how they are written, and which queues they touch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deploy.softroce.__main__ import make_parser, make_run
from deploy.softroce.guest import set_queues
from deploy.softroce.netem import DelayLine
from deploy.softroce.schedule import Change, parse_change, steps
from deploy.softroce.wan import Step, Wan
from fedrdma_fate.bench.wan.shaping import RateTrace
from fedrdma_fate.quantities import QuantityError

WAN = Wan(rate=10**9, rtt_ns=20_000_000, loss=0.001, buffer_bytes=500_000, exact=True)


def test_a_change_is_read_as_written() -> None:
    assert parse_change("2.5s:rate=500mbit, rtt=40ms,loss=1%,buffer=1MB") == Change(
        2_500_000_000,
        (("rate", 500_000_000), ("rtt_ns", 40_000_000), ("loss", 0.01), ("buffer_bytes", 1_000_000)),
    )


def test_the_way_back_can_be_changed_by_itself() -> None:
    (step,) = steps(WAN, 2, [parse_change("1s:back-rate=5mbit,back-loss=3%")])
    assert [command[8] for command in step.commands] == ["5000000bit", "1000000000bit"]
    assert [line.loss for line in step.delay_lines] == [0.001, 0.03]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rate=500mbit", "not TIME:NAME=VALUE"),
        ("2:rate=500mbit", "not a time"),
        ("2s:", "not NAME=VALUE"),
        ("2s:rate", "not NAME=VALUE"),
        ("2s:mtu=1500", "a name of rate, rtt, loss, back-rate, back-loss, jitter, buffer"),
        ("2s:rate=fast", "not a rate"),
        ("2s:loss=1%,loss=2%", "changes one thing twice"),
    ],
)
def test_what_is_no_change_is_refused(text: str, problem: str) -> None:
    with pytest.raises(QuantityError, match=problem):
        parse_change(text)


def test_each_change_leaves_what_earlier_ones_made() -> None:
    slower, longer = steps(WAN, 2, [parse_change("3s:rtt=40ms"), parse_change("1s:rate=500mbit")])
    assert (slower.at_ns, longer.at_ns) == (1_000_000_000, 3_000_000_000)
    assert slower.delay_lines == (DelayLine("delay0", 10_000_000, 0.001, 8), DelayLine("delay1", 10_000_000, 0.001, 9))
    assert [line.delay_ns for line in longer.delay_lines] == [20_000_000, 20_000_000]
    for step in (slower, longer):
        assert [" ".join(command) for command in step.commands] == [
            f"tc qdisc change dev port{host} root tbf rate 500000000bit burst 8491b limit 500000b" for host in (0, 1)
        ]


def test_a_wan_without_a_rate_has_no_bottleneck_to_change() -> None:
    with pytest.raises(ValueError, match="give --rate"):
        steps(Wan(), 2, [parse_change("1s:buffer=1MB")])
    (step,) = steps(Wan(), 2, [parse_change("1s:rtt=40ms")])
    assert step.commands == ()


def test_a_bottleneck_that_follows_a_trace_is_not_changed_besides() -> None:
    traced = replace(WAN, trace=RateTrace(((0, 10**9),)))
    with pytest.raises(ValueError, match="follows a trace"):
        steps(traced, 2, [parse_change("1s:rate=1mbit")])
    (step,) = steps(traced, 2, [parse_change("1s:loss=1%")])
    assert (step.commands, step.delay_lines[0].loss) == ((), 0.01)


def test_a_change_to_a_buffer_without_room_for_a_packet_is_refused() -> None:
    with pytest.raises(ValueError, match="does not hold one packet"):
        steps(WAN, 2, [parse_change("1s:buffer=100B")])


def test_the_command_line_takes_several(tmp_path: Path) -> None:
    kernel = tmp_path / "linux"
    kernel.write_text("")
    kernel.chmod(0o755)
    arguments = ["run", "--kernel", str(kernel), "--at", "1s:loss=1%", "--at", "2s:loss=0", "--", "true"]
    assert [change.at_ns for change in make_run(make_parser().parse_args(arguments)).changes] == [10**9, 2 * 10**9]


def test_a_queue_that_cannot_be_changed_says_which() -> None:
    with pytest.raises(RuntimeError, match="false --now"):
        set_queues(Step((("false", "--now"),), ()))
