"""The backend behind FATE's own `ctx.put` and `ctx.get`, parties as threads or as forked workers."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fate.arch.computing.backends.standalone import CSession
from fate.arch.context import Context, Parties
from fate.arch.federation.backends.standalone import StandaloneFederation
from fate.arch.protocol.secure_aggregation._secure_aggregation import SecureAggregatorClient, SecureAggregatorServer

from fedrdma_fate.fate.federation import DuplicateMessageError, FedRDMAFederation
from fedrdma_fate.fate.gateway_client import to_party
from fedrdma_fate.fate.settings import FederationOptions
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, FateError, GatewayError
from tests.support.comparison import assert_same
from tests.support.fake_gateway import FakeClient, FakeConnector

GUEST, HOST, ARBITER = ("guest", "9999"), ("host", "10000"), ("arbiter", "10000")
EVERYBODY = [GUEST, HOST, ARBITER]

MakeContext = Callable[..., Context]


@pytest.fixture
def make_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeContext:
    """Contexts without computing, which objects and bytes do not need."""
    monkeypatch.setattr(Context, "_get_computing", lambda _self: None)
    everybody = tuple(map(to_party, EVERYBODY))

    def make(party: tuple[str, str], **options: Any) -> Context:
        connector = FakeConnector(tmp_path, "session", to_party(party), everybody)
        settings = FederationOptions(**options)
        return Context(
            federation=FedRDMAFederation("session", None, party, EVERYBODY, options=settings, connector=connector)
        )

    return make


@pytest.fixture
def contexts(make_context: MakeContext) -> list[Context]:
    """Guest, host and arbiter."""
    return [make_context(party) for party in EVERYBODY]


def test_objects_put_to_one_party_arrive_as_they_were(contexts: list[Context]) -> None:
    guest, host, _ = contexts
    value = {"weights": [torch.rand(300, 200), np.random.rand(50_000)], "round": 1, "small": np.int64(3).item()}

    guest.hosts[0].put("model", value)

    assert_same(host.guest.get("model"), value)


def guest_and_host(arbiter: Context) -> Parties:
    """Both, as the arbiter's code gets of several."""
    return Parties(arbiter, arbiter.federation, None, [(0, GUEST), (1, HOST)], arbiter.namespace)


def test_parties_get_in_the_order_of_the_parties_whoever_was_first(contexts: list[Context]) -> None:
    guest, host, arbiter = contexts
    host.arbiter.put("loss", 2)
    guest.arbiter.put("loss", 1)

    assert guest_and_host(arbiter).get("loss") == [1, 2]


def test_secure_aggregation_serialises_the_aggregate_once(contexts: list[Context]) -> None:
    guest, host, arbiter = contexts
    arrays = {0: [np.random.rand(200, 300), np.random.rand(3)], 1: [np.random.rand(200, 300), np.random.rand(3)]}

    def client(ctx: Context) -> Any:
        aggregator = SecureAggregatorClient(prefix="p")
        aggregator.dh_exchange(ctx, [0, 1])
        return aggregator.secure_aggregate(ctx, copy.deepcopy(arrays[ctx.rank]), 1.0)

    with ThreadPoolExecutor(2) as pool:
        parties = [pool.submit(client, ctx) for ctx in (guest, host)]
        SecureAggregatorServer([0, 1], prefix="p").secure_aggregate(arbiter)
        results = [party.result(timeout=30) for party in parties]

    assert (arbiter.federation.serialised, arbiter.federation.reused) == (1, 1)
    assert_same(results[0], results[1])
    np.testing.assert_allclose(results[0][0], (arrays[0][0] + arrays[1][0]) / 2)


def test_received_arrays_are_views_that_may_be_changed(contexts: list[Context]) -> None:
    guest, host, _ = contexts
    guest.hosts.put("model", np.zeros(100_000))

    first = host.guest.get("model")
    first += 1

    assert not first.flags.owndata
    assert first.sum() == 100_000


def test_fate_never_slices(contexts: list[Context]) -> None:
    assert contexts[0].federation.get_default_max_message_size() > 2**60


def test_bytes_pushed_are_bytes_pulled(contexts: list[Context]) -> None:
    guest, host, _ = contexts

    guest.federation.push_bytes(b"x" * 100_000, "raw", "0", [HOST])
    guest.federation.push_bytes(b"", "empty", "0", [HOST])

    assert host.federation.pull_bytes("raw", "0", [GUEST]) == [b"x" * 100_000]
    assert host.federation.pull_bytes("empty", "0", [GUEST]) == [b""]


