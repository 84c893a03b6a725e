"""FATE's own aggregators over a gateway that loses what it may, from a job's option to the aggregate at the silos."""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fate.arch.context import Context
from fate.arch.federation.backends.standalone import StandaloneFederation
from fate.arch.protocol.secure_aggregation import SecureAggregatorClient, SecureAggregatorServer

from fedrdma_fate.client.client import WHOLE, LossTolerance
from fedrdma_fate.fate.aggregation.hook import holes_in
from fedrdma_fate.fate.federation import FedRDMAFederation
from fedrdma_fate.fate.gateway_client import to_party
from fedrdma_fate.fate.missing import MissingElements
from fedrdma_fate.fate.settings import FederationOptions
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, FateError
from fedrdma_fate.wire.frames import Party
from tests.support.fake_gateway import FakeClient, FakeConnector, FakeMessage

GUEST, HOSTS, ARBITER = ("guest", "1"), [("host", "2"), ("host", "3")], ("arbiter", "9")
SILOS = [GUEST, *HOSTS]
EVERYBODY = [*SILOS, ARBITER]
RANKS = [0, 1, 2]
WEIGHTS = [0.2, 0.3, 0.5]
CHUNK = 4096
SHAPE = (400, 100)
TOLERANCE = 0.1
NAME = "model_mixed_client_values"


