"""Reads the requests of one connection of a task, some ahead of their answers, so that its end shows meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, TypeVar

from fedrdma_fate.client.protocol import LENGTH_PREFIX, frame_length
from fedrdma_fate.unix_sockets import has_hung_up
from fedrdma_fate.wire.errors import ErrorCode, WireError

logger = logging.getLogger(__name__)

AnyAnswer = TypeVar("AnyAnswer")
AnyRequest = TypeVar("AnyRequest")

READ_AHEAD = 32
"""Requests of one connection that are read before the first of them is answered, if they are small."""

LARGE_REQUEST_BYTES = 4096
"""A longer one is read when the one before it was answered, so that a connection costs no more than one of those, and
READ_AHEAD small ones."""

MOST_LARGE_OF_A_USER = 128
"""Large requests of a listed user that are read or answered at a time, over all connections: of a megabyte at most."""


LOOK_SECONDS = 5.0
"""Between two looks whether a task is still there that has sent more than is read ahead: reading does not show its end
then, and what it holds should not wait much longer for it."""


class RequestReader(Generic[AnyRequest]):
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        room: asyncio.Semaphore | None = None,
        connection: socket.socket | None = None,
        *,
        decode: Callable[[bytes], AnyRequest],
        large_seconds: float | None = None,
    ) -> None:
        """
        Args:
            reader: where they come from.
            room: for large ones, shared with other connections; None: there is enough. None is held by a request that
                waits behind one of its own connection: a get may wait for hours.
            connection: what the reader reads, to see its end by; None where all that comes is read.
            decode: parses one.
            large_seconds: for a large one to come once it has room; None: as long as it takes.
        """
        self._reader = reader
        self._decode = decode
        self._connection = connection
        self._room = room
        self._large_seconds = large_seconds
        self._holds_large = False
        self._unanswered = 0
        self._answered = asyncio.Event()
        self._taken: bool | None = None
        self._queue: asyncio.Queue[tuple[AnyRequest | WireError | None, bool]] = asyncio.Queue(READ_AHEAD)
        self._reading = asyncio.create_task(self._read())

    async def next(self) -> AnyRequest | None:
        """The next request, None at the end; the one before it was answered.

        Raises:
            WireError: something came that is none.
        """
        if self._taken is not None:
            self._unanswered -= 1
            if self._taken:
                self._give_back_room()
            self._taken = None
            self._answered.set()
        request, self._taken = await self._queue.get()
        if isinstance(request, WireError):
            raise request
        return request

    async def unless_ended(self, answer: Coroutine[Any, Any, AnyAnswer]) -> AnyAnswer:
        """Wait for an answer as long as its task is there to hear it.

        Raises:
            ConnectionError: the task went away; the answer was cancelled.
        """
        working = asyncio.ensure_future(answer)
        try:
            while not (working.done() or self._reading.done() or self._has_hung_up()):
                await asyncio.wait([working, self._reading], timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ConnectionError("the task went away")
            return working.result()
        finally:
            if not working.done():
                working.cancel()
                await asyncio.wait([working])

    def close(self) -> None:
        """Read no more."""
        self._reading.cancel()
        self._give_back_room()

    def _has_hung_up(self) -> bool:
        return self._connection is not None and has_hung_up(self._connection)

    async def _read(self) -> None:
        end: WireError | None = None
        try:
            while (length := await _read_length(self._reader)) is not None:
                is_large = length > LARGE_REQUEST_BYTES
                if is_large:
                    await self._take_room()
                with self._in_time() if is_large else contextlib.nullcontext():
                    body = await _read_body(self._reader, length)
                self._unanswered += 1
                await self._queue.put((self._decode(body), is_large))
        except (ConnectionError, EOFError):
            logger.debug("a connection of a task broke")
        except WireError as error:
            end = error
        await self._queue.put((end, False))

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[None]:
        """What is read meanwhile has `large_seconds` to come."""
        if self._large_seconds is None:
            yield
            return
        late = WireError(ErrorCode.MALFORMED_FRAME, f"a request did not come within {self._large_seconds:g} s.")
        # not by wait_for, which may swallow, before Python 3.12, that `close` cancels
        timer = asyncio.get_running_loop().call_later(self._large_seconds, self._reader.set_exception, late)
        try:
            yield
        finally:
            timer.cancel()

    async def _take_room(self) -> None:
        """Wait until this connection has no other large request, and others do not have too many.

        Where it is shared, room is asked for when all that came before is answered: else whoever sends a large request
        behind a get that waits has it as long as that waits.
        """
        while self._holds_large or (self._room is not None and self._unanswered):
            self._answered.clear()
            await self._answered.wait()
        if self._room is not None:
            await self._room.acquire()
        self._holds_large = True

    def _give_back_room(self) -> None:
        if self._holds_large:
            self._holds_large = False
            if self._room is not None:
                self._room.release()


async def _read_length(reader: asyncio.StreamReader) -> int | None:
    """Of the request that comes; None at the end."""
    try:
        return frame_length(await reader.readexactly(LENGTH_PREFIX.size))
    except asyncio.IncompleteReadError as end:
        if end.partial:
            raise _cut_short() from end
        return None


async def _read_body(reader: asyncio.StreamReader, length: int) -> bytes:
    try:
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError as end:
        raise _cut_short() from end


def _cut_short() -> WireError:
    return WireError(ErrorCode.MALFORMED_FRAME, "a request was cut short.")
