"""The backend on real gateways, with the parties in one process: what a fake gateway cannot show."""

from __future__ import annotations

import gc
import os
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fate.arch.computing.backends.standalone import CSession
from fate.arch.context import Context

from fedrdma_fate.fate.federation import FedRDMAFederation
from fedrdma_fate.fate.settings import FederationOptions
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from tests.fate.conftest import ARBITER, GUEST, HOST
from tests.support.comparison import assert_same
from tests.support.gateways import PartyTuple, Silos, running_gateways

pytestmark = [pytest.mark.fate, pytest.mark.xdist_group("real gateways")]

EVERYBODY = [GUEST, HOST, ARBITER]
MakeContext = Callable[..., Context]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Silos]:
    """Gateways that this file's tests share; every test has a session of its own."""
    with running_gateways(tmp_path_factory.mktemp("gateways"), EVERYBODY) as silos:
        yield silos


@pytest.fixture
def make_context(running: Silos, tmp_path: Path) -> Iterator[MakeContext]:
    opened: list[Context] = []

    def make(party: PartyTuple, *, at: PartyTuple | None = None, **options: Any) -> Context:
        computing = CSession(f"{tmp_path.name}_{party[0]}", data_dir=str(tmp_path), options={"task_cores": 2})
        settings = FederationOptions(**{"get_timeout": 60, **options})
        address = running.address(at or party)
        federation = FedRDMAFederation(tmp_path.name, computing, party, EVERYBODY, address, settings)
        opened.append(Context(computing=computing, federation=federation))
        return opened[-1]

    yield make
    for context in opened:
        context.destroy()


def leased_bytes(silos: Silos, party: PartyTuple, pool: str) -> int:
    """Bytes of a gateway's pool that are leased."""
    found: int = next(stats["leased_bytes"] for stats in silos.status(party)["pools"] if stats["name"] == pool)
    return found


def lent_messages(silos: Silos, party: PartyTuple) -> int:
    """Messages in a gateway's send region that tasks of other gateways have mapped."""
    return sum(int(peer["lent_messages"]) for peer in silos.status(party)["peers"])


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a gateway to come round to something."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def model() -> list[Any]:
    return [torch.rand(1000, 700), np.random.rand(1500, 300), torch.rand(50).to(torch.bfloat16), {"round": 1}]


def test_a_model_put_to_two_parties_is_serialised_once_and_arrives_bit_for_bit(make_context: MakeContext) -> None:
    guest, host, arbiter = (make_context(party) for party in EVERYBODY)
    value = model()

    for party in (arbiter.guest, arbiter.hosts[0]):
        party.put("model", value)

    assert (arbiter.federation.serialised, arbiter.federation.reused) == (1, 1)
    assert_same(guest.arbiter.get("model"), value)
    assert_same(host.arbiter.get("model"), value)


def test_a_model_that_changes_between_two_puts_and_after_them_is_sent_as_it_was_put(make_context: MakeContext) -> None:
    guest, host, arbiter = (make_context(party) for party in EVERYBODY)
    weights = np.zeros(500_000)

    arbiter.guest.put("model", weights)
    weights += 1
    arbiter.hosts.put("model", weights)
    weights += 1

    assert guest.arbiter.get("model").max() == 0
    assert set(np.unique(host.arbiter.get("model"))) == {1.0}
    assert (arbiter.federation.serialised, arbiter.federation.reused) == (2, 0)


def test_slots_go_back_when_the_last_array_dies_and_when_a_kept_one_is_settled(
    make_context: MakeContext, running: Silos
) -> None:
    guest, host = make_context(GUEST), make_context(HOST)

    guest.hosts.put("model", model())
    found = host.guest.get("model")
    part = found[1][700:, 5]
    del found
    gc.collect()

    assert part.size == 800
    assert lent_messages(running, GUEST) == 1
    del part
    eventually(lambda: lent_messages(running, GUEST) == 0)
    assert leased_bytes(running, GUEST, "send") > 0
    host.guest.put("done", 1)
    guest.hosts.get("done")
    eventually(lambda: leased_bytes(running, GUEST, "send") == 0)


def test_arrays_outlive_the_context_they_came_through(make_context: MakeContext) -> None:
    guest, host, arbiter = (make_context(party) for party in EVERYBODY)
    value = model()
    guest.hosts.put("model", value)
    found = host.guest.get("model")

    host.destroy()
    for number in range(12):
        arbiter.guest.put(f"other{number}", np.full(500_000, 7.0))
        guest.arbiter.get(f"other{number}")

    assert_same(found, value)


