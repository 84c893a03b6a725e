"""Tables of a peer whose keys or values try to run code, or lie about arrays and tensors; and honest ones beside.

More than 500 lines: the attacks share the tables that they are hidden in.
"""

from __future__ import annotations

import collections
import copyreg
import io
import itertools
import os
import pickle
import struct
import tarfile
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fate.arch.computing.serdes import get_serdes_by_type
from fate.arch.histogram._histogram_splits import HistogramSplits
from fate.arch.protocol.phe.paillier import keygen

from fedrdma_fate.fate.gateway_client import to_party
from fedrdma_fate.fate.table_batches import Pair, batch_bytes, encode_batch
from fedrdma_fate.fate.tables import PartitionReceiver
from fedrdma_fate.wire.errors import ErrorCode, FateError, FedRDMAError
from tests.support.comparison import assert_same
from tests.support.fake_gateway import FakeConnector

GUEST, HOST = to_party(("guest", "9999")), to_party(("host", "10000"))
EVERYBODY = (GUEST, HOST)

Receive = Callable[..., list[Pair]]


@pytest.fixture
def receive(tmp_path: Path) -> Receive:
    """Has a worker of the host receive a partition that the guest has written byte by byte."""
    (tmp_path / "gateway").mkdir()
    numbers = itertools.count()

    def receive(
        pairs: list[Pair], *, types: tuple[int, int] = (0, 0), allowed_names: tuple[str, ...] = ()
    ) -> list[Pair]:
        body = bytearray(batch_bytes(pairs))
        encode_batch(pairs, True, memoryview(body))
        guest, host = (FakeConnector(tmp_path / "gateway", "session", party, EVERYBODY) for party in EVERYBODY)
        name = f"t{next(numbers)}"
        guest.connect().deliver(f"{name}#0#0", "tag", [HOST], "partition", body)
        receiver = PartitionReceiver(host, name, "tag", GUEST, 1.0, None, *types, allowed_names)
        return list(receiver(0, []))

    return receive


def refusal(receive: Receive, value: bytes, **options: Any) -> FedRDMAError:
    with pytest.raises(FateError) as caught:
        receive([(pickle.dumps(1), value)], **options)
    return caught.value


def received(receive: Receive, value: Any, **options: Any) -> Any:
    """What FATE's computing engine makes of a value that has come as an honest engine writes it."""
    [(_, content)] = receive([(pickle.dumps(1), pickle.dumps(value))], **options)
    return get_serdes_by_type(0).deserialize(content)


class Called:
    """Is a call of a function when it is pickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function = function
        self.arguments = arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


class Filled:
    """Is what a function makes, filled with a state, when it is pickled."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], state: Any) -> None:
        self.made = function, arguments, state

    def __reduce__(self) -> Any:
        return self.made


def maker(path: Path) -> bytes:
    """A pickle that makes a directory."""
    return pickle.dumps(Called(os.mkdir, str(path)))


# --- code ---


@pytest.mark.parametrize("place", ["key", "value"])
def test_a_pickle_that_calls_a_function_of_the_system_is_refused(receive: Receive, tmp_path: Path, place: str) -> None:
    evil, good = maker(tmp_path / "made"), pickle.dumps(1)

    with pytest.raises(FateError) as caught:
        receive([(good, good), (evil, good) if place == "key" else (good, evil)])

    assert caught.value.code is ErrorCode.NAME_FORBIDDEN
    assert not (tmp_path / "made").exists()
    assert "posix:mkdir" in caught.value.message


def test_the_first_pair_that_is_refused_ends_the_partition(receive: Receive, tmp_path: Path) -> None:
    good = pickle.dumps("x")

    with pytest.raises(FateError):
        receive([(good, good), (good, maker(tmp_path / "made")), (good, maker(tmp_path / "made"))])

    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("format_of_torch", ["none", "legacy", "legacy, as storage", "zip", "tar"])
