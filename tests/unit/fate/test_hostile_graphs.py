"""Objects of a peer that hold one another: deeper than the stack, or so often that their text would have no end."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fedrdma_fate.fate.allowed_names import ALLOWED_NAMES, Name, Use
from fedrdma_fate.fate.deserialise import load_fate_bytes
from fedrdma_fate.fate.table_check import checked_pairs
from fedrdma_fate.fate.table_names import TABLE_NAMES
from fedrdma_fate.wire.errors import ErrorCode, FateError
from tests.support.pickled import NUMBER, dictionary, named, stream, text, tuple_of

DOUBLINGS = 60
"""Written out, a few bytes of such a stream would fill an exabyte."""

MOST_SECONDS = 20.0
"""For what takes milliseconds; written out once, it would be hours."""


_LEVEL = pickle.EMPTY_LIST + pickle.MARK
ENDLESS = _LEVEL * DOUBLINGS + pickle.NONE + (pickle.DUP + pickle.APPENDS) * DOUBLINGS
"""A list that holds a list twice, which holds a list twice, and so on."""

ALL_NAMES: Mapping[str, Name] = {
    f"{name.module}:{name.name}": name for name in [*ALLOWED_NAMES.values(), *TABLE_NAMES.values()]
}


def load_bytes(content: bytes) -> Any:
    return load_fate_bytes(b"\0" + content, None, None, "x", "t", ("guest", "9999"))


def load_value(content: bytes) -> Any:
    return list(checked_pairs([(pickle.dumps(1), content)], 0, 0, ()))


def outcome(load: Callable[[bytes], Any], content: bytes) -> FateError | None:
    try:
        load(content)
    except FateError as error:
        return error
    return None


def refused_soon(content: bytes) -> None:
    """If at all: as a value of a table, and as bytes that go FATE's own way."""
    started = time.monotonic()
    for load in (load_bytes, load_value):
        if (error := outcome(load, content)) is not None:
            assert error.code in (ErrorCode.PAYLOAD_MALFORMED, ErrorCode.NAME_FORBIDDEN)
            # what is logged, with what led to it
            assert len("".join(traceback.format_exception(error))) < 10_000
    assert time.monotonic() - started < MOST_SECONDS


def test_the_endless_list_is_one_that_a_task_may_get() -> None:
    loaded = load_bytes(stream(ENDLESS))
    for _ in range(DOUBLINGS - 1):
        assert len(loaded) == 2
        assert loaded[0] is loaded[1]
        loaded = loaded[0]


@pytest.mark.parametrize("name", sorted(ALL_NAMES))
@pytest.mark.parametrize("endless", [ENDLESS, tuple_of(ENDLESS)], ids=["a list", "a tuple"])
def test_what_is_called_made_or_filled_with_a_list_without_end_does_not_write_it_out(name: str, endless: bytes) -> None:
    allowed = ALL_NAMES[name]
    function = named(allowed.module, allowed.name)
    if Use.CALL in allowed.uses:
        for arguments in ((endless,), (endless, endless), (NUMBER, endless), (NUMBER, NUMBER, endless)):
            refused_soon(stream(function, tuple_of(*arguments), pickle.REDUCE))
    if Use.MAKE in allowed.uses:
        refused_soon(stream(function, tuple_of(endless), pickle.NEWOBJ))
        keywords = pickle.EMPTY_DICT + text("blocks") + endless + pickle.SETITEM
        refused_soon(stream(function, pickle.EMPTY_TUPLE, keywords, pickle.NEWOBJ_EX))
        for state in (endless, tuple_of(endless, endless), tuple_of(endless, endless, endless, endless)):
            refused_soon(stream(function, pickle.EMPTY_TUPLE, pickle.NEWOBJ, state, pickle.BUILD))


SERIES = named("pandas.core.series", "Series") + pickle.EMPTY_TUPLE + pickle.NEWOBJ
BLOCKS = named("pandas.core.internals.managers", "SingleBlockManager") + pickle.EMPTY_TUPLE + pickle.NEWOBJ


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(dictionary() + ENDLESS + NUMBER + pickle.SETITEM, id="a list as a key"),
        pytest.param(ENDLESS + pickle.BINPERSID, id="a list as a persistent id"),
        pytest.param(SERIES + dictionary(_typ=text("series"), index=ENDLESS) + pickle.BUILD, id="an index of a series"),
        pytest.param(SERIES + dictionary(_typ=ENDLESS) + pickle.BUILD, id="a type of series"),
        pytest.param(SERIES + dictionary(_typ=text("series"), _flags=dictionary(a=ENDLESS)) + pickle.BUILD, id="flags"),
        pytest.param(
            BLOCKS
            + tuple_of(NUMBER, NUMBER, NUMBER, pickle.EMPTY_DICT + text("0.14.1")
            + dictionary(axes=ENDLESS, blocks=pickle.EMPTY_LIST) + pickle.SETITEM)
            + pickle.BUILD,
            id="axes",
        ),
        pytest.param(named("torch", "device") + tuple_of(text("x" * 100_000)) + pickle.REDUCE, id="a device"),
        pytest.param(b"I" + b"9" * 4000 + b"\n" + pickle.BINPERSID, id="a number as a persistent id"),
        pytest.param(pickle.LONG4 + struct.pack("<I", 10_000) + b"\x7f" * 10_000 + pickle.BINPERSID, id="a long one"),
        pytest.param(pickle.FLOAT + b"x" * 100_000 + b"\n", id="a number that is none"),
    ],
)  # fmt: skip
def test_an_error_about_what_has_no_end_has_one(content: bytes) -> None:
    refused_soon(stream(content))


def test_numbers_of_millions_of_digits_are_no_shape() -> None:
    """A product of them takes minutes."""
    number = pickle.LONG4 + struct.pack("<I", 300_000) + b"\x7f" * 300_000
    shape = tuple_of(*[number] * 32)
    array = named("numpy.core.multiarray", "_reconstruct") + tuple_of(
        named("numpy", "ndarray"), tuple_of(pickle.BININT1 + b"\0"), pickle.SHORT_BINBYTES + b"\1b"
    )
    dtype = named("numpy", "dtype") + tuple_of(text("O8"), pickle.NEWFALSE, pickle.NEWTRUE) + pickle.REDUCE
    state = tuple_of(NUMBER, shape, dtype, pickle.NEWFALSE, pickle.EMPTY_LIST)

    refused_soon(stream(array, pickle.REDUCE, state, pickle.BUILD))


def test_what_lies_within_one_another_deeper_than_the_stack_ends_no_process() -> None:
    """What is not refused is freed again."""
    command = [sys.executable, "-m", "tests.support.nested_streams"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    lines = done.stdout.splitlines()
    assert lines[-1] == "end"
    for refused in ("array", "slice", "array+slice", "tuple", "frozenset", "filled later"):
        assert lines.count(f"{refused} FR704") == 2
    # which are freed in turns, however deep
    for kind in ("list", "dict", "ordered", "instance", "array+list"):
        assert f"{kind} came" in lines
