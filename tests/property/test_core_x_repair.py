"""Repair chunks give back exactly what was lost, or say that they cannot; nothing is corrupted by them."""

from __future__ import annotations

import random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedrdma_fate.core.actions import Action, AddInSlot, AddToRepairs, CopyStaged, Finished, PostRepair
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import HEADER_SPACE_BYTES, ChunkPlan
from fedrdma_fate.core.x.repair_code import RepairPlan, solve
from tests.property.test_core_x_transfer import Chaos


def summed(left: bytes, right: bytes) -> bytes:
    """Exclusive or, as far as the second goes."""
    return bytes(a ^ b for a, b in zip(left, right, strict=False)) + left[len(right) :]


@settings(max_examples=200)
@given(total=st.integers(8, 400), chunk=st.integers(1, 8), repairs=st.integers(1, 20), data=st.data())
def test_what_is_solved_for_is_what_was_lost(total: int, chunk: int, repairs: int, data: st.DataObject) -> None:
    chunks = ChunkPlan(total, chunk)
    plan = RepairPlan(chunks, data.draw(st.integers(1, chunks.count)), repairs)
    payload = random.Random(total).randbytes(total)

    def piece(index: int) -> bytes:
        part = chunks.chunk(index)
        return payload[part.offset : part.offset + part.length]

    covered = range(plan.covered)
    missing = data.draw(st.lists(st.sampled_from(covered), unique=True, max_size=repairs))
    come = data.draw(st.lists(st.sampled_from(range(repairs)), unique=True))
    solution = solve(plan, come, missing)
    if solution is None:
        return
    sums = {number: bytes(chunk) for number in come}
    for index in covered:
        for number in set(plan.repairs_of(index)) & set(come):
            sums[number] = summed(sums[number], piece(index))
            if index not in missing:
                # what has arrived is taken out again
                sums[number] = summed(sums[number], piece(index))
    for target, source in solution.additions:
        sums[target] = summed(sums[target], sums[source])
    assert {index: sums[number][: len(piece(index))] for index, number in solution.found.items()} == {
        index: piece(index) for index in missing
    }


class Repaired(Chaos):
    """With repair chunks, which are lost, repeated and delayed like the others."""

    def __init__(
        self,
        plan: RepairPlan,
        loss: float,
        report_loss: float,
        seed: int,
        repair_damage: float = 0.0,
        tail: range = range(0),
    ) -> None:
        super().__init__(plan.chunks, loss, report_loss, 0.0, seed, plan, PathState(1e6, 0.02, loss), tail)
        self.repair_damage = repair_damage
        self.repairs = plan
        self.sums = [bytearray(plan.chunks.chunk_bytes) for _ in range(plan.repairs)]
        self.area = bytearray(plan.slot_bytes)
        self.rebuilt = 0

    def carry_out(self, action: Action) -> None:
        match action:
            case AddToRepairs(chunk, numbers):
                piece = self.payload[chunk.offset : chunk.offset + chunk.length]
                for number in numbers:
                    self.sums[number][:] = summed(self.sums[number], piece)
            case PostRepair():
                for _ in range(self.chance.choice((1, 1, 2))):
                    if self.chance.random() >= self.loss:
                        self.clock.after(self.chance.uniform(0.01, 0.03), lambda: self.land_repair(action))
            case AddInSlot(source, target, length):
                area = self.whole_slot()
                sums = summed(area[target : target + length], area[source : source + length])
                self.area[target : target + length] = sums
            case CopyStaged(source, target, length):
                at = target - HEADER_SPACE_BYTES
                self.slot[at : at + length] = self.area[source : source + length]
                self.rebuilt += 1

    def whole_slot(self) -> bytes:
        """The payload and the repair chunks as they lie in the slot."""
        end = HEADER_SPACE_BYTES + len(self.slot)
        return bytes(self.area[:HEADER_SPACE_BYTES]) + bytes(self.slot) + bytes(self.area[end:])

    def land_repair(self, post: PostRepair) -> None:
        assert HEADER_SPACE_BYTES + self.plan.total_bytes <= post.at
        assert post.at + self.plan.chunk_bytes <= self.repairs.slot_bytes
        if self.receiver.finished:
            return
        data = bytearray(self.sums[post.number])
        if self.chance.random() < self.repair_damage:
            data[0] ^= 1
        self.area[post.at : post.at + len(data)] = data
        self.answer(self.receiver.on_chunk(post.immediate, self.clock.now, self.clock.now))


@settings(max_examples=60)
@given(
    total=st.integers(40, 600),
    chunk=st.integers(1, 16),
    share=st.floats(0.1, 1.0),
    repairs=st.integers(1, 12),
    loss=st.sampled_from([0.0, 0.1, 0.4]),
    report_loss=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 2**32),
    tail=st.tuples(st.integers(0, 600), st.integers(0, 600)),
)
def test_a_transfer_with_repair_chunks_ends_in_the_whole_payload(
    total: int,
    chunk: int,
    share: float,
    repairs: int,
    loss: float,
    report_loss: float,
    seed: int,
    tail: tuple[int, int],
) -> None:
    chunks = ChunkPlan(total, chunk)
    assume(chunks.count >= 2)
    start, stop = sorted(min(each, chunks.count) for each in tail)
    planned = RepairPlan(chunks, max(1, int(share * chunks.count)), repairs)
    chaos = Repaired(planned, loss, report_loss, seed, tail=range(start, stop))
    chaos.run()
    assert chaos.sent == chaos.received == [Finished()]
    assert chaos.slot == chaos.payload


def test_a_lost_chunk_is_found_without_being_sent_again() -> None:
    chunks = ChunkPlan(640, 16)
    chaos = Repaired(RepairPlan(chunks, 40, 12), loss=0.1, report_loss=0.0, seed=4)
    chaos.run()
    assert chaos.received == [Finished()]
    assert chaos.rebuilt > 0


def test_what_goes_last_is_found_wherever_in_the_payload_it_lies() -> None:
    chunks = ChunkPlan(640, 16)
    chaos = Repaired(RepairPlan(chunks, 10, 8), loss=0.15, report_loss=0.0, seed=4, tail=range(20, 30))
    chaos.run()
    assert chaos.received == [Finished()]
    assert chaos.slot == chaos.payload
    assert chaos.rebuilt > 0


def test_what_a_damaged_repair_chunk_has_spoilt_is_sent_again_without_them() -> None:
    chunks = ChunkPlan(640, 16)
    chaos = Repaired(RepairPlan(chunks, 40, 12), loss=0.1, report_loss=0.0, seed=4, repair_damage=1.0)
    chaos.run()
    assert chaos.received == [Finished()]
    assert chaos.slot == chaos.payload
    assert chaos.rebuilt > 0
    assert chaos.receiver.resends == 1
