"""Gateways whose workers are to be told by SKMSG: the same sums, and status says which way it is, and why."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.aggregate import skmsg
from fedrdma_fate.aggregate.bpf import BpfError, Kernel
from fedrdma_fate.aggregate.skmsg import try_skmsg
from fedrdma_fate.cli.status import render
from tests.support.sites import eventually, start_gateways
from tests.support.summands import bits, pairs_in
from tests.unit.gateway.tasks.test_sums import MEMORY, NAMES, SHAPES, UPDATES, Session, plain

UPDATE_COUNT = len(UPDATES)


def sum_by(notices: str, directory: Path) -> tuple[Any, dict[str, Any], str]:
    """The bits of a sum, what the gateway's status says of notices then, and all of it for people, before that."""
    layout = {"a": ["arbiter:1", *NAMES[:2]], "b": NAMES[2:]}
    aggregate = {"order": "exact", "notices": notices, "site_sums": False}
    with ExitStack() as stack:
        sites = stack.enter_context(start_gateways(layout, directory, memory=MEMORY, aggregate=aggregate))
        session = Session(sites, "s", stack)
        future = stack.enter_context(ThreadPoolExecutor(1)).submit(session.whole_sum)
        eventually(lambda: session.site.status()["sums"])
        shown = "\n".join(plain(render(session.site.status())))
        for number in range(UPDATE_COUNT):
            session.push(number)
        found = bits(pairs_in(future.result().buffer, SHAPES))
        return found, session.site.status()["sum_workers"]["notices"], shown


@pytest.mark.skipif(bool(why := try_skmsg()), reason=f"no SKMSG here: {why}")
def test_a_gateway_has_the_kernel_tell_its_workers_and_the_bits_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "socket").mkdir()
    (tmp_path / "skmsg").mkdir()
    expected, usual, _ = sum_by("auto", tmp_path / "socket")
    found, notices, shown = sum_by("skmsg", tmp_path / "skmsg")

    assert found == expected
    assert usual == {"way": "socket", "reason": "", "passed": 0}
    assert (notices["way"], notices["reason"]) == ("skmsg", "")
    # the first one in each region is a job
    assert 0 < notices["passed"] < UPDATE_COUNT
    assert "told by skmsg, 0 notices" in shown


def test_a_gateway_that_may_not_says_so_and_adds_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise BpfError(errno.EPERM, "making a map")

    monkeypatch.setattr(Kernel, "make_map", refuse)
    assert skmsg.try_skmsg()

    _, notices, shown = sum_by("skmsg", tmp_path)

    assert notices == {"way": "socket", "reason": skmsg.try_skmsg(), "passed": 0}
    assert "not as configured: Operation not permitted" in shown
