"""What a peer's control channel brings of FATE Flow's scheduling calls, and who is told of it."""

from __future__ import annotations

from typing import Protocol

from fedrdma_fate.wire.frames import FlowAnswer, FlowCall, FlowHeard, FlowRefused


class FlowTalk(Protocol):
    """Of one peer. Belongs to the event loop's thread."""

    def on_frame(self, frame: FlowCall | FlowAnswer | FlowRefused | FlowHeard) -> None:
        """The peer has sent a frame."""
        ...

    def online(self) -> None:
        """Its control channel is new."""
        ...
