"""What a peer's control channel brings about the end of sessions, and who is told of it."""

from __future__ import annotations

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
