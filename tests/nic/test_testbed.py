"""The testbed itself: hosts reach each other by verbs over the WAN that was asked for, and leave nothing behind."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.softroce.wan import Host
from tests.support.repository import ROOT
from tests.support.testbed import HostResult, TimedOutError, program, run_on_hosts

pytestmark = pytest.mark.nic


def _answers(results: list[HostResult]) -> list[dict[str, object]]:
    assert [result.exit_status for result in results] == [0] * len(results), results
    return [json.loads(result.stdout) for result in results if result.stdout]


def test_each_host_has_its_own_device_and_reaches_the_others_by_verbs() -> None:
    sender, receiver = _answers(run_on_hosts(program("send_between.py")))
    assert (sender["devices"], receiver["devices"]) == (["rxe0"], ["rxe1"])
    assert (sender["peer"], receiver["peer"]) == tuple(f"0000:0000:0000:0000:0000:ffff:0a4d:000{n}" for n in (2, 1))
    assert receiver["text"] == "across the WAN"


def test_three_hosts_see_each_other() -> None:
    results = run_on_hosts(program("greet_everybody.py"), hosts=3)
    assert [result.exit_status for result in results] == [0, 0, 0], results
    greetings = [f"{Host(index).address}: host {index}" for index in range(3)]
    for index, result in enumerate(results):
        assert json.loads(result.stdout) == [each for each in greetings if each != greetings[index]]


def test_a_host_sees_no_other_host_s_shared_memory() -> None:
    script = (
        "echo here > /dev/shm/$TESTBED_HOST; touch $TESTBED_OUT/$TESTBED_HOST; "
        "until [ -e $TESTBED_OUT/$((1 - TESTBED_HOST)) ]; do sleep 0.05; done; ls /dev/shm"
    )
    results = run_on_hosts(["bash", "-c", script])
    assert [(result.stdout, result.exit_status) for result in results] == [("0\n", 0), ("1\n", 0)]


def test_in_virtual_time_the_round_trip_is_the_one_asked_for() -> None:
    (answer,) = _answers(run_on_hosts(program("round_trips.py", 10), rtt="20ms", rate="1gbit", virtual_time=True))
    trips = answer["milliseconds"]
    assert isinstance(trips, list)
    assert trips == pytest.approx([20.0] * 10, abs=0.01)


def _late_packets(count: int, **wan: Any) -> tuple[list[int], list[float]]:
    (answer,) = _answers(run_on_hosts(program("late_packets.py", count), rtt="20ms", virtual_time=True, **wan))
    numbers, milliseconds = answer["numbers"], answer["milliseconds"]
    assert isinstance(numbers, list)
    assert isinstance(milliseconds, list)
    return numbers, milliseconds


def test_jitter_makes_packets_earlier_and_later_and_keeps_their_order() -> None:
    numbers, milliseconds = _late_packets(2000, jitter="1ms")
    assert numbers == list(range(2000))
    assert min(milliseconds) >= 8.99
    assert 10.5 < max(milliseconds) < 11.1


def test_packets_that_may_overtake_each_other_do() -> None:
    numbers, milliseconds = _late_packets(2000, jitter="1ms", reorder=True)
    assert sorted(numbers) == list(range(2000))
    assert numbers != sorted(numbers)
    assert 8.99 <= min(milliseconds) < 9.1
    assert 10.9 < max(milliseconds) < 11.1


def test_losses_in_bursts_are_as_many_and_come_in_rows() -> None:
    count = 20_000
    numbers, _ = _late_packets(count, loss="5%", burst=10)
    arrived = {*numbers}
    lost = [number for number in range(count) if number not in arrived]
    rows = sum(number - 1 in arrived for number in lost if number)
    # the spread over seeds of the share of 20,000 packets lost in bursts of 10 is a seventh of it
    assert 0.03 < len(lost) / count < 0.08
    assert 6 < len(lost) / rows < 16


def test_in_real_time_the_round_trip_is_at_least_the_one_asked_for() -> None:
    (answer,) = _answers(run_on_hosts(program("round_trips.py", 10), rtt="20ms"))
    trips = answer["milliseconds"]
    assert isinstance(trips, list)
    assert 20.0 <= min(trips) < 30.0


def _lost(seed: int) -> list[int]:
    results = run_on_hosts(program("round_trips.py", 300), rtt="2ms", loss="5%", seed=seed, virtual_time=True)
    (answer,) = _answers(results)
    trips = answer["milliseconds"]
    assert isinstance(trips, list)
    lost = [number for number, trip in enumerate(trips) if trip is None]
    # a few more than what was waited for: the first ones that say hello, and the last that say goodbye
    assert len(lost) <= sum(result.lost for result in results) <= len(lost) + 10
    return lost


def test_equal_seeds_lose_the_same_packets_and_others_lose_others() -> None:
    first = _lost(seed=1)
    # 300 round trips at 5 % each way lose 29 on average, with a standard deviation of 5
    assert 10 <= len(first) <= 50
    assert _lost(seed=1) == first
    assert _lost(seed=2) != first


def test_two_boots_of_a_lossy_transfer_take_the_same_virtual_time() -> None:
    command = program("send_between.py", 20, 65536)
    first, second = (
        _answers(run_on_hosts(command, rate="1gbit", rtt="20ms", loss="1%", virtual_time=True))[0]["seconds"]
        for _ in range(2)
    )
    assert first == pytest.approx(second, rel=0.001)


def test_the_bottleneck_has_the_rate_asked_for() -> None:
    command = program("send_between.py", 3, 10_000_000)
    sender, _ = _answers(run_on_hosts(command, rate="1gbit", virtual_time=True))
    # 80 ms a message at the link's rate, 1.4 % for headers, half a millisecond to see the completion
    assert sender["seconds"] == pytest.approx(0.245, rel=0.02)


def test_what_is_written_to_the_output_stays_and_everything_else_is_gone(tmp_path: Path) -> None:
    shared, private = tmp_path / "shared", tmp_path / "private"
    script = f"echo kept > $TESTBED_OUT/host$TESTBED_HOST; echo lost > {private}; cat {private}"
    results = run_on_hosts(["bash", "-c", script], output=shared)
    assert [result.stdout for result in results] == ["lost\n", "lost\n"]
    assert sorted(path.name for path in shared.iterdir()) == ["host0", "host1"]
    assert (shared / "host1").read_text() == "kept\n"
    assert not private.exists()


def test_a_failing_program_gives_its_status() -> None:
    results = run_on_hosts(["sh", "-c", "exit 0"], on={1: ["sh", "-c", "echo broken >&2; exit 7"]})
    assert [(result.exit_status, result.stderr) for result in results] == [(0, ""), (7, "broken\n")]


def test_a_program_ended_by_a_signal_gives_the_shells_status_for_it() -> None:
    results = run_on_hosts(["sh", "-c", "kill -KILL $$"])
    assert [result.exit_status for result in results] == [137, 137]


def test_a_program_that_never_ends_is_stopped_with_its_guest() -> None:
    endless = ["bash", "-c", "echo started; sleep 600"]
    with pytest.raises(TimedOutError) as stopped:
        run_on_hosts(endless, on={1: ["true"]}, timeout=5)
    assert [(result.stdout, result.exit_status) for result in stopped.value.results] == [("started\n", None), ("", 0)]
    assert _guests() == []


def test_a_program_that_stops_virtual_time_by_polling_is_stopped_too() -> None:
    started = time.monotonic()
    with pytest.raises(TimedOutError):
        run_on_hosts(["bash", "-c", "while :; do :; done"], virtual_time=True, timeout=3)
    assert time.monotonic() - started < 20
    assert _guests() == []


def _guests() -> list[str]:
    commands = (" ".join(child.cmdline()) for child in psutil.Process().children() if child.is_running())
    return [command for command in commands if "fedrdma-testbed-" in command]


def test_the_command_prefixes_lines_and_returns_the_first_failure() -> None:
    command = [str(ROOT / "scripts" / "testbed"), "run", "--on", "1=echo one; exit 5", "--", "echo", "zero"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 5
    assert sorted(result.stdout.splitlines()) == ["[0] zero", "[1] one"]
    assert result.stderr == "testbed: host 1 ended with status 5\n"


def test_a_device_can_be_removed_and_is_gone_for_its_host_only() -> None:
    removal = "rdma link delete rxe1; rdma dev; sleep 0.2"
    survivor, loser = run_on_hosts(["bash", "-c", "sleep 0.2; rdma dev"], on={1: ["bash", "-c", removal]})
    assert "rxe0" in survivor.stdout
    assert (loser.stdout, loser.exit_status) == ("", 0)


def test_a_network_that_cannot_be_built_says_which_command_failed() -> None:
    command = [str(ROOT / "scripts" / "testbed"), "run", "--mtu", "100", "--", "true"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 2
    assert "an MTU of 100 bytes" in result.stderr
