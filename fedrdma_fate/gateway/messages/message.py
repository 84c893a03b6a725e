"""A message that has arrived: where it lies, and what becomes of that place."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Callable

from fedrdma_fate import memory_files
from fedrdma_fate.client.protocol import Place
from fedrdma_fate.core.held import Ranges
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.memory.region import region_unusable
from fedrdma_fate.memory.shared_slots import BorrowedSlot, hold_range
from fedrdma_fate.memory.spill import Spilled
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, MessageKey, MessageKind


@dataclasses.dataclass(slots=True, eq=False)
class Message:
    """A payload that is here: inline, in a slot, borrowed, or spilled to disk.

    Attributes:
        key: the message.
        kind: what the payload holds.
        total_bytes: its length.
        body: the payload when it came inline.
        lease: holds the slot it lies in.
        payload_at: where in the slot it starts.
        borrowed: the sender's slot, where it lies there, until we give it back.
        spilled: the file it was moved to.
        copy: a file that it lies in, too, on disk.
        moving: set while it is being moved, to disk or into a slot of our own.
        origin: the site that it came from, empty for one of this site.
        user: of this host, whose task pushed it; None for one of another site.
        broker: the site whose OSX broker has brought it, in the name of a task here; empty for others.
        transfer: its transfer there.
        missing: what has not come of it, as both tasks let be, and is zeros there.
        seconds: that its transfer took; None where that is not known, or it had none.
        may_miss: its sender has let something of it be missing.
        arrived: when it was here whole, by time.monotonic.
        when_gone: called once, before its memory or file is given back; empty where the journal does not know of it.
    """

    key: MessageKey
    kind: MessageKind
    total_bytes: int
    body: bytes | None = None
    lease: Lease | None = None
    payload_at: int = 0
    borrowed: BorrowedSlot | None = None
    spilled: Spilled | None = None
    copy: Spilled | None = None
    moving: asyncio.Task[None] | None = None
    origin: str = ""
    user: int | None = None
    broker: str = ""
    transfer: int = 0
    missing: Ranges = ()
    seconds: float | None = None
    may_miss: bool = False
    when_gone: Callable[[], None] | None = None
    arrived: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def counts_as(self) -> str:
        """Under whose name it counts while it waits."""
        return self.origin if self.user is None else name_of_pusher(self.user, self.broker)

    @property
    def lease_owner(self) -> str | None:
        """Who holds its slot, where it lies in one."""
        return None if self.lease is None else self.lease.owner

    def locate(self) -> tuple[Place, int, int]:
        """What kind of file the payload lies in, a descriptor of it, and where in it, for a task to map.

        The descriptor belongs to whoever asked. Of what was borrowed it holds the lender's slot, too.

        Raises:
            GatewayError: MESSAGE_LOST when somebody has removed its file.
            MemoryPoolError: SPILL_FAILED or REGION_UNAVAILABLE when there is no descriptor to be had.
        """
        if self.spilled is not None:
            return "spilled", self.spilled.open(), 0
        try:
            if self.borrowed is not None:
                return "borrowed", os.dup(self.borrowed.fileno), self.borrowed.offset
            assert self.lease is not None
            slot = self.lease.slot
            offset = slot.offset + self.payload_at
            return "region", _open_held(slot.region.fileno, offset, self.total_bytes), offset
        except OSError as error:
            raise region_unusable(f"the memory of {self.key}", error) from error

    def small_body(self) -> bytes | None:
        """The payload itself, where it is small and in memory of ours; else None."""
        is_long = self.total_bytes > INLINE_LIMIT_BYTES or bool(self.missing)
        if self.body is not None or self.lease is None or is_long:
            return self.body
        return bytes(self.lease.slot.part(self.payload_at, self.total_bytes).view)

    def discard(self) -> None:
        """Give its memory or file back; while it is being moved, afterwards. May be repeated."""
        if self.moving is not None:
            self.moving.add_done_callback(lambda _: self.discard())
            return
        self.note_gone()
        if self.lease is not None:
            self.lease.release()
            self.lease = None
        if self.borrowed is not None:
            self.borrowed.close()
            self.borrowed = None
        if self.spilled is not None:
            self.spilled.discard()
            self.spilled = None
        if self.copy is not None:
            self.copy.discard()
            self.copy = None

    def note_gone(self) -> None:
        """Write down that nobody needs it any more, ahead of `discard`."""
        if self.when_gone is not None:
            self.when_gone()
            self.when_gone = None

    def use_copy(self) -> Spilled | None:
        """It lies in its copy alone from now on, where there is one."""
        self.spilled, self.copy = self.copy, None
        return self.spilled


def _open_held(fileno: int, offset: int, length: int) -> int:
    """A descriptor for a task that maps a message: the next gateway sees by its lock that somebody does.

    Raises:
        OSError: there is none to be had.
    """
    descriptor = memory_files.open_for_reading(fileno)
    try:
        hold_range(descriptor, offset, length)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def name_of_broker(site: str) -> str:
    """As whose messages to parties of this site count that the OSX broker of a peer has brought."""
    return f"the OSX broker of {site}"


def name_of_pusher(user: int, broker: str = "") -> str:
    """As whose messages to parties of this site count that were pushed by a user's tasks, or by a broker as such.

    Args:
        user: whose tasks.
        broker: the site of the broker; empty where there is none.
    """
    return name_of_broker(broker) if broker else f"tasks of user {user}"