def test_tables_travel_through_forked_workers(make_context: MakeContext) -> None:
    guest, host = make_context(GUEST), make_context(HOST)
    content = {number: bytes([number]) * 50_000 for number in range(40)}

    guest.hosts.put("table", {"table": guest.computing.parallelize(list(content.items()), partition=4), "x": 1})

    assert dict(host.guest.get("table")["table"].collect()) == content


class Maker:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


class WithinATensor:
    """Has torch unpickle, without a restriction, what it is pickled with."""

    def __init__(self, inner: object) -> None:
        self.inner = inner

    def __reduce__(self) -> Any:
        return torch.storage._load_from_bytes, (pickle.dumps(self.inner),)


@pytest.mark.parametrize(
    ("within", "code"),
    [(lambda evil: evil, ErrorCode.NAME_FORBIDDEN), (WithinATensor, ErrorCode.PAYLOAD_MALFORMED)],
    ids=["by-name", "within-a-tensor"],
)
def test_a_table_of_a_peer_runs_no_code_in_the_engines_workers(
    make_context: MakeContext, tmp_path: Path, within: Callable[[Maker], object], code: ErrorCode
) -> None:
    guest, host = make_context(GUEST), make_context(HOST)
    rows = [(number, torch.rand(3)) for number in range(6)] + [(6, within(Maker(tmp_path / "made")))]
    guest.hosts.put("table", guest.computing.parallelize(rows, partition=3))

    # what would run it is that the engine looks into the table, so that has to be within
    assert code_of(lambda: list(host.guest.get("table").mapValues(lambda value: value).collect())) is code
    assert not (tmp_path / "made").exists()
    guest.hosts.put("next", guest.computing.parallelize(rows[:6], partition=3))
    assert_same(dict(host.guest.get("next").collect()), dict(rows[:6]))


def test_parties_in_threads_exchange_without_waiting_for_each_other(make_context: MakeContext) -> None:
    guest, host = make_context(GUEST), make_context(HOST)

    def turn(number: int) -> bool:
        guest.hosts.put(f"there{number}", np.full(100_000, number))
        host.guest.put(f"back{number}", host.guest.get(f"there{number}") + 1)
        return bool((guest.hosts[0].get(f"back{number}") == number + 1).all())

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(turn, range(24)))


def code_of(action: Callable[[], object]) -> ErrorCode:
    """The code that an action fails with."""
    with pytest.raises(FedRDMAError) as caught:
        action()
    return caught.value.code


def test_every_refusal_has_its_code(make_context: MakeContext) -> None:
    guest = make_context(GUEST, get_timeout=0.2, put_timeout=0.2)
    host = make_context(HOST)

    assert code_of(lambda: make_context(HOST, at=GUEST)) is ErrorCode.WRONG_PARTY
    assert code_of(lambda: guest.hosts[0].get("never")) is ErrorCode.PULL_TIMEOUT
    assert code_of(lambda: guest.hosts.put("large", np.empty(5 * 2**20))) is ErrorCode.PAYLOAD_TOO_LARGE
    guest.hosts.put("once", 1)
    assert code_of(lambda: make_context(GUEST).hosts.put("once", 2)) is ErrorCode.DUPLICATE_PUSH
    assert host.guest.get("once") == 1


def test_a_full_pool_pushes_back_and_then_takes_the_next_one(make_context: MakeContext, running: Silos) -> None:
    guest = make_context(GUEST, put_timeout=0.2)
    client = guest.federation._client
    held = client.lease(31 * 2**20)
    try:
        assert code_of(lambda: guest.hosts.put("model", np.zeros(500_000))) is ErrorCode.POOL_TIMEOUT
    finally:
        held.release()
    eventually(lambda: leased_bytes(running, GUEST, "send") == 0)
    guest.arbiter.put("model", np.zeros(500_000))


def test_a_gateway_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(GatewayError) as caught:
        FedRDMAFederation("s", None, GUEST, EVERYBODY, f"unix://{tmp_path}/no", FederationOptions(connect_timeout=0.1))

    assert caught.value.code is ErrorCode.GATEWAY_UNREACHABLE
    assert "fedrdma gateway --config" in caught.value.remedy
