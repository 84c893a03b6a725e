"""`fedrdma probe` and `fedrdma doctor` where there is RDMA: on a host of the testbed."""

from __future__ import annotations

import json

import pytest

from tests.support.testbed import program, run_on_hosts


@pytest.mark.nic
@pytest.mark.alone
@pytest.mark.parametrize(("rtt", "least"), [("0", 0.0), ("20ms", 0.02)])
def test_a_path_of_verbs_is_measured_and_its_device_examined(rtt: str, least: float) -> None:
    results = run_on_hosts(program("probe_pair.py"), rtt=rtt, timeout=120)
    assert [result.exit_status for result in results] == [0, 0], results
    report, findings = map(json.loads, results[0].stdout.splitlines())
    assert report["transport"] == "verbs"
    assert least <= report["rtt_least_seconds"] < least + 0.2, results
    assert report["best_chunk_bytes"]
    assert all(trial["survived"] for trial in report["chunks"]), results
    if least:
        # chunks go one at a time: one of 256 KiB a round trip
        assert report["chunks"][0]["bits_per_second"] < (1 << 18) * 8 / least
        assert report["best_chunk_bytes"] > 1 << 18
    found = {finding["check"]: finding for finding in findings}
    (port,) = [finding for check, finding in found.items() if check.startswith("rdma ") and " port " in check]
    assert "ACTIVE" in port["found"]
    for check in ("pyverbs", "rdma choice", "gateway", "peer site1"):
        assert found[check]["level"] == "ok", found[check]


@pytest.mark.nic
@pytest.mark.parametrize(("rate", "gigabits"), [("1gbit", 1.0), ("10gbit", 10.0)])
def test_the_rate_of_a_long_link_is_found_behind_its_round_trip(rate: str, gigabits: float) -> None:
    results = run_on_hosts(program("probe_pair.py"), rtt="20ms", rate=rate, virtual_time=True, timeout=120)
    report = json.loads(results[0].stdout.splitlines()[0])
    best = report["chunks"][-1]
    assert best["chunk_bytes"] == report["best_chunk_bytes"] == 4 << 20
    # stop and wait: a chunk takes a round trip and its own time on the link
    expected = (4 << 20) * 8 / (0.02 + (4 << 20) * 8 / (gigabits * 1e9))
    assert best["bits_per_second"] == pytest.approx(expected, rel=0.05)
    assert report["rate_bits_per_second"] == pytest.approx(gigabits * 1e9, rel=0.1)
