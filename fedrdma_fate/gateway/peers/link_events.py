"""Carries what happens on a link's thread over to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from fedrdma_fate.core.credits import MOST_REQUESTS
from fedrdma_fate.engine.events import (
    GrantRequested,
    LinkEvent,
    PayloadReceived,
    ReceiveFailed,
    SlotsReturned,
    SlotsStillOpen,
    TransferAnnounced,
    TransferKept,
)

_OWNED_SLOTS = (PayloadReceived, ReceiveFailed, SlotsReturned, SlotsStillOpen, TransferKept)
"""Events about slots of the owner of the link, which it must hear of however late they come."""

MOST_EARLY = 2 * MOST_REQUESTS
"""Events of datagrams that wait for the event loop: all that a peer asks for at once, and announces. Frames are read no
faster than a peer may send them (`metering.py`). Datagrams have no such limit; of what more comes the frames tell."""


class LinkEvents:
    """The events of one link, handed to its owner on the event loop's thread.

    Once retired, only what concerns received slots gets through: messages on their way out are another link's by then,
    and the peer has no use for frames about a path that is gone.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_event: Callable[[LinkEvent], None]) -> None:
        self._loop = loop
        self._on_event = on_event
        self._retired = False
        self._early: deque[LinkEvent] = deque()

    def retire(self) -> None:
        """The link has been given up; called on the event loop's thread."""
        self._retired = True

    def emit(self, event: LinkEvent) -> None:
        """Something has happened; any thread may say so."""
        # once the loop is closed, nobody is left to be told
        with contextlib.suppress(RuntimeError):
            if not _is_early(event):
                self._loop.call_soon_threadsafe(self._hand_over, event)
            elif len(self._early) < MOST_EARLY:
                self._early.append(event)
                self._loop.call_soon_threadsafe(self._hand_over_early)

    def _hand_over_early(self) -> None:
        self._hand_over(self._early.popleft())

    def _hand_over(self, event: LinkEvent) -> None:
        if not self._retired or isinstance(event, _OWNED_SLOTS):
            self._on_event(event)


def _is_early(event: LinkEvent) -> bool:
    """Whether a datagram has led to it, and a frame will, too."""
    return isinstance(event, TransferAnnounced) or (isinstance(event, GrantRequested) and event.early)
