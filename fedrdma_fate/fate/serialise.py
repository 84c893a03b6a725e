"""One pass over an object: a small pickle stream and raw buffers, written into one leased buffer."""

from __future__ import annotations

import enum
import io
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from fate.arch.computing.api import KVTable
from fate.arch.federation.api import TableMeta, TableRemotePersistentPickler
from fate.arch.federation.api._serdes import _TablePersistentId
from safetensors import SafetensorError  # type: ignore[attr-defined]

from fedrdma_fate.fate.copying import Placement, Progress, raw_placement, write_backwards
from fedrdma_fate.fate.layout import Segment, encode_prefix
from fedrdma_fate.fate.segments import Source, bytes_source, describe
from fedrdma_fate.fate.small_tables import MOST_BYTES, read_small
from fedrdma_fate.wire.errors import ErrorCode, FateError, FedRDMAError

_NEVER_PERSISTENT = frozenset((type(None), bool, int, float, str, tuple, list, dict))
_UNSERIALISABLE = (pickle.PicklingError, TypeError, AttributeError, LookupError, ValueError, SafetensorError)


class ObjectPlan:
    """An object ready to be written: its length is known, its large buffers have not been touched."""

    def __init__(
        self,
        what: str,
        prefix: bytes,
        segments: Sequence[Segment],
        sources: Sequence[Source],
        whole: int | None = None,
    ) -> None:
        """
        Args:
            what: the object's name and type, for errors.
            prefix: layout header, table and pickle stream.
            segments: where each raw buffer lies behind the prefix.
            sources: the raw buffers, in the same order.
            whole: how many of them, the first ones, have to come whole; None: all.
        """
        self._whole = len(segments) if whole is None else whole
        self._what = what
        self._prefix = prefix
        self._segments = segments
        self._sources = sources

    @property
    def total_bytes(self) -> int:
        """Bytes that `write_into` needs."""
        return len(self._prefix) + (self._segments[-1].offset + self._segments[-1].length if self._segments else 0)

    @property
    def whole_bytes(self) -> int:
        """From the start on, that have to come: prefix, and raw buffers of which nothing may be missing."""
        if self._whole == len(self._segments):
            return self.total_bytes
        return len(self._prefix) + self._segments[self._whole].offset

    def write_into(self, buffer: memoryview, progress: Progress | None = None, *, digests: bool = True) -> None:
        """Write everything, from the end to the start; each raw buffer is copied once.

        Args:
            buffer: writable, exactly `total_bytes` long.
            progress: told how far it has come; see `copying.Progress`.
            digests: whether it is told digests as well.

        Raises:
            FateError: UNSERIALISABLE when torch refuses to give the values of a tensor.
        """
        try:
            write_backwards(self._placements(), buffer, progress, digests=digests)
        except pickle.PicklingError as error:
            raise _unserialisable(self._what, error.__cause__ or error) from error

    def _placements(self) -> Iterator[Placement]:
        """From the last to the first."""
        prefix_bytes, placed_from = len(self._prefix), self.total_bytes
        for segment, source in zip(reversed(self._segments), reversed(self._sources), strict=True):
            start = prefix_bytes + segment.offset
            # the slot may still hold another session's bytes
            yield raw_placement(start + segment.length, bytes(placed_from - start - segment.length))
            yield source.placed_at(start)
            placed_from = start
        yield raw_placement(prefix_bytes, bytes(placed_from - prefix_bytes))
        yield raw_placement(0, self._prefix)

    def matches(self, buffer: memoryview) -> bool:
        """Whether `write_into` would change nothing in `buffer`; reads both, copies nothing.

        Raises:
            FateError: UNSERIALISABLE when torch refuses to give the values of a tensor.
        """
        prefix_bytes = len(self._prefix)
        if len(buffer) != self.total_bytes or buffer[:prefix_bytes] != self._prefix:
            return False
        bodies = (
            buffer[prefix_bytes + segment.offset : prefix_bytes + segment.offset + segment.length]
            for segment in self._segments
        )
        try:
            return all(source.equals(body) for source, body in zip(self._sources, bodies, strict=True))
        except pickle.PicklingError as error:
            raise _unserialisable(self._what, error.__cause__ or error) from error


