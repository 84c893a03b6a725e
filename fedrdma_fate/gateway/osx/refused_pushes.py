"""What an OSX broker has brought, and was not taken: nobody there hears of it, so whoever waits for it here does."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal_records import Lost, Numbered
from fedrdma_fate.gateway.messages.message import name_of_broker
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, MemoryPoolError
from fedrdma_fate.wire.frames import MessageKey

logger = logging.getLogger(__name__)


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
        if broker and (isinstance(error, MemoryPoolError) or error.code is ErrorCode.LIMIT_REACHED):
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
