"""How far the queues of FATE's federation for OSX have come: that outlives what is remembered of their messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from fedrdma_fate.gateway.journal_records import Numbered
from fedrdma_fate.gateway.messages.budget import NAME_CHARACTERS
from fedrdma_fate.wire.frames import MessageKey, Party

QUEUE_TAG = "osx queue #"
"""Tags of messages in the queues of FATE's federation for OSX begin so, and a number follows; no others do."""

MOST_QUEUES = 1 << 17
"""Ends of queues, of sessions that their parties have not left, one with a long name as several: some 65 MB.
None is forgotten for another: its next messages would be taken for those that were, and be lost."""

MOST_BROKER_QUEUES = MOST_QUEUES // 2
"""Of those, with which no broker of a peer begins another one: it may name as many as it likes, of sessions that nobody
here ends, and the queues of this site's own clients go on."""

_MOST_DIGITS = 18
"""Of a number: it is one of 64 bits in the journal."""

End = Literal["push", "pop"]


class _Queue(NamedTuple):
    """An end of a queue of a session."""

    end: End
    name: str
    source: Party
    destination: Party

    @property
    def units(self) -> int:
        return 1 + len(self.name) // NAME_CHARACTERS

    @property
    def party(self) -> Party:
        """Whose end it is."""
        return self.source if self.end == "push" else self.destination


class QueueNumbers:
    """Belongs to one thread. A queue is named by any of its messages."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[_Queue, int]] = {}
        self._units = 0

    def next(self, key: MessageKey, end: End) -> int | None:
        """Number of the next message that is pushed there, or popped; None where nothing is known of that end."""
        return self._numbers.get(key.session, {}).get(_queue(key, end))

    def has_room(self, key: MessageKey, end: End, *, of_broker: bool = False) -> bool:
        """Whether one more end of a queue can be remembered, for a peer's OSX broker or for who is of this site."""
        return self._units + _queue(key, end).units <= (MOST_BROKER_QUEUES if of_broker else MOST_QUEUES)

    def note(self, key: MessageKey, end: End) -> None:
        """This message was pushed, or popped."""
        number = _number(key)
        if number is not None:
            self.remember(key.session, _queue(key, end), number + 1)

    def note_returned(self, key: MessageKey) -> None:
        """It was not popped after all, and is the next one again. Numbers of pushes are not used again."""
        number, queue = _number(key), _queue(key, "pop")
        numbers = self._numbers.get(key.session, {})
        if number is not None and numbers.get(queue) == number + 1:
            numbers[queue] = number

    def remember(self, session: str, queue: _Queue, number: int) -> None:
        """One of the ends has come so far, or further; of more than `MOST_QUEUES` nothing is noted."""
        numbers = self._numbers.get(session, {})
        known = numbers.get(queue)
        if known is None:
            if self._units + queue.units > MOST_QUEUES:
                return
            self._units += queue.units
            numbers = self._numbers.setdefault(session, numbers)
        if known is None or known < number:
            numbers[queue] = number

    def apply(self, record: Numbered) -> None:
        """What an earlier run has written down."""
        queue = _Queue(record.end, record.name, record.source, record.destination)
        self.remember(record.session, queue, record.next)

    def leave(self, session: str, party: Party) -> None:
        """A party has left a session, and with it its ends."""
        if (numbers := self._numbers.get(session)) is None:
            return
        for queue in [queue for queue in numbers if queue.party == party]:
            self._units -= queue.units
            del numbers[queue]
        if not numbers:
            del self._numbers[session]

    def end(self, session: str) -> None:
        """A session is over."""
        self._units -= sum(queue.units for queue in self._numbers.pop(session, {}))

    def records(self) -> Iterator[Numbered]:
        """All of it, for the journal."""
        for session, numbers in self._numbers.items():
            for queue, number in numbers.items():
                yield Numbered(session, queue.name, queue.source, queue.destination, queue.end, number)


def _queue(key: MessageKey, end: End) -> _Queue:
    return _Queue(end, key.name, key.source, key.destination)


def _number(key: MessageKey) -> int | None:
    """Of a message of a queue; None of others."""
    if not key.tag.startswith(QUEUE_TAG):
        return None
    digits = key.tag[len(QUEUE_TAG) :]
    # not all that Unicode calls decimal
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS else None
