"""Pickle streams that try to run code, or to change what is not theirs, by both ways into a task."""

from __future__ import annotations

import copyreg
import importlib
import os
import pickle
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fate.arch.context import Context
from fate.arch.federation.api import TableMeta, _serdes
from fate.arch.tensor.phe import PHETensorCoder

from fedrdma_fate.fate.allowed_names import ALLOWED_NAMES, Use
from fedrdma_fate.fate.federation import FedRDMAFederation
from fedrdma_fate.fate.gateway_client import to_party
from fedrdma_fate.fate.layout import encode_prefix
from fedrdma_fate.fate.segments import describe
from fedrdma_fate.fate.settings import FederationOptions
from fedrdma_fate.wire.errors import ErrorCode, FateError, FedRDMAError
from tests.support.fake_gateway import FakeConnector

GUEST, HOST = ("guest", "9999"), ("host", "10000")

SERDES = "fate.arch.federation.api._serdes"

Receive = Callable[..., Any]
"""Has the host receive a stream, with these arrays and tensors as its segments."""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed_names: tuple[str, ...]) -> Context:
    monkeypatch.setattr(Context, "_get_computing", lambda _self: None)
    connector = FakeConnector(tmp_path / "gateway", "session", to_party(HOST), (to_party(GUEST), to_party(HOST)))
    (tmp_path / "gateway").mkdir()
    options = FederationOptions(allowed_names=allowed_names)
    federation = FedRDMAFederation("session", None, HOST, [GUEST, HOST], options=options, connector=connector)
    return Context(federation=federation)


@pytest.fixture
def allowed_names() -> tuple[str, ...]:
    return ()


@pytest.fixture(params=["object", "bytes"])
def receive(request: pytest.FixtureRequest, host: Context, tmp_path: Path) -> Receive:
    """As an object of ours, and as bytes that go FATE's own way; what a hostile gateway or task would write."""
    connector = FakeConnector(tmp_path / "gateway", "session", to_party(GUEST), (to_party(GUEST), to_party(HOST)))
    guest = connector.connect()

    def receive(stream: bytes, *arrays: Any) -> Any:
        body = b"\x00" + stream
        if request.param == "object":
            sources = [describe(array) for array in arrays]
            body = encode_prefix([source.at(0) for source in sources if source], memoryview(stream))
            body += b"".join(source.read().tobytes() for source in sources if source)
        guest.put_inline("x", host.namespace.federation_tag, [to_party(HOST)], request.param, body)
        return host.guest.get("x")

    return receive


def refusal(receive: Receive, stream: bytes, *arrays: Any) -> FedRDMAError:
    with pytest.raises(FateError) as caught:
        receive(stream, *arrays)
    return caught.value


def text(value: str) -> bytes:
    return pickle.BINUNICODE + struct.pack("<I", len(value)) + value.encode()


def named(module: str, name: str) -> bytes:
    return text(module) + text(name) + pickle.STACK_GLOBAL


def called(function: bytes, *arguments: bytes) -> bytes:
    return function + pickle.MARK + b"".join(arguments) + pickle.TUPLE + pickle.REDUCE


def made(kind: bytes) -> bytes:
    return kind + pickle.EMPTY_TUPLE + pickle.NEWOBJ


def pickled(value: object) -> bytes:
    """Without protocol and stop."""
    return pickle.dumps(value, 3)[2:-1]


def stream(*parts: bytes, protocol: int = 4) -> bytes:
    return pickle.PROTO + bytes([protocol]) + b"".join(parts) + pickle.STOP


class Maker:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


CODER = named("fate.arch.tensor.phe._keypair", "PHETensorCoder")
TABLE_ID = named(SERDES, "_TablePersistentId")


