"""Four sites in one session: one comes late, or not at all, and gateways are stopped and killed between two rounds.

As late as sites are: `scripts/test --only fault -- -k comes_late --late-seconds 60`.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest

from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.support.late_sites import SITES, Session, all_but_the_last, check_nothing_left, come_late, end_and_start
from tests.support.sites import Sites, runner_of

MEGABYTES = 2.0
"""Of an update: eight blocks of a sum."""
LAST = SITES - 1


@pytest.fixture(scope="module")
def all_but_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """The last of them need not run."""
    with all_but_the_last(SITES, MEGABYTES, tmp_path_factory.mktemp("late")) as running:
        yield running


@pytest.mark.timeout(0)
def test_a_site_that_comes_late_is_waited_for_and_all_rounds_have_their_sum(
    all_but_one: Sites, pytestconfig: pytest.Config
) -> None:
    seconds = pytestconfig.getoption("late_seconds")
    last = list(all_but_one.values())[LAST]
    if last.name in runner_of(all_but_one).processes:
        runner_of(all_but_one).stop(last, signal.SIGINT)
    with contextlib.closing(Session(all_but_one, "late", MEGABYTES)) as session:
        found = session.round(0, LAST, lambda: come_late(all_but_one, seconds))
        session.round(1)
        check_nothing_left(all_but_one, "late")

    assert found.whole - found.after >= seconds


def test_a_site_that_does_not_come_is_named_and_no_update_is_given_out_twice(all_but_one: Sites) -> None:
    with contextlib.closing(Session(all_but_one, "never", MEGABYTES)) as session:
        for number in range(LAST):
            session.put(number, 0)

        with pytest.raises(GatewayError, match=str(session.silos[LAST])) as late:
            session.sum(0, timeout=1.0)
        with pytest.raises(GatewayError) as again:
            session.sum(0, timeout=1.0)

    assert (late.value.code, again.value.code) == (ErrorCode.PULL_TIMEOUT, ErrorCode.DUPLICATE_PULL)


@pytest.mark.parametrize("number", [1, 0], ids=["a silo's", "the arbiter's"])
def test_rounds_go_on_behind_a_gateway_that_was_stopped_or_killed_between_two_of_them(
    all_but_one: Sites, number: int
) -> None:
    last, name = list(all_but_one.values())[LAST], f"again{number}"
    if last.name not in runner_of(all_but_one).processes:
        come_late(all_but_one, 0)
    with contextlib.closing(Session(all_but_one, name, MEGABYTES)) as session:
        session.round(0)
        session.round(1, number, lambda: end_and_start(all_but_one, number, killed=False))
        session.round(2, number, lambda: end_and_start(all_but_one, number, killed=True))
        session.round(3)
        check_nothing_left(all_but_one, name)
