"""One end of a `shm` link: copies into the peer's region, and notices of them over a unix socket."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import logging
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from fedrdma_fate.ports import Completion, CompletionKind, LentRegion, Region, RemoteSlot, Slot
from fedrdma_fate.transport.endpoint_base import EndpointHealth, ReliableEndpoint
from fedrdma_fate.transport.exposure import ExposureTable, ProtocolViolation, check_target
from fedrdma_fate.transport.shm_keys import KeyTable, PeerKeys, PeerStuck
from fedrdma_fate.wire.errors import MemoryPoolError

NAME = "shm"

logger = logging.getLogger(__name__)

COPY_PIECE = 4 * 1024 * 1024
"""Most bytes copied under one lock: what withdrawing a grant may have to wait for."""

COPY_BUDGET = 8 * 1024 * 1024
"""Bytes copied from one `progress` to the next, so that a large write cannot keep this side from hearing the peer."""

MOST_UNSENT = 64 * 1024
"""Bytes of notices that may wait for the peer to read; beyond, nothing more is copied."""

READ_BYTES = 64 * 1024
"""Of notices, read at once: as many as may wait unsent at the peer."""
MOST_TEXT = 4096
"""Bytes of a reason."""

# op, immediate, key, address, length
_NOTICE = struct.Struct("<B3xIQQQ")


class Op(enum.IntEnum):
    """What a notice says."""

    WRITTEN = 1
    """A write is whole and in place."""
    IMMEDIATE = 2
    """So is a write with immediate."""
    VIOLATION = 3
    """Last words before the link is dropped; `length` bytes of text follow."""
    CHUNK = 4
    """A chunk with immediate is whole and in place."""


class _Notice(NamedTuple):
    op: int
    immediate: int
    key: int
    address: int
    length: int


class AttachedRegion(Region, Protocol):
    """A region of another process, mapped here until it is closed."""

    def take(self, offset: int, length: int) -> None:
        """Give a piece its pages, unless the region had all of them when it was mapped.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when there is no memory for them.
        """
        ...

    def close(self) -> None:
        """Unmap it."""
        ...


class ReceivedLentRegion(LentRegion, Protocol):
    """The peer's send region, until it is closed."""

    def close(self) -> None:
        """Open it no more; what was opened stays."""
        ...


Attach = Callable[[int, int], AttachedRegion]
"""Maps a region of another process: its descriptor, which is taken over, and its length."""
AcceptLent = Callable[[int, int], ReceivedLentRegion]
"""The same for a send region, which is not mapped."""


class _PeerClosed(Exception):  # noqa: N818 - turned into LINK_LOST
    pass


@dataclasses.dataclass(slots=True)
class _Posted:
    work_request: int
    source: Slot | bytes
    length: int
    target: RemoteSlot
    address: int
    op: Op
    immediate: int = 0
    copied: int = 0