class SegmentPickler(TableRemotePersistentPickler):  # type: ignore[misc]
    """FATE's pickler, with arrays, tensors and long byte strings taken out: their persistent id is a segment number."""

    def __init__(
        self,
        federation: Any,
        name: str,
        tag: str,
        parties: Sequence[tuple[str, str]],
        stream: io.BytesIO,
        places: Sequence[int] | None = None,
    ) -> None:
        """
        Args:
            federation: what tables inside the object are pushed through.
            name: name of the message.
            tag: its tag.
            parties: its destinations.
            stream: where the pickle goes.
            places: the segment number of each raw buffer, in the order in which they are met; None: in that order.
        """
        super().__init__(federation, name, tag, parties, stream)
        self.sources: list[Source] = []
        self._places = places
        self._numbers: dict[int, int] = {}
        self._byte_strings: list[object] = []
        self._small_table_room = MOST_BYTES

    def persistent_id(self, value: Any) -> Any:
        """The segment number of a raw buffer, else what FATE says; called by pickle for every object."""
        if type(value) in _NEVER_PERSISTENT:
            return None
        known = self._numbers.get(id(value))
        if known is not None:
            return known
        source = describe(value)
        if source is None:
            return self._table_id(value) if isinstance(value, KVTable) else super().persistent_id(value)
        number = self._number_of(source)
        # pickle keeps the identity of byte strings, while FATE makes an object of its own of each tensor it meets
        if source.kind in ("bytes", "bytearray"):
            self._numbers[id(value)] = number
            self._byte_strings.append(value)
        return number

    def _number_of(self, source: Source) -> int:
        self.sources.append(source)
        met = len(self.sources) - 1
        return met if self._places is None else self._places[met]

    def _table_id(self, table: Any) -> Any:
        """FATE's, with the number of a segment in place of the name of messages where the table is small."""
        content = read_small(table, self._small_table_room)
        if content is None:
            return super().persistent_id(table)
        self._small_table_room -= len(content)
        meta = TableMeta(table.num_partitions, table.key_serdes_type, table.value_serdes_type, table.partitioner_type)
        return _TablePersistentId(key=self._number_of(bytes_source(content)), table_meta=meta)

    def reducer_override(self, value: Any) -> Any:
        """A member of an enumeration by its value on every Python, as pickle wants it.

        Python 3.11.0 to 3.11.3, Debian 12's among them, would have the receiver call `getattr`, which no peer may.
        """
        kind: Any = type(value)
        if isinstance(value, enum.Enum) and kind.__reduce_ex__ is enum.Enum.__reduce_ex__:
            return kind, (value.value,)
        return NotImplemented


class _LookingPickler(SegmentPickler):
    """Looks at what an object has, and pushes no table."""

    def _push_table(self, table: Any, key: str) -> str:
        del table
        self._table_index += 1
        return key


def plan_object(
    value: object,
    federation: Any,
    name: str,
    tag: str,
    parties: Sequence[tuple[str, str]],
    footer: bytes = b"",
    *,
    tolerant: bool = False,
) -> ObjectPlan:
    """Pickle an object for some parties; tables inside it are pushed to them on the way, as FATE does.

    Args:
        value: the object.
        federation: what tables inside the object are pushed through.
        name: name of the message.
        tag: its tag.
        parties: its destinations as (role, party id).
        footer: bytes at the very end, which the object itself does not refer to; see `wire.summand`.
        tolerant: whether something of its arrays may be missing: what has to be whole lies in front then.

    Raises:
        FateError: UNSERIALISABLE when pickle or FATE's own way of packing refuses something in it.
    """
    what = f"{name!r} of type {type(value).__qualname__}"
    stream = io.BytesIO()
    order: list[int] | None = None
    try:
        if tolerant:
            looking = _LookingPickler(federation, name, tag, parties, io.BytesIO())
            looking.dump(value)
            order = sorted(range(len(looking.sources)), key=lambda met: looking.sources[met].may_miss)
        # a place for each raw buffer, before the stream names it
        places = None if order is None else [place for _, place in sorted(zip(order, range(len(order)), strict=True))]
        pickler = SegmentPickler(federation, name, tag, parties, stream, places)
        pickler.dump(value)
        if tolerant and [source.may_miss for source in looking.sources] != [
            source.may_miss for source in pickler.sources
        ]:
            raise pickle.PicklingError("it has other arrays each time that it is pickled")
    except FedRDMAError:
        raise
    except _UNSERIALISABLE as error:
        raise _unserialisable(what, error) from error
    sources = pickler.sources if order is None else [pickler.sources[met] for met in order]
    whole = None if order is None else sum(not source.may_miss for source in sources)
    sources = [*sources, *([bytes_source(footer)] if footer else [])]
    segments: list[Segment] = []
    for source in sources:
        segments.append(source.at(segments[-1].next_offset if segments else 0))
    return ObjectPlan(what, encode_prefix(segments, stream.getbuffer()), segments, sources, whole)


def _unserialisable(what: str, error: BaseException) -> FateError:
    return FateError(
        ErrorCode.UNSERIALISABLE,
        f"the object {what} cannot be serialised: {error!r}.",
        "Send plain containers, numbers, strings, arrays, dense tensors or FATE tables.",
    )