@pytest.mark.filterwarnings("ignore:Named tensors")
@pytest.mark.parametrize("rows", [10, 1000, 300_000], ids=["inline", "in a slot", "sent while it is written"])
def test_a_tensor_that_cannot_be_written_is_refused_with_a_code_and_its_name_stays_free(
    contexts: list[Context], rows: int
) -> None:
    guest, host, _ = contexts
    named = torch.zeros(rows, 16, names=("row", "column"))

    with pytest.raises(FateError) as caught:
        guest.hosts.put("model", named)
    assert caught.value.code is ErrorCode.UNSERIALISABLE
    assert all(lease.history[-1] == "release" for lease in guest.federation._client.leases)

    guest.hosts.put("model", named.rename(None))
    assert_same(host.guest.get("model"), torch.zeros(rows, 16))


def test_a_second_push_is_refused_before_anything_is_sent_and_a_third_party_still_gets_it(
    contexts: list[Context],
) -> None:
    guest, host, arbiter = contexts
    guest.hosts.put("x", 1)

    with pytest.raises(DuplicateMessageError) as caught:
        guest.federation.push_object(2, "x", guest.namespace.federation_tag, [ARBITER, HOST])
    assert caught.value.code is ErrorCode.DUPLICATE_PUSH
    assert isinstance(caught.value, ValueError)

    guest.arbiter.put("x", 3)
    assert (host.guest.get("x"), arbiter.guest.get("x")) == (1, 3)


@pytest.mark.parametrize("push", ["push_bytes", "push_table"])
def test_bytes_and_tables_are_refused_the_second_time_too(contexts: list[Context], push: str) -> None:
    federation = contexts[0].federation
    federation.push_bytes(b"", "x", "0", [HOST])

    with pytest.raises(DuplicateMessageError):
        getattr(federation, push)(b"", "x", "0", [HOST])


def test_a_second_pull_is_refused(contexts: list[Context]) -> None:
    guest, host, _ = contexts
    guest.hosts.put("x", 1)
    host.guest.get("x")

    with pytest.raises(DuplicateMessageError) as caught:
        host.guest.get("x")
    assert caught.value.code is ErrorCode.DUPLICATE_PULL
    with pytest.raises(DuplicateMessageError):
        host.federation.pull_table("x", host.namespace.federation_tag, [GUEST], [])


def test_a_get_that_timed_out_may_be_repeated(make_context: MakeContext) -> None:
    guest, arbiter = make_context(GUEST), make_context(ARBITER, get_timeout=0.05)
    with pytest.raises(GatewayError) as caught:
        arbiter.guest.get("x")
    assert caught.value.code is ErrorCode.PULL_TIMEOUT

    guest.arbiter.put("x", 1)
    assert arbiter.guest.get("x") == 1
    with pytest.raises(DuplicateMessageError):
        arbiter.guest.get("x")


def test_a_message_that_never_comes_is_a_time_out_over_all_parties(
    make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float | None] = []
    original = FakeClient.get
    monkeypatch.setattr(
        FakeClient,
        "get",
        lambda *args, timeout, **others: (asked.append(timeout), original(*args, timeout=timeout, **others))[1],
    )
    guest, arbiter = make_context(GUEST), make_context(ARBITER, get_timeout=0.5)
    guest.arbiter.put("x", 1)

    with pytest.raises(GatewayError) as caught:
        arbiter.parties.get("x")

    assert caught.value.code is ErrorCode.PULL_TIMEOUT
    assert asked[0] == pytest.approx(0.5, abs=0.45)
    assert asked[1] is not None
    assert asked[1] < 0.5


def test_what_had_come_of_a_get_of_several_that_failed_is_got_by_the_same_get_made_again(
    make_context: MakeContext,
) -> None:
    guest, host, arbiter = make_context(GUEST), make_context(HOST), make_context(ARBITER, get_timeout=0.05)
    guest.arbiter.put("x", 1)
    with pytest.raises(GatewayError):
        guest_and_host(arbiter).get("x")
    # neither what fails beside it, nor a get of one of them, takes it away
    with pytest.raises(GatewayError):
        arbiter.guest.get("y")
    with pytest.raises(GatewayError):
        arbiter.hosts.get("x")
    host.arbiter.put("x", 2)

    assert guest_and_host(arbiter).get("x") == [1, 2]

    with pytest.raises(DuplicateMessageError):
        guest_and_host(arbiter).get("x")


