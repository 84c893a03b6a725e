"""The soak, for some seconds: what `python -m tests.soak` does for long."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest

from tests.soak.measure import Growth, Sample, growth
from tests.soak.runner import LAYOUT, SETTINGS, START_SECONDS, Soak
from tests.support.certificates import TestAuthority
from tests.support.shared_memory import room_for_regions
from tests.support.sites import InProcesses, start_gateways

ROUNDS, EVERY = 16, 4


@pytest.mark.timeout(300)
def test_gateways_that_are_struck_again_and_again_carry_every_payload_and_keep_nothing(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path / "tls")
    with (
        tempfile.TemporaryDirectory(dir=room_for_regions(), prefix="test-of-fedrdma-") as memory,
        start_gateways(
            LAYOUT,
            tmp_path,
            runner=InProcesses(START_SECONDS),
            authority=authority,
            transport="tcp",
            **{**SETTINGS, "memory": {**SETTINGS["memory"], "directory": memory}},
        ) as sites,
    ):
        soak = Soak(sites, authority, seed=1, settle_seconds=0.0)
        soak.run(ROUNDS, EVERY, kill_until=ROUNDS // 2, deadline=time.monotonic() + 240, fill=3)
    assert soak.outcome.wrong == []
    assert soak.outcome.rounds == ROUNDS
    assert soak.outcome.renewed == 2 * len(LAYOUT)
    assert sum(soak.outcome.faults.values()) == ROUNDS // EVERY


def sample(number: int, memory_kib: int, life: int = 0) -> Sample:
    return Sample(number, life, memory_kib, 1, 4096, 40, 15, 370, 8, 100, 100, 100)


def grown(samples: list[Sample], what: str = "memory_kib") -> Growth:
    return next(each for each in growth("a", samples) if each.what == what)


def test_memory_that_grows_with_each_round_is_not_flat_and_what_grows_while_it_warms_up_is() -> None:
    leaks = [sample(number, 50_000 + number * 10) for number in range(0, 1000, 20)]
    assert not grown(leaks).flat
    warms_up = [sample(number, 40_000 + min(number, 180) * 50) for number in range(0, 1000, 20)]
    assert grown(warms_up).flat


def test_growth_is_that_of_one_process_and_not_of_its_successor() -> None:
    lives = [sample(number, 90_000, life=0) for number in range(0, 200, 20)]
    lives += [sample(number, 50_000, life=1) for number in range(200, 1000, 20)]
    assert grown(lives).early == 50_000
    assert growth("a", lives[:2]) == []


def test_growth_is_judged_from_the_end_of_a_warm_up_that_was_asked_for() -> None:
    fills_up = [sample(number, 40_000 + min(number, 800) * 10) for number in range(0, 2000, 20)]
    assert not grown(fills_up).flat
    (judged, *_) = growth("a", fills_up, warm_up=800)
    assert judged.flat
    assert judged.rounds == 1180
    assert growth("a", fills_up, warm_up=2000) == []
