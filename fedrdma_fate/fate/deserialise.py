"""From a received buffer back to the object, with arrays and tensors as views of the buffer."""

from __future__ import annotations

import io
from typing import Any

from fate.arch.federation.api import TableRemotePersistentUnpickler

from fedrdma_fate.fate.layout import ObjectView, decode_object, malformed
from fedrdma_fate.fate.segments import restore
from fedrdma_fate.wire.errors import FedRDMAError


class SegmentUnpickler(TableRemotePersistentUnpickler):  # type: ignore[misc]
    """FATE's restricted unpickler, with integer persistent ids as segment numbers.

    Attributes:
        refusal: what FATE's part raised, if it did: a forbidden class, a table that could not be pulled.
    """

    def __init__(
        self, ctx: Any, federation: Any, name: str, tag: str, party: tuple[str, str], content: ObjectView
    ) -> None:
        super().__init__(ctx, federation, name, tag, party, io.BytesIO(content.stream))
        self.refusal: Exception | None = None
        self._content = content
        self._byte_strings: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        """The segment behind a number, else what FATE makes of the id."""
        if type(pid) is int:
            return self._load_segment(pid)
        try:
            return super().persistent_load(pid)
        except Exception as error:
            self.refusal = error
            raise

    def find_class(self, module: str, name: str) -> Any:
        """A class, if FATE's restriction lets it through."""
        try:
            return super().find_class(module, name)
        except Exception as error:
            self.refusal = error
            raise

    def _load_segment(self, number: int) -> Any:
        if not 0 <= number < len(self._content.segments):
            raise malformed(f"it names segment {number} of {len(self._content.segments)}")
        if number in self._byte_strings:
            return self._byte_strings[number]
        segment = self._content.segments[number]
        value = restore(segment, self._content.bodies[number])
        if segment.kind in ("bytes", "bytearray"):
            self._byte_strings[number] = value
        return value


def load_object(buffer: memoryview, ctx: Any, federation: Any, name: str, tag: str, party: tuple[str, str]) -> Any:
    """The object in `buffer`, which its arrays and tensors keep alive.

    Args:
        buffer: writable, as received.
        ctx: FATE context; stands in where the sender's object referred to its own.
        federation: what tables inside the object are pulled through.
        name: name of the message.
        tag: its tag.
        party: its source as (role, party id).

    Raises:
        FateError: PAYLOAD_MALFORMED when the bytes are no object.
        ValueError: FATE's restricted unpickling forbids a class in it.
    """
    unpickler = SegmentUnpickler(ctx, federation, name, tag, party, decode_object(buffer))
    try:
        return unpickler.load()
    except FedRDMAError:
        raise
    except Exception as error:
        if error is unpickler.refusal:
            raise
        raise malformed(f"its pickle stream does not load ({error!r})") from error
