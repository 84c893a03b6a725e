"""What both ends of a `fedrdma-x` transfer do with repair chunks: send sums of chunks, and recover lost ones."""

from __future__ import annotations

from collections.abc import Sequence

from fedrdma_fate.core.actions import Action, AddInSlot, AddToRepairs, CopyStaged, PostRepair
from fedrdma_fate.core.plan import Chunk, SlotLayout
from fedrdma_fate.core.x.chunking import immediate_of
from fedrdma_fate.core.x.repair_code import RepairPlan, Solution, solve
from fedrdma_fate.core.x.sending_order import SendingOrder


class RepairSender:
    """The encoder: adds covered chunks up as they are first sent, and says when the repair chunks may follow.

    Attributes:
        plan: how many chunks are covered, by how many repair chunks; it counts from the chunk that goes last.
    """

    def __init__(self, plan: RepairPlan, order: SendingOrder | None = None) -> None:
        self.plan = plan
        self._order = order or SendingOrder(plan.chunks)
        self._added_chunks = 0
        self._next_number = 0
        self._last_sent_at: float | None = None

    def on_first_sent(self, chunk: Chunk) -> list[Action]:
        """A chunk goes out that did not before."""
        number = self.plan.chunks.count - 1 - self._order.position(chunk.index)
        if number >= self.plan.covered:
            return []
        self._added_chunks += 1
        return [AddToRepairs(chunk, self.plan.repairs_of(number))]

    @property
    def next_number(self) -> int | None:
        """The repair chunk to send next; None when all are sent, or while a covered chunk is missing in the sums."""
        is_summed = self._added_chunks == self.plan.covered
        return self._next_number if is_summed and self._next_number < self.plan.repairs else None

    def take(self, now: float, tag: int, work_request: int, queue_pair: int) -> PostRepair:
        """It goes out now, seconds, under this tag by this queue pair."""
        number = self._next_number
        self._next_number += 1
        self._last_sent_at = now
        immediate = immediate_of(tag, self.plan.chunks.count + number)
        return PostRepair(work_request, number, self.plan.repair_at(number), queue_pair, immediate)

    def may_recover(self, now: float, round_trip: float) -> bool:
        """Whether lost chunks may still be recovered: until a report can have told of the last repair chunk.

        Args:
            now: seconds.
            round_trip: seconds.
        """
        if self._last_sent_at is None or self.next_number is not None:
            return True
        return now < self._last_sent_at + round_trip


MOST_WORK = 1 << 24
"""To solve for what is missing of a transfer: missing chunks times repair chunks, summed over all tries. It is some
three seconds of a core. A loss of 2 % of 64 MiB takes 130 tries, and a tenth of it. What is left is sent again."""


class RepairReceiver:
    """The decoder: keeps which repair chunks have arrived, and recovers what is missing as soon as they suffice.

    Attributes:
        plan: as the sender's.
    """

    def __init__(self, plan: RepairPlan, order: SendingOrder | None = None) -> None:
        self.plan = plan
        self._order = order or SendingOrder(plan.chunks)
        self._layout = SlotLayout(plan.chunks, "fedrdma-x")
        self._arrived: set[int] = set()
        self._work_left = MOST_WORK

    def may_suffice(self, missing: int) -> bool:
        """Whether it is worth a try to solve for so many of the covered chunks."""
        return 0 < missing <= len(self._arrived) and self._work_left > 0

    def on_repair(self, number: int) -> bool:
        """A repair chunk has landed whole; whether there is such a one, and it had not come before."""
        if number >= self.plan.repairs or number in self._arrived:
            return False
        self._arrived.add(number)
        return True

    def recover(self, missing: Sequence[int]) -> list[Action] | None:
        """What puts these chunks, all of the covered ones that are missing, into their places; None while nothing can.

        They are numbers, counted from the chunk that goes last. The repair chunks that have arrived are used up by it.
        """
        if not self.may_suffice(len(missing)):
            return None
        self._work_left -= len(missing) * len(self._arrived)
        solution = solve(self.plan, self._arrived, missing)
        if solution is None:
            return None
        self._arrived.clear()
        return [*self._take_out_known(solution, set(missing)), *self._solve_for_missing(solution)]

    def _take_out_known(self, solution: Solution, missing: set[int]) -> list[Action]:
        used = set(solution.found.values())
        actions: list[Action] = []
        for number in range(self.plan.covered):
            if number in missing:
                continue
            chunk = self._chunk(number)
            source = self._layout.payload_at + chunk.offset
            for repair in self.plan.repairs_of(number):
                if repair in used:
                    actions.append(AddInSlot(source, self.plan.repair_at(repair), chunk.length))
        return actions

    def _solve_for_missing(self, solution: Solution) -> list[Action]:
        at, length = self.plan.repair_at, self.plan.chunks.chunk_bytes
        actions: list[Action] = [AddInSlot(at(source), at(target), length) for target, source in solution.additions]
        for number, repair in solution.found.items():
            chunk = self._chunk(number)
            actions.append(CopyStaged(at(repair), self._layout.payload_at + chunk.offset, chunk.length))
        return actions

    def _chunk(self, number: int) -> Chunk:
        return self._order.chunk(self.plan.chunks.count - 1 - number)
