"""What a peer has sent and is being written to disk, before the peer is told that it is here (`durable`)."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable
from typing import TypeVar

from fedrdma_fate.engine.events import PayloadLanded
from fedrdma_fate.engine.link_thread import LinkHandle
from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.memory.payload_copies import CopyAhead
from fedrdma_fate.memory.spill import Spilled
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, MemoryPoolError
from fedrdma_fate.wire.frames import Delivered, MessageKey, Offer

IN_JOURNAL_BYTES = 4096
"""Up to this a small message is saved in its record: a file of its own costs the disk two writes more. Of as many as
one peer may have here (`limits.messages`), the journal then has 64 MiB."""

MOST_SMALL_BYTES = 256 << 20
"""Of small messages of one peer that are being saved: four times what an honest one keeps unconfirmed by default
(`limits.outgoing_bytes`)."""

MOST_COPYING = 4
"""Messages of one peer that are being copied at once, so that those of others do not wait behind thousands of its."""

MOST_AHEAD = 16
"""Copies of one peer that are begun while their messages come, each with a descriptor: four times what is written at
once. Of others nothing is written before one of these is whole, or gone."""

LEAST_AHEAD_BYTES = 64 * 1024 * 1024
"""Of a message whose copy is begun while it comes: a shorter one is on disk in some 30 ms when all of it has come."""

AHEAD_STEP_BYTES = 32 * 1024 * 1024
"""Written at once: a disk of 2 GB/s writes that in 16 ms, and larger pieces go no faster."""

Written = TypeVar("Written")

_MESSAGE_BYTES = 1024
"""What each takes besides its payload."""


@dataclasses.dataclass(slots=True)
class _Ahead:
    """A copy of a message that is still coming.

    Attributes:
        copy: it.
        landed: which bytes of the message lie in its slot.
        is_writing: those that are not in the copy yet are being written.
        is_over: the copy is another's now, or nobody's.
    """

    copy: CopyAhead
    landed: tuple[int, int]
    is_writing: bool = False
    is_over: bool = False


@dataclasses.dataclass(slots=True)
class _Entry:
    """A message on its way to disk.

    Attributes:
        message: it; nobody can pull it yet.
        small_bytes: what it takes of `MOST_SMALL_BYTES`.
        ahead: its copy, where that was begun while it came.
        again: its peer has offered it again, and the data path that this came by.
        given_up: its peer has given it up.
    """

    message: Message
    small_bytes: int
    ahead: CopyAhead | None = None
    again: tuple[Offer, LinkHandle] | None = None
    given_up: bool = False


class Saving:
    """Belongs to the event loop's thread. Large messages are bounded by the slots that they lie in."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._entries: dict[int, _Entry] = {}
        # by where their slots start
        self._ahead: dict[int, _Ahead] = {}
        # copies that were begun, of messages that are whole by now
        self._to_finish = 0
        self._small_bytes = 0
        self._copying = asyncio.Semaphore(MOST_COPYING)

    def __contains__(self, transfer: int) -> bool:
        return transfer in self._entries

    @property
    def is_full(self) -> bool:
        """Whether another small message is one too many."""
        return self._small_bytes >= MOST_SMALL_BYTES

    def landed(self, told: PayloadLanded) -> None:
        """So much of a payload lies in its slot: it is written to disk while the rest comes."""
        ahead, copies = self._ahead.get(told.slot.offset), self._context.copies
        if not told.end:
            self.drop_ahead(told.slot)
            return
        before = 0 if ahead is None else ahead.landed[1] - ahead.landed[0]
        if told.offer.total_bytes < LEAST_AHEAD_BYTES or told.end - told.start < before + AHEAD_STEP_BYTES:
            return
        if ahead is None:
            if copies is None or len(self._ahead) + self._to_finish >= MOST_AHEAD:
                # it is told again when more of it is there
                return
            copy = copies.begin(told.slot.part(told.payload_at, told.offer.total_bytes))
            ahead = self._ahead[told.slot.offset] = _Ahead(copy, (0, 0))
        ahead.landed = told.start, told.end
        if not ahead.is_writing and not ahead.is_over:
            ahead.is_writing = True
            spawn(self._context.tasks, self._write_ahead(ahead))

    async def _write_ahead(self, ahead: _Ahead) -> None:
        written = (0, 0)
        try:
            while not ahead.is_over and ahead.landed != written:
                written = ahead.landed
                await self._in_thread(functools.partial(ahead.copy.write, *written))
        except MemoryPoolError:
            # it is tried once more when all is there, and told then
            ahead.is_over = True
            ahead.copy.discard()
        finally:
            ahead.is_writing = False

    def take_ahead(self, slot: Slot) -> CopyAhead | None:
        """What came into a slot is whole: the copy that was begun meanwhile, to be finished, if there is one."""
        ahead = self._ahead.pop(slot.offset, None)
        if ahead is None or ahead.is_over:
            return None
        ahead.is_over = True
        return ahead.copy

    def drop_ahead(self, slot: Slot) -> None:
        """What comes into a slot does not come to its end there, or not as it was told."""
        if (ahead := self._ahead.pop(slot.offset, None)) is not None:
            ahead.is_over = True
            ahead.copy.discard()

    def begin(
        self,
        message: Message,
        arrived: Callable[[], None],
        failed: Callable[[Message, FedRDMAError], None],
        ahead: CopyAhead | None = None,
    ) -> None:
        """Write a message to disk.

        Args:
            message: it.
            arrived: called when it is there, and its record.
            failed: called with it when that cannot be.
            ahead: its copy, where that was begun while it came.
        """
        if message.transfer in self._entries:
            # a peer that sends two of one number: the first is as good
            message.discard()
            if ahead is not None:
                ahead.discard()
            return
        small_bytes = 0 if message.body is None else message.total_bytes + _MESSAGE_BYTES
        entry = self._entries[message.transfer] = _Entry(message, small_bytes, ahead)
        self._small_bytes += small_bytes
        self._to_finish += ahead is not None
        spawn(self._context.tasks, self._save(entry, arrived, failed))

    def offered_again(self, offer: Offer, link: LinkHandle) -> None:
        """The peer has not heard that it is here, and is told when it is on disk: then its grant goes back."""
        self._entries[offer.transfer].again = offer, link

    def give_up(self, transfer: int = 0, key: MessageKey | None = None) -> None:
        """The peer has given a message up: nobody is to get it."""
        for number, entry in self._entries.items():
            if transfer == number or entry.message.key == key:
                entry.given_up = True

    async def _save(
        self, entry: _Entry, arrived: Callable[[], None], failed: Callable[[Message, FedRDMAError], None]
    ) -> None:
        message, problem = entry.message, None
        try:
            try:
                await self._write(message, entry.ahead)
            finally:
                self._to_finish -= entry.ahead is not None
        except FedRDMAError as error:
            problem = error
        except OSError as error:
            problem = MemoryPoolError(
                ErrorCode.SPILL_FAILED,
                f"{self._context.config.site} cannot have it on disk: {error.strerror}.",
                "Make room on the disk of its journal.",
            )
        del self._entries[message.transfer]
        self._small_bytes -= entry.small_bytes
        if problem is not None:
            failed(message, problem)
        elif entry.given_up:
            message.discard()
        else:
            arrived()
            if entry.again is not None:
                offer, link = entry.again
                link.decline(offer, Delivered(message.transfer))

    async def _write(self, message: Message, ahead: CopyAhead | None) -> None:
        copies, journal = self._context.copies, self._context.journal
        if copies is None:
            raise MemoryPoolError(ErrorCode.JOURNAL_UNUSABLE, "there is no journal.")
        if message.lease is not None:
            where = message.lease.slot, message.payload_at, message.total_bytes
            message.copy = await self._finished(ahead) or await self._in_thread(functools.partial(copies.spill, *where))
            journal.copied(message)
        elif message.body is not None:
            if len(message.body) > IN_JOURNAL_BYTES:
                message.copy = await self._in_thread(functools.partial(copies.spill_bytes, message.body))
            journal.keep(message)
        await journal.synced()

    async def _finished(self, ahead: CopyAhead | None) -> Spilled | None:
        """None where none was begun, or it cannot be had: then it is written anew, and whoever does says why not."""
        if ahead is None:
            return None
        try:
            return await self._in_thread(ahead.finish)
        except MemoryPoolError:
            return None
        finally:
            ahead.discard()

    async def _in_thread(self, write: Callable[[], Written]) -> Written:
        copies = self._context.copies
        assert copies is not None
        async with self._copying:
            return await asyncio.get_running_loop().run_in_executor(copies.threads, write)