def test_pickle_loads_is_not_reached_by_way_of_a_module_of_fate(receive: Receive, tmp_path: Path) -> None:
    evil = pickled(pickle.dumps(Maker(tmp_path / "made")))

    error = refusal(receive, stream(called(named(SERDES, "pickle.loads"), evil)))

    assert not (tmp_path / "made").exists()
    assert error.code is ErrorCode.NAME_FORBIDDEN
    assert f"{SERDES}:pickle.loads" in error.message
    assert "allowed_names" in error.remedy


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (SERDES, "pickle.loads"),
        (SERDES, "pickle"),
        (SERDES, "io.open"),
        (SERDES, "TableRemotePersistentUnpickler"),
        (SERDES, "_TablePersistentId.load"),
        (SERDES, "_TablePersistentId.__init__.__globals__"),
        ("fate.arch.config", "cfg"),
        ("fate.arch.launchers.multiprocess_launcher", "launch"),
        ("fate_utils.paillier", "keygen"),
        ("fate_utils", "PK"),
        ("fate.arch.protocol.phe", "PK"),
        ("fate.arch.federation.api", "TableMeta"),
        ("numpy.core", "_reconstruct"),
        ("numpy", "load"),
        ("numpy", "fromfile"),
        ("torch.storage", "_load_from_bytes"),
        ("torch._utils", "_rebuild_tensor_v2"),
        ("torch", "load"),
        ("torch", "Size.__new__"),
        ("builtins", "getattr"),
        ("builtins", "eval"),
        ("builtins", "__import__"),
        ("__builtin__", "slice"),
        ("functools", "partial"),
        ("operator", "attrgetter"),
        ("collections", "Counter"),
        ("copyreg", "_reconstructor"),
        ("os", "system"),
        ("posix", "system"),
        ("no.such.module", "x"),
        ("fate.no_such_module", "x"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_name_that_is_not_listed_is_refused_whatever_it_resembles(
    receive: Receive, module: str, name: str, protocol: int
) -> None:
    one_opcode = pickle.GLOBAL + f"{module}\n{name}\n".encode()

    error = refusal(receive, stream(named(module, name) if protocol == 4 else one_opcode, protocol=protocol))

    assert error.code is ErrorCode.NAME_FORBIDDEN
    assert repr(f"{module}:{name}") in error.message


def test_what_fates_configuration_says_of_unpickling_lets_nothing_more_through(
    receive: Receive, tmp_path: Path
) -> None:
    from fate.arch.config import cfg

    with cfg.temp_override({"safety.serdes.federation.restricted_type": "unrestricted"}):
        error = refusal(receive, pickle.dumps(Maker(tmp_path / "made")))

    assert error.code is ErrorCode.NAME_FORBIDDEN
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("allowed_names", [("collections:Counter", "fractions:Fraction")])
def test_a_job_may_allow_further_names_and_no_others(receive: Receive) -> None:
    assert receive(pickle.dumps([Counter("aab"), Fraction(1, 3)])) == [Counter("aab"), Fraction(1, 3)]


@pytest.mark.parametrize("allowed_names", [("collections:Counter",)])
@pytest.mark.parametrize("name", ["deque", "Counter.fromkeys", "abc"])
def test_allowing_a_name_allows_no_other_of_its_module(receive: Receive, name: str) -> None:
    assert refusal(receive, stream(named("collections", name))).code is ErrorCode.NAME_FORBIDDEN


def test_a_name_of_any_length_is_cut_where_it_is_told(receive: Receive) -> None:
    error = refusal(receive, stream(named("m" * 20_000, "n" * 20_000)))

    assert len(str(error)) < 1000


@pytest.mark.parametrize("opcode", [pickle.INST, pickle.OBJ])
def test_the_old_ways_to_make_an_instance_are_refused(receive: Receive, opcode: bytes) -> None:
    old = {
        pickle.INST: pickle.MARK + pickle.INST + b"collections\nOrderedDict\n",
        pickle.OBJ: pickle.MARK + named("collections", "OrderedDict") + pickle.OBJ,
    }

    assert refusal(receive, stream(old[opcode])).code is ErrorCode.PAYLOAD_MALFORMED


@pytest.fixture
def extension_code() -> Iterator[int]:
    """A code that some library of the task has registered, and used once, so that it is cached."""
    code = 241
    copyreg.add_extension("os", "mkdir", code)
    pickle.loads(stream(pickle.EXT1 + bytes([code])))
    yield code
    copyreg.remove_extension("os", "mkdir", code)


@pytest.mark.parametrize("length", [1, 2, 4])
def test_extension_codes_do_not_pass_by_the_names(
    receive: Receive, extension_code: int, length: int, tmp_path: Path
) -> None:
    opcode = {1: pickle.EXT1, 2: pickle.EXT2, 4: pickle.EXT4}[length]
    code = opcode + extension_code.to_bytes(length, "little")

    error = refusal(receive, stream(called(code, text(str(tmp_path / "made")))))

    assert error.code is ErrorCode.PAYLOAD_MALFORMED
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(CODER, id="a class"),
        pytest.param(named("numpy.core.multiarray", "_reconstruct"), id="a function"),
        pytest.param(named("fate.arch.protocol.phe.paillier", "evaluator"), id="a class that is only passed on"),
        pytest.param(named("torch", "float32"), id="a value of a module"),
        pytest.param(
            called(named("fate.arch.unify._infra_def", "device"), pickled(("CPU", 1))), id="a member of an enumeration"
        ),
        pytest.param(made(named(SERDES, "_ContextPersistentId")) + pickle.BINPERSID, id="the context of the task"),
    ],
)
@pytest.mark.parametrize("state", [{"_planted": 1}, (None, {"_planted": 1})], ids=["attributes", "slots"])
def test_nothing_that_was_there_before_is_changed(receive: Receive, host: Context, target: bytes, state: Any) -> None:
    error = refusal(receive, stream(target, pickled(state), pickle.BUILD))

    assert error.code is ErrorCode.PAYLOAD_MALFORMED
    assert not hasattr(PHETensorCoder, "_planted")
    assert not hasattr(host, "_planted")


