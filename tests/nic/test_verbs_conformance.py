"""The one conformance suite, over real verbs: every case of `verbs`, between two hosts of the testbed."""

from __future__ import annotations

import re
import sys

import pytest

from tests.support.testbed import ROOT, run_on_hosts

SUITE = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), "-m", "nic"]


@pytest.mark.nic
@pytest.mark.timeout(450)
def test_the_verbs_transport_conforms() -> None:
    suite = [*SUITE, str(ROOT / "tests" / "conformance")]
    # some cases act in the middle of a write, which therefore has to take its time
    result, _ = run_on_hosts(["true"], on={0: suite}, kernel="stock", rtt="1ms", memory="2500MB", timeout=400)
    assert result.exit_status == 0, result.stdout[-6000:] + result.stderr[-2000:]
    counts = dict(reversed(pair) for pair in re.findall(r"(\d+) (passed|skipped|failed)", result.stdout))
    assert int(counts["passed"]) > 150
    assert "skipped" not in counts
