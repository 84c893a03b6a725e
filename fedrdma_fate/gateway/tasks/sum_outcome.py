"""What comes of a sum, and how far one has come."""

from __future__ import annotations

import dataclasses

from fedrdma_fate.client.protocol import Unfinished
from fedrdma_fate.core.fold import Fold
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.wire.frames import MessageKey, Party
from fedrdma_fate.wire.summand import Shape


@dataclasses.dataclass(frozen=True, slots=True)
class SumOutcome:
    """A sum, of all parties or of some.

    Attributes:
        fold: who is in it.
        shapes: of its arrays.
        message: holds the slot it lies in; belongs to whoever gets this.
        number: of the sum, in the journal.
        unfinished: what is still to be done, where no worker could.
    """

    fold: Fold
    shapes: tuple[Shape, ...]
    message: Message
    number: int
    unfinished: Unfinished | None


@dataclasses.dataclass(frozen=True, slots=True)
class SumProgress:
    """How far a sum has come.

    Attributes:
        key: of its first message, by rank.
        order: in what order it adds.
        parties: how many belong to it.
        added: how many are in it.
        waiting: how many are here, and not in it yet.
        adding: who is being added.
        missing: whose updates are not here.
        site_sums: sums of sites that were asked for and are not in it.
        asked: each sum that was asked for, be it in or not: of which site, of how many sites, and of how many parties.
        update_bytes: of one update; 0 before the first one is here.
        awaited_bytes: that it waits for in receive memory, to be added up in; 0: it has them, or needs none yet.
        worker: id of the process that adds, where it has one.
        seconds: since it was asked for.
        coming: whose update, the last, is being added while it comes, of the sum of a site the first one's; how many of
            its bytes are in, and how many it has.
    """

    key: MessageKey
    order: str
    parties: int
    added: int
    waiting: int
    adding: Party | None
    missing: tuple[Party, ...]
    site_sums: int
    asked: tuple[tuple[str, int, int], ...]
    update_bytes: int
    awaited_bytes: int
    worker: int | None
    seconds: float
    coming: tuple[Party, int, int] | None
