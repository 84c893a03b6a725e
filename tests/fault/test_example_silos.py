"""Silos of the example on hosts of their own: how they wait for each other when they are done."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from examples.gpt2_advertisegen.one_silo import Place, finish_together
from examples.gpt2_advertisegen.plan import GUEST, HOST, PARTIES
from examples.gpt2_advertisegen.processes import JobFailedError
from fedrdma_fate.wire.frames import Party
from tests.support.sites import Sites, start_gateways


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[Sites]:
    """A gateway for each party."""
    with start_gateways({party.role: [str(party)] for party in PARTIES}, tmp_path) as sites:
        yield sites


def finish(gateways: Sites, party: Party, patience: float) -> None:
    finish_together(gateways[party.role].address, Place(party, {}, "s", patience))


def test_silos_that_are_done_wait_until_all_are(gateways: Sites) -> None:
    with ThreadPoolExecutor(3) as silos:
        early = [silos.submit(finish, gateways, party, 30.0) for party in PARTIES[:2]]
        # what the early ones said has come, so they are waiting
        with gateways["arbiter"].client("s-end") as client:
            for party in PARTIES[:2]:
                client.get("done", "end", party, timeout=30.0)
        assert not any(silo.done() for silo in early)
        with gateways["arbiter"].client("s-end") as client:
            client.put_inline("done", "end", PARTIES[:2], "bytes", b"")
        for silo in early:
            silo.result(30.0)


def test_a_silo_does_not_wait_for_ever_for_one_that_failed(gateways: Sites) -> None:
    with ThreadPoolExecutor(2) as silos:
        waiting = [silos.submit(finish, gateways, party, 0.5) for party in (GUEST, HOST)]
        for party, silo in zip((GUEST, HOST), waiting, strict=True):
            with pytest.raises(JobFailedError, match=f"{party} is done.*FR605.*arbiter:10000"):
                silo.result(30.0)