@pytest.mark.parametrize("receive", ["object"], indirect=True)
def test_a_tensor_of_the_message_is_not_filled(receive: Receive) -> None:
    """Which needs no name: with four numbers in its state, torch points it to another place in its storage."""
    state = (False, None, {"hook": 1})

    error = refusal(receive, stream(pickled(0), pickle.BINPERSID, pickled(state), pickle.BUILD), torch.zeros(8))

    assert error.code is ErrorCode.PAYLOAD_MALFORMED
    assert "Tensor" in error.message


@pytest.mark.parametrize(
    "state",
    [
        {"__class__": 1},
        {"__setstate__": 1},
        (None, {"__class__": 1}),
        (None, {"_coder": 1}),
        {1: 1},
        [],
        7,
        (None, None, None),
    ],
    ids=repr,
)
def test_an_instance_gets_plain_attributes_and_nothing_else(receive: Receive, state: Any) -> None:
    error = refusal(receive, stream(made(CODER), pickled(state), pickle.BUILD))

    assert error.code is ErrorCode.PAYLOAD_MALFORMED


def test_a_persistent_id_does_not_bring_its_own_way_to_load(receive: Receive) -> None:
    """FATE calls `pid.load(unpickler)`; what lies in the instance would go before the class's own."""
    state = pickle.EMPTY_DICT + text("load") + named("torch", "Size") + pickle.SETITEM

    error = refusal(receive, stream(made(TABLE_ID), state, pickle.BUILD, pickle.BINPERSID))

    assert error.code is ErrorCode.PAYLOAD_MALFORMED
    assert "table" in error.message


@pytest.mark.parametrize(
    "pid",
    [
        pytest.param(text("a"), id="text"),
        pytest.param(pickled(None), id="nothing"),
        pytest.param(pickled(True), id="a truth value"),
        pytest.param(pickled(0), id="a segment that is not there"),
        pytest.param(TABLE_ID, id="a class"),
        pytest.param(made(TABLE_ID), id="a table without a name"),
        pytest.param(made(named(SERDES, "_TorchSafeTensorPersistentId")), id="a tensor without bytes"),
        pytest.param(made(CODER), id="an instance of another class"),
    ],
)
def test_a_persistent_id_with_nothing_behind_it_is_refused(receive: Receive, pid: bytes) -> None:
    assert refusal(receive, stream(pid, pickle.BINPERSID)).code is ErrorCode.PAYLOAD_MALFORMED


@pytest.mark.parametrize("field", ["num_partitions", "key_serdes_type", "value_serdes_type", "partitioner_type"])
def test_a_table_that_is_described_by_anything_but_numbers_is_refused(receive: Receive, field: str) -> None:
    pid = _serdes._TablePersistentId("key", TableMeta(1, 0, 0, 0))
    setattr(pid.table_meta, field, "4")

    error = refusal(receive, stream(pickled(pid), pickle.BINPERSID))

    assert error.code is ErrorCode.PAYLOAD_MALFORMED


