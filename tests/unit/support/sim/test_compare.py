"""The comparison of controllers prints what it says."""

from __future__ import annotations

import dataclasses
import statistics

import pytest

from tests.support.sim.bad_paths import Policer
from tests.support.sim.bottleneck import BottleneckProfile
from tests.support.sim.compare import (
    CONTROLLERS,
    FAIR_SHARE,
    Case,
    Shared,
    cubic_seconds,
    main,
    medians,
    transfers,
)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_every_controller_fills_an_ideal_path(name: str) -> None:
    case = Case("", 4 << 20, lambda: BottleneckProfile(100e6, nic_bps=1e9), 100e6)
    assert [seconds < 1.06 and resent == 0 for seconds, resent in transfers(case, CONTROLLERS[name], 2)] == [True] * 2


def test_what_a_path_cannot_carry_is_seen_in_the_figures() -> None:
    case = Case("", 4 << 20, lambda: BottleneckProfile(100e6, nic_bps=1e9, policer=Policer(25e6, 20e3)), 100e6)
    (seconds, _resent), *_ = transfers(case, CONTROLLERS["ours"], 1)
    assert seconds > 3
    assert cubic_seconds(case) > 3


def test_of_several_seeds_each_transfer_has_its_median() -> None:
    case = Case("", 300_000, lambda: BottleneckProfile(100e6, nic_bps=1e9, loss=0.05), 100e6, 0.05)
    make = CONTROLLERS["ours"]
    runs = [transfers(case, make, seed=seed) for seed in (1, 2, 3)]
    assert runs[0] != runs[1] != runs[2]
    found = medians(case, make, 3)
    assert found[1] == tuple(statistics.median(run[1][part] for run in runs) for part in (0, 1))
    assert len(found) == 3


@pytest.mark.parametrize("jobs", [False, True])
@pytest.mark.parametrize("pair", [("ours", "bbr3"), ("cubic", "ours")])
def test_shares_add_up_to_what_is_used(pair: tuple[str, str], *, jobs: bool) -> None:
    shares = Shared(20e6, 80e3, jobs=jobs).shares(*pair, 0)
    assert 0.5 < shares.used <= 1
    assert min(shares.first, shares.later) > 0


def test_two_flows_have_a_row_with_what_is_fair_as_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sharing", "--only", "4 MB, 0 ms", "--rate", "1e7", "--starts", "1", "--pairs", "cubic+cubic"]) == 0
    where, pair, first, later, used = (
        cell.strip() for cell in capsys.readouterr().out.splitlines()[2].split("|")[1:-1]
    )
    assert (where, pair) == ("4 MB, 0 ms", "cubic, cubic")
    least_first, least_later, least_used = (float(cell.split(",")[0]) for cell in (first, later, used))
    assert least_first + least_later == pytest.approx(2 * least_used, abs=0.02)
    assert least_used > 0.8


def test_a_table_has_a_row_for_each_path_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["single", "--only", "5M 2 ms, 0 %", "--controllers", "bbr3"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].startswith("| path | bbr3")
    assert [row.split("|")[1].strip() for row in rows[2:]] == ["5M 2 ms, 0 % lost"]


def test_a_rival_that_minds_no_loss_drives_long_chunks_out_of_a_small_buffer_and_not_out_of_a_large_one() -> None:
    small, large = (Shared(200e6, size, drops_whole_packets=True).shares("ours", "bbr1", 1) for size in (100e3, 800e3))
    assert small.first < 0.2 * FAIR_SHARE
    assert large.first > 0.7 * FAIR_SHARE
    assert min(small.used, large.used) > 0.9


def test_chunks_of_ours_may_have_another_size() -> None:
    link = Shared(200e6, 100e3, drops_whole_packets=True)
    short = dataclasses.replace(link, chunk_bytes=4096)
    assert short.shares("ours", "bbr1", 1).first > 1.5 * link.shares("ours", "bbr1", 1).first
