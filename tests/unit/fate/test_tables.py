"""Tables over the backend: batches, and real workers of FATE's standalone computing engine."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fate.arch.computing.backends.standalone import CSession
from fate.arch.context import Context
from fate.arch.dataframe import PandasReader
from fate.arch.federation.api import TableMeta

from fedrdma_fate.fate import small_tables, tables
from fedrdma_fate.fate.federation import FedRDMAFederation
from fedrdma_fate.fate.gateway_client import to_party
from fedrdma_fate.fate.settings import FederationOptions
from fedrdma_fate.fate.table_batches import Pair, batch_bytes, decode_batch, encode_batch
from fedrdma_fate.fate.table_check import MOST_PARTITIONS
from fedrdma_fate.wire.errors import ErrorCode, FateError, GatewayError
from tests.support.fake_gateway import FakeConnector

GUEST, HOST, ARBITER = ("guest", "9999"), ("host", "10000"), ("arbiter", "10000")
EVERYBODY = [GUEST, HOST, ARBITER]
MakeContext = Callable[..., Context]


def encoded(batch: list[Pair], *, is_last: bool = True) -> bytearray:
    buffer = bytearray(b"\xa5" * batch_bytes(batch))
    encode_batch(batch, is_last, memoryview(buffer))
    return buffer


@pytest.mark.parametrize("batch", [[], [(b"", b"")], [(b"k", b"v" * 1000), (b"", b"v"), (b"key", b"")]])
@pytest.mark.parametrize("is_last", [True, False])
def test_a_batch_comes_back_in_order(batch: list[Pair], is_last: bool) -> None:
    pairs, last = decode_batch(memoryview(encoded(batch, is_last=is_last)))

    assert (list(pairs), last) == (batch, is_last)


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        bytes(encoded([(b"k", b"v")])[:-1]),
        bytes(encoded([(b"k", b"v")]) + b"x"),
        b"FRPX" + bytes(encoded([])[4:]),
        struct.pack("<4sHHQ", b"FRPT", 2, 1, 0),
        struct.pack("<4sHHQ", b"FRPT", 1, 1, 2**60),
        struct.pack("<4sHHQ2Q", b"FRPT", 1, 1, 1, 2**63, 2**63),
    ],
    ids=["empty", "short", "long", "magic", "version", "count", "lengths-that-wrap-around"],
)
def test_a_batch_that_lies_is_refused(broken: bytes) -> None:
    with pytest.raises(FateError) as caught:
        decode_batch(memoryview(bytearray(broken)))

    assert caught.value.code is ErrorCode.PAYLOAD_MALFORMED


def test_a_partition_is_cut_into_batches_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BATCH_BYTES", 1000)
    pairs = [(bytes([number]), bytes(400)) for number in range(5)] + [(b"large", bytes(5000)), (b"z", b"")]

    batches = list(tables._batches(iter(pairs)))

    assert [len(batch) for batch, _ in batches] == [2, 2, 1, 1, 1]
    assert [is_last for _, is_last in batches] == [False] * 4 + [True]
    assert [pair for batch, _ in batches for pair in batch] == pairs


@pytest.fixture(params=["by-workers", "in-the-object"])
def make_context(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeContext]:
    if request.param == "by-workers":
        monkeypatch.setattr(small_tables, "MOST_PARTITIONS", 0)
    yield from contexts(tmp_path)


@pytest.fixture
def make_context_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeContext]:
    monkeypatch.setattr(small_tables, "MOST_PARTITIONS", 0)
    yield from contexts(tmp_path)


def contexts(tmp_path: Path) -> Iterator[MakeContext]:
    sessions: list[CSession] = []
    everybody = tuple(map(to_party, EVERYBODY))
    messages = tmp_path / "messages"
    messages.mkdir()

    def make(party: tuple[str, str], **options: Any) -> Context:
        session = CSession(f"computing_{party[0]}", data_dir=str(tmp_path / party[0]), options={"task_cores": 2})
        sessions.append(session)
        connector = FakeConnector(messages, "session", to_party(party), everybody)
        settings = FederationOptions(**options)
        federation = FedRDMAFederation("session", session, party, EVERYBODY, options=settings, connector=connector)
        return Context(computing=session, federation=federation)

    yield make
    for session in sessions:
        session.destroy()


@pytest.mark.parametrize("partitions", [1, 3, 8])
def test_a_table_arrives_with_its_pairs_partitions_and_types(make_context: MakeContext, partitions: int) -> None:
    guest, host = make_context(GUEST), make_context(HOST)
    content = [(number, {"value": np.arange(number).tolist()}) for number in range(20)]
    # the integer partitioner leaves partitions empty when there are more of them than keys
    table = guest.computing.parallelize(content, partition=partitions, partitioner_type=0)

    guest.hosts.put("table", table)
    found = host.guest.get("table")

    assert dict(found.collect()) == dict(content)
    assert found.num_partitions == partitions
    assert (found.key_serdes_type, found.value_serdes_type, found.partitioner_type) == (
        table.key_serdes_type,
        table.value_serdes_type,
        table.partitioner_type,
    )
    assert found.count() == 20


def test_an_empty_table_arrives(make_context: MakeContext) -> None:
    guest, host = make_context(GUEST), make_context(HOST)

    guest.hosts.put("table", guest.computing.parallelize([], partition=4))

    assert host.guest.get("table").count() == 0


@pytest.mark.parametrize("partitioner", [0, 1, 2])
def test_received_tables_can_be_joined_with_local_ones(make_context: MakeContext, partitioner: int) -> None:
    guest, host = make_context(GUEST), make_context(HOST)
    options = {"partition": 4, "partitioner_type": partitioner}
    guest.hosts.put("table", guest.computing.parallelize([(i, i) for i in range(50)], **options))
    local = host.computing.parallelize([(i, 10 * i) for i in range(25, 75)], **options)

    joined = local.join(host.guest.get("table"), lambda mine, theirs: mine + theirs)

    assert dict(joined.collect()) == {i: 11 * i for i in range(25, 50)}


def test_large_values_and_several_tables_in_one_object_arrive_at_two_parties(make_context: MakeContext) -> None:
    guest, host, arbiter = make_context(GUEST), make_context(HOST), make_context(ARBITER)
    large = bytes(range(256)) * 1000
    first = guest.computing.parallelize([(i, large + bytes([i])) for i in range(5)], partition=2)
    second = guest.computing.parallelize([("a", 1)], partition=1)

    guest.hosts.put("tables", {"first": first, "pair": (second, 3)})
    guest.arbiter.put("tables", {"first": first, "pair": (second, 3)})

    for ctx in (host, arbiter):
        found = ctx.guest.get("tables")
        assert dict(found["first"].collect()) == {i: large + bytes([i]) for i in range(5)}
        assert dict(found["pair"][0].collect()) == {"a": 1}
        assert found["pair"][1] == 3


def test_every_batch_is_in_the_journals_of_both_sides(make_context_of_workers: MakeContext, tmp_path: Path) -> None:
    make_context = make_context_of_workers
    sent, received = tmp_path / "sent", tmp_path / "received"
    guest, host = make_context(GUEST, journal=str(sent)), make_context(HOST, journal=str(received))

    guest.hosts.put("table", guest.computing.parallelize([(i, i) for i in range(9)], partition=3))
    host.guest.get("table")

    def batches(path: Path) -> set[tuple[str, int]]:
        lines = map(json.loads, path.read_text().splitlines())
        return {(line["name"], line["bytes"]) for line in lines if line["kind"] == "partition"}

    assert len(batches(sent)) == 3
    assert batches(sent) == batches(received)


def test_a_worker_that_fails_says_why(make_context: MakeContext) -> None:
    host = make_context(HOST, get_timeout=0.05)
    meta = host.computing.parallelize([(1, 1)], partition=1)

    with pytest.raises(GatewayError) as caught:
        host.federation.pull_table("never", "0", [GUEST], [meta])

    assert caught.value.code is ErrorCode.PULL_TIMEOUT


def test_an_object_where_a_part_of_a_table_should_be_is_refused(make_context: MakeContext) -> None:
    guest, host = make_context(GUEST), make_context(HOST)
    guest.federation.push_bytes(b"not a batch", "table#0#0", "0", [HOST])
    meta = host.computing.parallelize([(1, 1)], partition=1)

    with pytest.raises(FateError) as caught:
        host.federation.pull_table("table", "0", [GUEST], [meta])

    assert caught.value.code is ErrorCode.PAYLOAD_MALFORMED


class Maker:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("place", ["key", "value"])
def test_a_table_that_would_run_code_fails_the_pull_with_its_code_and_nothing_of_it_is_used(
    make_context: MakeContext, tmp_path: Path, place: str
) -> None:
    guest, host = make_context(GUEST), make_context(HOST)
    evil = Maker(tmp_path / "made")
    rows = [(number, number) for number in range(7)] + [(evil, 1) if place == "key" else (7, evil)]
    guest.hosts.put("table", {"rows": guest.computing.parallelize(rows, partition=4)})

    with pytest.raises(FateError) as caught:
        list(host.guest.get("table")["rows"].collect())

    assert caught.value.code is ErrorCode.NAME_FORBIDDEN
    assert "posix:mkdir" in caught.value.message
    assert not (tmp_path / "made").exists()


def test_what_ended_a_worker_that_sends_is_raised_with_its_code_and_the_push_may_be_made_again(
    make_context: MakeContext,
) -> None:
    class Table:
        key_serdes_type = value_serdes_type = partitioner_type = 0

        def mapPartitionsWithIndexNoSerdes(self, *_: Any, **__: Any) -> Any:  # noqa: N802
            raise RuntimeError("Partition 0 exec failed: [FR601] no gateway answers.")

    federation = make_context(HOST).federation
    for _ in range(2):
        with pytest.raises(GatewayError) as caught:
            federation.push_table(Table(), "t", "0", [GUEST])
        assert caught.value.code is ErrorCode.GATEWAY_UNREACHABLE


def test_what_the_engine_says_of_its_own_failures_stays_as_it_is(make_context: MakeContext) -> None:
    class Computing:
        def parallelize(self, *_: Any, **__: Any) -> Any:
            return self

        def mapPartitionsWithIndexNoSerdes(self, *_: Any, **__: Any) -> Any:  # noqa: N802
            raise RuntimeError("Partition 0 exec failed: no room for [FR705] on this disk")

    host = make_context(HOST)
    host.federation._computing = Computing()

    with pytest.raises(RuntimeError, match="no room"):
        host.federation.pull_table("t", "0", [GUEST], [TableMeta(1, 0, 0, 0)])


@pytest.mark.parametrize("types", [(2, 0), (0, 2), (-1, 1), pytest.param((0, 1 << 20_000), id="huge")])
def test_a_table_of_another_serialisation_than_fate_has_is_refused(
    make_context: MakeContext, types: tuple[int, int]
) -> None:
    host = make_context(HOST)

    with pytest.raises(FateError) as caught:
        host.federation.pull_table("t", "0", [GUEST], [TableMeta(1, *types, 0)])

    assert caught.value.code is ErrorCode.PAYLOAD_MALFORMED


@pytest.mark.parametrize("count", [MOST_PARTITIONS + 1, 2**31, pytest.param(1 << 20_000, id="huge"), 0, -1])
def test_a_table_of_more_partitions_than_there_may_be_is_refused_before_any_is_made(
    make_context: MakeContext, count: int
) -> None:
    host = make_context(HOST)
    host.federation._computing = None

    with pytest.raises(FateError) as caught:
        host.federation.pull_table("t", "0", [GUEST], [TableMeta(count, 0, 0, 0)])

    assert caught.value.code is ErrorCode.PAYLOAD_MALFORMED


def test_a_table_of_as_many_partitions_as_there_may_be_is_taken(make_context: MakeContext) -> None:
    class Computing:
        def parallelize(self, content: Any, *, partition: int, **_: Any) -> Any:
            made.append((len(content), partition))
            return self

        def mapPartitionsWithIndexNoSerdes(self, *_: Any, **__: Any) -> Any:  # noqa: N802
            return self

        def mask_federated_received(self) -> None: ...

    made: list[tuple[int, int]] = []
    host = make_context(HOST)
    computing = host.federation._computing = Computing()

    assert host.federation.pull_table("t", "0", [GUEST], [TableMeta(MOST_PARTITIONS, 0, 0, 0)]) == [computing]
    assert made == [(MOST_PARTITIONS, MOST_PARTITIONS)]


def test_a_job_may_allow_further_names_in_its_tables(make_context: MakeContext) -> None:
    guest, host = make_context(GUEST), make_context(HOST, allowed_names=("fractions:Fraction",))
    guest.hosts.put("table", guest.computing.parallelize([(1, Fraction(1, 3))], partition=1))

    assert dict(host.guest.get("table").collect()) == {1: Fraction(1, 3)}


def test_a_data_frame_arrives_as_it_was_sent(make_context: MakeContext) -> None:
    guest, host = make_context(GUEST), make_context(HOST)
    rng = np.random.default_rng(1)
    content = pd.DataFrame({f"x{number}": rng.normal(size=40) for number in range(3)})
    content["s"] = [f"t{number % 3}" for number in range(40)]
    content["id"] = [f"u{number}" for number in range(40)]
    content["sample_id"] = [str(number) for number in range(40)]
    dtypes = {"x0": "float32", "x1": "float64", "x2": "int64", "s": "str"}
    reader = PandasReader(sample_id_name="sample_id", match_id_name="id", dtype=dtypes, partition=3)
    frame = reader.to_frame(guest, content)

    guest.hosts.put("frame", frame)
    found = host.guest.get("frame")

    pd.testing.assert_frame_equal(found.as_pd_df(), frame.as_pd_df())
    pd.testing.assert_frame_equal(found[["x0", "x1"]].as_pd_df(), frame[["x0", "x1"]].as_pd_df())


def test_a_part_of_a_table_is_no_object(make_context_of_workers: MakeContext) -> None:
    guest, host = make_context_of_workers(GUEST), make_context_of_workers(HOST)
    guest.hosts.put("t", guest.computing.parallelize([(1, 1)], partition=1))

    with pytest.raises(FateError) as caught:
        host.federation.pull_bytes("t__table_persistent_0__#0#0", guest.namespace.federation_tag, [GUEST])

    assert caught.value.code is ErrorCode.PAYLOAD_MALFORMED
