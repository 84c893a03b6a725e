"""From a received buffer back to the object, with arrays and tensors as views of the buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fate.arch.federation.api import TableMeta
from fate.arch.federation.api._serdes import (
    _ContextPersistentId,
    _NumpySafeTensorPersistentId,
    _TablePersistentId,
    _TorchSafeTensorPersistentId,
)

from fedrdma_fate.fate.allowed_names import ALLOWED_NAMES, Name
from fedrdma_fate.fate.layout import ObjectView, decode_object
from fedrdma_fate.fate.malformed import malformed, refuse
from fedrdma_fate.fate.missing import MissingElements, missing_elements
from fedrdma_fate.fate.segments import check_truth_values, restore
from fedrdma_fate.fate.small_tables import MOST_BYTES
from fedrdma_fate.fate.unpickler import unpickle
from fedrdma_fate.wire.errors import FedRDMAError

_NO_SEGMENTS = ObjectView(memoryview(b""), (), memoryview(b""))

_WHOLE = b"\x00"  # how FATE marks a pickle that it has not cut into a table of slices


class _PersistentIds:
    """What is behind the persistent ids of one stream: integers are segments, the others FATE's own.

    Attributes:
        failure: what pulling a table raised, if it did.
    """

    def __init__(
        self, ctx: Any, federation: Any, name: str, tag: str, party: tuple[str, str], content: ObjectView
    ) -> None:
        self.failure: BaseException | None = None
        self._ctx = ctx
        self._federation = federation
        self._name = name
        self._tag = tag
        self._party = party
        self._content = content
        self._restored: dict[int, Any] = {}
        self._tables: set[int] = set()

    @property
    def hold_arrays(self) -> bool:
        """Whether a number may stand for a tensor or an array."""
        return any(segment.kind in ("tensor", "ndarray") for segment in self._content.segments)

    @property
    def longest(self) -> int:
        """Bytes of the longest byte string that a number may stand for."""
        return max((segment.length for segment in self._content.segments if segment.kind == "bytes"), default=0)

    def __call__(self, pid: Any) -> Any:
        """See `unpickler.PersistentLoad`.

        Raises:
            FateError: PAYLOAD_MALFORMED when nothing is behind it.
            Exception: what pulling a table raises.
        """
        kind = type(pid)
        if kind is int:
            return self._load_segment(pid)
        if kind is _ContextPersistentId:
            return self._ctx
        if kind is _TablePersistentId:
            return self._pull_table(vars(pid))
        if kind is _TorchSafeTensorPersistentId or kind is _NumpySafeTensorPersistentId:
            if type(vars(pid).get("bytes")) is not bytes:
                raise malformed("an array in it is no bytes")
            # the class's own, for the instance has the attributes that the stream gave it
            value = kind.load(pid, self)
            check_truth_values(value)
            return value
        raise malformed(f"it has a persistent id of type {kind.__qualname__}")

    @property
    def arrays_met(self) -> list[int]:
        """Numbers of the segments that are arrays or tensors, in the order in which the stream named them first."""
        segments = self._content.segments
        return [number for number in self._restored if segments[number].kind in ("tensor", "ndarray")]

    def _load_segment(self, number: int) -> Any:
        if not 0 <= number < len(self._content.segments):
            # the number itself may have more digits than Python writes
            raise malformed(f"it names a segment that is none of the {len(self._content.segments)} in it")
        # a stream may name one as often as it likes, and each time truth values would be looked at again
        if number not in self._restored:
            self._restored[number] = restore(self._content.segments[number], self._content.body(number))
        return self._restored[number]

    def _pull_table(self, described: Mapping[str, Any]) -> Any:
        key, meta = described.get("key"), described.get("table_meta")
        fields = ("num_partitions", "key_serdes_type", "value_serdes_type", "partitioner_type")
        whole = type(meta) is TableMeta and all(type(vars(meta).get(field)) is int for field in fields)
        if type(key) not in (str, int) or not whole:
            raise malformed("a table in it is not described as FATE describes one")
        try:
            if type(key) is int:
                return self._federation.make_table(self._small_table(key), meta)
            return self._federation.pull_table(key, self._tag, [self._party], table_metas=[meta])[0]
        except BaseException as error:
            self.failure = error
            raise

    def _small_table(self, number: int) -> memoryview:
        # a stream may name one as often as it likes, and all of them together are bounded
        if not 0 <= number < len(self._content.segments) or number in self._tables:
            raise malformed("a table in it is in no segment, or in the same as another")
        if self._content.segments[number].kind != "bytes":
            raise malformed("a table in it is in a segment of another kind")
        self._tables.add(number)
        if sum(self._content.segments[each].length for each in self._tables) > MOST_BYTES:
            raise malformed(f"the tables in it are longer than {MOST_BYTES} bytes")
        return self._content.body(number)


def load_object(
    buffer: memoryview,
    ctx: Any,
    federation: Any,
    name: str,
    tag: str,
    party: tuple[str, str],
    names: Mapping[tuple[str, str], Name] = ALLOWED_NAMES,
) -> Any:
    """The object in `buffer`, which its arrays and tensors keep alive.

    Args:
        buffer: writable, as received.
        ctx: FATE context; stands in where the sender's object referred to its own.
        federation: what tables inside the object are pulled through.
        name: name of the message.
        tag: its tag.
        party: its source as (role, party id).
        names: what it may use.

    Raises:
        FateError: PAYLOAD_MALFORMED when the bytes are no object, NAME_FORBIDDEN when it uses other names.
    """
    return load_with_missing(buffer, (), ctx, federation, name, tag, party, names)[0]


def load_with_missing(
    buffer: memoryview,
    missing: Sequence[tuple[int, int]],
    ctx: Any,
    federation: Any,
    name: str,
    tag: str,
    party: tuple[str, str],
    names: Mapping[tuple[str, str], Name] = ALLOWED_NAMES,
) -> tuple[Any, tuple[MissingElements, ...]]:
    """See `load_object`; and which elements of its arrays are missing, of these ranges of bytes in `buffer`."""
    content = decode_object(buffer)
    pids = _PersistentIds(ctx, federation, name, tag, party, content)
    value = _load(content.stream, pids, names)
    raw_at = len(buffer) - len(content.raw)
    return value, missing_elements(content.segments, raw_at, missing, pids.arrays_met) if missing else ()


def load_fate_bytes(
    content: bytes,
    ctx: Any,
    federation: Any,
    name: str,
    tag: str,
    party: tuple[str, str],
    names: Mapping[tuple[str, str], Name] = ALLOWED_NAMES,
) -> Any:
    """The object in bytes that FATE's own pickler wrote; see `load_object`.

    FATE cuts large ones into a table of slices, which its computing engine would unpickle. Our federation has no limit
    from which it does so, so those are refused.
    """
    if content[:1] != _WHOLE:
        raise malformed(f"bytes start with {content[:1]!r}, and are no pickle in one piece")
    return _load(content[1:], _PersistentIds(ctx, federation, name, tag, party, _NO_SEGMENTS), names)


def _load(stream: bytes | memoryview, pids: _PersistentIds, names: Mapping[tuple[str, str], Name]) -> Any:
    try:
        return unpickle(stream, names, pids, holds_arrays=pids.hold_arrays, longest=pids.longest)
    except FedRDMAError:
        raise
    except BaseException as error:
        if error is pids.failure:
            raise
        refuse("its pickle stream does not load", error)
