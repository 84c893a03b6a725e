"""Our engine over real verbs in virtual time: it takes what theory says, and every boot takes the same."""

from __future__ import annotations

import functools
import json
import resource
import sys
from typing import Any

import pytest

from tests.support.testbed import run_on_hosts

pytestmark = pytest.mark.nic

LONGEST_CPU_SECONDS = 15.0
"""That a transfer takes of a core, by whatever runs beside it; it is how long a run takes on a machine of its own."""


def transfer(rate: str, size: str, loss: str = "0") -> dict[str, Any]:
    """What host 0 saw of one payload in 4 MiB chunks over 20 ms, and how many packets the WAN dropped."""
    command = [sys.executable, "-m", "deploy.softroce.programs.engine_transfer", "--bytes", size]
    results = run_on_hosts(command, rate=rate, rtt="20ms", loss=loss, virtual_time=True)
    assert [result.exit_status for result in results] == [0, 0], results
    seen, received = (json.loads(result.stdout) for result in results)
    assert received == {"right": True}
    dropped = {name: sum(getattr(result, name) for result in results) for name in ("lost", "overflowed")}
    return {**seen, **dropped}


@functools.cache
def first_boot(loss: str) -> dict[str, Any]:
    """One transfer, for all tests that look at it: it would take the same again, which is tested here."""
    return transfer("1gbit", "64MiB", loss)


def cpu_seconds_of_guests() -> float:
    """What processes that this one has started and waited for have taken, theirs included."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize(("rate", "size"), [("1gbit", "64MiB"), ("10gbit", "256MiB")])
def test_one_chunk_at_a_time_gets_what_chunk_size_rate_and_round_trip_allow(rate: str, size: str) -> None:
    before = cpu_seconds_of_guests()
    seen = transfer(rate, size)
    taken = cpu_seconds_of_guests() - before
    measured, predicted = seen["measured_mbit_per_second"], seen["predicted_mbit_per_second"]
    print(
        f"{rate}: measured {measured} Mbit/s, chunk / (RTT + chunk / rate) = {predicted} Mbit/s, {taken:.1f} s of CPU"
    )
    assert measured == pytest.approx(predicted, rel=0.05)
    assert (seen["lost"], seen["overflowed"], seen["resent_bytes"]) == (0, 0, 0)
    assert 0.1 < taken < LONGEST_CPU_SECONDS


@pytest.mark.parametrize("loss", ["0", "0.1%"])
def test_two_boots_of_one_transfer_take_the_same_time(loss: str) -> None:
    first, second = first_boot(loss), transfer("1gbit", "64MiB", loss)
    print(f"loss {loss}: {first['seconds']} s and {second['seconds']} s, {first['lost']} packets lost")
    assert second["seconds"] == pytest.approx(first["seconds"], rel=0.001)
    assert (first["lost"] > 0) == (loss != "0")
    assert second["lost"] == first["lost"]


def test_loss_costs_time_and_nothing_else() -> None:
    whole, lossy = first_boot("0"), first_boot("0.1%")
    assert lossy["seconds"] > whole["seconds"] * 1.1
    assert lossy["resent_bytes"] == 0, "the queue pairs send again, not the engine"
