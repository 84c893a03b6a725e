"""Tasks of an earlier run of this gateway, which was killed: what they had there is theirs when they come back."""

from __future__ import annotations

import dataclasses
import hashlib

from fedrdma_fate.gateway.journal.kept_sums import KeptSum
from fedrdma_fate.gateway.journal_records import Came, Outgoing
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.peers.sending import Sending
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.wire.frames import MessageKey

TASKS_LOOK_SECONDS = 1.0
"""Between two looks at what tasks of an earlier run have: a slot is free so long after they let go of it, or end."""


def digest_of_secret(secret: bytes) -> bytes:
    """What is written down of a task's secret: whoever reads the journal is not known by it."""
    return hashlib.sha256(secret).digest() if secret else b""


@dataclasses.dataclass(frozen=True, slots=True)
class EarlierSum:
    """A sum that an earlier run has begun, for the task that has asked for it.

    Attributes:
        kept: what the journal says of it.
        message: holds the slot it lies in.
    """

    kept: KeptSum
    message: Message


@dataclasses.dataclass(slots=True)
class Had:
    """What a task had.

    Attributes:
        task: who it is.
        leases: send slots, by the numbers of their leases.
        messages: that it was given to map, or was about to be, by the numbers of their leases,
            and each with that of its get.
        pulls: messages that it has pulled, or was about to, of which nothing is here, each with the number of that get:
            they were lent.
        small: messages of which it was given the bytes, or was about to be, likewise.
        sums: that it has asked for, or has got.
        unfinished: messages that it was still writing when they were being sent, and what sends them.
    """

    task: Came
    leases: dict[int, Lease] = dataclasses.field(default_factory=dict)
    messages: dict[int, tuple[Message, int]] = dataclasses.field(default_factory=dict)
    pulls: list[tuple[MessageKey, int]] = dataclasses.field(default_factory=list)
    small: list[tuple[Message, int]] = dataclasses.field(default_factory=list)
    sums: list[EarlierSum] = dataclasses.field(default_factory=list)
    unfinished: list[tuple[Sending, Outgoing]] = dataclasses.field(default_factory=list)

    @property
    def count(self) -> int:
        """Of slots and messages."""
        return len(self.leases) + len(self.messages) + len(self.small) + len(self.sums)
