"""Objects into a buffer and back: values, views, FATE's semantics, FATE's restrictions."""

from __future__ import annotations

import collections
import enum
import io
from typing import Any

import numpy as np
import pytest
import torch
from fate.arch.context import Context
from fate.arch.dataframe.manager.block_manager import BlockType
from fate.arch.federation.api import TableRemotePersistentPickler, TableRemotePersistentUnpickler

from fedrdma_fate.fate.deserialise import load_object
from fedrdma_fate.fate.layout import decode_object
from fedrdma_fate.fate.segments import RAW_BYTES_FROM
from fedrdma_fate.fate.serialise import plan_object
from fedrdma_fate.wire.errors import ErrorCode, FateError
from fedrdma_fate.wire.summand import ALIGNMENT_BYTES
from tests.support.comparison import assert_same

PARTY = ("guest", "9999")


class Federation:
    """As much of a federation as restricted unpickling looks at."""

    local_party = PARTY


def write(value: object) -> bytearray:
    plan = plan_object(value, Federation(), "name", "tag", [PARTY])
    buffer = bytearray(b"\xa5" * plan.total_bytes)
    plan.write_into(memoryview(buffer))
    return buffer


def read(buffer: bytearray, ctx: object = None) -> Any:
    return load_object(memoryview(buffer), ctx, Federation(), "name", "tag", PARTY)


def fate_round_trip(value: object) -> Any:
    stream = io.BytesIO()
    TableRemotePersistentPickler(Federation(), "name", "tag", [PARTY], stream).dump(value)
    stream.seek(0)
    return TableRemotePersistentUnpickler(None, Federation(), "name", "tag", PARTY, stream).load()


def test_a_member_of_an_enumeration_arrives_from_a_python_that_pickles_it_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = {"kind": BlockType.float32, "again": [BlockType.float32, BlockType.index]}
    # as Python 3.11.0 to 3.11.3 have it
    monkeypatch.setattr(enum.Enum, "__reduce_ex__", lambda self, _: (getattr, (type(self), self.name)))
    buffer = write(value)
    assert b"getattr" not in buffer
    assert read(buffer) == value


@pytest.mark.parametrize(
    "dtype",
    ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16", "M8[ns]", "m8[s]", "S5", "U3"],
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 4), (2, 0, 5), (2, 3, 4, 5)])
def test_arrays_come_back_with_their_dtype_shape_and_bits(dtype: str, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    # below 128, so that every dtype can hold them; booleans from their lowest bit
    raw = (np.arange(count, dtype=np.uint8) % 120) & (1 if dtype == "?" else 127)
    array = raw.view(dtype).reshape(shape) if count else np.empty(shape, dtype)
    if dtype == "U3":
        array = np.full(shape, "häß")

    assert_same(read(write(array)), array)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"])
def test_arrays_come_back_as_from_fate(dtype: str) -> None:
    array = np.arange(24).reshape(4, 6).astype(dtype)

    assert_same(read(write(array)), fate_round_trip(array))


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
)
@pytest.mark.parametrize("shape", [(), (7,), (4, 6), (2, 3, 4)])
def test_tensors_come_back_as_from_fate(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(int(np.prod(shape))).reshape(shape).to(getattr(torch, dtype))

    assert_same(read(write(tensor)), fate_round_trip(tensor))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2**40)])
def test_empty_tensors_come_back_though_fate_cannot_load_them(shape: tuple[int, ...]) -> None:
    assert_same(read(write(torch.empty(shape, dtype=torch.bfloat16))), torch.empty(shape, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "float8_e5m2", "complex64", "complex128", "complex32", "uint16", "uint32", "uint64"]
)
def test_tensors_of_dtypes_that_numpy_or_fate_lack_come_back(dtype: str) -> None:
    raw = torch.arange(64, dtype=torch.uint8)
    tensor = raw.view(getattr(torch, dtype))

    assert_same(read(write(tensor)), tensor)


