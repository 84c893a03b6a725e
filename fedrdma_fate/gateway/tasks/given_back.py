"""Messages that a task was given, or was to be given, and that wait again; until nobody wants them any more."""

from __future__ import annotations

import logging

from fedrdma_fate.core.held import bytes_in
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal_records import Lost
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from fedrdma_fate.wire.frames import Party

logger = logging.getLogger(__name__)


def give_back(context: GatewayContext, message: Message) -> None:
    """A message that was taken was not handed over, or is to be had again, and waits again."""
    with context.journal.together():
        context.journal.returned(message)
        context.mailbox.return_(message)


def give_back_or_lose(context: GatewayContext, message: Message, error: FedRDMAError) -> None:
    """A message that was taken could not be opened: it waits again, unless it is not here any more.

    Then both ends are told, by the next run of the gateway if need be.
    """
    if error.code is not ErrorCode.MESSAGE_LOST:
        give_back(context, message)
        return
    key, mailbox = message.key, context.mailbox
    with context.journal.together():
        mailbox.sessions.forget_pull(key)
        if message.when_gone is not None:
            context.journal.write(Lost(message.origin, message.transfer, key, error.message))
        message.discard()
        mailbox.on_lost(message, error)
        mailbox.fail(key, error.code.value, error.message, message.origin)
    about = message.origin or context.config.site
    context.complaints.add(logger, "lost message", about, "%s is lost: %s", key, error, level=logging.ERROR)


def forget(context: GatewayContext, session: str, party: Party, source: Party, prefix: str, tag: str) -> None:
    """Drop what waits of this source for this party under names that begin so; it counts as pulled."""
    mailbox = context.mailbox
    gone = [
        message
        for message in mailbox.all_messages()
        if (message.key.session, message.key.destination, message.key.source) == (session, party, source)
        and message.key.tag == tag
        and message.key.name.startswith(prefix)
    ]
    for message in gone:
        mailbox.sessions.note_pull(message.key)
        mailbox.discard(message.key)


def incomplete_error(message: Message) -> GatewayError:
    """The error for a task that gets a message with holes, and does not expect them."""
    missing = bytes_in(message.missing)
    return GatewayError(
        ErrorCode.MESSAGE_INCOMPLETE,
        f"{missing} of {message.total_bytes} bytes of {message.key} are missing, as this task has let them be.",
        "Get it inside `with federation.tolerating(...)`, as was said before.",
    )
