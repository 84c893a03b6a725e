"""Over streams so slow that a chunk takes longer than `timeouts.idle`, a message comes: it makes progress."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.frames import Mode
from tests.support.connections import copies, pace
from tests.support.sites import InThread, party, start_gateways

IDLE_SECONDS = 1.0
BODY = os.urandom(1_000_000)
BYTES_PER_SECOND = 100_000
"""Of each of two streams. Where it sees no bytes move, a gateway waits a second for each megabyte besides."""


@pytest.mark.parametrize("mode", ["fedrdma-e", "fedrdma-x"])
def test_a_message_whose_only_chunk_takes_longer_than_the_idle_time_out_comes_whole(tmp_path: Path, mode: Mode) -> None:
    layout = {"a": ["guest:1"], "b": ["host:2"]}
    timeouts = {"idle": IDLE_SECONDS}
    with (
        start_gateways(layout, tmp_path, runner=InThread(), timeouts=timeouts, chunk="4MiB") as sites,
        sites["a"].client(mode=mode) as a,
        sites["b"].client(mode=mode) as b,
    ):
        # the kernel paces no connection that is new
        assert carried(a, b, "before", 4 * BODY)
        with copies(os.getpid()) as connections:
            for each in connections:
                pace(each, BYTES_PER_SECOND)
        began = time.monotonic()
        assert carried(a, b, "slow", BODY)
        # else this shows nothing
        assert time.monotonic() - began > 3 * IDLE_SECONDS


def carried(a: GatewayClient, b: GatewayClient, name: str, body: bytes) -> bool:
    lease = a.lease(len(body))
    lease.buffer[:] = body
    lease.commit(name, "t", [party("host:2")], "object")
    return bytes(b.get(name, "t", party("guest:1"), timeout=60).buffer) == body
