"""Hands objects, not pickles, to federations that can take them. Others go FATE's way untouched."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from fedrdma_fate.fate.gateway_client import PartyTuple

_INSTALLED = "_fedrdma_object_path"


@runtime_checkable
class ObjectFederation(Protocol):
    """A federation that serialises by itself."""

    def push_object(self, value: object, name: str, tag: str, parties: Sequence[PartyTuple]) -> None:
        """Send an object to some parties."""
        ...

    def load_bytes(self, content: bytes, ctx: Any, name: str, tag: str, party: PartyTuple) -> Any:
        """The object in pulled bytes that FATE's own pickler wrote."""
        ...


@runtime_checkable
class PulledObject(Protocol):
    """What such a federation returns from `pull_bytes` for an object."""

    def load_object(self, ctx: Any, federation: Any, name: str, tag: str, party: PartyTuple) -> Any:
        """The object itself."""
        ...


def install_object_path(pickler: Any, unpickler: Any) -> None:
    """Wrap FATE's `TableRemotePersistentPickler.push` and `TableRemotePersistentUnpickler.pull`; may be repeated."""
    if not hasattr(pickler, _INSTALLED):
        pickler.push = classmethod(_wrap_push(pickler.push.__func__))
        unpickler.pull = classmethod(_wrap_pull(unpickler.pull.__func__))
        setattr(pickler, _INSTALLED, True)


def _wrap_push(original: Any) -> Any:
    @functools.wraps(original)
    def push(
        cls: Any,
        value: Any,
        federation: Any,
        computing: Any,
        name: str,
        tag: str,
        parties: Sequence[PartyTuple],
        max_message_size: int,
        num_partitions_of_slice_table: int,
    ) -> None:
        if isinstance(federation, ObjectFederation):
            federation.push_object(value, name, tag, parties)
            return
        original(cls, value, federation, computing, name, tag, parties, max_message_size, num_partitions_of_slice_table)

    return push


def _wrap_pull(original: Any) -> Any:
    @functools.wraps(original)
    def pull(cls: Any, buffers: Any, ctx: Any, federation: Any, name: str, tag: str, party: PartyTuple) -> Any:
        if isinstance(buffers, PulledObject):
            return buffers.load_object(ctx, federation, name, tag, party)
        if isinstance(federation, ObjectFederation):
            return federation.load_bytes(buffers, ctx, name, tag, party)
        return original(cls, buffers, ctx, federation, name, tag, party)

    return pull
