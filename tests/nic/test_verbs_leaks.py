"""After many sessions over real verbs, the kernel and the process hold what they held after the first."""

from __future__ import annotations

import json

import pytest

from tests.support.testbed import program, run_on_hosts


@pytest.mark.nic
# the numbers are compared exactly, so what each session, or one in some ten, leaves behind shows in fifty
@pytest.mark.parametrize("sessions", [50, pytest.param(200, marks=pytest.mark.sweep)])
def test_many_sessions_leave_nothing_and_register_no_region_again(sessions: int) -> None:
    results = run_on_hosts(program("many_sessions.py", sessions), timeout=150)
    for result in results:
        assert result.exit_status == 0, result.stderr[-4000:]
        seen = json.loads(result.stdout)
        assert seen["right"]
        assert seen["last"] == seen["first"]
        assert seen["first"]["registrations"] == 1
        # what is looked at is there: the region; what binds windows is not, where each slot is registered by itself
        assert all(seen["first"][kind] >= 1 for kind in ("mr", "pd", "ctx"))
