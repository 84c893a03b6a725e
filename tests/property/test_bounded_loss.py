"""Whatever is lost or damaged: no more is missing than allowed, what is told is what is zeros, and no
byte of what has to be whole, nor any of an earlier message, is wrong."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrdma_fate.core.held import Ranges, bytes_in
from fedrdma_fate.core.x.chunking import chunk_of_immediate
from fedrdma_fate.ports import ChunkService, Completion, CompletionKind, Slot
from fedrdma_fate.security.sealing import Seal
from fedrdma_fate.wire.frames import Offer
from tests.support.endpoints import MemoryWire
from tests.support.engine import SETTINGS, Pair, outgoing

LOSSY = ChunkService(reliable=False, self_paced=False, queue_pairs=2, mtu_bytes=512)
STALE = 0xA5
MOST_DAMAGED = 2
"""Chunks, each of which may have everything sent again: beyond three times it is refused."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A message, what may be missing of it, and what its path does."""

    seed: int
    total_bytes: int
    chunk_bytes: int
    whole_share: float
    ours: float
    theirs: float
    loss: float
    damage: float
    seal: Seal

    @property
    def whole_bytes(self) -> int:
        """Of the payload, from its start."""
        return int(self.whole_share * self.total_bytes)


class BadPath(Pair):
    """Loses and damages chunks, and loses datagrams, by chance."""

    def __init__(self, case: Case) -> None:
        self.kept: list[tuple[Ranges, bytes]] = []
        self.case = case
        self.chance = random.Random(case.seed)
        self.heals_at = 2.0
        self.slots: list[Slot] = []
        self.damaged = 0
        self.seen: set[int] = set()
        super().__init__(
            dataclasses.replace(
                SETTINGS, bounds_loss=lambda: True, loss_share=lambda _key: case.theirs, kept=self._keep
            )
        )
        self.seal = case.seal
        self.ring_bytes = 1 << 20

    def _keep(self, offer: Offer, slot: Slot, payload_at: int, missing: Ranges) -> bool:
        self.kept.append((missing, bytes(slot.part(payload_at, offer.total_bytes).view)))
        return True

    def grant(self, slot: Slot, transfer: int = 0) -> int:
        slot.view[64:] = bytes([STALE]) * (slot.length - 64)
        self.slots.append(slot)
        return super().grant(slot, transfer)

    def lets_through(self, completion: Completion) -> bool:
        if self.now > self.heals_at:
            return True
        if completion.kind is CompletionKind.CHUNK_IMMEDIATE:
            if self.chance.random() < self.case.loss:
                return False
            index = chunk_of_immediate(completion.immediate)[1]
            is_first = index not in self.seen
            self.seen.add(index)
            # a copy of what was looked at already is of the same bytes
            if is_first and self.damaged < MOST_DAMAGED and self.chance.random() < self.case.damage:
                self.damaged += 1
                self.slots[-1].view[4096 + self.case.chunk_bytes * index] ^= 1 << self.chance.randrange(8)
            return True
        return completion.kind is not CompletionKind.DATAGRAM or self.chance.random() >= self.case.loss


def check(case: Case) -> None:
    body = random.Random(case.seed).randbytes(case.total_bytes)
    pair = BadPath(case)
    wire = MemoryWire()
    wire.chunk_service, wire.has_datagrams = LOSSY, True
    pair.connect(wire)
    made = outgoing(body, mode="fedrdma-x", chunk_bytes=case.chunk_bytes)
    pair.outgoing.submit(dataclasses.replace(made, loss_share=case.ours, whole_bytes=case.whole_bytes), pair.now)
    pair.let_time_pass(120.0)
    try:
        ((missing, got),) = pair.kept
        budget = min(case.ours, case.theirs) * (case.total_bytes - case.whole_bytes)
        expected = bytearray(body)
        at = case.whole_bytes
        for start, end in missing:
            assert start >= at, "in order, apart from each other, and behind what has to be whole"
            assert start % 64 == 0
            expected[start:end] = bytes(end - start)
            at = end
        assert bytes_in(missing) <= budget
        assert got == bytes(expected)
        ((offer, slot, payload_at),) = pair.receiving.received_offers
        assert slot.part(payload_at, offer.total_bytes).view == got, "nothing has landed since"
    finally:
        for each in pair.wire.ends:
            each.close()


CASES = st.builds(
    Case,
    seed=st.integers(0, 1 << 30),
    total_bytes=st.integers(1, 20_000),
    chunk_bytes=st.sampled_from([64, 128, 512, 1024]),
    whole_share=st.floats(0, 1),
    ours=st.floats(0, 0.2),
    theirs=st.floats(0, 0.2),
    loss=st.floats(0, 0.5),
    damage=st.sampled_from([0.0, 0.0, 0.02]),
    seal=st.sampled_from(["off", "off", "on"]),
).map(lambda case: dataclasses.replace(case, damage=0.0) if case.seal == "on" else case)
"""What is sealed and comes damaged begins anew."""


@given(CASES)
@settings(max_examples=60)
def test_the_bound_holds(case: Case) -> None:
    check(case)


def case_of(seed: int) -> Case:
    """A case by chance: each seed makes the same one again."""
    chance = random.Random(seed)
    seal: Seal = chance.choice(("off", "off", "on"))
    return Case(
        seed=seed,
        total_bytes=chance.randint(1, 20_000),
        chunk_bytes=chance.choice((64, 128, 512, 1024)),
        whole_share=chance.choice((0.0, 1.0, chance.random())),
        ours=chance.choice((0.0, 0.2, 0.2 * chance.random())),
        theirs=chance.choice((0.0, 0.2, 0.2 * chance.random())),
        loss=0.5 * chance.random(),
        damage=0.0 if seal == "on" else chance.choice((0.0, 0.0, 0.02)),
        seal=seal,
    )


SEEDS_AT_ONCE = 200


@pytest.mark.sweep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(0, 10_000, SEEDS_AT_ONCE))
def test_the_bound_holds_in_ten_thousand_transfers(first: int) -> None:
    for seed in range(first, first + SEEDS_AT_ONCE):
        try:
            check(case_of(seed))
        except AssertionError as error:
            raise AssertionError(f"case_of({seed}): {case_of(seed)}") from error
