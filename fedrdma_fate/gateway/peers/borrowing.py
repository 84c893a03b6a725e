"""Messages that a gateway of this host has lent to us: our tasks map them where they lie."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path

from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.mailbox import Message
from fedrdma_fate.gateway.spilling import take_in
from fedrdma_fate.memory.shared_slots import BorrowedFile
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError
from fedrdma_fate.wire.frames import Lend, LendReturn

_MAPPED_SECONDS = 1.0
"""A task that was told where its message lies has mapped it by then."""


class Borrowing:
    """What one peer has lent to us. Belongs to the event loop's thread."""

    def __init__(
        self, context: GatewayContext, send: Callable[[LendReturn], object], lender_region: Callable[[], Path]
    ) -> None:
        """
        Args:
            context: the gateway's.
            send: sends a frame, if there is a control channel.
            lender_region: the one file that the peer may lend from; raises FedRDMAError where it may lend nothing.
        """
        self._context = context
        self._lender_region = lender_region
        self._send = send
        self._borrowed: dict[int, Message] = {}
        self._leaving = False

    @property
    def count(self) -> int:
        """Messages that we have not given back."""
        return len(self._borrowed)

    def holds(self, transfer: int) -> bool:
        """Whether we have this one."""
        return transfer in self._borrowed

    def take(self, lend: Lend) -> Message:
        """Take a message as lent.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when it is nothing that we can use.
            TransportError: TRANSPORT_UNAVAILABLE when the peer has not presented a region over `shm`.
        """
        path = self._lender_region()
        if lend.region != str(path):
            raise MemoryPoolError(
                ErrorCode.REGION_UNAVAILABLE,
                f"cannot borrow from {lend.region}: the peer's send region is {path}, by what it presented over shm.",
            )
        own = (self._context.receive_pool.region, self._context.send_pool.region)
        give_back = functools.partial(self._give_back, lend.transfer)
        borrowed = BorrowedFile(path, lend.offset, lend.total_bytes, own, give_back)
        message = Message(lend.key, lend.kind, lend.total_bytes, borrowed=borrowed)
        self._borrowed[lend.transfer] = message
        return message

    def on_recall(self, transfer: int, *, final: bool) -> None:
        """The lender wants a slot back: copy what nobody has pulled yet."""
        message = self._borrowed.get(transfer)
        if message is None:
            self._send(LendReturn(transfer))
        elif self._context.mailbox.waits_here(message):
            take_in(self._context, message)
        elif final and message.borrowed is not None:
            # once it is mapped, it outlives the lender
            asyncio.get_running_loop().call_later(_MAPPED_SECONDS, message.borrowed.close)

    def peer_lost(self) -> None:
        """The lender may be gone, and its memory soon: copy what nobody has pulled yet."""
        for message in list(self._borrowed.values()):
            if self._context.mailbox.waits_here(message):
                take_in(self._context, message)

    def leave(self) -> None:
        """We go away. What tasks of ours have mapped is theirs as long as they live: nothing more is given back."""
        for message in list(self._borrowed.values()):
            if self._context.mailbox.waits_here(message):
                message.discard()
        self._leaving = True

    def _give_back(self, transfer: int) -> None:
        if self._borrowed.pop(transfer, None) is not None and not self._leaving:
            # without a control channel this is said when the message is offered again
            self._send(LendReturn(transfer))