@pytest.mark.parametrize(
    "make",
    [
        lambda base: base.T,
        lambda base: base[:, ::2],
        lambda base: base[::-1],
        lambda base: np.asfortranarray(base),
        lambda base: np.broadcast_to(base[0], (5, base.shape[1])),
        lambda base: base.astype(">f8"),
        lambda base: base.T.astype(">i4"),
    ],
    ids=["transposed", "strided", "reversed", "fortran", "broadcast", "big-endian", "big-endian-transposed"],
)
def test_arrays_of_any_layout_come_back_contiguous_and_native(make: Any) -> None:
    array = make(np.arange(30, dtype="f8").reshape(5, 6))

    found = read(write(array))

    assert_same(found, array)
    assert found.flags.c_contiguous
    assert found.dtype.isnative


def test_tensors_that_are_strided_conjugated_negated_or_need_a_gradient_come_back_plain() -> None:
    base = torch.arange(30.0).reshape(5, 6)
    complex_tensor = torch.view_as_complex(base.reshape(5, 3, 2))
    value = [
        base.T,
        base[:, ::2].to(torch.bfloat16),
        complex_tensor.conj(),
        complex_tensor.conj().imag,
        torch.nn.Parameter(base),
        (base.clone().requires_grad_() * 2),
    ]

    assert_same(read(write(value)), [tensor.detach().clone() for tensor in value])


def test_a_state_dict_comes_back_in_order() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.BatchNorm1d(3))
    value = {"state": model.state_dict(), "round": 3, "loss": 0.5, "names": ("a", None, True)}

    found = read(write(value))

    assert type(found["state"]) is collections.OrderedDict
    assert_same(dict(found["state"]), dict(value["state"]))
    assert_same({**found, "state": 0}, {**value, "state": 0})


def test_arrays_are_writable_views_of_the_buffer() -> None:
    value = [np.arange(1000.0), torch.arange(1000.0), torch.zeros(8, dtype=torch.bfloat16)]
    buffer = write(value)
    inside = np.frombuffer(buffer, np.uint8)

    array, tensor, half = read(buffer)

    assert np.shares_memory(array, inside)
    assert np.shares_memory(tensor.numpy(), inside)
    assert np.shares_memory(half.view(torch.int16).numpy(), inside)
    array[0] = tensor[0] = half[0] = 1
    assert (array[0], tensor[0], half[0]) == (1, 1, 1)


def test_a_view_keeps_the_buffer_alive() -> None:
    released: list[bool] = []

    class Buffer(bytearray):
        def __del__(self) -> None:
            released.append(True)

    array = load_object(memoryview(Buffer(write(np.arange(9.0)))), None, Federation(), "name", "tag", PARTY)
    assert not released
    del array
    assert released


def test_segments_are_aligned_and_gaps_do_not_show_what_the_slot_held() -> None:
    buffer = write([np.ones(n, np.uint8) for n in (1, 63, 65, 7)])
    content = decode_object(memoryview(buffer))

    assert [segment.offset % ALIGNMENT_BYTES for segment in content.segments] == [0, 0, 0, 0]
    assert 0xA5 not in buffer


def test_the_same_tensor_twice_becomes_two_tensors_as_with_fate() -> None:
    tensor, array = torch.zeros(3), np.zeros(3)

    first, second, third, fourth = read(write([tensor, tensor, array, array]))
    first[0], third[0] = 1, 1

    assert (second[0], fourth[0]) == (0, 0)


@pytest.mark.parametrize("length", [0, 1, RAW_BYTES_FROM - 1, RAW_BYTES_FROM, RAW_BYTES_FROM + 1])
def test_byte_strings_come_back_with_their_type_and_identity(length: int) -> None:
    text, changeable = bytes(range(256)) * (length // 256) + bytes(length % 256), bytearray(length)

    found = read(write([text, text, changeable, changeable]))

    assert_same(found, [text, text, changeable, changeable])
    assert found[0] is found[1]
    assert found[2] is found[3]


def test_long_byte_strings_travel_once_and_outside_of_the_pickle_stream() -> None:
    text = b"x" * RAW_BYTES_FROM

    content = decode_object(memoryview(write([text, text, bytearray(text)])))

    assert [segment.kind for segment in content.segments] == ["bytes", "bytearray"]
    assert len(content.stream) < 200


def test_a_context_inside_an_object_becomes_the_receivers() -> None:
    sender, receiver = Context(), Context()

    assert read(write({"ctx": sender}), receiver)["ctx"] is receiver


def test_object_arrays_and_what_they_hold_come_back() -> None:
    array = np.empty(2, object)
    array[:] = [np.arange(3), "text"]

    assert_same(read(write(array)), fate_round_trip(array))


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(2, "f8,i4"),
        torch.zeros(2, 2).to_sparse(),
        torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.quint8),
        lambda: None,
    ],
    ids=["structured", "sparse", "quantised", "function"],
)
def test_what_fate_cannot_pack_is_refused_with_a_code(value: object) -> None:
    with pytest.raises(FateError) as caught:
        plan_object(value, Federation(), "name", "tag", [PARTY])

    assert caught.value.code is ErrorCode.UNSERIALISABLE
    assert "'name'" in caught.value.message


