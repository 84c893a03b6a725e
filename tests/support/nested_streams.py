"""Loads objects that lie within one another deeper than a stack, in a thread with a small one, and frees them again.

A program of its own, because a mistake ends the process. It writes a line for each kind and each way into a task: the
kind, and `came` or the code that it was refused with.
"""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable

from fedrdma_fate.fate.deserialise import load_fate_bytes
from fedrdma_fate.fate.table_check import checked_pairs
from fedrdma_fate.wire.errors import FateError
from tests.support.pickled import NUMBER, dictionary, got, named, remembered, stream, text, tuple_of

LEVELS = 20_000
STACK_BYTES = 512 * 1024
"""Which is too little for as many levels that are freed within one another."""

_ARRAY = named("numpy.core.multiarray", "_reconstruct") + tuple_of(
    named("numpy", "ndarray"), tuple_of(pickle.BININT1 + b"\0"), pickle.SHORT_BINBYTES + b"\1b"
)
_OBJECTS = named("numpy", "dtype") + tuple_of(text("O8"), pickle.NEWFALSE, pickle.NEWTRUE) + pickle.REDUCE
_SHARED = [
    _OBJECTS,
    named("builtins", "slice"),
    named("collections", "OrderedDict"),
    named("fate.arch.tensor.phe._keypair", "PHETensorCoder"),
    named("pandas.core.indexes.base", "_new_Index"),
    named("pandas.core.indexes.base", "Index"),
    named("pandas.core.series", "Series"),
]
_DTYPE, _SLICE, _ORDERED, _CODER, _NEW_INDEX, _INDEX, _SERIES = (got(index) for index in range(len(_SHARED)))
_FREE = len(_SHARED)
"""First index of the memo that none of those has."""

Around = tuple[bytes, bytes]
"""What stands before what lies within, and what behind it."""

_ARRAY_STATE = pickle.MARK + NUMBER + tuple_of(NUMBER) + _DTYPE + pickle.NEWFALSE + pickle.EMPTY_LIST
_IN_ARRAY: Around = _ARRAY + pickle.REDUCE + _ARRAY_STATE, pickle.APPEND + pickle.TUPLE + pickle.BUILD
_SERIES_STATE = dictionary(_typ=text("series"), _flags=dictionary(allows_duplicate_labels=pickle.NEWTRUE)) + text(
    "_mgr"
)

KINDS: dict[str, Around] = {
    "array": _IN_ARRAY,
    "slice": (_SLICE + pickle.MARK, pickle.NONE + pickle.NONE + pickle.TUPLE + pickle.REDUCE),
    "list": (pickle.EMPTY_LIST, pickle.APPEND),
    "dict": (pickle.EMPTY_DICT + NUMBER, pickle.SETITEM),
    "tuple": (pickle.MARK, pickle.TUPLE),
    "frozenset": (pickle.MARK, pickle.FROZENSET),
    "ordered": (_ORDERED + pickle.EMPTY_TUPLE + pickle.REDUCE + NUMBER, pickle.SETITEM),
    "instance": (
        _CODER + pickle.EMPTY_TUPLE + pickle.NEWOBJ + pickle.EMPTY_DICT + text("x"),
        pickle.SETITEM + pickle.BUILD,
    ),
    "index": (
        _NEW_INDEX + pickle.MARK + _INDEX + dictionary(name=pickle.NONE) + text("data") + _IN_ARRAY[0],
        _IN_ARRAY[1] + pickle.SETITEM + pickle.TUPLE + pickle.REDUCE,
    ),
    "series": (_SERIES + pickle.EMPTY_TUPLE + pickle.NEWOBJ + _SERIES_STATE, pickle.SETITEM + pickle.BUILD),
}


def _streams() -> dict[str, bytes]:
    head = b"".join(remembered(index, made) for index, made in enumerate(_SHARED))
    nested = {
        "+".join(dict.fromkeys((outer, inner))): head
        + (KINDS[outer][0] + KINDS[inner][0]) * (LEVELS // (2 if outer == inner else 8))
        + pickle.NONE
        + (KINDS[inner][1] + KINDS[outer][1]) * (LEVELS // (2 if outer == inner else 8))
        for outer, inner in [*((kind, kind) for kind in KINDS), *itertools.product(("array",), KINDS)]
    }
    # arrays that are all made first, and then filled with the next, which holds nothing yet
    made = b"".join(remembered(_FREE + number, _ARRAY + pickle.REDUCE) for number in range(LEVELS))
    filled = b"".join(
        got(_FREE + number) + _ARRAY_STATE + got(_FREE + number + 1) + _IN_ARRAY[1] + pickle.POP
        for number in range(LEVELS - 1)
    )
    return {**nested, "filled later": head + made + filled + got(_FREE)}


def _outcome(load: Callable[[], object]) -> str:
    try:
        load()
    except FateError as error:
        return error.code.value
    return "came"


def _load_all() -> None:
    for kind, content in _streams().items():
        body = stream(content)
        ways: list[Callable[[], object]] = [
            lambda: load_fate_bytes(b"\0" + body, None, None, "x", "t", ("guest", "9999")),  # noqa: B023
            lambda: list(checked_pairs([(pickle.dumps(1), body)], 0, 0, ())),  # noqa: B023
        ]
        for load in ways:
            print(kind, _outcome(load), flush=True)


if __name__ == "__main__":
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_load_all)
    thread.start()
    thread.join()
    print("end")