def test_a_pickle_within_a_tensor_does_not_run_either(receive: Receive, tmp_path: Path, format_of_torch: str) -> None:
    """By torch.storage._load_from_bytes, which every honest tensor calls."""
    inner = {
        "none": maker(tmp_path / "made"),
        "legacy": saved(Called(os.mkdir, str(tmp_path / "made")), zipped=False),
        "legacy, as storage": legacy_storage(maker(tmp_path / "made")[:-1]),
        "zip": saved(Called(os.mkdir, str(tmp_path / "made")), zipped=True),
        "tar": tar(maker(tmp_path / "made")),
    }[format_of_torch]

    error = refusal(receive, pickle.dumps(Called(torch.storage._load_from_bytes, inner)))

    assert error.code is ErrorCode.PAYLOAD_MALFORMED
    assert not (tmp_path / "made").exists()


def saved(value: Any, *, zipped: bool) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=zipped)
    return stream.getvalue()


def legacy_storage(described: bytes, key: str = "1", data: bytes = b"") -> bytes:
    """A storage of torch's with any pickle where it is described."""
    system = {"protocol_version": 1001, "little_endian": True}
    parts = [0x1950A86A20F9469CFC6C, 1001, system]
    return b"".join(pickle.dumps(part, 2) for part in parts) + described + b"." + pickle.dumps([key], 2) + data


