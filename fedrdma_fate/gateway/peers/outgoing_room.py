"""How much of small messages is kept for a peer until it has them: who puts more waits."""

from __future__ import annotations

import asyncio

from fedrdma_fate.wire.errors import ErrorCode, GatewayError

MESSAGE_BYTES = 1024
"""That a small message takes besides its body: its key and its place."""


class OutgoingRoom:
    """Belongs to the event loop's thread."""

    def __init__(self, peer: str, most_bytes: int) -> None:
        """
        Args:
            peer: name of the peer's site.
            most_bytes: of small messages that are kept for it.
        """
        self._peer = peer
        self._most_bytes = most_bytes
        self._kept_bytes = 0
        self._room = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether the next message has to wait."""
        return self._kept_bytes >= self._most_bytes

    def add(self, body_bytes: int) -> None:
        """A message is kept."""
        self._kept_bytes += body_bytes + MESSAGE_BYTES

    def remove(self, body_bytes: int) -> None:
        """The peer has it, or will not get it."""
        self._kept_bytes -= body_bytes + MESSAGE_BYTES
        if not self.is_full:
            self._room.set()

    async def wait_for_room(self, timeout: float) -> None:
        """Wait until a message may be put, so many seconds at most.

        Raises:
            GatewayError: LIMIT_REACHED.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        while self.is_full:
            self._room.clear()
            left = deadline - asyncio.get_running_loop().time()
            waiting = asyncio.ensure_future(self._room.wait())
            try:
                await asyncio.wait([waiting], timeout=max(0.0, left))
            finally:
                waiting.cancel()
            if self.is_full and left <= 0:
                raise GatewayError(
                    ErrorCode.LIMIT_REACHED,
                    f"{self._kept_bytes} bytes of small messages wait for {self._peer}, and nothing went within "
                    f"{timeout:g} s.",
                    "See in `fedrdma status` whether it is connected; or raise `limits.outgoing_bytes`.",
                )