def test_of_gets_of_several_that_failed_the_latest_alone_keeps_what_had_come(make_context: MakeContext) -> None:
    guest, host, arbiter = make_context(GUEST), make_context(HOST), make_context(ARBITER, get_timeout=0.05)
    for name in ("x", "y"):
        guest.arbiter.put(name, name)
        with pytest.raises(GatewayError):
            guest_and_host(arbiter).get(name)
        host.arbiter.put(name, name)

    assert guest_and_host(arbiter).get("y") == ["y", "y"]

    with pytest.raises(GatewayError) as caught:
        guest_and_host(arbiter).get("x")
    assert caught.value.code is ErrorCode.DUPLICATE_PULL


def test_a_get_that_waits_does_not_keep_another_thread_from_putting(contexts: list[Context]) -> None:
    guest, host, _ = contexts
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(guest.hosts[0].get, "answer")
        guest.hosts.put("question", np.zeros(50_000))
        assert host.guest.get("question").size == 50_000
        assert not waiting.done()
        host.guest.put("answer", 42)
        assert waiting.result(timeout=30) == 42


def test_many_threads_put_without_mixing_messages(contexts: list[Context]) -> None:
    guest, host, _ = contexts
    barrier = threading.Barrier(8)

    def put(number: int) -> None:
        barrier.wait()
        guest.hosts.put(f"x{number}", np.full(20_000, float(number)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(8)))

    assert [host.guest.get(f"x{number}")[-1] for number in range(8)] == list(range(8))


def test_destroying_a_context_leaves_the_session_and_returns_the_kept_slot(contexts: list[Context]) -> None:
    guest = contexts[0]
    guest.hosts.put("model", np.zeros(20_000))
    client = guest.federation._client

    guest.federation.destroy()

    assert client.left
    assert client.leases[0].history == ["keep", "release"]


def test_a_federation_that_a_worker_closes_over_can_be_pickled(contexts: list[Context]) -> None:
    assert isinstance(pickle.loads(pickle.dumps(contexts[0].federation)), FedRDMAFederation)


def test_the_journal_tells_every_put_and_get(make_context: MakeContext, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    guest, host = make_context(GUEST, journal=str(journal)), make_context(HOST, journal=str(journal))
    guest.hosts.put("model", np.zeros(20_000))
    guest.arbiter.put("model", np.zeros(20_000))
    host.guest.get("model")

    lines = [json.loads(line) for line in journal.read_text().splitlines()]

    assert [(line["op"], line["party"], line["peers"], line["serialised"]) for line in lines] == [
        ("put", "guest:9999", ["host:10000"], True),
        ("put", "guest:9999", ["arbiter:10000"], False),
        ("get", "host:10000", ["guest:9999"], True),
    ]
    assert {line["bytes"] for line in lines} == {lines[0]["bytes"]}
    assert lines[0]["bytes"] > 160_000
    assert {(line["session"], line["kind"], line["name"]) for line in lines} == {("session", "object", "model")}


def test_a_journal_that_cannot_be_written_is_a_configuration_error(make_context: MakeContext) -> None:
    with pytest.raises(ConfigError) as caught:
        make_context(GUEST, journal="/nowhere/journal.jsonl")

    assert caught.value.code is ErrorCode.CONFIG_BAD_VALUE
    assert "/nowhere/journal.jsonl" in caught.value.message


def test_another_version_of_fate_is_refused(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fate.__version__", "2.3.0")

    with pytest.raises(FateError) as caught:
        make_context(GUEST)

    assert caught.value.code is ErrorCode.FATE_VERSION
    assert "2.3.0" in caught.value.message


def test_a_fate_whose_serialiser_takes_other_arguments_is_refused(
    make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fate.arch.federation.api._serdes.TableRemotePersistentPickler.push", classmethod(lambda _cls, _value: None)
    )

    with pytest.raises(FateError, match=r"TableRemotePersistentPickler\.push does not take"):
        make_context(GUEST)


def test_other_federations_keep_fates_own_way(contexts: list[Context], tmp_path: Path) -> None:
    assert contexts[0].federation is not None
    session = CSession("standalone", data_dir=str(tmp_path / "standalone"), options={"task_cores": 1})
    guest, host = (
        Context(computing=session, federation=StandaloneFederation(session, "s", party, EVERYBODY))
        for party in (GUEST, HOST)
    )

    guest.hosts.put("x", [np.arange(3), "text"])

    assert_same(host.guest.get("x"), [np.arange(3), "text"])
    session.destroy()
