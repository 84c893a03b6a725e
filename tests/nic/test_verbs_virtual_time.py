"""Our engine over real verbs in virtual time: it takes what theory says, and every boot takes the same."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest

from tests.support.testbed import run_on_hosts

pytestmark = pytest.mark.nic

LONGEST_WALL_SECONDS = 15.0


def transfer(rate: str, size: str, loss: str = "0") -> dict[str, Any]:
    """What host 0 saw of one payload in 4 MiB chunks over 20 ms, and how many packets the WAN dropped."""
    command = [sys.executable, "-m", "deploy.softroce.programs.engine_transfer", "--bytes", size]
    results = run_on_hosts(command, rate=rate, rtt="20ms", loss=loss, virtual_time=True)
    assert [result.exit_status for result in results] == [0, 0], results
    seen, received = (json.loads(result.stdout) for result in results)
    assert received == {"right": True}
    dropped = {name: sum(getattr(result, name) for result in results) for name in ("lost", "overflowed")}
    return {**seen, **dropped}


@pytest.mark.parametrize(("rate", "size"), [("1gbit", "64MiB"), ("10gbit", "256MiB")])
def test_one_chunk_at_a_time_gets_what_chunk_size_rate_and_round_trip_allow(rate: str, size: str) -> None:
    started = time.monotonic()
    seen = transfer(rate, size)
    wall = time.monotonic() - started
    measured, predicted = seen["measured_mbit_per_second"], seen["predicted_mbit_per_second"]
    print(
        f"{rate}: measured {measured} Mbit/s, chunk / (RTT + chunk / rate) = {predicted} Mbit/s, {wall:.1f} s of wall"
    )
    assert measured == pytest.approx(predicted, rel=0.05)
    assert (seen["lost"], seen["overflowed"], seen["resent_bytes"]) == (0, 0, 0)
    assert wall < LONGEST_WALL_SECONDS


@pytest.mark.parametrize("loss", ["0", "0.1%"])
def test_two_boots_of_one_transfer_take_the_same_time(loss: str) -> None:
    first, second = (transfer("1gbit", "64MiB", loss) for _ in range(2))
    print(f"loss {loss}: {first['seconds']} s and {second['seconds']} s, {first['lost']} packets lost")
    assert second["seconds"] == pytest.approx(first["seconds"], rel=0.001)
    assert (first["lost"] > 0) == (loss != "0")
    assert second["lost"] == first["lost"]


def test_loss_costs_time_and_nothing_else() -> None:
    whole, lossy = transfer("1gbit", "64MiB"), transfer("1gbit", "64MiB", "0.1%")
    assert lossy["seconds"] > whole["seconds"] * 1.1
    assert lossy["resent_bytes"] == 0, "the queue pairs send again, not the engine"