class ShmEndpoint(ReliableEndpoint):
    """One end of a link. See `ports.Endpoint`."""

    def __init__(
        self,
        connection: socket.socket,
        own_region: Region,
        keys: KeyTable,
        peer_region: AttachedRegion,
        peer_keys: PeerKeys,
        lent: ReceivedLentRegion | None,
    ) -> None:
        self._health = EndpointHealth(NAME)
        self._connection = connection
        self._own_region = own_region
        self._keys = keys
        self._peer_region = peer_region
        self._peer_keys = peer_keys
        self._lent = lent
        self._exposures = ExposureTable()
        self._posted: deque[_Posted] = deque()
        self._completions: list[Completion] = []
        self._budget = COPY_BUDGET
        self._unsent = bytearray()
        self._received = bytearray()

    @property
    def transport(self) -> str:
        return NAME

    @property
    def lent_region(self) -> LentRegion | None:
        """The peer's send region, if it lends."""
        return self._lent

    def expose(self, grant: int, slot: Slot) -> RemoteSlot:
        """Let the peer write into the slot; addresses count from the start of the region.

        Raises:
            ValueError: the grant is exposed already, or the slot lies in a region that the peer does not map.
        """
        self._health.check()
        if slot.region is not self._own_region:
            raise ValueError(f"a slot of the {slot.region.name} region is not what the peer has mapped")
        self._exposures.require_new(grant)
        return self._exposures.expose(grant, slot, base=slot.offset, key=self._keys.publish())

    def withdraw(self, grant: int) -> None:
        """Close the slot to the peer; waits for a copy into it that is running just now."""
        self._health.check()
        key = self._exposures.withdraw(grant)
        if key is not None:
            self._guarded(lambda: self._keys.revoke(key))

    def post_write(self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int) -> None:
        """Queue the write, and copy right away what is left of COPY_BUDGET."""
        self._post(_Posted(work_request, source, source.length, target, target_offset, Op.WRITTEN))

    def post_bytes(
        self, work_request: int, data: bytes, target: RemoteSlot, target_offset: int, immediate: int
    ) -> None:
        """Queue the write; the peer is told behind everything posted before."""
        self._post(_Posted(work_request, data, len(data), target, target_offset, Op.IMMEDIATE, immediate))

    def post_chunk(
        self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int, queue_pair: int, immediate: int
    ) -> None:
        """Queue the write, and copy right away what is left of COPY_BUDGET."""
        del queue_pair
        self._post(_Posted(work_request, source, source.length, target, target_offset, Op.CHUNK, immediate))

    def poll_set(self) -> Sequence[tuple[int, int]]:
        """The socket: for reading, and for writing (which is nearly always possible) while work waits."""
        self._health.check()
        waiting = self._unsent or self._posted or self._completions
        return [(self._connection.fileno(), select.POLLIN | (select.POLLOUT if waiting else 0))]

    def progress(self) -> Sequence[Completion]:
        """Hear the peer, copy what is queued, and tell the peer."""
        if not self._health.lost:
            self._guarded(self._hear)
        if not self._health.lost:
            self._budget = COPY_BUDGET
            self._guarded(self._work)
        completions, self._completions = self._completions, []
        if not completions:
            self._health.check()
        return completions

    def close(self) -> None:
        """Close the socket, unmap the peer's region, and drop the keys."""
        self._drop("it was closed here")
        self._completions.clear()

    def _post(self, posted: _Posted) -> None:
        self._health.check()
        target = posted.target
        check_target(target, posted.address, posted.length)
        # the peer granted it, but it is this process that would write past the end of the mapping
        check_target(RemoteSlot(target.key, 0, self._peer_region.length), target.address, target.length)
        posted.address += target.address
        self._posted.append(posted)
        self._guarded(self._work)

    def _work(self) -> None:
        while self._posted and self._budget > 0 and len(self._unsent) < MOST_UNSENT:
            posted = self._posted[0]
            self._budget -= self._copy(posted)
            if posted.copied == posted.length:
                self._posted.popleft()
                self._announce(posted)
        self._send()

    def _copy(self, posted: _Posted) -> int:
        piece = min(posted.length - posted.copied, COPY_PIECE)
        to = self._peer_region.address + posted.address + posted.copied
        source = posted.source
        with self._peer_keys.holding(posted.target.key):
            # the peer should have, but it is this process that would die of a page that cannot be had
            self._peer_region.take(posted.address + posted.copied, piece)
            if isinstance(source, bytes):
                ctypes.memmove(to, source, piece)
            else:
                ctypes.memmove(to, source.region.address + source.offset + posted.copied, piece)
        posted.copied += piece
        return piece

    def _announce(self, posted: _Posted) -> None:
        self._unsent += _NOTICE.pack(posted.op, posted.immediate, posted.target.key, posted.address, posted.length)
        self._completions.append(Completion(CompletionKind.WRITE_DONE, posted.work_request))

    def _send(self) -> None:
        if self._unsent:
            try:
                sent = self._connection.send(self._unsent)
            except BlockingIOError:
                return
            del self._unsent[:sent]

    def _hear(self) -> None:
        try:
            raw = self._connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        self._received += raw
        at = 0
        while len(self._received) - at >= _NOTICE.size:
            notice = _Notice._make(_NOTICE.unpack_from(self._received, at))
            text = self._text(notice, at + _NOTICE.size)
            if text is None:
                break
            at += _NOTICE.size + len(text)
            self._on_notice(notice, text)
        del self._received[:at]
        if not raw:
            raise _PeerClosed("the peer closed the connection")

    def _text(self, notice: _Notice, at: int) -> bytes | None:
        """The text behind a notice; None while it has not come whole."""
        if notice.op != Op.VIOLATION:
            return b""
        if notice.length > MOST_TEXT:
            raise ProtocolViolation(f"a text of {notice.length} bytes")
        text = bytes(self._received[at : at + notice.length])
        return text if len(text) == notice.length else None

    def _on_notice(self, notice: _Notice, text: bytes) -> None:
        match notice.op:
            case Op.WRITTEN | Op.IMMEDIATE | Op.CHUNK:
                self._on_landed(notice)
            case Op.VIOLATION:
                raise _PeerClosed(f"the peer says: {text.decode(errors='replace')}")
            case _:
                raise ProtocolViolation(f"a notice of unknown kind {notice.op}")

    def _on_landed(self, notice: _Notice) -> None:
        if self._keys.was_revoked(notice.key):
            return
        exposure = self._exposures.resolve(notice.key, notice.address, notice.length)
        if notice.op == Op.IMMEDIATE:
            self._completions.append(Completion(CompletionKind.IMMEDIATE, immediate=notice.immediate))
            return
        grant, offset, length = exposure.grant, notice.address - exposure.base, notice.length
        if notice.op != Op.CHUNK:
            landed = Completion(CompletionKind.LANDED, immediate=grant, offset=offset, length=length)
        elif not length:
            raise ProtocolViolation("a chunk of no bytes")
        else:
            kind = CompletionKind.CHUNK_IMMEDIATE
            landed = Completion(kind, immediate=notice.immediate, grant=grant, offset=offset, length=length)
        self._completions.append(landed)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run it; whatever shows the link to be broken is remembered for the next call."""
        try:
            action()
        except ProtocolViolation as violation:
            self._report_violation(str(violation))
            self._drop(f"the protocol was broken: {violation}")
        except (_PeerClosed, PeerStuck, MemoryPoolError) as ended:
            self._drop(str(ended))
        except OSError as error:
            self._drop(self._close_reason() or str(error))

    def _close_reason(self) -> str:
        """Why the peer dropped the link, if it said so before the connection broke."""
        try:
            self._hear()
        except _PeerClosed as closed:
            return str(closed)
        except (OSError, ProtocolViolation):
            return ""
        return ""

    def _report_violation(self, reason: str) -> None:
        text = reason.encode()[:MOST_TEXT]
        self._unsent += _NOTICE.pack(Op.VIOLATION, 0, 0, 0, len(text)) + text
        try:
            self._send()
        except OSError:
            return

    def _drop(self, reason: str) -> None:
        if self._health.lost:
            return
        self._health.lose(reason)
        self._exposures.clear()
        self._connection.close()
        self._posted.clear()
        self._peer_keys.close()
        self._peer_region.close()
        if self._lent is not None:
            self._lent.close()
        try:
            self._keys.close()
        except (PeerStuck, OSError) as stuck:
            logger.error("slots of a lost shm link may still be written to: %s", stuck)