def tar(evil: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("sys_info", "storages", "tensors", "pickle"):
            entry = tarfile.TarInfo(name)
            entry.size = len(evil)
            archive.addfile(entry, io.BytesIO(evil))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("fate.arch.federation.api._serdes", "pickle.loads"),
        ("fate.arch.federation.api._serdes", "_TablePersistentId"),
        ("fate.arch.computing.serdes._serdes_base", "p_loads"),
        ("torch.storage", "_load_from_bytes.__globals__"),
        ("torch", "load"),
        ("torch._utils", "_rebuild_tensor"),
        ("numpy", "load"),
        ("numpy.core.multiarray", "fromfile"),
        ("builtins", "getattr"),
        ("__builtin__", "eval"),
        ("copy_reg", "_reconstructor"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_name_that_is_not_listed_is_refused(receive: Receive, module: str, name: str, protocol: int) -> None:
    one_opcode = pickle.GLOBAL + f"{module}\n{name}\n".encode()
    on_the_stack = b"".join(text(part) for part in (module, name)) + pickle.STACK_GLOBAL

    error = refusal(receive, stream(on_the_stack if protocol == 4 else one_opcode, protocol=protocol))

    assert error.code is ErrorCode.NAME_FORBIDDEN


def text(value: str) -> bytes:
    return pickle.BINUNICODE + struct.pack("<I", len(value)) + value.encode()


def stream(*parts: bytes, protocol: int = 4) -> bytes:
    return pickle.PROTO + bytes([protocol]) + b"".join(parts) + pickle.STOP


def test_a_job_may_allow_further_names_in_tables(receive: Receive) -> None:
    assert received(receive, Fraction(1, 3), allowed_names=("fractions:Fraction",)) == Fraction(1, 3)
    error = refusal(receive, pickle.dumps(Fraction(1, 3)), allowed_names=("collections:Counter",))
    assert error.code is ErrorCode.NAME_FORBIDDEN


@pytest.fixture
def extension_code() -> Iterator[int]:
    """A code that some library of the worker has registered, and used once, so that it is cached."""
    code = 242
    copyreg.add_extension("os", "mkdir", code)
    pickle.loads(stream(pickle.EXT1 + bytes([code])))
    yield code
    copyreg.remove_extension("os", "mkdir", code)


def test_extension_codes_do_not_pass_by_the_names(receive: Receive, extension_code: int, tmp_path: Path) -> None:
    called = pickle.EXT1 + bytes([extension_code]) + text(str(tmp_path / "made")) + pickle.TUPLE1 + pickle.REDUCE

    assert refusal(receive, stream(called)).code is ErrorCode.PAYLOAD_MALFORMED
    assert not (tmp_path / "made").exists()


def test_nor_do_they_in_the_storage_of_a_tensor(receive: Receive, extension_code: int, tmp_path: Path) -> None:
    called = pickle.EXT1 + bytes([extension_code]) + text(str(tmp_path / "made")) + pickle.TUPLE1 + pickle.REDUCE
    storage = legacy_storage(called)

    refused = refusal(receive, pickle.dumps(Called(torch.storage._load_from_bytes, storage)))

    assert refused.code is ErrorCode.PAYLOAD_MALFORMED
    assert not (tmp_path / "made").exists()


def test_extension_codes_make_no_difference_to_honest_tensors(receive: Receive, extension_code: int) -> None:
    del extension_code
    assert_same(received(receive, torch.arange(3.0)), torch.arange(3.0))


# --- the engine gets what we have read ---


def test_the_engine_gets_no_stream_with_names_that_a_peer_wrote(receive: Receive) -> None:
    """Python's two unpicklers differ in what they make of a stream."""
    honest = pickle.dumps([torch.arange(3)])
    odd = stream(pickle.NONE + pickle.POP + pickle.dumps([torch.arange(3)], 3)[2:-1], protocol=3)

    [(_, content)] = receive([(pickle.dumps(1), odd)])

    assert content != odd
    assert len(content) == len(honest)


def pickled(value: Any) -> bytes:
    """Without protocol and stop."""
    return pickle.dumps(value, 2)[2:-1]


@pytest.mark.parametrize(
    ("protocols", "value"),
    [
        # sets and bytes need a name before protocols 4 and 3
        *(((0, 2, 4, 5), value) for value in (0, 2**80, 1.5, "text", [1, (2, None)], {"a": True}, list(range(5000)))),
        *(((4, 5), value) for value in (b"bytes", {1, 2}, frozenset({1}), ("sid", (3, 4)))),
    ],
)
def test_pickles_without_names_pass_as_they_came(receive: Receive, protocols: tuple[int, ...], value: Any) -> None:
    pairs = [(pickle.dumps(1), pickle.dumps(value, protocol)) for protocol in protocols]

    assert receive(pairs) == pairs


def test_a_key_with_names_passes_as_it_came_or_not_at_all(receive: Receive) -> None:
    honest = pickle.dumps(np.int64(7))
    other = pickle.dumps(np.int64(7), 3)

    assert receive([(honest, pickle.dumps(1))]) == [(honest, pickle.dumps(1))]
    with pytest.raises(FateError, match="FR704"):
        receive([(other, pickle.dumps(1))])


# --- what is no pickle ---


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b".",
        b"garbage",
        pickle.dumps([1, 2])[:-1],
        stream(text("id") + pickle.BINPERSID),
        stream(pickle.BININT1 + b"\x00" + pickle.BINPERSID),
        stream(pickle.NONE + pickle.EMPTY_TUPLE + pickle.REDUCE),
        stream(pickle.EMPTY_LIST + pickle.EMPTY_DICT + pickle.BUILD + pickle.NONE + pickle.REDUCE),
    ],
    ids=["empty", "stop", "garbage", "cut", "text id", "number id", "calls nothing", "fills a list"],
)
def test_what_is_no_pickle_of_a_table_is_malformed(receive: Receive, broken: bytes) -> None:
    assert refusal(receive, broken).code is ErrorCode.PAYLOAD_MALFORMED


def test_integers_pass_as_eight_bytes_and_not_otherwise(receive: Receive) -> None:
    pairs = [(number.to_bytes(8, "big"), number.to_bytes(8, "big")) for number in (0, 1, 2**63)]

    assert receive(pairs, types=(1, 1)) == pairs
    with pytest.raises(FateError, match="FR704"):
        receive([(b"12345678", b"cos\nsystem\n.")], types=(1, 1))


# --- arrays and tensors that lie ---

OBJECTS = np.dtype(object)


