"""`fedrdma-x` on a simulated bottleneck: transfers one after the other, beside those of others."""

from __future__ import annotations

import random
import statistics

import pytest

from tests.support.sim.bottleneck import Bottleneck, BottleneckProfile
from tests.support.sim.clock import VirtualClock
from tests.support.sim.compare import FAIR_SHARE, Shared
from tests.support.sim.sharing import Job

# one of these takes 50 s of a core, so that a busy host needs more than the usual time
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MIB = 1 << 20

OVER_SIZES = pytest.mark.parametrize(
    ("payload_bytes", "buffer_bytes"),
    [
        (32 * MIB, 4e6),
        pytest.param(128 * MIB, 0.5e6, marks=pytest.mark.sweep),
        pytest.param(32 * MIB, 0.5e6, marks=pytest.mark.sweep),
        pytest.param(128 * MIB, 4e6, marks=pytest.mark.sweep),
    ],
)

RATE_BPS = 1e9

SECONDS = 6.0
"""Over which a share is looked at: several transfers of each job."""


def shares(
    count: int,
    payload_bytes: int,
    buffer_bytes: float,
    apart: float,
    *,
    rate_bps: float = RATE_BPS,
    settling: float = 0,
    seconds: float = SECONDS,
) -> list[float]:
    """Of the link, over so long after the last of so many jobs has begun and settled, from the least to the most."""
    clock = VirtualClock()
    link = Bottleneck(clock, BottleneckProfile(rate_bps, buffer_bytes=buffer_bytes, nic_bps=10e9), random.Random(1))
    jobs = [Job(clock, link, payload_bytes, apart * number, random.Random(number)) for number in range(count)]
    begin = apart * (count - 1) + settling
    clock.run(begin)
    before = [job.arrived_bytes for job in jobs]
    clock.run(begin + seconds)
    return sorted(8 * (job.arrived_bytes - then) / seconds / rate_bps for job, then in zip(jobs, before, strict=True))


def assert_the_link_is_used(each: list[float]) -> None:
    """A job is idle between two payloads."""
    assert sum(each) >= 0.85


@OVER_SIZES
def test_two_jobs_that_begin_together_share_within_a_fifth(payload_bytes: int, buffer_bytes: float) -> None:
    # of two that do the same at the very same instant, chance decides more than either of them
    runs = [shares(2, payload_bytes, buffer_bytes, apart) for apart in (0.0, 0.002, 0.005)]
    for each in runs:
        assert_the_link_is_used(each)
    assert statistics.median(more / less for less, more in runs) <= 1.2
    assert max(more / less for less, more in runs) <= 2


@OVER_SIZES
def test_a_job_that_begins_a_second_later_shares_within_a_fifth(payload_bytes: int, buffer_bytes: float) -> None:
    less, more = shares(2, payload_bytes, buffer_bytes, 1.0, seconds=10)
    assert more <= 1.2 * less
    assert_the_link_is_used([less, more])


def test_two_jobs_share_a_small_buffer_of_a_slower_link_whenever_the_second_begins() -> None:
    apart = [1 + 0.006 * number for number in range(4)]
    runs = [shares(2, 16 * MIB, 100e3, each, rate_bps=200e6, settling=1) for each in apart]
    ratios = sorted(more / less for less, more in runs)
    assert statistics.median(ratios) <= 1.15
    # chance decides now and then who of the two begins a transfer into an empty queue
    assert ratios[-2] <= 1.5
    assert min(sum(each) for each in runs) >= 0.75


@pytest.mark.parametrize("start", [1, 5])
def test_a_cubic_flow_that_comes_later_into_a_small_buffer_gets_its_share(start: int) -> None:
    each = Shared(RATE_BPS, 0.5e6).shares("ours", "cubic", start)
    assert min(each.first, each.later) >= 0.8 * FAIR_SHARE
    assert each.used >= 0.93


@pytest.mark.sweep
@pytest.mark.parametrize("start", [1, 2, 5, 11])
def test_bbr_s_third_version_that_comes_later_into_a_small_buffer_and_we_have_our_shares(start: int) -> None:
    each = Shared(RATE_BPS, 0.5e6, drops_whole_packets=True).shares("ours", "bbr3", start)
    assert min(each.first, each.later) >= 0.8 * FAIR_SHARE
    # BBR keeps to a bound of its own for two or three seconds after it has lost something, and takes no more
    assert each.used >= 0.85


@pytest.mark.parametrize("buffer_bytes", [0.5e6, pytest.param(4e6, marks=pytest.mark.sweep)])
def test_none_of_three_jobs_starves(buffer_bytes: float) -> None:
    # over less, who of three is ahead has not changed often enough
    each = shares(3, 32 * MIB, buffer_bytes, 0.5, seconds=10)
    assert min(each) >= 0.2
    assert sum(each) >= 0.8
