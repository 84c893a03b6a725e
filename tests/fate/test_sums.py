"""FATE's own secure aggregation over real gateways that sum: the same result, and the loop of its server unchanged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fate.arch.computing.backends.standalone import CSession
from fate.arch.context import Context
from fate.arch.protocol.secure_aggregation import SecureAggregatorClient, SecureAggregatorServer
from fate.ml import aggregator as ml

from fedrdma_fate.fate.federation import FedRDMAFederation
from fedrdma_fate.fate.settings import FederationOptions
from fedrdma_fate.gateway.tasks.site_sums import SiteSums
from tests.support.gateways import PartyTuple
from tests.support.sites import InThread, Site, Sites, eventually, start_gateways

pytestmark = [pytest.mark.fate, pytest.mark.xdist_group("sums")]

CLIENTS: list[PartyTuple] = [("guest", "1"), ("host", "2"), ("host", "3"), ("host", "4")]
ARBITER: PartyTuple = ("arbiter", "9")
RANKS = [0, 1, 2, 3]
WEIGHTS = [0.1, 0.2, 0.3, 0.4]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Site]]]:
    with ExitStack() as stack:
        yield {
            order: stack.enter_context(
                start_gateways(
                    {"a": ["arbiter:9", "guest:1"], "b": ["host:2", "host:3", "host:4"]},
                    tmp_path_factory.mktemp(order),
                    memory={"send_bytes": "16MiB", "receive_bytes": "16MiB"},
                    # a busy host is no reason for a site to wait no longer
                    aggregate={"sums": True, "order": order, "site_wait": 60.0},
                )
            )
            for order in ("exact", "rank")
        }


class Job:
    """Tasks of four clients and an arbiter, in threads."""

    def __init__(self, sites: dict[str, Site], name: str, home: Path, stack: ExitStack, **options: Any) -> None:
        everybody = [*CLIENTS, ARBITER]
        self.contexts = []
        for party in everybody:
            computing = CSession(f"{name}_{'_'.join(party)}", data_dir=str(home), options={"task_cores": 1})
            site = sites["a" if party in (ARBITER, CLIENTS[0]) else "b"]
            settings = FederationOptions(get_timeout=60, **options)
            federation = FedRDMAFederation(name, computing, party, everybody, site.address, settings)
            context = Context(computing=computing, federation=federation)
            stack.callback(context.destroy)
            self.contexts.append(context)

    @property
    def arbiter(self) -> Context:
        return self.contexts[-1]

    def aggregate(
        self, arrays: list[list[Any]], *, weights: list[Any] = WEIGHTS, ranks: Any = None, rounds: int = 1
    ) -> list[Any]:
        """What the server and each client have after secure aggregation; the last party comes first."""

        def client(number: int) -> Any:
            context, aggregator = self.contexts[number], SecureAggregatorClient(prefix="model")
            aggregator.dh_exchange(context, RANKS)
            for _, its in context.ctxs_range(rounds):
                result = aggregator.secure_aggregate(its, arrays[number], weights[number])
            return result

        def server() -> Any:
            aggregator = SecureAggregatorServer(RANKS, prefix="model")
            for _, its in self.arbiter.ctxs_range(rounds):
                result = aggregator.secure_aggregate(its, ranks)
            return result

        with ThreadPoolExecutor(5) as pool:
            futures = [pool.submit(server), *(pool.submit(client, number) for number in RANKS)]
            return [future.result(timeout=60) for future in futures]


@pytest.fixture
def make_job(sites: dict[str, dict[str, Site]], request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:
        yield lambda order, **options: Job(sites[order], request.node.name, tmp_path, stack, **options)


def updates() -> list[list[Any]]:
    made = np.random.default_rng(5)
    return [[made.standard_normal((200, 300)), made.standard_normal(17), np.array(0.5)] for _ in CLIENTS]


def mean(arrays: list[list[Any]]) -> list[Any]:
    return [sum(w * each for w, each in zip(WEIGHTS, those, strict=True)) for those in zip(*arrays, strict=True)]


@pytest.mark.parametrize("order", ["exact", "rank"])
def test_secure_aggregation_gives_the_weighted_mean_with_sums(make_job: Any, order: str) -> None:
    arrays = updates()

    server, *clients = make_job(order).aggregate(arrays, rounds=3)

    for result in (server, *clients):
        for found, true in zip(result, mean(arrays), strict=True):
            assert found.shape == true.shape
            assert np.abs(found - true).max() < 1e-8


def test_what_a_client_sends_is_summed_by_the_gateway_and_not_got_one_by_one(
    make_job: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fedrdma_fate.fate.sums"):
        job = make_job("exact")
        asked = []
        client = job.arbiter.federation._client
        get, client.get = client.get, lambda name, *rest, **how: (asked.append(name), get(name, *rest, **how))[1]
        job.aggregate(updates())

    assert "model_mixed_client_values" not in asked
    assert caplog.records == []


def test_the_aggregate_goes_to_a_site_once_for_all_its_clients(
    make_job: Any, sites: dict[str, dict[str, Site]], request: pytest.FixtureRequest
) -> None:
    # whoever has it keeps it, until all have
    results = make_job("exact").aggregate(updates())

    assert len(results) == 5

    def transports() -> list[str]:
        delivered = sites["exact"]["b"].events("delivered")
        came = [each for each in delivered if each["session"] == request.node.name and "aggregated" in each["name"]]
        return sorted(each["transport"] for each in came)

    eventually(lambda: len(transports()) == 3)
    assert transports() == ["", "", "tcp"]


def test_the_first_round_is_summed_at_the_site_as_the_second_is_though_all_clients_are_there_before_the_arbiter(
    make_job: Any, sites: dict[str, dict[str, Site]], request: pytest.FixtureRequest
) -> None:
    job, there = make_job("exact"), sites["exact"]
    assert isinstance(there, Sites)
    runner = there.runner
    assert isinstance(runner, InThread)

    async def kept_back() -> int:
        assembly = runner.gateways["b"]._assembly
        assert assembly is not None
        sums = assembly.peers["a"].site_sums
        assert isinstance(sums, SiteSums)
        return sum(len(each._kept) for (round_, _), each in sums._expected["a"].items() if round_[0] == name)

    name = request.node.name

    def come() -> dict[str, list[int]]:
        """Bytes of what came over the network, by its tag; the guest is of the arbiter's own site."""
        found: dict[str, list[int]] = {}
        for each in there["a"].events("delivered"):
            if each["session"] == name and "model_mixed" in each["name"] and each["transport"] == "tcp":
                found.setdefault(each["tag"], []).append(each["bytes"])
        return found

    def client(number: int) -> None:
        context = job.contexts[number]
        aggregator = ml.SecureAggregatorClient(context, "fedavg", "weighted_mean", sample_num=number + 1)
        for _, its in context.ctxs_range(2):
            aggregator.model_aggregation(its, updates()[number])

    def server() -> None:
        aggregator = ml.SecureAggregatorServer(job.arbiter, "fedavg")
        for _, its in job.arbiter.ctxs_range(2):
            eventually(lambda: runner.run(kept_back()) == 3, 60.0)
            aggregator.model_aggregation(its)

    with ThreadPoolExecutor(5) as pool:
        for future in [pool.submit(server), *(pool.submit(client, number) for number in RANKS)]:
            future.result(timeout=60)

    eventually(lambda: len(come()) == 2)
    first, second = come().values()
    assert first == second
    assert len(first) == 1