def array_of(shape: tuple[int, ...], dtype: Any, content: Any) -> bytes:
    reconstruct = np.core.multiarray._reconstruct
    return pickle.dumps(Filled(reconstruct, (np.ndarray, (0,), b"b"), (1, shape, dtype, False, content)))


def objects_without_flags() -> Filled:
    """A dtype of objects that says that its items need no care, whose bytes would be taken for addresses."""
    return Filled(np.dtype, ("O8", False, True), (3, "|", None, None, None, -1, -1, 0))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(array_of((1,), OBJECTS, b"\x41" * 8), id="addresses"),
        pytest.param(array_of((1,), objects_without_flags(), b"\x41" * 8), id="addresses-with-flags"),
        pytest.param(array_of((2,), OBJECTS, [1]), id="fewer-objects"),
        pytest.param(array_of((9,), np.dtype("f8"), bytes(64)), id="fewer-bytes"),
        pytest.param(array_of((2**61, 8), np.dtype("f8"), bytes(64)), id="wraps-around"),
        pytest.param(array_of((-1, -8), np.dtype("f8"), bytes(64)), id="negative"),
        pytest.param(array_of((8,), np.dtype("f8"), [1.0] * 8), id="a-list-of-numbers"),
        pytest.param(array_of((1,) * 33, np.dtype("u1"), b"x"), id="dimensions"),
        pytest.param(array_of((2,), np.dtype(bool), b"\x01\x02"), id="truth-values"),
        pytest.param(pickle.dumps(np.zeros(2, [("a", "f8")])), id="fields"),
        pytest.param(pickle.dumps(np.zeros(2, "M8[ns]")), id="times"),
        pytest.param(pickle.dumps(Called(np.core.multiarray.scalar, OBJECTS, b"12345678")), id="scalar-object"),
        pytest.param(pickle.dumps(Called(np.core.multiarray.scalar, np.dtype("f8"), b"1234")), id="scalar-short"),
    ],
)
def test_an_array_is_what_its_bytes_are(receive: Receive, value: bytes) -> None:
    assert refusal(receive, value).code in (ErrorCode.PAYLOAD_MALFORMED, ErrorCode.NAME_FORBIDDEN)


def storage_of(tensor: torch.Tensor) -> Called:
    _, (storage, *_) = tensor.__reduce_ex__(2)
    function, arguments = storage.__reduce__()
    return Called(function, *arguments)


NO_HOOKS: Any = collections.OrderedDict()


def tensor_of(*arguments: Any) -> Called:
    return Called(torch._utils._rebuild_tensor_v2, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((0, (5,), (1,)), id="longer"),
        pytest.param((1, (4,), (1,)), id="offset"),
        pytest.param((-1, (4,), (1,)), id="before"),
        pytest.param((0, (2, 2), (3, 1)), id="strides"),
        pytest.param((0, (2,), (-1,)), id="backwards"),
        pytest.param((0, (1000,), (0,)), id="the-same-value-often"),
        pytest.param((5, (0,), (1,)), id="empty-beyond"),
        pytest.param((0, (2**62, 4), (2**62, 1)), id="wraps-around"),
        pytest.param((0, (4,), (1, 1)), id="strides-of-other-dimensions"),
        pytest.param((0, [4], (1,)), id="a-list"),
        pytest.param((True, (4,), (1,)), id="a-truth-value"),
        pytest.param((0, (1,) * 65, (1,) * 65), id="dimensions"),
    ],
)
def test_a_tensor_lies_within_its_storage(receive: Receive, arguments: tuple[Any, ...]) -> None:
    value = tensor_of(storage_of(torch.zeros(4)), *arguments, False, NO_HOOKS)

    assert refusal(receive, pickle.dumps(value)).code is ErrorCode.PAYLOAD_MALFORMED


