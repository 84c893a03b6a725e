"""Packets that overtake each other: cards drop messages of several packets whole, and the path is left for another."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.testbed import run_on_hosts

pytestmark = pytest.mark.nic

SIZE = 16 << 20
RATE = 1e9
RTT_SECONDS = 0.02
FOUND_OUT_WITHIN_SECONDS = 2.0
MET_ANEW_WITHIN_SECONDS = 1.0


def test_a_path_whose_packets_overtake_each_other_is_left_within_two_seconds_and_the_next_fills_the_link() -> None:
    command = [sys.executable, "-m", "tests.nic.programs.left_path", str(SIZE), "3"]
    results = run_on_hosts(
        command, rate="1gbit", rtt="20ms", jitter="0.3ms", reorder=True, virtual_time=True, timeout=300
    )
    assert [result.exit_status for result in results] == [0, 0], results
    seen, received = (json.loads(result.stdout) for result in results)
    assert received == {"right": [True, True, True]}
    assert [link["transport"] for link in seen["links"]] == ["verbs", "udp"]
    assert "verbs: was left (messages of several packets do not come" in seen["links"][1]["reason"]
    assert {sent["transport"] for sent in seen["sent"]} == {"udp"}
    first, *later = (sent["seconds"] for sent in seen["sent"])
    least = RTT_SECONDS + SIZE * 8 / RATE
    print(f"first {first:.3f} s, later {later} s; {least:.3f} s is the least")
    assert first < FOUND_OUT_WITHIN_SECONDS + MET_ANEW_WITHIN_SECONDS + 2 * least
    assert max(later) < least / 0.85
    (unused,) = seen["unused"]
    assert unused["transport"] == "verbs"
    assert 0 < unused["next_trial_seconds"] <= 30
