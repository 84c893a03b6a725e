"""Three silos and an arbiter train by FATE's own aggregation over a data path that loses chunks.

All end, with what may be missing and without, and what is missing of each round is told.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fate.arch.computing.backends.standalone import CSession
from fate.arch.context import Context
from fate.arch.protocol.secure_aggregation import SecureAggregatorClient, SecureAggregatorServer

from fedrdma_fate.fate.federation import FedRDMAFederation
from fedrdma_fate.fate.settings import FederationOptions
from fedrdma_fate.gateway import assembly as assembly_module
from fedrdma_fate.gateway.transports import TransportSet, make_transports
from tests.support.faulty import FaultPlan, FaultyTransport
from tests.support.gateways import PartyTuple
from tests.support.sites import Sites, start_gateways

pytestmark = pytest.mark.fate

SILOS: list[PartyTuple] = [("guest", "1"), ("host", "2"), ("host", "3")]
ARBITER: PartyTuple = ("arbiter", "9")
SITE_OF_ARBITER = "a"
LAYOUT = {SITE_OF_ARBITER: ["arbiter:9"], "b": ["guest:1"], "c": ["host:2"], "d": ["host:3"]}
RANKS = [0, 1, 2]
WEIGHTS = [1.0, 2.0, 3.0]
ROUNDS = 3
FEATURES, OUTPUTS, SAMPLES = 512, 400, 32
"""A layer of 1.6 MB: 400 chunks of 4 KiB of a plain update, and 800 of a masked one; four of them may be missing."""
LOSS = 0.2
"""Of chunks, each time that one is sent."""
NEVER_COMES = frozenset((300,))
"""Index of a chunk that is lost each time that it is sent in a round that may miss it, however busy the machine is."""
TOLERANCE = 0.01

Array = npt.NDArray[np.float64]


@functools.cache
def data_of(silo: int) -> tuple[Array, Array]:
    made = np.random.default_rng(silo)
    features = made.standard_normal((SAMPLES, FEATURES))
    return features, features @ np.random.default_rng(99).standard_normal((FEATURES, OUTPUTS))


def trained(layer: Array, silo: int) -> Array:
    """What a silo makes of a layer: one step of least squares on its own data."""
    features, wanted = data_of(silo)
    return layer - 0.5 / FEATURES * features.T @ (features @ layer - wanted)


def error_of(layer: Array) -> float:
    """Mean square over the data of all silos."""
    return float(np.mean([np.square(data_of(silo)[0] @ layer - data_of(silo)[1]).mean() for silo in RANKS]))


@pytest.fixture
def may_miss() -> threading.Event:
    """That rounds have begun in which something may be missing."""
    return threading.Event()


@pytest.fixture
def sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, may_miss: threading.Event
) -> Iterator[Sites]:
    """Their data paths are UDP, and lose as many chunks as is asked for; those of the silos, later, one for good."""

    def make(config: Any, *arguments: Any) -> TransportSet:
        made = make_transports(config, *arguments)
        for name, transport in made.items():
            lost = frozenset() if config.site == SITE_OF_ARBITER else NEVER_COMES
            plan = FaultPlan(chunk_loss=request.param, lost_always=lost, lost_from=may_miss)
            made[name] = FaultyTransport(transport, [dataclasses.replace(plan, seed=seed) for seed in range(20)])
        return made

    monkeypatch.setattr(assembly_module, "make_transports", make)
    memory = {"send_bytes": "32MiB", "receive_bytes": "32MiB"}
    with start_gateways(
        LAYOUT, tmp_path, transport="udp", mode="fedrdma-x", chunk=4096, memory=memory, repair_chunks=False
    ) as started:
        yield started


def train(
    sites: Sites, home: Path, name: str, aggregator: str, tolerance: float, after_first: Callable[[], None]
) -> list[Array]:
    """The layer that each party has in the end, the arbiter's last; `after_first` is called when a silo has the first
    aggregate, so when all updates of the first round have come whole."""
    everybody = [*SILOS, ARBITER]
    site_of = dict(zip(everybody, ("b", "c", "d", SITE_OF_ARBITER), strict=True))

    def context_of(party: PartyTuple, stack: ExitStack) -> Context:
        computing = CSession(f"{name}_{'_'.join(party)}", data_dir=str(home), options={"task_cores": 1})
        options = FederationOptions(get_timeout=60, loss_tolerance=tolerance)
        address = sites[site_of[party]].address
        federation = FedRDMAFederation(name, computing, party, everybody, address, options)
        context = Context(computing=computing, federation=federation)
        stack.callback(context.destroy)
        return context

    def silo(number: int, context: Context) -> Array:
        client = SecureAggregatorClient(prefix="model", is_mock=aggregator == "plaintext")
        if aggregator == "secure":
            client.dh_exchange(context, RANKS)
        layer = np.zeros((FEATURES, OUTPUTS))
        for _, its in context.ctxs_range(ROUNDS):
            (mean,) = client.secure_aggregate(its, [trained(layer, number)], WEIGHTS[number])
            layer = np.asarray(mean)
            after_first()
        return layer

    def arbiter(context: Context) -> Array:
        server = SecureAggregatorServer(RANKS, prefix="model", is_mock=aggregator == "plaintext")
        layer = np.zeros(0)
        for _, its in context.ctxs_range(ROUNDS):
            (layer,) = server.secure_aggregate(its)
        return np.asarray(layer)

    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        contexts = [context_of(party, stack) for party in everybody]
        parts = [functools.partial(silo, number, contexts[number]) for number in RANKS]
        futures = [pool.submit(part) for part in (*parts, functools.partial(arbiter, contexts[-1]))]
        return [future.result(timeout=90) for future in futures]


def alone() -> Array:
    """What the job comes to without any network."""
    layer = np.zeros((FEATURES, OUTPUTS))
    for _ in range(ROUNDS):
        total = np.zeros_like(layer)
        for silo in RANKS:
            total += np.multiply(trained(layer, silo), WEIGHTS[silo])
        layer = total / sum(WEIGHTS, 0.0)
    return layer


@pytest.mark.parametrize("sites", [LOSS], indirect=True)
@pytest.mark.parametrize("aggregator", ["plaintext", "secure"])
def test_a_job_over_a_path_that_loses_chunks_ends_with_holes_and_without(
    sites: Sites, tmp_path: Path, caplog: pytest.LogCaptureFixture, aggregator: str, may_miss: threading.Event
) -> None:
    caplog.set_level(logging.INFO, "fedrdma_fate.fate.aggregation.hook")
    whole = train(sites, tmp_path, "whole", aggregator, 0.0, lambda: None)
    assert "are missing" not in caplog.text, "without the option nothing is ever missing"
    bounded = train(sites, tmp_path, "bounded", aggregator, TOLERANCE, may_miss.set)
    for layers in (whole, bounded):
        assert all(np.array_equal(each, layers[0]) for each in layers), "whatever was missing, all have the same"
    if aggregator == "plaintext":
        assert np.array_equal(whole[0], alone()), "to the bit"
    else:
        assert np.abs(whole[0] - alone()).max() < 1e-7
    told = [
        (float(share), float(kept))
        for share, kept in re.findall(r"([\d.]+) % of \d+ elements are missing.*?; ([\d.]+) % of the aggr", caplog.text)
    ]
    assert len(told) == ROUNDS - 1, "a line for each round but the first, which is whole"
    errors = [error_of(each[0]) for each in (whole, bounded)]
    print(f"{aggregator}: error {errors[0]:.6g} whole, {errors[1]:.6g} bounded; missing, and kept, in per cent: {told}")
    assert all(0 < share <= 100 * TOLERANCE for share, _ in told), "one chunk of each silo never comes"
    assert max(kept for _, kept in told) <= 100 * TOLERANCE
    assert errors[1] <= 1.05 * errors[0]
