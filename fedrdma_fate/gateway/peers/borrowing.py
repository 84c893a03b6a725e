"""Messages that a gateway of this host has lent to us: our tasks map them where they lie."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.peers.paths import DataPaths
from fedrdma_fate.gateway.spilling import take_in
from fedrdma_fate.memory.shared_slots import BorrowedSlot
from fedrdma_fate.ports import LentRegion
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError
from fedrdma_fate.wire.frames import Lend, LendReturn

_MAPPED_SECONDS = 1.0
"""A task that was told where its message lies has mapped it by then."""

MOST_BORROWED = 256
"""Messages of a peer that are borrowed at once: each takes a descriptor. Others are declined, and sent."""

MOST_EARLY = 1024
"""Lent messages that wait for the data path to be connected, which takes less than a second; others are declined."""


class Borrowing:
    """What one peer has lent to us. Belongs to the event loop's thread."""

    def __init__(
        self,
        site: str,
        context: GatewayContext,
        send: Callable[[LendReturn], object],
        lender_region: Callable[[], LentRegion | None],
    ) -> None:
        """
        Args:
            site: name of the peer's.
            context: the gateway's.
            send: sends a frame, if there is a control channel.
            lender_region: what the peer may lend from, None as long as it is still to come; raises MemoryPoolError
                where it may lend nothing.
        """
        self._site = site
        self._context = context
        self._lender_region = lender_region
        self._send = send
        self._borrowed: dict[int, Message] = {}
        self._early: dict[int, Lend] = {}
        self._leaving = False

    @property
    def count(self) -> int:
        """Messages that we have not given back."""
        return len(self._borrowed)

    def holds(self, transfer: int) -> bool:
        """Whether we have this one."""
        return transfer in self._borrowed

    def take(self, lend: Lend) -> Message | None:
        """Take a message as lent; None where it has come before its region, and waits for `take_early`.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when it is nothing that we can use.
        """
        region = self._lender_region()
        if region is None:
            self._wait(lend)
            return None
        if len(self._borrowed) >= MOST_BORROWED:
            raise MemoryPoolError(
                ErrorCode.REGION_UNAVAILABLE, f"{MOST_BORROWED} messages of {self._site} are borrowed already."
            )
        give_back = functools.partial(self._give_back, lend.transfer)
        borrowed = BorrowedSlot(region, lend.offset, lend.total_bytes, give_back)
        message = Message(
            lend.key, lend.kind, lend.total_bytes, borrowed=borrowed, origin=self._site, transfer=lend.transfer
        )
        self._borrowed[lend.transfer] = message
        return message

    def take_early(self) -> list[Lend]:
        """What has come before its region; it is no longer kept here."""
        early, self._early = list(self._early.values()), {}
        return early

    def on_recall(self, transfer: int, *, final: bool) -> None:
        """The lender wants a slot back: copy what nobody has pulled yet."""
        message = self._borrowed.get(transfer)
        if transfer in self._early:
            # not taken yet, and nothing of it can be copied
            return
        if message is None:
            self._send(LendReturn(transfer))
        elif self._context.mailbox.waits_here(message):
            take_in(self._context, message)
        elif final and message.borrowed is not None:
            # once it is mapped, it outlives the lender
            asyncio.get_running_loop().call_later(_MAPPED_SECONDS, message.borrowed.close)

    def peer_lost(self) -> None:
        """The lender may be gone, and its memory soon: copy what nobody has pulled yet."""
        # it offers them again when it is back
        self._early.clear()
        for message in list(self._borrowed.values()):
            if self._context.mailbox.waits_here(message):
                take_in(self._context, message)

    def leave(self, *, keep: bool = False) -> None:
        """We go away. What tasks of ours have mapped is theirs as long as they live: nothing more is given back.

        Args:
            keep: the next run goes on: the lender offers it again what nobody has pulled.
        """
        for message in list(self._borrowed.values()):
            if not keep and self._context.mailbox.waits_here(message):
                message.discard()
        self._leaving = True

    def _wait(self, lend: Lend) -> None:
        if len(self._early) >= MOST_EARLY:
            raise MemoryPoolError(
                ErrorCode.REGION_UNAVAILABLE,
                f"more than {MOST_EARLY} messages came before the data path was there.",
            )
        self._early[lend.transfer] = lend

    def _give_back(self, transfer: int) -> None:
        if self._borrowed.pop(transfer, None) is not None and not self._leaving:
            # without a control channel this is said when the message is offered again
            self._send(LendReturn(transfer))


def region_of_lender(context: GatewayContext, site: str, paths: DataPaths) -> LentRegion | None:
    """The send region that a peer may lend from; None as long as the path that brings it is not connected.

    Raises:
        MemoryPoolError: REGION_UNAVAILABLE when it may lend nothing.
    """
    main = paths.main
    if not context.config.borrows:
        reason = "`shm.lend` is off, or `durable` on"
    elif main is None or paths.main_transport != "shm":
        reason = f"messages of {site} come over {paths.main_transport or 'nothing yet'}, not shm"
    elif main.up and main.lent_region is None:
        reason = f"{site} has not presented its send region"
    else:
        return main.lent_region
    raise MemoryPoolError(ErrorCode.REGION_UNAVAILABLE, f"nothing is borrowed at {context.config.site}: {reason}.")
