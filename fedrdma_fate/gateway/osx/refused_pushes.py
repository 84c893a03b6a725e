"""What an OSX broker has brought, and was not taken: nobody there hears of it, so whoever waits for it here does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator

from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal_records import Lost, Numbered
from fedrdma_fate.gateway.messages.message import name_of_broker
from fedrdma_fate.gateway.osx.requests import Queue
from fedrdma_fate.gateway.osx.room import MOST_PUSHES
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, MemoryPoolError
from fedrdma_fate.wire.frames import MessageKey

logger = logging.getLogger(__name__)

_TOLD = ErrorCode.LIMIT_REACHED, ErrorCode.BROKER_FAILED
"""What else than a lack of memory keeps a broker's push out, and is no mistake of the push itself."""


class UnreadPushes:
    """Pushes of brokers that nobody read, for there were too many, or they were not sent to their end.

    Each waits for its turn among those of its queue, without a thread. Belongs to the event loop's thread.
    """

    def __init__(self, refuse: Callable[[Queue, FedRDMAError], Coroutine[None, None, None]]) -> None:
        """
        Args:
            refuse: see `Queues.refuse`.
        """
        self._refuse = refuse
        self._waiting: set[asyncio.Task[None]] = set()

    def tell(self, queue: Queue, error: FedRDMAError) -> None:
        """Whoever pops is told, but of more than `MOST_PUSHES` that wait for their turn: FATE has one at a time."""
        if len(self._waiting) >= MOST_PUSHES:
            return
        task = asyncio.get_running_loop().create_task(self._refuse(queue, error))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    def close(self) -> None:
        """Nobody pops any more."""
        for task in self._waiting:
            task.cancel()


@contextlib.contextmanager
def telling(context: GatewayContext, key: MessageKey) -> Iterator[None]:
    """Where there is no room for a message of a broker's, its number is that of one that will not come.

    Else the next one would be taken for it, and who waits for it would wait for hours.

    Args:
        context: of the gateway.
        key: of the message; of others than a broker's nothing is told.

    Raises:
        FedRDMAError: as there was.
    """
    try:
        yield
    except FedRDMAError as error:
        broker = context.routes.broker_of(key.source)
        if broker and (isinstance(error, MemoryPoolError) or error.code in _TOLD):
            _tell(context, key, name_of_broker(broker), error)
        raise


def _tell(context: GatewayContext, key: MessageKey, whose: str, error: FedRDMAError) -> None:
    numbers = context.mailbox.sessions.queues
    reason = f"{whose} has brought it, and it was refused: {error.message}"
    context.complaints.add(logger, "refused push", whose, "%s: [%s] %s", key, error.code, reason, level=logging.ERROR)
    objection = context.mailbox.fail(key, error.code.value, reason, whose)
    if objection and numbers.next(key, "push") is None:
        # nothing of it is kept, nor is its place: else a queue for each refused push would take those of all others
        return
    numbers.note(key, "push")
    records: list[Numbered | Lost] = [Lost(whose, context.new_transfer(), key, reason)]
    if (number := numbers.next(key, "push")) is not None:
        records.append(Numbered(key.session, key.name, key.source, key.destination, "push", number))
    context.journal.write(*records)
