"""Messages that a task was given, or was to be given, and that wait again; until nobody wants them any more."""

from __future__ import annotations

from fedrdma_fate.core.held import bytes_in
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import Party


def give_back(context: GatewayContext, message: Message) -> None:
    """A message that was taken was not handed over, or is to be had again, and waits again."""
    with context.journal.together():
        context.journal.returned(message)
        context.mailbox.return_(message)


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
