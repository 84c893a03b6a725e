"""What a peer's control channel brings about the end of sessions, and who is told of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from fedrdma_fate.wire.frames import SessionAsk, SessionEnd, SessionIdle


class SessionTalk(Protocol):
    """Belongs to the event loop's thread."""

    def on_frame(self, site: str, frame: SessionAsk | SessionIdle | SessionEnd) -> None:
        """This site has sent a frame."""
        ...

    def online(self, site: str) -> None:
        """Its control channel is new."""
        ...

    def forgotten(self, site: str, confirmed: Collection[str]) -> None:
        """It has lost its journal.

        Args:
            site: which.
            confirmed: sessions of which it had confirmed messages.
        """
        ...
