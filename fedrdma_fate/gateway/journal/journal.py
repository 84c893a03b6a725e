"""The journal as the parts of a gateway write it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import logging
import threading
from collections.abc import Callable, Iterator

from fedrdma_fate.core.held import Ranges
from fedrdma_fate.core.recent_numbers import RecentNumbers
from fedrdma_fate.gateway.journal.state import REMEMBERED_TRANSFERS, summarise
from fedrdma_fate.gateway.journal_records import (
    Copied,
    Gone,
    Handed,
    Received,
    Returned,
    SingleRecord,
    Spilled,
    encode_together,
)
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.memory.journal_file import JournalFile
from fedrdma_fate.memory.region_directory import SEND_REGION
from fedrdma_fate.memory.spill import Spilled as SpilledPayload
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.frames import PROBE_TRANSFERS_FROM, Offer

logger = logging.getLogger(__name__)

COMPACT_LOOK_SECONDS = 5.0
"""Between two looks at whether the file is to be compacted: in that time, small messages at their highest rate write
some ten times less than it has when it is."""


@dataclasses.dataclass(slots=True)
class _Group:
    """What is written by one write.

    Attributes:
        thread: whose it is.
        records: those.
        actions: what waits for that.
    """

    thread: int
    records: list[SingleRecord] = dataclasses.field(default_factory=list)
    actions: list[Callable[[], object]] = dataclasses.field(default_factory=list)


class Journal:
    """Any thread may write, and the event loop's alone `together`; without a file, nothing is kept."""

    def __init__(self, file: JournalFile | None = None, *, is_durable: bool = False) -> None:
        """
        Args:
            file: where it is written.
            is_durable: whether peers are told that a message is here only when it is on disk.
        """
        self._file = file
        self.is_durable = is_durable
        self._syncing: asyncio.Future[None] | None = None
        self._next_sync: asyncio.Future[None] | None = None
        self._lock = threading.Lock()
        self._received: dict[str, RecentNumbers] = {}
        self._group: _Group | None = None

    @property
    def is_kept(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def write(self, *records: SingleRecord) -> None:
        """Write these down, all or none of them. When this returns, they outlive the process, unless the disk is full.

        Of that the log tells. Inside `together` they are written at its end.
        """
        if self._file is None:
            return
        if (group := self._own_group) is not None:
            group.records += records
        elif records:
            self._file.append(*encode_together(records))

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What this thread writes inside is written at the end, by one write, and there is all of it or nothing.

        May be nested. Nothing that has to wait for the journal may be done inside but by `then`.
        """
        if self._file is None or self._own_group is not None:
            yield
            return
        group = self._group = _Group(threading.get_ident())
        try:
            yield
        finally:
            self._group = None
            self.write(*group.records)
            for action in group.actions:
                action()

    def then(self, action: Callable[[], object]) -> None:
        """Do this as soon as what was written before is in the file: at once, or at the end of `together`."""
        if (group := self._own_group) is not None:
            group.actions.append(action)
        else:
            action()

    @property
    def _own_group(self) -> _Group | None:
        """What this thread writes together, if it does; what another does must not wait for that."""
        group = self._group
        return group if group is not None and group.thread == threading.get_ident() else None

    def received(self, origin: str, offer: Offer, slot: Slot, payload_at: int, missing: Ranges = ()) -> bool:
        """A payload lies in its slot, but for what is missing; before the peer is told so. Probes are not kept.

        Returns:
            False where it lies in another slot already: two data paths that take turns may both bring it, and what is
            written down of one name is of one slot.
        """
        if self._file is None or offer.transfer >= PROBE_TRANSFERS_FROM:
            return True
        with self._lock:
            received = self._received.setdefault(origin, RecentNumbers(REMEMBERED_TRANSFERS))
            if offer.transfer in received:
                return False
            received.add(offer.transfer)
            self.write(
                Received(
                    origin,
                    offer.transfer,
                    offer.key,
                    offer.kind,
                    offer.total_bytes,
                    offset=slot.offset,
                    payload_at=payload_at,
                    missing=missing,
                    pending=self.is_durable,
                )
            )
        return True

    def forget_received(self, message: Message) -> None:
        """It was here, and is not to be: it may come again."""
        with self._lock:
            if (received := self._received.get(message.origin)) is not None:
                received.discard(message.transfer)

    async def synced(self) -> None:
        """Wait until what was written before is on disk; who comes while others wait goes with the next.

        Raises:
            OSError: it is not.
        """
        if self._next_sync is None:
            self._next_sync = asyncio.ensure_future(self._sync_behind(self._syncing))
        await asyncio.shield(self._next_sync)

    async def _sync_behind(self, before: asyncio.Future[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._syncing, self._next_sync = self._next_sync, None
        if self._file is None:
            raise OSError(errno.ENOENT, "there is no journal")
        await asyncio.to_thread(self._file.sync)

    def keep(self, message: Message, *, pending: bool = False) -> None:
        """A message is here that came by no data path; before anybody is told that it is kept.

        Pending: the peer is told only when a copy of it is on disk, too.
        """
        if self._file is not None:
            lease, copy = message.lease, "" if message.copy is None else message.copy.path.name
            record = Received(
                message.origin,
                message.transfer,
                message.key,
                message.kind,
                message.total_bytes,
                body=None if copy else message.body,
                offset=0 if lease is None else lease.slot.offset,
                sending=lease is not None and lease.slot.region.name == SEND_REGION,
                payload_at=message.payload_at,
                file=copy if message.spilled is None and lease is None else _name_of(message.spilled),
                user=message.user,
                missing=message.missing,
                pending=pending,
                copy=copy,
            )
            self.write(record)
            self.follow(message)

    def follow(self, message: Message) -> None:
        """A message was written down: so will be that its memory is given back."""
        if self._file is not None:
            message.when_gone = functools.partial(self.write, Gone(message.origin, message.transfer))

    def spilled(self, message: Message) -> None:
        """A message lies in a file now; before its slot is given back."""
        if message.when_gone is not None and message.spilled is not None:
            self.write(Spilled(message.origin, message.transfer, message.spilled.path.name))

    def copied(self, message: Message) -> None:
        """A copy of a message that its link has written down is on disk."""
        if message.copy is not None:
            self.write(Copied(message.origin, message.transfer, message.copy.path.name))

    def handed(self, message: Message, client: str, lease: int, asked: int) -> None:
        """A task is about to get a message; see `Received`."""
        if message.when_gone is not None:
            self.write(Handed(message.origin, message.transfer, client, lease, asked))

    def returned(self, message: Message) -> None:
        """It did not get it."""
        if message.when_gone is not None:
            self.write(Returned(message.origin, message.transfer))

    async def keep_short(self) -> None:
        """Compact the file when it is time, for ever."""
        while self._file is not None:
            await asyncio.sleep(COMPACT_LOOK_SECONDS)
            if self._file.wants_compacting:
                try:
                    await asyncio.to_thread(self._file.compact, summarise)
                except OSError as error:
                    logger.error("cannot compact the journal, and will try again: %s", error.strerror)

    def close(self) -> None:
        """Write no more; the file stays. May be repeated."""
        if self._file is not None:
            self._file.close()


def _name_of(spilled: SpilledPayload | None) -> str:
    return "" if spilled is None else spilled.path.name
