"""Small tables in the message of an object: when they travel so, what comes, and what is refused."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb  # type: ignore[import-untyped]
import pytest
from fate.arch.computing.backends.standalone import CSession
from fate.arch.context import Context
from fate.arch.federation.api import TableMeta
from fate.arch.federation.api._serdes import _TablePersistentId

from fedrdma_fate.fate.deserialise import load_object
from fedrdma_fate.fate.federation import FedRDMAFederation
from fedrdma_fate.fate.gateway_client import to_party
from fedrdma_fate.fate.layout import Segment, encode_prefix
from fedrdma_fate.fate.settings import FederationOptions
from fedrdma_fate.fate.small_tables import (
    MOST_BYTES,
    MOST_PARTITIONS,
    decode_small,
    encode_small,
    make_small,
    read_small,
)
from fedrdma_fate.fate.table_batches import Pair
from fedrdma_fate.wire.errors import ErrorCode, FateError
from tests.support.fake_gateway import FakeConnector

GUEST, HOST = ("guest", "9999"), ("host", "10000")
EVERYBODY = [GUEST, HOST]
Make = Callable[[tuple[str, str]], Context]


@pytest.fixture
def make_context(tmp_path: Path) -> Iterator[Make]:
    sessions: list[CSession] = []
    (tmp_path / "messages").mkdir()

    def make(party: tuple[str, str]) -> Context:
        session = CSession(f"computing_{party[0]}", data_dir=str(tmp_path / party[0]), options={"task_cores": 2})
        sessions.append(session)
        connector = FakeConnector(tmp_path / "messages", "session", to_party(party), tuple(map(to_party, EVERYBODY)))
        options = FederationOptions(get_timeout=5.0, journal=str(tmp_path / f"journal.{party[0]}"))
        federation = FedRDMAFederation("session", session, party, EVERYBODY, options=options, connector=connector)
        return Context(computing=session, federation=federation)

    yield make
    for session in sessions:
        session.destroy()


def parts_of_tables(tmp_path: Path) -> int:
    """How many messages the guest's workers have sent."""
    return (tmp_path / "journal.guest").read_text().count('"partition"')


def test_a_small_table_is_in_the_object_and_no_worker_sends_or_gets_anything(
    make_context: Make, tmp_path: Path
) -> None:
    guest, host = make_context(GUEST), make_context(HOST)
    rows = [(number, str(number)) for number in range(100)]

    guest.hosts.put("table", guest.computing.parallelize(rows, partition=8))
    found = host.guest.get("table")

    assert dict(found.collect()) == dict(rows)
    assert found.num_partitions == 8
    assert parts_of_tables(tmp_path) == 0


def test_each_pair_is_in_the_partition_that_it_was_in(make_context: Make) -> None:
    guest, host = make_context(GUEST), make_context(HOST)
    # a function of the job's may have left pairs where no partitioner would put them
    odd = guest.computing.parallelize([(n, n) for n in range(20)], partition=4).mapPartitionsWithIndexNoSerdes(
        lambda partition, pairs: [(pickle.dumps("same"), pickle.dumps(partition)), *pairs],
        output_key_serdes_type=0,
        output_value_serdes_type=0,
        output_partitioner_type=0,
    )

    guest.hosts.put("table", odd)
    found = host.guest.get("table")

    def partitions(table: Any) -> list[list[Pair]]:
        content = read_small(table, MOST_BYTES)
        assert content is not None
        counts, pairs = decode_small(memoryview(content), table.num_partitions)
        return [[next(pairs) for _ in range(count)] for count in counts]

    assert partitions(found) == partitions(odd)
    assert found.count() == 24


def test_a_table_goes_by_workers_from_one_byte_more_on(make_context: Make) -> None:
    guest = make_context(GUEST)
    table = guest.computing.parallelize([(1, bytes(1000)), (2, bytes(2000))], partition=2)
    content = read_small(table, MOST_BYTES)
    assert content is not None

    assert read_small(table, len(content)) == content
    assert read_small(table, len(content) - 1) is None
    assert read_small(table, 0) is None