def test_a_storage_serves_one_tensor_so_that_few_bytes_do_not_become_many(receive: Receive) -> None:
    storage = storage_of(torch.zeros(100_000))
    tensor = tensor_of(storage, 0, (100_000,), (1,), False, NO_HOOKS)
    once = received(receive, [tensor, tensor])
    assert once[0] is once[1]

    twice = [tensor_of(storage, 0, (1,), (1,), False, NO_HOOKS) for _ in range(2)]
    assert refusal(receive, pickle.dumps(twice)).code is ErrorCode.PAYLOAD_MALFORMED


def test_bytes_that_serve_many_arrays_do_not_become_many(receive: Receive) -> None:
    content = bytes(100_000)
    arrays = [
        Filled(
            np.core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), (1, (100_000,), np.dtype("u1"), False, content)
        )
        for _ in range(100)
    ]

    error = refusal(receive, pickle.dumps(arrays))

    assert error.code is ErrorCode.PAYLOAD_MALFORMED
    assert "longer" in error.message


@pytest.mark.parametrize(
    ("described", "data"),
    [
        pytest.param(("storage", torch.FloatStorage, "1", "cpu", 2, None), struct.pack("<q2f", 2, 0, 0)[:-1], id="cut"),
        pytest.param(("storage", torch.FloatStorage, "1", "cpu", 2, None), struct.pack("<q3f", 2, 0, 0, 0), id="rest"),
        pytest.param(("storage", torch.FloatStorage, "1", "cpu", 2, None), struct.pack("<q2f", 3, 0, 0), id="count"),
        pytest.param(("storage", torch.FloatStorage, "1", "cpu", -1, None), struct.pack("<q", -1), id="negative"),
        pytest.param(("storage", torch.FloatStorage, "2", "cpu", 0, None), struct.pack("<q", 0), id="another-key"),
        pytest.param(("storage", torch.FloatStorage, "1", "cpu", 0, ()), struct.pack("<q", 0), id="view"),
        pytest.param(("storage", torch.FloatStorage, "1", "cpu", 0), struct.pack("<q", 0), id="too-few"),
        pytest.param(("storage", torch.QInt8Storage, "1", "cpu", 0, None), struct.pack("<q", 0), id="quantised"),
        pytest.param(("module", torch.FloatStorage, "1", "cpu", 0, None), struct.pack("<q", 0), id="module"),
        pytest.param(("storage", torch.BoolStorage, "1", "cpu", 1, None), struct.pack("<qB", 1, 2), id="truth-value"),
    ],
)
def test_a_storage_is_what_torch_writes(receive: Receive, described: tuple[Any, ...], data: bytes) -> None:
    storage = legacy_storage(pickled(described) + pickle.BINPERSID, data=data)

    error = refusal(receive, pickle.dumps(Called(torch.storage._load_from_bytes, storage)))

    assert error.code is ErrorCode.PAYLOAD_MALFORMED


@pytest.mark.parametrize("place", ["the key", "the magic number"])
def test_a_storage_whose_parts_take_for_ever_to_compare_is_refused(receive: Receive, place: str) -> None:
    """Lists that hold the one before twice; what is described could be changed to one afterwards."""
    doubled = b"](" * 60 + b"N" + (pickle.DUP + pickle.APPENDS) * 60
    described = pickled(("storage", torch.FloatStorage, "1", "cpu", 0, None)) + pickle.BINPERSID
    state = b"(N}" + text("key") + doubled + pickle.SETITEM + pickle.TUPLE + pickle.BUILD
    honest = legacy_storage(described + state, data=struct.pack("<q", 0))
    magic, key = pickle.dumps(0x1950A86A20F9469CFC6C, 2), pickle.dumps(["1"], 2)
    other = b"\x80\x02" + (doubled if place == "the magic number" else b"](" + doubled + pickle.APPENDS) + b"."
    storage = honest.replace(magic if place == "the magic number" else key, other)

    error = refusal(receive, pickle.dumps(Called(torch.storage._load_from_bytes, storage)))

    assert error.code is ErrorCode.PAYLOAD_MALFORMED


