"""A disk that is full while updates are added, at sites and at the arbiter's: sums need no room on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.small_tmpfs import in_small_tmpfs

SUMS = """
from contextlib import ExitStack
from concurrent.futures import ThreadPoolExecutor
from fedrdma_fate.client.client import ReceivedSum
from fedrdma_fate.gateway import spilling
from fedrdma_fate.obs import trace
from tests.support.sites import InThread, eventually, party, start_gateways
from tests.support.summands import bits, exact_sum, masked, pairs_in, written

spilling.RETRY_SECONDS = spilling.SMALL_RETRY_SECONDS = trace.TRY_AGAIN_SECONDS = 0.2
NAMES = [f"host:{number}" for number in range(8)]
SOURCES, ARBITER = [party(name) for name in NAMES], party("arbiter:1")
SHAPES = ((30_001,),)
UPDATES = masked(SHAPES, len(SOURCES), seed=3)
# at the arbiter's for three updates; by themselves, the others are spilled where there is no sum yet
memory = {"send_bytes": "4MiB", "receive_bytes": "2MiB", "ring_slots": 0}
runner = InThread()
layout = {"a": ["arbiter:1"], "b": NAMES[:4], "c": NAMES[4:]}
settings = {"runner": runner, "memory": memory, "aggregate": {"site_wait": 60.0}}
# journals, traces and what is spilled lie in there
with start_gateways(layout, shared, **settings) as sites, ExitStack() as stack:
    arbiter = stack.enter_context(sites["a"].client("s", "arbiter:1"))
    hosts = [stack.enter_context(sites["b" if n < 4 else "c"].client("s", name)) for n, name in enumerate(NAMES)]
    pool = stack.enter_context(ThreadPoolExecutor(1))

    def push(tag, *numbers):
        for number in numbers:
            body = written(UPDATES[number], SOURCES[number], float(number))
            lease = hosts[number].lease(len(body), timeout=60)
            lease.buffer[:] = body
            lease.commit("masked", tag, [ARBITER], "object")

    def summed(future):
        found = future.result(100)
        assert isinstance(found, ReceivedSum), found
        right = bits(pairs_in(found.buffer, found.shapes)) == bits(exact_sum(UPDATES, SHAPES))
        return found.parties_in == tuple(range(8)) and found.weight == 28.0 and right

    def asked(tag):
        return pool.submit(arbiter.get_sum, "masked", tag, SOURCES, timeout=90)

    push("before", *range(8))
    print("before", summed(asked("before")))
    future = asked("filled")
    push("filled", 0, 5, 1)
    fill()
    push("filled", 2, 3, 4, 6, 7)
    print("filled", summed(future))
    # those of the next one, that nobody has asked for
    push("full", 0, 1, 4, 5)
    future = asked("full")
    push("full", 2, 3, 6, 7)
    print("full", summed(future))
    (shared / "filler").unlink()
    push("room", *range(8))
    print("room", summed(asked("room")))
    del future
    for site in "bc":
        eventually(lambda: sites[site].pool("send")["slots"] == 0, 20)
    eventually(lambda: sites["a"].status()["mailbox"]["messages"] == 0, 20)
"""


@pytest.mark.sweep
def test_sums_go_on_where_the_disk_of_all_gateways_is_full(tmp_path: Path) -> None:
    told = in_small_tmpfs(tmp_path, SUMS, size="8m")
    assert told == ["before True", "filled True", "full True", "room True"]