def test_small_tables_of_an_object_beyond_what_it_may_hold_go_by_workers(make_context: Make, tmp_path: Path) -> None:
    guest, host = make_context(GUEST), make_context(HOST)
    half = [(0, bytes(MOST_BYTES // 2))]
    tables = [guest.computing.parallelize([*half, (number, number)], partition=1) for number in range(1, 4)]

    guest.hosts.put("tables", {"all": tables, "first again": tables[0]})
    found = host.guest.get("tables")

    for number, table in enumerate([*found["all"], found["first again"]], start=1):
        assert dict(table.collect()) == {**dict(half), 1 if number == 4 else number: 1 if number == 4 else number}
    assert parts_of_tables(tmp_path) == 3


def test_a_table_of_many_partitions_goes_by_workers(make_context: Make) -> None:
    guest = make_context(GUEST)

    assert read_small(guest.computing.parallelize([(1, 1)], partition=MOST_PARTITIONS), MOST_BYTES) is not None
    assert read_small(guest.computing.parallelize([(1, 1)], partition=MOST_PARTITIONS + 1), MOST_BYTES) is None


def test_a_table_of_another_engine_is_not_read_here() -> None:
    class Elsewhere:
        engine = "SPARK"
        num_partitions = 1

    assert read_small(Elsewhere(), MOST_BYTES) is None


def test_an_engine_without_files_makes_the_table_with_its_workers() -> None:
    class Computing:
        """Runs the function on its own, partition by partition."""

        def parallelize(self, content: Any, *, partition: int, **_: Any) -> Any:
            assert len(content) == partition
            return self

        def mapPartitionsWithIndexNoSerdes(self, function: Any, **types: Any) -> Any:  # noqa: N802
            function = pickle.loads(pickle.dumps(function))
            # Spark does a partition again where an executor is lost
            return types, [list(function(number, [])) for number in (0, 1, 0)]

    one, two = (pickle.dumps(number) for number in (1, 2))
    content = encode_small([[(one, two)], []])

    types, made = make_small(memoryview(content), Computing(), TableMeta(2, 0, 0, 0), ())

    assert made == [[(one, two)], [], [(one, two)]]
    assert set(types.values()) == {0}


def test_the_engine_takes_what_a_full_message_holds(make_context: Make) -> None:
    host = make_context(HOST)
    # the engine keeps a value of more than some hundred bytes on pages of its own
    rows = [(struct.pack(">q", number), struct.pack(">q", number)) for number in range(2000)]
    large = [(struct.pack(">q", -1), struct.pack(">q", 0))]

    made = make_small(memoryview(encode_small([rows, large])), host.computing, TableMeta(2, 1, 1, 1), ())

    assert made.count() == 2001


def test_a_table_that_its_task_has_let_go_leaves_no_file(make_context: Make, tmp_path: Path) -> None:
    guest, host = make_context(GUEST), make_context(HOST)
    guest.hosts.put("table", guest.computing.parallelize([(1, 1)], partition=2))
    found = host.guest.get("table")
    files = tmp_path / "host" / found.table.namespace / found.table.name
    assert len(list(files.iterdir())) == 2

    del found

    assert not files.exists()


ONE = pickle.dumps(1)
GOOD = encode_small([[(ONE, ONE)], []])


@pytest.mark.parametrize(
    ("content", "partitions"),
    [
        (GOOD, 1),
        (GOOD, 3),
        (GOOD, 0),
        (GOOD, -1),
        (GOOD, MOST_PARTITIONS + 1),
        pytest.param(GOOD, 1 << 20_000, id="huge"),
        (b"", 2),
        (GOOD[:31], 2),
        (GOOD[:-1], 2),
        (GOOD + b"x", 2),
        (b"FRPT" + GOOD[4:], 2),
        (GOOD[:4] + b"\2" + GOOD[5:], 2),
        (GOOD[:16] + struct.pack("<2Q", 0, 0) + GOOD[32:], 2),
        (GOOD[:16] + struct.pack("<2Q", 2, 2**64 - 1) + GOOD[32:], 2),
        (encode_small([[(ONE, bytes(MOST_BYTES))]]), 1),
    ],
)
def test_a_table_that_lies_is_refused(content: bytes, partitions: int) -> None:
    with pytest.raises(FateError) as caught:
        make_small(memoryview(content), None, TableMeta(partitions, 0, 0, 0), ())

    assert caught.value.code is ErrorCode.PAYLOAD_MALFORMED


@pytest.mark.parametrize("types", [(2, 0), (0, -1), (1, 0)])
def test_a_table_of_another_serialisation_is_refused(types: tuple[int, int]) -> None:
    with pytest.raises(FateError) as caught:
        make_small(memoryview(GOOD), None, TableMeta(2, *types, 0), ())

    assert caught.value.code is ErrorCode.PAYLOAD_MALFORMED


@pytest.mark.parametrize("at", [0, 1])
def test_of_a_table_of_which_one_pair_is_refused_nothing_is_made(make_context: Make, tmp_path: Path, at: int) -> None:
    host = make_context(HOST)
    evil = pickle.dumps(print)
    pair = (evil, ONE) if at == 0 else (ONE, evil)

    with pytest.raises(FateError) as caught:
        make_small(memoryview(encode_small([[(ONE, ONE)], [pair]])), host.computing, TableMeta(2, 0, 0, 0), ())

    assert caught.value.code is ErrorCode.NAME_FORBIDDEN
    assert not (tmp_path / "host" / "computing_host").exists()


def test_a_key_that_the_engine_cannot_store_ends_the_get_and_leaves_no_table(
    make_context: Make, tmp_path: Path
) -> None:
    host = make_context(HOST)
    long = pickle.dumps("k" * 1000)

    with pytest.raises(lmdb.BadValsizeError):
        make_small(memoryview(encode_small([[(ONE, ONE)], [(long, ONE)]])), host.computing, TableMeta(2, 0, 0, 0), ())

    assert not list((tmp_path / "host" / "computing_host").iterdir())


class Tables:
    """Stands for the federation: tells what of an object would become a table."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def make_table(self, content: memoryview, _meta: Any) -> int:
        self.made.append(len(content))
        return len(content)


def an_object(keys: list[int], segments: list[bytes], kind: Any = "bytes") -> memoryview:
    """A list of tables that are said to lie in these segments."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return value if type(value) is _TablePersistentId else None

    meta = TableMeta(1, 0, 0, 0)
    table: list[Segment] = []
    for body in segments:
        offset = table[-1].next_offset if table else 0
        table.append(Segment(kind, "|u1" if kind == "ndarray" else "", (len(body),), offset, len(body)))

    stream = io.BytesIO()
    Pickler(stream, 4).dump([_TablePersistentId(key, meta) for key in keys])
    content = bytearray(encode_prefix(table, stream.getvalue()))
    start = len(content)
    for segment, body in zip(table, segments, strict=True):
        content += bytes(start + segment.offset - len(content)) + body
    return memoryview(content)


def test_an_object_may_hold_several_tables_up_to_the_most_bytes() -> None:
    tables = Tables()

    found = load_object(an_object([1, 0], [bytes(MOST_BYTES - 9), bytes(9)]), None, tables, "x", "t", GUEST)

    assert found == tables.made == [9, MOST_BYTES - 9]


@pytest.mark.parametrize(
    ("keys", "segments", "kind"),
    [
        ([0, 0], [b"one"], "bytes"),
        ([1], [b"one"], "bytes"),
        ([-1], [b"one"], "bytes"),
        ([1 << 20_000], [b"one"], "bytes"),
        ([True], [b"one", b"two"], "bytes"),
        ([0], [b"one"], "bytearray"),
        ([0], [b"one"], "ndarray"),
        ([0, 1], [bytes(MOST_BYTES), b"x"], "bytes"),
    ],
    ids=["twice", "beyond", "negative", "huge", "truth", "bytearray", "array", "together-too-long"],
)
def test_a_table_in_a_segment_that_is_none_is_refused(keys: list[int], segments: list[bytes], kind: str) -> None:
    with pytest.raises(FateError) as caught:
        load_object(an_object(keys, segments, kind), None, Tables(), "x", "t", GUEST)

    assert caught.value.code is ErrorCode.PAYLOAD_MALFORMED
