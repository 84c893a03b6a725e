"""Sums that a run of the gateway has begun, as its journal tells of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import msgspec

from fedrdma_fate.gateway.journal_records import (
    SumAdded,
    SumAdding,
    SumBegan,
    SumClosed,
    SumGone,
    SumHanded,
    SumMerged,
    SumMerging,
    SumMoved,
    SumRecord,
)


@dataclasses.dataclass(slots=True)
class KeptSum:
    """One sum.

    Attributes:
        began: whose it is, and where it lies by now.
        added: who is in it, in the order in which they came in.
        adding: of whom some may be in it, and how much, only the slot says.
        closed: nothing more is added.
        handed: a task has it, or was about to.
    """

    began: SumBegan
    added: list[SumAdded | SumMerged] = dataclasses.field(default_factory=list)
    adding: SumAdding | SumMerging | None = None
    closed: SumClosed | None = None
    handed: SumHanded | None = None

    @property
    def parties_in(self) -> set[int]:
        """Numbers of the keys of those who are in it."""
        return {party for party, _, _ in self.updates()}

    def updates(self) -> Iterator[tuple[int, str, int]]:
        """What is in it: numbers of keys, where each message came from, and by which transfer it did, or would have."""
        for added in self.added:
            if isinstance(added, SumAdded):
                yield added.party, added.origin, added.transfer
                continue
            runs = added.sites or ((added.origin, len(added.transfers)),)
            origins = itertools.chain.from_iterable(itertools.repeat(site, count) for site, count in runs)
            for (party, _), origin, transfer in zip(added.weights, origins, added.transfers, strict=True):
                yield party, origin, transfer

    def records(self) -> Iterator[SumRecord]:
        """As few as say the same."""
        yield self.began
        yield from self.added
        for record in (self.closed, self.adding, self.handed):
            if record is not None:
                yield record


class KeptSums:
    """All of them, by their numbers. Each has a slot of the receive region, which bounds how many there are."""

    def __init__(self) -> None:
        self._sums: dict[int, KeptSum] = {}

    def __iter__(self) -> Iterator[KeptSum]:
        return iter(list(self._sums.values()))

    def apply(self, record: SumRecord) -> None:
        """One more record; of a sum that is gone it is ignored."""
        if isinstance(record, SumBegan):
            self._sums[record.number] = KeptSum(record)
            return
        if isinstance(record, SumGone):
            self._sums.pop(record.number, None)
            return
        if (kept := self._sums.get(record.number)) is None:
            return
        match record:
            case SumAdding():
                kept.adding = record
            case SumAdded():
                kept.adding = None
                if record.party not in kept.parties_in:
                    kept.added.append(record)
            case SumMerging():
                kept.adding = None if record.key is None else record
            case SumMerged():
                kept.adding = None
                if not kept.parties_in & {party for party, _ in record.weights}:
                    kept.added.append(record)
            case SumMoved():
                kept.began = msgspec.structs.replace(kept.began, offset=record.offset, length=record.length)
            case SumClosed():
                kept.adding, kept.closed = None, record
            case SumHanded():
                kept.handed = record if record.lease else None

    def forget(self, number: int) -> None:
        """It is gone."""
        self._sums.pop(number, None)

    def records(self) -> Iterator[SumRecord]:
        """As few as say the same."""
        for kept in self._sums.values():
            yield from kept.records()
