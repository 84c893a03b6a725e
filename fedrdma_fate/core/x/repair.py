"""Both ends' part in the repair chunks of a `fedrdma-x` transfer: what was added up, and when lost chunks are found."""

from __future__ import annotations

from collections.abc import Sequence

from fedrdma_fate.core.actions import Action, AddInSlot, AddToRepairs, CopyStaged, PostRepair
from fedrdma_fate.core.plan import Chunk, SlotLayout
from fedrdma_fate.core.x.chunking import immediate_of
from fedrdma_fate.core.x.repair_code import RepairPlan, Solution, solve


class RepairSending:
    """The sender's: adds covered chunks up as they go out, and says when the sums may follow."""

    def __init__(self, plan: RepairPlan) -> None:
        self.plan = plan
        self._added = 0
        self._next = 0
        self._out_at: float | None = None

    def on_first_sent(self, chunk: Chunk) -> list[Action]:
        """A chunk goes out that did not before."""
        if chunk.index >= self.plan.covered:
            return []
        self._added += 1
        return [AddToRepairs(chunk, self.plan.sums_of(chunk.index))]

    @property
    def next(self) -> int | None:
        """The repair chunk to send next; None when all are out, or while a covered chunk is missing in the sums."""
        return self._next if self._added == self.plan.covered and self._next < self.plan.repairs else None

    def take(self, now: float, tag: int, work_request: int, queue_pair: int) -> PostRepair:
        """It goes out, by this queue pair."""
        number = self._next
        self._next += 1
        self._out_at = now
        immediate = immediate_of(tag, self.plan.chunks.count + number)
        return PostRepair(work_request, number, self.plan.repair_at(number), queue_pair, immediate)

    def is_hopeful(self, now: float, round_trip: float) -> bool:
        """Whether what was lost may still be found without being sent again: until a report can have told of it."""
        return self._out_at is None or self.next is not None or now < self._out_at + round_trip


class Rebuilding:
    """The receiver's: keeps which repair chunks have come, and solves for what is missing as soon as they suffice."""

    def __init__(self, plan: RepairPlan) -> None:
        self.plan = plan
        self._layout = SlotLayout(plan.chunks, "fedrdma-x")
        self._come: set[int] = set()

    @property
    def has_come(self) -> bool:
        """Whether any repair chunk is there to solve with."""
        return bool(self._come)

    def on_repair(self, number: int) -> bool:
        """A repair chunk has landed whole; whether there is such a one."""
        if number >= self.plan.repairs:
            return False
        self._come.add(number)
        return True

    def solved(self, missing: Sequence[int]) -> list[Action] | None:
        """What puts these chunks, all of the covered ones that are missing, into their places; None while nothing can.

        What has come is used up by that.
        """
        if not missing or len(self._come) < len(missing):
            return None
        solution = solve(self.plan, self._come, missing)
        if solution is None:
            return None
        self._come.clear()
        return [*self._known_taken_out(solution, set(missing)), *self._unknown_solved(solution)]

    def _known_taken_out(self, solution: Solution, missing: set[int]) -> list[Action]:
        used = set(solution.found.values())
        actions: list[Action] = []
        for index in range(self.plan.covered):
            if index in missing:
                continue
            chunk = self.plan.chunks.chunk(index)
            source = self._layout.payload_at + chunk.offset
            for number in self.plan.sums_of(index):
                if number in used:
                    actions.append(AddInSlot(source, self.plan.repair_at(number), chunk.length))
        return actions

    def _unknown_solved(self, solution: Solution) -> list[Action]:
        at, length = self.plan.repair_at, self.plan.chunks.chunk_bytes
        actions: list[Action] = [AddInSlot(at(source), at(target), length) for target, source in solution.sums]
        for index, number in solution.found.items():
            chunk = self.plan.chunks.chunk(index)
            actions.append(CopyStaged(at(number), self._layout.payload_at + chunk.offset, chunk.length))
        return actions
