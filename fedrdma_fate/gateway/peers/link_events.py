"""Carries what happens on a link's thread over to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from fedrdma_fate.engine.events import Outgoing, TransferStats
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import ControlFrame, GrantRequest, Offer


class LinkOwner(Protocol):
    """Who is told, on the event loop's thread. See `engine.events.LinkEvents`."""

    def send(self, frame: ControlFrame) -> object: ...

    def path_up(self, transport: str, attempt: int) -> None: ...

    def path_lost(self, transport: str, attempt: int, reason: str) -> None: ...

    def offered(self, offer: Offer) -> None: ...

    def grant_wanted(self, request: GrantRequest) -> None: ...

    def received(self, offer: Offer, slot: Slot, payload_at: int, stats: TransferStats) -> None: ...

    def receive_failed(self, offer: Offer, slot: Slot, code: ErrorCode, reason: str) -> None: ...

    def slots_returned(self, slots: Sequence[Slot]) -> None: ...

    def sent(self, outgoing: Outgoing, stats: TransferStats, transport: str) -> None: ...

    def send_failed(self, outgoing: Outgoing, code: ErrorCode, reason: str) -> None: ...


class LinkRelay:
    """The LinkEvents of one link.

    Once retired, only what concerns received slots gets through: messages on their way out are another link's by then,
    and the peer has no use for frames about a path that is gone.
    """

    def __init__(self, owner: LinkOwner, transport: str, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._transport = transport
        self._loop = loop
        self._retired = False

    def retire(self) -> None:
        """The link has been given up; called on the event loop's thread."""
        self._retired = True

    def frame(self, frame: ControlFrame) -> None:
        self._tell_if_current(lambda: self._owner.send(frame))

    def path_up(self, attempt: int) -> None:
        self._tell_if_current(lambda: self._owner.path_up(self._transport, attempt))

    def path_lost(self, attempt: int, reason: str) -> None:
        self._tell_if_current(lambda: self._owner.path_lost(self._transport, attempt, reason))

    def offered(self, offer: Offer) -> None:
        self._tell_if_current(lambda: self._owner.offered(offer))

    def grant_wanted(self, request: GrantRequest) -> None:
        self._tell_if_current(lambda: self._owner.grant_wanted(request))

    def received(self, offer: Offer, slot: Slot, payload_at: int, stats: TransferStats) -> None:
        self._tell(lambda: self._owner.received(offer, slot, payload_at, stats))

    def receive_failed(self, offer: Offer, slot: Slot, code: ErrorCode, reason: str) -> None:
        self._tell(lambda: self._owner.receive_failed(offer, slot, code, reason))

    def slots_returned(self, slots: Sequence[Slot]) -> None:
        self._tell(lambda: self._owner.slots_returned(slots))

    def sent(self, outgoing: Outgoing, stats: TransferStats) -> None:
        self._tell_if_current(lambda: self._owner.sent(outgoing, stats, self._transport))

    def send_failed(self, outgoing: Outgoing, code: ErrorCode, reason: str) -> None:
        self._tell_if_current(lambda: self._owner.send_failed(outgoing, code, reason))

    def _tell_if_current(self, tell: Callable[[], object]) -> None:
        self._tell(lambda: None if self._retired else tell())

    def _tell(self, tell: Callable[[], object]) -> None:
        # once the loop is closed, nobody is left to be told
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(tell)