def test_by_rank_the_server_has_the_same_bits_as_fate_without_us(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fate_utils.secure_aggregation_helper import MixAggregate

    from fedrdma_fate.fate import federation

    sent: dict[str, Any] = {}
    original = federation.footer_for

    def footer_for(value: Any, name: str, source: Any) -> bytes:
        if name.endswith("mixed_client_values"):
            sent[source.party_id] = value
        return original(value, name, source)

    monkeypatch.setattr(federation, "footer_for", footer_for)
    server = make_job("rank").aggregate(updates())[0]

    alone = MixAggregate()
    for _, party_id in CLIENTS:
        alone.aggregate(sent[party_id][0])
    weight = 0.0
    for _, party_id in CLIENTS:
        weight += sent[party_id][1]
    assert [each.tobytes() for each in server] == [each.tobytes() for each in alone.finalize(weight)]


def test_a_job_without_weights_is_summed_without(make_job: Any) -> None:
    arrays = updates()

    server = make_job("exact").aggregate(arrays, weights=[None] * 4)[0]

    for found, those in zip(server, zip(*arrays, strict=True), strict=True):
        assert np.abs(found - sum(those)).max() < 1e-8


@pytest.mark.parametrize("how", ["option", "ranks", "some-weights"])
def test_what_cannot_be_summed_goes_fates_own_way_with_the_same_result(
    make_job: Any, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = updates()
    with caplog.at_level(logging.INFO, "fedrdma_fate.fate.sums"):
        job = make_job("exact", sums=how != "option")
        if how == "some-weights":
            job.aggregate(arrays, weights=[0.1, None, 0.3, 0.4])
            assert "weight" in caplog.text
            return
        server = job.aggregate(arrays, ranks=RANKS if how == "ranks" else None)[0]

    assert ("only ranks" in caplog.text) == (how == "ranks")
    for found, true in zip(server, mean(arrays), strict=True):
        assert np.abs(found - true).max() < 1e-8