def test_bytes_that_fate_would_join_from_a_table_are_refused(host: Context) -> None:
    """Its slices would be unpickled by the computing engine, which takes any name."""
    split = _serdes._FederationBytesCoder.encode_split(TableMeta(1, 0, 0, 0), 100, 1, 100)

    with pytest.raises(FateError) as caught:
        host.federation.load_bytes(split, host, "x", "0", GUEST)

    assert caught.value.code is ErrorCode.PAYLOAD_MALFORMED


@pytest.mark.parametrize(
    "stolen",
    [
        pytest.param(called(CODER, pickled(1)), id="a class that is made, not called"),
        pytest.param(called(named("torch", "float32")), id="a value"),
        pytest.param(called(named("numpy", "ndarray"), pickled((4,))), id="a class that is filled, not called"),
        pytest.param(made(named("fate.arch.protocol.phe.paillier", "evaluator")), id="a class that is passed on"),
        pytest.param(made(named("torch", "Size")), id="a class that is called, not made"),
    ],
)
def test_a_name_is_used_as_it_is_listed(receive: Receive, stolen: bytes) -> None:
    error = refusal(receive, stream(stolen))

    assert error.code is ErrorCode.NAME_FORBIDDEN


@pytest.mark.parametrize("target", [pickled(1), pickled("eval"), made(CODER), pickled([])], ids=repr)
def test_what_is_no_name_is_not_called(receive: Receive, target: bytes) -> None:
    assert refusal(receive, stream(called(target))).code is ErrorCode.PAYLOAD_MALFORMED


ARRAY = called(named("numpy.core.multiarray", "_reconstruct"), named("numpy", "ndarray"), pickled((0,)), pickled(b"b"))
OBJECTS = called(named("numpy", "dtype"), text("O8"), pickled(False), pickled(True))


def dtype(code: str) -> bytes:
    return called(named("numpy", "dtype"), text(code), pickled(False), pickled(True))


def filled_array(shape: Any, kind: bytes, items: Any) -> bytes:
    state = pickle.MARK + pickled(1) + pickled(shape) + kind + pickled(False) + pickled(items) + pickle.TUPLE
    return ARRAY + state + pickle.BUILD


def test_an_array_of_objects_comes_as_it_was(receive: Receive) -> None:
    assert receive(stream(filled_array((2, 1), OBJECTS, ["a", None]))).tolist() == [["a"], [None]]


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(filled_array((1000,), OBJECTS, ["a"]), id="fewer items than its shape has"),
        pytest.param(filled_array((-1,), OBJECTS, []), id="a negative shape"),
        pytest.param(filled_array((True,), OBJECTS, ["a"]), id="a shape of no integers"),
        pytest.param(filled_array((1,), dtype("i8"), b"01234567"), id="integers, which are segments"),
        pytest.param(filled_array((1,), OBJECTS, b"01234567"), id="pointers"),
        pytest.param(dtype("f8,O8"), id="a dtype with fields"),
        pytest.param(
            called(named("numpy", "dtype"), text("O8"), pickled(0), pickled(1)), id="what is only equal to a dtype's"
        ),
        pytest.param(
            called(
                named("numpy.core.multiarray", "_reconstruct"),
                named("numpy", "ndarray"),
                pickled((False,)),
                pickled(b"b"),
            ),
            id="what is only equal to an empty shape",
        ),
        pytest.param(dtype("V8"), id="a dtype without a type"),
        pytest.param(dtype("M8[s/0]"), id="a dtype of times whose unit NumPy divides by zero"),
        pytest.param(
            dtype("M8") + pickled((4, "<", None, None, None, -1, -1, 0, ({}, (b"s", 0, 0, 0)))) + pickle.BUILD,
            id="a dtype of times with a unit in its state",
        ),
        pytest.param(dtype("U999999999"), id="a dtype of fewer bytes than none"),
        pytest.param(called(named("numpy", "dtype"), named("numpy", "ndarray")), id="a dtype of a class"),
        pytest.param(
            dtype("O8") + pickled((3, "|", None, None, None, -1, -1, 0)) + pickle.BUILD, id="objects that are none"
        ),
        pytest.param(
            dtype("i8") + pickled((3, "<", None, None, None, -1, -1, 63)) + pickle.BUILD, id="integers as objects"
        ),
        pytest.param(
            dtype("i8") + pickled((3, "|", None, ("a",), {"a": (None, 0)}, 8, 1, 0)) + pickle.BUILD, id="fields added"
        ),
        pytest.param(
            called(named("numpy.core.multiarray", "_reconstruct"), named("numpy", "ndarray"), pickled((9,)), text("O")),
            id="an array of objects that are not set",
        ),
    ],
)
def test_an_array_that_would_read_foreign_memory_is_refused(receive: Receive, lie: bytes) -> None:
    assert refusal(receive, stream(lie)).code is ErrorCode.PAYLOAD_MALFORMED


