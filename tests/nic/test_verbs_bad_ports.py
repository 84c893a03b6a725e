"""Real devices that will not do: each is refused with a reason and a remedy, and taken again when it is mended."""

from __future__ import annotations

import json

import pytest

from tests.support.testbed import program, run_on_hosts


@pytest.mark.nic
def test_ports_that_will_not_do_are_refused_in_clear_words_and_unequal_mtus_are_bridged() -> None:
    driver, _ = run_on_hosts(["true"], on={0: program("bad_ports.py")})
    assert driver.exit_status == 0, driver.stderr[-4000:]
    seen = json.loads(driver.stdout)
    assert len(seen["mtus"]) >= 2 * 3, "two queue pairs for data and one for notices, at both ends"
    assert set(seen["mtus"]) == {1024}
    reasons = {
        "memlock-region": "cannot register 1048576 bytes of memory: the memlock limit is too small",
        "memlock-link": "bytes of memory: the memlock limit is too small",
        "unknown-device": "there is no RDMA device 'mlx5_7'",
        "unknown-port": "rxe0 has no port 3",
        "unknown-gid": "port 1 of rxe0 has no GID at index 77",
        "port-down": "port 1 of rxe0 is down",
        "no-device": "this host has no RDMA device",
    }
    for case, reason in reasons.items():
        code, message, remedy = seen[case]
        assert (code, reason in message, bool(remedy)) == ("TRANSPORT_UNAVAILABLE", True, True), seen[case]
    assert seen["back"] == []
