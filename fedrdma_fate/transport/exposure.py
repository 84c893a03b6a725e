"""Which slots a peer may write into, under which keys; and the checks at both ends of a write."""

from __future__ import annotations

import dataclasses
import secrets
from collections import deque

from fedrdma_fate.ports import RemoteSlot, Slot
from fedrdma_fate.wire.errors import ErrorCode, TransferError

KEY_BITS = 63
"""Keys travel in msgpack as integers; 63 bits stay positive everywhere."""

_U64 = 1 << 64

MOST_DRAINING = 64
"""Grants that were closed in the middle of a transfer and are remembered: many more than a peer has under way."""


class ProtocolViolation(Exception):  # noqa: N818 - it never leaves the transport; the link is lost instead
    """The peer did what it must not do. Nothing was written; the link has to go."""


@dataclasses.dataclass(slots=True)
class Exposure:
    """A slot that the peer may write into while `live`.

    Attributes:
        grant: id that completions name.
        slot: where the bytes go.
        base: address of the slot's first byte as the peer spells it.
        live: False from the moment it was withdrawn; whoever holds on to an exposure looks here before each write.
        drains: it was withdrawn in the middle of a transfer: what still comes is thrown away.
    """

    grant: int
    slot: Slot
    base: int
    live: bool = True
    drains: bool = False


def check_target(target: RemoteSlot, offset: int, length: int) -> None:
    """The sender's own check of a write; the grant came from the peer and is not trusted either.

    Raises:
        TransferError: GRANT_VIOLATION when [offset, offset + length) does not lie inside the target.
    """
    sane = 0 <= target.key < _U64 and target.address >= 0 and target.address + target.length < _U64
    if not sane or offset < 0 or offset + length > target.length:
        raise TransferError(
            ErrorCode.GRANT_VIOLATION,
            f"a write of {length} bytes at {offset} does not lie inside the granted {target.length} bytes.",
        )


class ExposureTable:
    """The live exposures of one endpoint, by random key."""

    def __init__(self) -> None:
        self._by_key: dict[int, Exposure] = {}
        self._keys: dict[int, int] = {}
        self._draining: deque[int] = deque()

    def expose(self, grant: int, slot: Slot, *, base: int = 0, key: int | None = None) -> RemoteSlot:
        """Open the slot to the peer, under a fresh random key unless one is given.

        Raises:
            ValueError: the grant is exposed already.
        """
        self.require_new(grant)
        chosen = new_key() if key is None else key
        self._keys[grant] = chosen
        self._by_key[chosen] = Exposure(grant, slot, base)
        return RemoteSlot(chosen, base, slot.length)

    def require_new(self, grant: int) -> None:
        """Do nothing when the grant is not exposed.

        Raises:
            ValueError: it is.
        """
        if grant in self._keys:
            raise ValueError(f"grant {grant} is exposed already")

    def withdraw(self, grant: int) -> int | None:
        """Close it again; the key it had, or None for an unknown grant."""
        key = self._keys.pop(grant, None)
        if key is not None:
            self._by_key.pop(key).live = False
        return key

    def drain(self, grant: int) -> None:
        """Close it, and let what is still on its way there come, to be thrown away."""
        key = self._keys.pop(grant, None)
        if key is None:
            return
        exposure = self._by_key[key]
        exposure.live, exposure.drains = False, True
        self._draining.append(key)
        if len(self._draining) > MOST_DRAINING:
            del self._by_key[self._draining.popleft()]

    def resolve(self, key: int, address: int, length: int) -> Exposure:
        """The exposure that a write of the peer falls into.

        Raises:
            ProtocolViolation: no such key (any more), or outside its slot.
        """
        exposure = self._by_key.get(key)
        if exposure is None:
            raise ProtocolViolation(f"a write of {length} bytes names a key that was never granted or was withdrawn")
        offset = address - exposure.base
        if offset < 0 or offset + length > exposure.slot.length:
            raise ProtocolViolation(
                f"a write of {length} bytes at {offset} is out of range of grant {exposure.grant}, "
                f"which holds {exposure.slot.length} bytes"
            )
        return exposure

    def clear(self) -> None:
        """Close all of them."""
        for grant in list(self._keys):
            self.withdraw(grant)
        while self._draining:
            del self._by_key[self._draining.popleft()]


def new_key() -> int:
    """A random key that is never zero."""
    return secrets.randbits(KEY_BITS) | 1 << (KEY_BITS - 1)