@pytest.mark.parametrize(
    "lie",
    [
        called(named("collections", "OrderedDict"), pickled([("a", 1)])),
        called(named("torch", "Size"), pickled("12")),
        called(named("torch", "Size"), pickled((1.5,))),
        called(named("torch", "device"), pickled({"type": "cpu"})),
        called(named("fate.arch.dataframe.manager.block_manager", "BlockType"), text("x"), text("a b")),
        called(named("pandas.core.indexes.base", "_new_Index"), CODER, pickled({})),
        called(
            named("pandas.core.indexes.base", "_new_Index"),
            named("pandas.core.indexes.base", "Index"),
            pickled({"data": [1], "name": None}),
        ),
    ],
)
def test_what_is_called_gets_the_arguments_that_it_pickles_with(receive: Receive, lie: bytes) -> None:
    assert refusal(receive, stream(lie)).code is ErrorCode.PAYLOAD_MALFORMED


@pytest.mark.parametrize(
    "addition",
    [
        pickled(1) + pickle.APPEND,
        pickle.MARK + pickled(1) + pickle.APPENDS,
        pickled("a") + pickled(1) + pickle.SETITEM,
        pickle.MARK + pickled("a") + pickled(1) + pickle.SETITEMS,
        pickle.MARK + pickled(1) + pickle.ADDITEMS,
    ],
    ids=["append", "appends", "setitem", "setitems", "additems"],
)
def test_only_containers_are_added_to(receive: Receive, addition: bytes) -> None:
    error = refusal(receive, stream(made(CODER), addition))

    assert error.code is ErrorCode.PAYLOAD_MALFORMED


@pytest.mark.parametrize("kind", ["PK", "Coder", "CiphertextVector", "PlaintextVector"])
@pytest.mark.filterwarnings("ignore")
def test_a_state_that_fates_rust_panics_at_is_refused(receive: Receive, kind: str) -> None:
    lie = made(named("fate_utils.paillier", kind)) + pickled(b"") + pickle.BUILD

    assert refusal(receive, stream(lie)).code is ErrorCode.PAYLOAD_MALFORMED


def test_extension_codes_make_no_difference_to_honest_objects(receive: Receive, extension_code: int) -> None:
    del extension_code
    assert receive(pickle.dumps({"a": [1, 2.5, None], "b": {3}})) == {"a": [1, 2.5, None], "b": {3}}


def test_every_listed_name_is_there_and_has_no_dots() -> None:
    for (module, name), allowed in ALLOWED_NAMES.items():
        assert (module, name) == (allowed.module, allowed.name)
        assert "." not in name
        assert hasattr(importlib.import_module(module), name), f"{module}:{name}"


def test_no_listed_name_whose_instances_are_made_runs_code_when_they_are_thrown_away() -> None:
    for allowed in ALLOWED_NAMES.values():
        if Use.MAKE in allowed.uses:
            kind = getattr(importlib.import_module(allowed.module), allowed.name)
            assert isinstance(kind, type)
            assert not hasattr(kind, "__del__"), allowed


def test_numpys_own_arrays_of_objects_pass(receive: Receive) -> None:
    value = {"labels": np.array(["a", None, 1], dtype=object), "columns": np.zeros((2, 0), dtype=object)}

    received = receive(pickle.dumps(value))

    assert received["labels"].tolist() == ["a", None, 1]
    assert received["columns"].shape == (2, 0)
