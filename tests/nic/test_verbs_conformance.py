"""The one conformance suite, over real verbs: every case of `verbs`, between two hosts of the testbed."""

from __future__ import annotations

import re
import sys

import pytest

from tests.support.repository import ROOT
from tests.support.testbed import run_on_hosts

SUITE = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), "-m", "nic"]


@pytest.mark.nic
@pytest.mark.alone
@pytest.mark.timeout(450)
def test_the_verbs_transport_conforms() -> None:
    suite = [*SUITE, str(ROOT / "tests" / "conformance")]
    # some cases act in the middle of a write, which therefore has to take its time
    result, _ = run_on_hosts(["true"], on={0: suite}, kernel="stock", rtt="1ms", memory="2500MB", timeout=400)
    assert result.exit_status == 0, result.stdout[-6000:] + result.stderr[-2000:]
    counts = _counts(result.stdout)
    assert counts["passed"] > 150
    assert "skipped" not in counts


def _counts(printed: str) -> dict[str, int]:
    return {word: int(count) for count, word in re.findall(r"(\d+) (passed|skipped|failed)", printed)}


@pytest.mark.nic
@pytest.mark.parametrize(("rtt", "loss"), [("0", "0.1%"), ("20ms", "0"), ("20ms", "0.1%")])
def test_every_mode_and_size_arrives_over_a_wan(rtt: str, loss: str) -> None:
    # a queue that is polled without a pause would stop virtual time
    suite = [*SUITE, str(ROOT / "tests" / "conformance" / "test_core.py"), "-k", "not busy"]
    result, peer = run_on_hosts(["true"], on={0: suite}, rtt=rtt, loss=loss, virtual_time=True, memory="2500MB")
    assert result.exit_status == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert _counts(result.stdout)["passed"] > 40
    assert (result.lost + peer.lost > 0) == (loss != "0")
