"""A party of a job that averages models, as a process of FATE: `python -m tests.support.averaging_job …`.

Each round depends on all bytes of the round before, so one that was lost, doubled or damaged shows in the model. In
each round the updates go a second time by FATE's secure aggregation, which the arbiter's gateway sums.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ARBITER, GUEST, HOST = ("arbiter", "1"), ("guest", "2"), ("host", "3")
EVERYBODY = [ARBITER, GUEST, HOST]
WORKERS = [GUEST, HOST]

MODEL_LENGTH = 150_000
"""Of float64: 1.2 MB, which takes several chunks."""
LARGE_EACH = 4
"""Rounds between two objects that are sent while they are written."""
LARGE_LENGTH = (17 << 20) // 8
"""Of float64: just more than `fate.outbox.EARLY_FROM_BYTES`."""
SILENCE_SECONDS = 240.0
"""Until a get gives up: several restarts of gateways under load."""

RANKS = [1, 2]
"""Of the workers, as FATE counts everybody."""
MOST_ERROR = 1e-7
"""Of the mean of masked updates, which are some tens: what masks of 10^7 cost of a float64, ten times over."""

Model = NDArray[np.float64]


def first_model() -> Model:
    """What a job begins with."""
    return np.random.default_rng(0).random(MODEL_LENGTH)


def trained(model: Model, worker: int, number: int) -> tuple[Model, float]:
    """What a worker makes of a model in a round, and its loss."""
    update = model * 0.9 + np.random.default_rng((worker, number)).random(MODEL_LENGTH)
    return update, float(update.sum())


def large(number: int) -> Model:
    """What is sent beside the model now and then."""
    return np.random.default_rng((9, number)).random(LARGE_LENGTH)


def averaged(updates: list[tuple[Model, float]], extra: float) -> Model:
    """The model of the next round."""
    weights = [1.0 / (1.0 + loss) for _, loss in updates]
    return np.asarray(
        sum(weight * update for weight, (update, _) in zip(weights, updates, strict=True)) / sum(weights) + extra * 1e-9
    )


def digest_of(model: Model) -> str:
    """Equal for equal bits."""
    return hashlib.sha256(model.tobytes()).hexdigest()


def model_after(rounds: int) -> str:
    """The digest of what a job of so many rounds comes to, without any network."""
    model = first_model()
    for number in range(rounds):
        updates = [trained(model, worker, number) for worker in range(len(WORKERS))]
        model = averaged(updates, float(large(number).sum()) if number % LARGE_EACH == 0 else 0.0)
    return digest_of(model)


def arbitrate(ctx: Any, stop: Path) -> str:
    """The arbiter's part: until the file is there; rounds, and digest of the model."""
    from fate.arch.protocol.secure_aggregation import SecureAggregatorServer

    model, number = first_model(), 0
    aggregator = SecureAggregatorServer(RANKS, prefix="secure")
    while True:
        last = stop.exists()
        for party in (ctx.guest, ctx.hosts):
            party.put(f"model {number}", model)
            party.put(f"last {number}", last)
        updates = [
            (np.asarray(party.get(f"update {number}")), party.get(f"loss {number}"))
            for party in (ctx.guest, ctx.hosts[0])
        ]
        (mean,) = aggregator.secure_aggregate(ctx.indexed_ctx(number))
        error = np.abs(mean - np.mean([update for update, _ in updates], axis=0)).max()
        assert error < MOST_ERROR, f"round {number}: secure aggregation is {error} off"
        extra = float(np.asarray(ctx.guest.get(f"large {number}")).sum()) if number % LARGE_EACH == 0 else 0.0
        model, number = averaged(updates, extra), number + 1
        if last:
            return f"{number} {digest_of(model)}"


def work(ctx: Any, worker: int) -> str:
    """A worker's part; how many rounds there were."""
    from fate.arch.protocol.secure_aggregation import SecureAggregatorClient

    number = 0
    aggregator = SecureAggregatorClient(prefix="secure")
    aggregator.dh_exchange(ctx, RANKS)
    while True:
        model = ctx.arbiter.get(f"model {number}")
        last = ctx.arbiter.get(f"last {number}")
        update, loss = trained(np.asarray(model), worker, number)
        ctx.arbiter.put(f"update {number}", update)
        ctx.arbiter.put(f"loss {number}", loss)
        aggregator.secure_aggregate(ctx.indexed_ctx(number), [update.copy()], 1.0)
        if WORKERS[worker] == GUEST and number % LARGE_EACH == 0:
            ctx.arbiter.put(f"large {number}", large(number))
        number += 1
        if last:
            return str(number)


def main(role: str, address: str, session: str, directory: str) -> None:
    """One party, in a process of its own."""
    from fate.arch.computing.backends.standalone import CSession
    from fate.arch.context import Context

    from fedrdma_fate.fate.federation import FedRDMAFederation
    from fedrdma_fate.fate.settings import FederationOptions

    party = next(party for party in EVERYBODY if party[0] == role)
    computing = CSession(f"{session}_{role}", data_dir=directory, options={"task_cores": 1})
    options = FederationOptions(get_timeout=SILENCE_SECONDS)
    federation = FedRDMAFederation(session, computing, party, EVERYBODY, address, options)
    ctx = Context(computing=computing, federation=federation)
    came_to = arbitrate(ctx, Path(directory) / "stop") if party == ARBITER else work(ctx, WORKERS.index(party))
    print(f"came to {came_to}", flush=True)
    ctx.destroy()


if __name__ == "__main__":
    main(*sys.argv[1:])