def test_a_storage_of_a_test_is_read_where_nothing_is_wrong_with_it(receive: Receive) -> None:
    described = pickled(("storage", torch.FloatStorage, "1", "cpu", 2, None)) + pickle.BINPERSID
    storage = Called(torch.storage._load_from_bytes, legacy_storage(described, data=struct.pack("<q2f", 2, 3, 4)))

    found = received(receive, tensor_of(storage, 0, (2,), (1,), False, NO_HOOKS))

    assert found.tolist() == [3, 4]


# --- what honest jobs send ---

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool", "complex64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (4, 6), (0, 5), (2, 3, 4)])
def test_tensors_come_back_bit_for_bit(receive: Receive, dtype: str, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(int(np.prod(shape))).reshape(shape).to(getattr(torch, dtype))

    assert_same(received(receive, tensor), tensor)


def test_views_and_transposed_tensors_come_back_with_their_values(receive: Receive) -> None:
    tensor = torch.rand(6, 5)

    for view in (tensor.T, tensor[2:4, 1:], tensor[::2]):
        assert torch.equal(received(receive, view), view)


def test_a_tensor_that_wants_gradients_still_does(receive: Receive) -> None:
    assert received(receive, torch.rand(3, requires_grad=True)).requires_grad


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i8", "u4", "?", "c8", "S5", "U3", ">f8", ">i4"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (2, 0, 5)])
def test_arrays_come_back_as_pickle_brings_them(receive: Receive, dtype: str, shape: tuple[int, ...]) -> None:
    arrays = [np.zeros(shape, dtype), np.zeros(shape, dtype, order="F")]
    found = received(receive, arrays)

    for each, plain in zip(found, pickle.loads(pickle.dumps(arrays)), strict=True):
        assert (each.dtype, each.shape) == (plain.dtype, plain.shape)
        assert np.array_equal(each, plain)


@pytest.mark.parametrize("scalar", [np.float64(1.5), np.int32(-3), np.bool_(True), np.str_("häß")])
def test_scalars_of_numpy_come_back(receive: Receive, scalar: Any) -> None:
    found = received(receive, scalar)

    assert (type(found), found) == (type(scalar), scalar)


def test_a_partition_of_a_data_frame_comes_back(receive: Receive) -> None:
    blocks = [
        pd.Index([f"s{number}" for number in range(50)], dtype=object),
        torch.rand(50, 3),
        torch.randint(0, 2, (50, 1), dtype=torch.int32),
        torch.rand(50, 2, dtype=torch.float64),
        np.array([["a", None], ["b", 1.5]] * 25, dtype=object),
    ]

    index, *values = received(receive, blocks)

    assert index.equals(blocks[0])
    for found, sent in zip(values, blocks[1:], strict=True):
        assert_same(found, sent)


def test_ciphertexts_come_back_and_can_be_decrypted(receive: Receive) -> None:
    secret, public, coder = keygen(1024)
    values = torch.tensor([1.0, -2.5, 3.25])
    encrypted = public.encrypt_encoded(coder.encode_tensor(values), True)

    found = received(receive, [pd.Index(["a", "b", "c"], dtype=object), encrypted])[1]

    decrypted = coder.decode_tensor(secret.decrypt_to_encoded(found), values.dtype, values.shape)
    assert torch.equal(decrypted, values)


def test_every_truncation_and_flipped_byte_of_an_honest_value_is_refused_or_harmless(receive: Receive) -> None:
    whole = pickle.dumps([pd.Index(["a", "b"], dtype=object), torch.arange(2), np.arange(3)])

    for at in range(0, len(whole), 3):
        for broken in (whole[:at], whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]):
            try:
                [(_, content)] = receive([(pickle.dumps(1), broken)])
            except FateError:
                continue
            # what the engine gets, it can load
            get_serdes_by_type(0).deserialize(content)


def test_the_split_values_of_a_host_may_come(receive: Receive) -> None:
    splits = HistogramSplits([0, 1], 1, 0, 2, None)

    assert vars(received(receive, splits)) == vars(splits)
