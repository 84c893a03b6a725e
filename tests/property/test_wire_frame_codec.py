"""The control frame codec over all frames, and over whatever else may come."""

from __future__ import annotations

import builtins
import contextlib
import functools
import types
import typing
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrdma_fate.wire.datagrams import Datagram, decode_datagram, encode_datagram
from fedrdma_fate.wire.errors import ErrorCode, WireError
from fedrdma_fate.wire.frames import ControlFrame, Refused, decode_frame, encode_frame

FRAME_TYPES = typing.get_args(ControlFrame)

_SCALARS: dict[object, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(),
    bytes: st.binary(),
    types.NoneType: st.none(),
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a field type that msgpack can carry, and that a frame may have."""
    if typing.get_origin(hint) is Annotated:
        return _values_within(*typing.get_args(hint))
    if hint in _SCALARS:
        return _SCALARS[hint]
    arguments = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Literal:
            return st.sampled_from(arguments)
        case builtins.dict:
            return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
        case builtins.tuple if arguments[-1] is ...:
            return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
        case builtins.tuple:
            return st.tuples(*map(values_of, arguments))
        case types.UnionType | typing.Union:
            return st.one_of(*map(values_of, arguments))
    return structs_of(hint)


def _values_within(kind: Any, meta: msgspec.Meta) -> st.SearchStrategy[Any]:
    """Within the limits of a field, where it has any that random values would not keep."""
    if kind is bytes and meta.min_length is not None:
        return st.binary(min_size=meta.min_length, max_size=meta.max_length)
    if typing.get_origin(kind) is tuple and meta.min_length is not None:
        one, _ = typing.get_args(kind)
        return st.lists(values_of(one), min_size=meta.min_length, max_size=meta.min_length + 3).map(tuple)
    if meta.ge is None:
        return values_of(kind)
    make = st.integers if kind is int else functools.partial(st.floats, allow_nan=False)
    return make(meta.ge, meta.le)


def structs_of(struct: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(struct, include_extras=True)
    fields = (field.name for field in msgspec.structs.fields(struct))
    return st.builds(struct, **{name: values_of(hints[name]) for name in fields})


FRAMES = st.one_of(*map(structs_of, FRAME_TYPES))


def test_every_frame_has_a_tag_of_its_own() -> None:
    tags = [frame_type.__struct_config__.tag for frame_type in FRAME_TYPES]
    assert len(set(tags)) == len(FRAME_TYPES)


@pytest.mark.parametrize("frame_type", FRAME_TYPES, ids=lambda frame_type: frame_type.__name__)
def test_every_frame_comes_back_as_it_was(frame_type: type[ControlFrame]) -> None:
    @settings(max_examples=15)
    @given(structs_of(frame_type))
    def comes_back(frame: ControlFrame) -> None:
        assert decode_frame(encode_frame(frame)) == frame

    comes_back()


@given(st.one_of(*map(structs_of, typing.get_args(Datagram))), st.data())
def test_every_datagram_comes_back_as_it_was_and_a_truncated_one_is_malformed(
    datagram: Datagram, data: st.DataObject
) -> None:
    raw = encode_datagram(datagram)
    assert decode_datagram(raw) == datagram
    with pytest.raises(WireError) as caught:
        decode_datagram(raw[: data.draw(st.integers(0, len(raw) - 1))])
    assert caught.value.code is ErrorCode.MALFORMED_FRAME


def test_a_control_frame_is_no_datagram() -> None:
    with pytest.raises(WireError):
        decode_datagram(encode_frame(Refused(1, "FR303", "no")))


@given(FRAMES, st.data())
def test_a_truncated_frame_is_malformed(frame: ControlFrame, data: st.DataObject) -> None:
    raw = encode_frame(frame)
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    with pytest.raises(WireError) as caught:
        decode_frame(cut)
    assert caught.value.code is ErrorCode.MALFORMED_FRAME


@given(FRAMES, st.binary(min_size=1, max_size=8))
def test_bytes_behind_a_frame_are_malformed(frame: ControlFrame, more: bytes) -> None:
    with pytest.raises(WireError):
        decode_frame(encode_frame(frame) + more)


@settings(max_examples=300)
@given(FRAMES, st.data())
def test_a_damaged_frame_raises_nothing_but_a_wire_error(frame: ControlFrame, data: st.DataObject) -> None:
    raw = bytearray(encode_frame(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        assert isinstance(decode_frame(bytes(raw)), FRAME_TYPES)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_a_wire_error(raw: bytes) -> None:
    with pytest.raises(WireError) as caught:
        decode_frame(raw)
    assert caught.value.code is ErrorCode.MALFORMED_FRAME


@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1a"], ids=["array", "map"])
def test_nesting_without_end_raises_nothing_but_a_wire_error(nest: bytes) -> None:
    ping_with_a_deep_unknown_field = b"\x82\xa1x" + nest * 200_000 + b"\xc0\xa5frame\xa4ping"
    with pytest.raises(WireError):
        decode_frame(ping_with_a_deep_unknown_field)


def test_text_that_is_not_utf8_is_malformed() -> None:
    refused = encode_frame(Refused(1, "FR303", "no"))
    with pytest.raises(WireError):
        decode_frame(refused.replace(b"\xa2no", b"\xa2\xff\xfe"))


def test_an_unknown_field_is_malformed() -> None:
    raw = msgspec.msgpack.encode({"frame": "goodbye", "reason": "", "more": 1})
    with pytest.raises(WireError, match="more"):
        decode_frame(raw)


def test_a_field_of_another_type_is_malformed() -> None:
    raw = msgspec.msgpack.encode({"frame": "delivered", "transfer": "1"})
    with pytest.raises(WireError, match="int"):
        decode_frame(raw)
