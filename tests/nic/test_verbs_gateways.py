"""Two gateways on two hosts of the testbed: payloads in every mode over real verbs."""

from __future__ import annotations

import json

import pytest

from tests.support.testbed import program, run_on_hosts


@pytest.mark.nic
@pytest.mark.parametrize(
    ("mode", "rtt", "loss"),
    [
        ("fedrdma-e", "0", "0"),
        ("fedrdma", "0", "0"),
        # the test below has the same path with certificates, and test_verbs_conformance.py loses packets without
        pytest.param("fedrdma-e", "20ms", "0.1%", marks=pytest.mark.sweep),
        pytest.param("fedrdma", "20ms", "0.1%", marks=pytest.mark.sweep),
    ],
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


@pytest.mark.nic
@pytest.mark.parametrize("mode", ["fedrdma", "fedrdma-e", "fedrdma-x"])
def test_gateways_with_certificates_use_verbs_and_seal_what_they_send(mode: str) -> None:
    results = run_on_hosts(program("gateway_pair.py", mode, "secured"), rtt="20ms", loss="0.1%", timeout=120)
    assert [result.exit_status for result in results] == [0, 0], results
    assert sum(result.lost for result in results) > 0
    pushed, pulled = (json.loads(result.stdout.splitlines()[0]) for result in results)
    assert pushed["answer"] == "all here"
    assert pulled["right"] == [True] * 5
    for result in results:
        assert json.loads(result.stdout.splitlines()[1]) == [f"{mode}/verbs"] * 5


@pytest.mark.nic
@pytest.mark.parametrize(
    ("without", "why"), [(0, "verbs: this host has no RDMA device (site0)"), (2, "verbs: not offered by site2")]
)
def test_a_host_without_a_device_is_reached_by_tcp_and_status_and_trace_say_why(without: int, why: str) -> None:
    results = run_on_hosts(program("gateway_trio.py", without), hosts=3, timeout=90)
    assert [result.exit_status for result in results] == [0, 0, 0], results
    answers = [json.loads(result.stdout) for result in results]
    assert [answer["whole"] for answer in answers] == [[True, True]] * 3
    by_tcp = ["tcp", f"reachable by TCP; shm: other host; {why}"]
    by_verbs = ["verbs", "both gateways have an RDMA device; shm: other host"]
    for host, answer in enumerate(answers):
        others = {other for other in range(3) if other != host}
        expected = {f"site{other}": by_tcp if without in (host, other) else by_verbs for other in others}
        assert (answer["status"], answer["trace"]) == (expected, expected)
