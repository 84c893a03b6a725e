"""A script for FATE's launcher: secure aggregation, a table and a broadcast, checked at every party."""

import os
import sys
from typing import Any

import numpy as np
from fate.arch.launchers.multiprocess_launcher import launch
from fate.arch.protocol.secure_aggregation._secure_aggregation import SecureAggregatorClient, SecureAggregatorServer

ROUNDS = 2


def run(ctx: Any) -> None:
    """One party's part."""
    expected = os.environ["EXPECTED_FEDERATION"]
    assert type(ctx.federation).__name__ == expected, type(ctx.federation)
    computing = os.environ.get("EXPECTED_COMPUTING", "fate.arch.computing.backends.standalone._csession")
    assert type(ctx.computing).__module__ == computing, type(ctx.computing)
    if ctx.is_on_arbiter:
        _aggregate(ctx)
    else:
        _train(ctx)


def _aggregate(ctx: Any) -> None:
    server = SecureAggregatorServer([ctx.guest.rank, *ctx.hosts.ranks], prefix="model")
    for _, round_ctx in ctx.on_iterations.ctxs_range(ROUNDS):
        server.secure_aggregate(round_ctx)
    if hasattr(ctx.federation, "serialised"):
        assert (ctx.federation.serialised, ctx.federation.reused) == (ROUNDS, ROUNDS)


def _train(ctx: Any) -> None:
    client = SecureAggregatorClient(prefix="model")
    client.dh_exchange(ctx, [ctx.guest.rank, *ctx.hosts.ranks])
    for number, round_ctx in ctx.on_iterations.ctxs_range(ROUNDS):
        weights = [np.full((300, 400), float(ctx.rank + number)), np.full(5, 1.0)]
        mean = client.secure_aggregate(round_ctx, weights, 1.0)
        np.testing.assert_allclose(mean[0], 0.5 + number, atol=1e-6)
    # a small table lies in its object; workers move a longer one
    rows = {i: str(i) * int(os.environ.get("EXCHANGE_REPEATS", "1")) for i in range(100)}
    if ctx.is_on_guest:
        ctx.hosts.put("table", ctx.computing.parallelize(list(rows.items()), partition=3))
    else:
        assert dict(ctx.guest.get("table").collect()) == rows


if __name__ == "__main__":
    sys.exit(launch(run))
