"""The measurement of sites and of jobs at once runs, checks what the sum is, and fills its tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.site_times import Job, aggregations, jobs_at_once, running, update_of

MEGABYTES = 0.5


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_an_aggregation_of_sites_is_timed_and_what_the_gateways_take_is_told() -> None:
    sites, seconds, span, rate, *taken = cells(aggregations(2, MEGABYTES, 1))

    assert (sites, seconds[-2:], span.count(" to "), rate[-5:]) == ("2", " s", 1, " MB/s")
    # of the arbiter's gateway, and of the one of the others that takes most
    assert [len(each.split(",")) for each in taken] == [2, 2, 2, 2]


def test_two_jobs_at_once_are_compared_with_one_after_the_other() -> None:
    sites, after, together, ratio = cells(jobs_at_once(2, MEGABYTES, 1))

    assert (sites, after[-2:], together[-2:]) == ("2", " s", " s")
    assert float(ratio) > 0


def test_a_sum_that_is_not_what_the_silos_sent_is_no_measurement(tmp_path: Path) -> None:
    updates = [update_of(number, MEGABYTES) for number in range(2)]
    with running(2, 1, MEGABYTES, tmp_path) as sites:
        job = Job(sites, "wrong", updates)
        job.round("right")
        updates[1] = updates[1].replace(b"\x00\x00\x00\x00\x00\x00\x00\x40", b"\x00\x00\x00\x00\x00\x00\x08\x40")

        with pytest.raises(AssertionError):
            job.round("wrong")

        job.close()