@dataclasses.dataclass
class LossyPath:
    """What the path between fake gateways does.

    Attributes:
        chance: which chunks are lost.
        same: whether of each message the same ones are.
        sent: what might be missing of each message, by name and source, in the order of the rounds.
        lost: how many bytes of each message were.
    """

    chance: random.Random
    same: bool = False
    sent: dict[tuple[str, Party], list[LossTolerance]] = dataclasses.field(default_factory=dict)
    lost: dict[tuple[str, Party], list[int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class LossyClient(FakeClient):
    """Loses as much of a message as both of its tasks let it."""

    path: LossyPath | None = None

    def deliver(self, name: str, tag: str, destinations: Any, kind: Any, body: Any) -> None:
        assert self.path is not None
        self.path.sent.setdefault((name, self.party), []).append(self.losses[-1] if self.losses else WHOLE)
        super().deliver(name, tag, destinations, kind, body)

    def get(
        self, name: str, tag: str, source: Party, *, timeout: float | None = None, tolerates: bool = False
    ) -> FakeMessage:
        message = super().get(name, tag, source, timeout=timeout, tolerates=tolerates)
        assert self.path is not None
        loss = self.path.sent[name, source][-1]
        share = min(loss.share, self.tolerated.get((name, source), 0.0))
        total = len(message.buffer)
        first = -(-loss.whole_bytes // CHUNK)
        count = min(int(share * (total - loss.whole_bytes)) // CHUNK, total // CHUNK - first)
        chance = random.Random(5) if self.path.same else self.path.chance
        chosen = sorted(chance.sample(range(first, total // CHUNK), count)) if count > 0 else []
        for index in chosen:
            message.buffer[index * CHUNK : (index + 1) * CHUNK] = bytes(CHUNK)
        message.missing = tuple((index * CHUNK, (index + 1) * CHUNK) for index in chosen)
        self.path.lost.setdefault((name, source), []).append(CHUNK * len(chosen))
        return message


@dataclasses.dataclass(frozen=True)
class LossyConnector(FakeConnector):
    path: LossyPath | None = None

    def connect(self, *, brief: bool = False) -> LossyClient:
        del brief
        return LossyClient(self.directory, self.session, self.party, path=self.path)


@dataclasses.dataclass
class Job:
    """Tasks of three silos and an arbiter."""

    contexts: dict[tuple[str, str], Context]
    path: LossyPath

    def run(self, *parts: Callable[[Context], Any]) -> list[Any]:
        """What each party comes to: the silos, then the arbiter."""
        with ThreadPoolExecutor(len(EVERYBODY)) as pool:
            futures = [
                pool.submit(part, self.contexts[party])
                for part, party in zip([*parts[:-1], parts[-1]], EVERYBODY, strict=True)
            ]
            return [future.result(timeout=60) for future in futures]

    def aggregate(self, rounds: list[list[list[Any]]], *, mock: bool) -> list[list[Any]]:
        """What each party has after each round."""

        def silo(number: int) -> Callable[[Context], list[Any]]:
            def part(context: Context) -> list[Any]:
                client = SecureAggregatorClient(prefix="model", is_mock=mock)
                client.dh_exchange(context, RANKS)
                return [
                    [each.copy() for each in client.secure_aggregate(its, rounds[number_of][number], WEIGHTS[number])]
                    for number_of, its in context.ctxs_range(len(rounds))
                ]

            return part

        def arbiter(context: Context) -> list[Any]:
            server = SecureAggregatorServer(RANKS, prefix="model", is_mock=mock)
            return [
                [each.copy() for each in server.secure_aggregate(its)] for _, its in context.ctxs_range(len(rounds))
            ]

        return self.run(*(silo(number) for number in range(3)), arbiter)


@pytest.fixture
def make_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    monkeypatch.setattr(Context, "_get_computing", lambda _self: None)
    everybody = tuple(map(to_party, EVERYBODY))

    def make(tolerance: float = TOLERANCE, *, seed: int = 1, same: bool = False, **of: float) -> Job:
        path = LossyPath(random.Random(seed), same)
        contexts = {}
        for party in EVERYBODY:
            connector = LossyConnector(tmp_path, "session", to_party(party), everybody, path)
            options = FederationOptions(loss_tolerance=of.get(party[0], tolerance))
            contexts[party] = Context(
                federation=FedRDMAFederation("session", None, party, EVERYBODY, options=options, connector=connector)
            )
        return Job(contexts, path)

    return make


def models(rounds: int) -> list[list[list[Any]]]:
    """Of each round and silo: a large array, a bias, and a number."""
    made = np.random.default_rng(3)
    return [
        [[made.random(SHAPE) + 1, made.random(7) + 1, np.asarray(made.random())] for _ in SILOS] for _ in range(rounds)
    ]


def mean(updates: list[list[Any]]) -> list[Any]:
    return [sum(w * each for w, each in zip(WEIGHTS, those, strict=True)) for those in zip(*updates, strict=True)]


@pytest.mark.parametrize("same", [False, True], ids=["chunks by chance", "the same chunks of all"])
def test_plain_aggregation_takes_the_mean_of_those_that_came(make_job: Any, same: bool) -> None:
    job, rounds = make_job(same=same), models(3)

    *silos, arbiter = job.aggregate(rounds, mock=True)

    for number, updates in enumerate(rounds):
        for silo in silos:
            assert all(np.array_equal(a, b) for a, b in zip(silo[number], arbiter[number], strict=True))
        found, whole = arbiter[number][0].reshape(-1), mean(updates)[0].reshape(-1)
        values = np.stack([update[0].reshape(-1) for update in updates])
        is_whole = np.isclose(found, whole, rtol=1e-12)
        subsets = [[0], [1], [2], [0, 1], [0, 2], [1, 2]]
        means = [np.average(values[those], 0, np.take(WEIGHTS, those)) for those in subsets]
        last = arbiter[number - 1][0].reshape(-1)
        is_mean = np.isclose([*means, last], found, rtol=1e-9).any(0)
        assert (is_whole | is_mean).all(), "or of none, and then the last one"
        if number:
            assert (~is_whole).sum() >= CHUNK // 8 * (1 if same else 6)
        else:
            assert is_whole.all(), "the first round is whole"
        np.testing.assert_allclose(arbiter[number][1], mean(updates)[1])


def test_secure_aggregation_keeps_the_last_aggregate_where_anything_is_missing(make_job: Any) -> None:
    # of three silos' six planes
    job, rounds = make_job(0.2), models(3)

    *silos, arbiter = job.aggregate(rounds, mock=False)

    kept_in_all = 0
    for number, updates in enumerate(rounds):
        found, whole = arbiter[number][0], mean(updates)[0]
        if number:
            kept = found == arbiter[number - 1][0]
            assert kept.sum() <= 0.2 * sum(each.size for each in updates[0]), "whoever lost it"
            np.testing.assert_allclose(found[~kept], whole[~kept], atol=1e-7)
            kept_in_all += kept.sum()
        else:
            np.testing.assert_allclose(found, whole, atol=1e-7)
        for silo in silos:
            assert all(np.array_equal(a, b) for a, b in zip(silo[number], arbiter[number], strict=True))
    assert kept_in_all > 0


@pytest.mark.parametrize("mock", [True, False], ids=["plain", "secure"])
def test_the_first_round_and_what_goes_back_is_whole(make_job: Any, mock: bool) -> None:
    job = make_job()

    job.aggregate(models(3), mock=mock)

    for party in SILOS:
        shares = [loss.share for loss in job.path.sent[NAME, to_party(party)]]
        assert shares == [0, TOLERANCE, TOLERANCE]
    back = job.path.sent["model_aggregated_values", to_party(ARBITER)]
    assert [loss.share for loss in back] == [0] * 9


@pytest.mark.parametrize("who", ["nobody", "guest", "arbiter"])
def test_nothing_is_missing_where_not_both_jobs_let_it(make_job: Any, who: str) -> None:
    job = make_job(0, **({} if who == "nobody" else {who: TOLERANCE}))
    rounds = models(3)

    *_, arbiter = job.aggregate(rounds, mock=True)

    assert sum(sum(lost) for lost in job.path.lost.values()) == 0
    for found, updates in zip(arbiter, rounds, strict=True):
        np.testing.assert_allclose(found[0], mean(updates)[0])


def test_the_smaller_of_two_jobs_tolerances_counts(make_job: Any) -> None:
    job = make_job(0.2, host=0.05)

    job.aggregate(models(3), mock=True)

    total = 8 * np.prod(SHAPE)
    assert 0.15 * total < job.path.lost[NAME, to_party(GUEST)][-1] <= 0.2 * total
    assert 0 < job.path.lost[NAME, to_party(HOSTS[0])][-1] <= 0.05 * total


def test_a_line_a_round_says_what_is_missing(make_job: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fedrdma_fate.fate.aggregation.hook")

    make_job(0.2, host=0).aggregate(models(3), mock=False)

    lines = [record.getMessage() for record in caplog.records if record.name.endswith("aggregation.hook")]
    assert len(lines) == 2, "the first round is as ever"
    for line in lines:
        assert line.startswith(NAME)
        assert "of guest 1)" in line
        assert "of the aggregate stays as it was" in line


@pytest.mark.parametrize("tolerance", [0, TOLERANCE])
@pytest.mark.parametrize("mock", [True, False], ids=["plain", "secure"])
def test_plain_aggregation_gives_the_weighted_mean_as_the_secure_one_does_and_single_numbers_come_back(
    make_job: Any, mock: bool, tolerance: float
) -> None:
    rounds = models(2)

    *silos, arbiter = make_job(tolerance).aggregate(rounds, mock=mock)

    for number, updates in enumerate(rounds):
        for party in (*silos, arbiter):
            if not number or not tolerance:
                np.testing.assert_allclose(party[number][0], mean(updates)[0], atol=1e-7)
            loss = party[number][2]
            assert float(loss) == pytest.approx(mean(updates)[2])


def test_over_another_federation_fates_aggregation_is_as_fate_has_it() -> None:
    server = SecureAggregatorServer([0, 1], prefix="model", is_mock=True)

    class Other:
        federation = object.__new__(StandaloneFederation)

        def __init__(self) -> None:
            self.parties = [self, self]
            self.back: list[Any] = []

        def get(self, _name: str) -> Any:
            return [np.ones(3)], 0.5

        def put(self, _name: str, value: Any) -> None:
            self.back.append(value)

    (found,) = server.secure_aggregate(Other())
    assert found.tolist() == [2.0] * 3, "the sum"


@pytest.mark.parametrize("share", [-1, 0.5, float("nan"), "1 %", True, None])
def test_a_tolerance_that_is_no_share_is_refused(make_job: Any, share: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        make_job(share)
    assert refused.value.code is ErrorCode.CONFIG_BAD_VALUE
    assert repr(share) in str(refused.value)


@pytest.mark.parametrize("aggregates", [False, True])
def test_a_job_without_an_aggregation_that_knows_holes_is_told_that_its_tolerance_is_of_no_use(
    make_job: Any, caplog: pytest.LogCaptureFixture, aggregates: bool
) -> None:
    job = make_job()
    if aggregates:
        job.aggregate(models(2), mock=True)
    else:
        job.contexts[GUEST].arbiter.put("model", np.ones(SHAPE))
        job.contexts[ARBITER].guest.get("model")
    for context in job.contexts.values():
        context.federation.destroy()

    warned = [record for record in caplog.records if "of no use" in record.getMessage()]
    assert len(warned) == (0 if aggregates else len(EVERYBODY))
    assert sum(sum(lost) for lost in job.path.lost.values()) == 0 or aggregates


def test_what_is_missing_is_found_in_arrays_that_an_update_has_twice() -> None:
    one, two = np.zeros(3), np.zeros(4)

    found = holes_in([one, two, one], [MissingElements(0, ((1, 2),)), MissingElements(1, ((0, 4),))])

    assert found == {0: ((1, 2),), 2: ((1, 2),), 1: ((0, 4),)}


def test_what_is_missing_of_an_array_that_is_in_no_update_is_refused() -> None:
    with pytest.raises(FateError):
        holes_in([np.zeros(3)], [MissingElements(1, ((0, 1),))])
