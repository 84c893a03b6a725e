"""How much is kept for a peer until it has it: who puts more waits."""

from __future__ import annotations

import asyncio

from fedrdma_fate.wire.errors import ErrorCode, GatewayError

MESSAGE_BYTES = 1024
"""That a small message takes besides its body: its key and its place."""

MOST_AT_ONCE_BYTES = 32 * 1024 * 1024
"""Of one small message for many parties of a peer: with what is kept already, less than a peer is cut off for that does
not read it (MOST_UNSENT_BYTES in `metering.py`)."""

MOST_LARGE = 65536
"""Large messages for a peer: as many as small ones by the default of `limits.outgoing_bytes`. Of those that lie in one
slot, for many parties or under many names, only the first takes send memory."""


class OutgoingRoom:
    """Belongs to the event loop's thread."""

    def __init__(self, peer: str, most: int, what: str, remedy: str) -> None:
        """
        Args:
            peer: name of the peer's site.
            most: so much may be kept for it.
            what: that is, for people: `bytes of small messages`.
            remedy: against too little of it.
        """
        self._peer = peer
        self._most = most
        self._what = what
        self._remedy = remedy
        self._kept = 0
        self._room = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether the next message has to wait."""
        return self._kept >= self._most

    def add(self, amount: int) -> None:
        """A message is kept."""
        self._kept += amount

    def remove(self, amount: int) -> None:
        """The peer has it, or will not get it."""
        self._kept -= amount
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
                    f"{self._kept} {self._what} wait for {self._peer}, and nothing went within {timeout:g} s.",
                    f"See in `fedrdma status` whether it is connected; {self._remedy}.",
                )
