"""Connections to the tasks' socket that are refused: each is told why, and takes next to nothing until it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter

from fedrdma_fate.client.protocol import Error, encode_message
from fedrdma_fate.wire.errors import FedRDMAError

logger = logging.getLogger(__name__)

_REFUSAL_SECONDS = 1.0
"""For whoever is refused to send its first request, and to read why it is refused."""

MOST_REFUSED = 16
"""Connections that are being refused at a time: each has a descriptor and 128 KiB of what asyncio reads ahead."""

MOST_OF_A_USER = 4
"""Of these, so that one user keeps no other from reading why it is refused."""

_PIECE_BYTES = 4096
"""Of what is thrown away at a time."""


class RefusedConnections:
    """Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._of_user: Counter[int] = Counter()

    async def refuse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, user: int, error: FedRDMAError
    ) -> None:
        """Say why, and end the connection; beyond so many, only end it."""
        if self._of_user.total() >= MOST_REFUSED or self._of_user[user] >= MOST_OF_A_USER:
            writer.transport.abort()
            return
        self._of_user[user] += 1
        try:
            writer.write(encode_message(Error(error.code.value, error.message, error.remedy)))
            # who finds the connection closed while it still asks does not read why
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(_throw_away(reader), _REFUSAL_SECONDS)
        except ConnectionError:
            logger.debug("user %d did not wait for the answer", user)
        finally:
            self._of_user[user] -= 1
            if not self._of_user[user]:
                del self._of_user[user]
            writer.close()


async def _throw_away(reader: asyncio.StreamReader) -> None:
    while await reader.read(_PIECE_BYTES):
        pass