@pytest.mark.filterwarnings("ignore:Named tensors")
@pytest.mark.parametrize("rows", [10, 300_000], ids=["by one thread", "by several"])
def test_a_tensor_that_torch_refuses_while_it_is_being_written_is_refused_with_a_code(rows: int) -> None:
    named = torch.zeros(rows, 8, names=("row", "column"), dtype=torch.float64)
    plan = plan_object({"state": named}, Federation(), "model", "tag", [PARTY])
    slot = memoryview(bytearray(plan.total_bytes))

    with pytest.raises(FateError, match="named tensors") as caught:
        plan.write_into(slot)

    assert caught.value.code is ErrorCode.UNSERIALISABLE
    assert "the object 'model' of type dict" in caught.value.message


@pytest.mark.filterwarnings("ignore:Named tensors")
def test_a_tensor_that_torch_refuses_while_it_is_being_compared_is_refused_with_a_code() -> None:
    tensor = torch.zeros(3, 4)
    written = write(tensor)
    plan = plan_object(tensor, Federation(), "name", "tag", [PARTY])
    tensor.names = ("row", "column")

    with pytest.raises(FateError, match="named tensors") as caught:
        plan.matches(memoryview(written))

    assert caught.value.code is ErrorCode.UNSERIALISABLE


def test_what_breaks_in_a_listener_while_an_object_is_being_written_is_not_laid_on_the_object() -> None:
    def break_down(_written_from: int, _digests: object) -> None:
        raise RuntimeError("no gateway")

    plan = plan_object(np.zeros(1000), Federation(), "name", "tag", [PARTY])

    with pytest.raises(RuntimeError, match="no gateway"):
        plan.write_into(memoryview(bytearray(plan.total_bytes)), break_down)


def test_a_class_that_is_not_listed_is_refused_with_its_name() -> None:
    buffer = write(collections.Counter("abc"))

    with pytest.raises(FateError, match="'collections:Counter'") as caught:
        read(buffer)
    assert caught.value.code is ErrorCode.NAME_FORBIDDEN


def test_a_function_that_is_not_listed_is_refused_before_it_is_called() -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return eval, ("1 / 0",)

    with pytest.raises(FateError, match="'builtins:eval'"):
        read(write(Hostile()))


def test_a_plan_matches_what_it_wrote_and_nothing_else() -> None:
    value = [np.arange(100.0), np.arange(64).reshape(8, 8).T, torch.arange(10).to(torch.bfloat16), b"x" * 70_000]
    plan = plan_object(value, Federation(), "name", "tag", [PARTY])
    buffer = bytearray(plan.total_bytes)
    plan.write_into(memoryview(buffer))

    again = plan_object(value, Federation(), "name", "tag", [PARTY])

    assert again.matches(memoryview(buffer))
    assert not again.matches(memoryview(buffer)[:-1])
    content = decode_object(memoryview(buffer))
    for body in map(content.body, range(len(content.segments))):
        body[-1] ^= 1
        assert not again.matches(memoryview(buffer))
        body[-1] ^= 1
    content.stream[-2] ^= 1
    assert not again.matches(memoryview(buffer))


def test_a_plan_sees_a_change_in_a_large_transposed_or_big_endian_array() -> None:
    for array in (np.zeros((1500, 400)).T, np.zeros(300_000, ">f8")):
        plan = plan_object(array, Federation(), "name", "tag", [PARTY])
        buffer = bytearray(plan.total_bytes)
        plan.write_into(memoryview(buffer))
        assert plan.matches(memoryview(buffer))
        array[-1, ...] = 1
        assert not plan.matches(memoryview(buffer))
