"""Two gateways on two hosts of the testbed: payloads in every mode over real verbs."""

from __future__ import annotations

import json

import pytest

from tests.support.testbed import program, run_on_hosts


@pytest.mark.nic
@pytest.mark.parametrize(
    ("mode", "rtt", "loss"),
    [("fedrdma-e", "0", "0"), ("fedrdma-e", "20ms", "0.1%"), ("fedrdma", "0", "0"), ("fedrdma", "20ms", "0.1%")],
)
def test_payloads_come_whole_over_verbs(mode: str, rtt: str, loss: str) -> None:
    results = run_on_hosts(program("gateway_pair.py", mode), rtt=rtt, loss=loss, timeout=90)
    assert [result.exit_status for result in results] == [0, 0], results
    assert (sum(result.lost for result in results) > 0) == (loss != "0")
    pushed, pulled = (json.loads(result.stdout.splitlines()[0]) for result in results)
    assert pushed["answer"] == "all here"
    assert pulled["right"] == [True] * 5
    for result in results:
        assert json.loads(result.stdout.splitlines()[1]) == [f"{mode}/verbs"] * 5
