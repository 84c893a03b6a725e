"""Checks keys and values of a received table before FATE's computing engine, which takes any name, unpickles them.

Runs in the worker that rebuilds a partition, and unpickles each pickle by exact names (`unpickler.py`, with those of
`table_names.py`). What the engine gets then:

- **a pickle without any name, as it came.** It was read by Python's unpickler in C, without a function or class within
  its reach; the engine reads it with the same one, so it does the same again. These are the rows of PSI, positions of
  samples, numbers and text; writing them anew would more than double the cost, and is not needed.
- **a value with names, pickled anew.** It was read by the unpickler in Python, and those two differ in what they make
  of a stream (old names that C translates, what `POP` does at a mark, numbers as text). A stream that is harmless to
  one may not be to the other, so the engine gets none that we have not written. It costs a second pickling of arrays
  and tensors, a copy each.
- **a key with names, as it came, if pickling it anew makes the same bytes.** Tables are partitioned, sorted and joined
  by the bytes of their keys: others in their place would be another key.

Integers (type 1) are eight bytes, which the engine does not unpickle.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from fedrdma_fate.fate.allowed_names import Name
from fedrdma_fate.fate.malformed import malformed, refuse
from fedrdma_fate.fate.table_batches import Pair
from fedrdma_fate.fate.table_names import table_names_with
from fedrdma_fate.fate.unpickler import NameWantedError, unpickle_named, unpickle_unnamed
from fedrdma_fate.wire.errors import FedRDMAError

PICKLED, INTEGER = 0, 1
"""FATE's types of serialisation for keys and values."""
_INTEGER_BYTES = 8  # as FATE writes one

MOST_PARTITIONS = 8192
"""Of a table. Each is a task of the engine and a message at least, and by default twice so many messages of one session
may wait at a gateway (`limits.session_messages`); engines are configured for some hundred."""

_DOES_NOT_LOAD = "a pickle in a table does not load"

_GROWTH = 4
"""A value pickled anew may be so many times as long. An honest one is as long as before; one that has the state of a
ciphertext once, and instances of it a thousand times, is not."""
_GROWTH_BYTES = 64 * 1024  # so that what torch writes around the few values of a tensor does not matter


def check_serdes_types(key_type: int, value_type: int) -> None:
    """Refuse a table whose keys or values the engine would read in a way that is not checked here.

    Raises:
        FateError: PAYLOAD_MALFORMED.
    """
    for each in (key_type, value_type):
        if each not in (PICKLED, INTEGER):
            # the number itself may have more digits than Python writes
            raise malformed("a table's keys or values are of a type that FATE does not have")


def check_partitions(count: int) -> None:
    """Refuse a table of so many partitions that the engine would do nothing but make them.

    Raises:
        FateError: PAYLOAD_MALFORMED.
    """
    if not 1 <= count <= MOST_PARTITIONS:
        # the number itself may have more digits than Python writes
        raise malformed(f"a table has more than {MOST_PARTITIONS} partitions, or none")


def checked_pairs(
    pairs: Iterable[Pair], key_type: int, value_type: int, allowed_names: Collection[str]
) -> Iterator[Pair]:
    """The pairs of a table, as the engine may unpickle them, in their order.

    Args:
        pairs: as they came.
        key_type: how its keys are serialised.
        value_type: how its values are.
        allowed_names: further names of the job, as `module:name`.

    Raises:
        FateError: NAME_FORBIDDEN when one asks for a name that is not allowed; PAYLOAD_MALFORMED when one is no pickle
            that we load, or no integer.
    """
    names = table_names_with(allowed_names)
    for key, value in pairs:
        yield (
            _checked_key(key, names) if key_type == PICKLED else _checked_integer(key),
            _checked_value(value, names) if value_type == PICKLED else _checked_integer(value),
        )


def _checked_integer(content: bytes) -> bytes:
    if len(content) != _INTEGER_BYTES:
        raise malformed(f"an integer in a table is {len(content)} bytes long")
    return content


def _checked_value(content: bytes, names: Mapping[tuple[str, str], Name]) -> bytes:
    return content if _has_no_name(content) else _pickled_anew(content, names)


def _checked_key(content: bytes, names: Mapping[tuple[str, str], Name]) -> bytes:
    if not _has_no_name(content) and _pickled_anew(content, names) != content:
        raise malformed("a key of a table is not pickled as FATE's computing engine does it here")
    return content


def _has_no_name(content: bytes) -> bool:
    try:
        unpickle_unnamed(content, _no_persistent_id)
        return True
    except NameWantedError:
        return False
    except FedRDMAError:
        raise
    except BaseException as error:
        refuse(_DOES_NOT_LOAD, error)


def _pickled_anew(content: bytes, names: Mapping[tuple[str, str], Name]) -> bytes:
    out = _BoundedStream(_GROWTH * len(content) + _GROWTH_BYTES)
    try:
        # as FATE's computing engine does
        pickle.Pickler(out).dump(unpickle_named(content, names, _no_persistent_id))
    except FedRDMAError:
        raise
    except BaseException as error:
        refuse(_DOES_NOT_LOAD, error)
    return out.getvalue()


class _BoundedStream(io.BytesIO):
    """Refuses to become longer than it may."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self._limit_bytes = limit_bytes

    def write(self, content: Any) -> int:
        if self.tell() + len(content) > self._limit_bytes:
            raise malformed(f"a value of a table becomes longer than {self._limit_bytes} bytes once it is unpickled")
        return super().write(content)


def _no_persistent_id(pid: Any) -> Any:
    raise malformed(f"a table has a persistent id of type {type(pid).__qualname__}, which only objects have")
