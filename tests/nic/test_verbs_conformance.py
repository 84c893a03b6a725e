"""The one conformance suite, over real verbs: every case of `verbs`, between two hosts of the testbed."""

from __future__ import annotations

import math
import re
import sys

import pytest

from tests.support.repository import ROOT
from tests.support.testbed import MOST_MEMORY, run_on_hosts

SUITE = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
EVERY_RUN, SWEEPS = ["-m", "nic and not sweep"], ["-m", "nic and sweep"]
SILENCE_SECONDS = 200.0
"""A case of the suite may take 120 s; its line comes when it is done. Together they take as long as they take."""

FEWEST = {"test_chunks.py": 60, "test_core.py": 75, "test_links.py": 60, "test_sealed.py": 36, "test_writes.py": 100}
"""Cases of each part of the suite that must pass."""

FEWEST_IN_SWEEPS = {"test_core.py": 25, "test_links.py": 20, "test_sealed.py": 12}
"""Besides these, over what is like another: `LIKE_ANOTHER` of the suite."""


@pytest.mark.nic
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", FEWEST)
def test_the_verbs_transport_conforms(part: str) -> None:
    conforms(part, EVERY_RUN, FEWEST[part])


@pytest.mark.nic
@pytest.mark.sweep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", FEWEST_IN_SWEEPS)
def test_transports_that_are_like_another_conform(part: str) -> None:
    conforms(part, SWEEPS, FEWEST_IN_SWEEPS[part])


def conforms(part: str, marked: list[str], fewest: int) -> None:
    suite = [*SUITE, *marked, str(ROOT / "tests" / "conformance" / part)]
    # some cases act in the middle of a write, which therefore has to take its time
    result, _ = run_on_hosts(
        ["true"],
        on={0: suite},
        kernel="stock",
        rtt="1ms",
        memory=MOST_MEMORY,
        timeout=math.inf,
        silence=SILENCE_SECONDS,
    )
    assert result.exit_status == 0, result.stdout[-6000:] + result.stderr[-2000:]
    counts = _counts(result.stdout)
    assert counts["passed"] >= fewest
    assert "skipped" not in counts


def test_every_part_of_the_suite_is_run() -> None:
    assert set(FEWEST) == {path.name for path in (ROOT / "tests" / "conformance").glob("test_*.py")}


def _counts(printed: str) -> dict[str, int]:
    """What the last line of pytest counts."""
    closing = printed.rstrip().rpartition("\n")[2]
    return {word: int(count) for count, word in re.findall(r"(\d+) (passed|skipped|failed)", closing)}


@pytest.mark.nic
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("rtt", "loss"),
    [
        ("20ms", "0.1%"),
        # each takes a minute, and shows nothing in most runs that the one above does not
        pytest.param("0", "0.1%", marks=pytest.mark.sweep),
        pytest.param("20ms", "0", marks=pytest.mark.sweep),
    ],
)
def test_every_mode_and_size_arrives_over_a_wan(rtt: str, loss: str) -> None:
    # a queue that is polled without a pause would stop virtual time
    suite = [*SUITE, *EVERY_RUN, str(ROOT / "tests" / "conformance" / "test_core.py"), "-k", "not busy"]
    result, peer = run_on_hosts(
        ["true"],
        on={0: suite},
        rtt=rtt,
        loss=loss,
        virtual_time=True,
        memory=MOST_MEMORY,
        timeout=math.inf,
        silence=SILENCE_SECONDS,
    )
    assert result.exit_status == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert _counts(result.stdout)["passed"] > 40
    assert (result.lost + peer.lost > 0) == (loss != "0")
