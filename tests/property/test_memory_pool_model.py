"""The pool against models: of who holds what, and of who is next."""

from __future__ import annotations

import asyncio
import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from fedrdma_fate.memory.pool import Lease, SlotPool
from fedrdma_fate.memory.region import PAGE_BYTES
from fedrdma_fate.ports import Region

OWNERS = ["guest", "host", "arbiter"]
POOL_PAGES = 32


class FakeRegion:
    """A region in ordinary memory."""

    name = "fake"
    address = 0
    fileno = -1

    def __init__(self, length: int) -> None:
        self.length = length
        self.view = memoryview(bytearray(length))


def make_pool() -> SlotPool:
    region: Region = FakeRegion(POOL_PAGES * PAGE_BYTES)
    return SlotPool(region, "receive")


class HoldersModel(RuleBasedStateMachine):
    """Every slot has a set of holders; it is leased exactly as long as that is not empty."""

    leases = Bundle("leases")

    @initialize()
    def make(self) -> None:
        self.pool = make_pool()
        self.held: dict[Lease, int] = {}
        self.total = 0

    @rule(target=leases, pages=st.integers(1, 12), owner=st.sampled_from(OWNERS))
    def lease(self, pages: int, owner: str) -> object:
        fits = self.pool.stats().largest_free_bytes >= pages * PAGE_BYTES
        lease = self.pool.lease(pages * PAGE_BYTES, owner)
        assert (lease is not None) == fits
        if lease is None:
            return multiple()
        self.total += 1
        self.held[lease] = lease.slot.offset
        return lease

    @rule(target=leases, lease=leases, owner=st.sampled_from(OWNERS))
    def share(self, lease: Lease, owner: str) -> object:
        if lease not in self.held:
            return multiple()
        another = lease.share(owner)
        self.held[another] = another.slot.offset
        return another

    @rule(lease=leases)
    def release(self, lease: Lease) -> None:
        lease.release()
        self.held.pop(lease, None)

    @rule(lease=consumes(leases))
    def release_again_and_forget(self, lease: Lease) -> None:
        lease.release()
        lease.release()
        self.held.pop(lease, None)

    @rule(owner=st.sampled_from(OWNERS))
    def release_owner(self, owner: str) -> None:
        dead = [lease for lease in self.held if lease.owner == owner]
        assert self.pool.release_owner(owner) == len(dead)
        for lease in dead:
            del self.held[lease]

    @invariant()
    def agrees(self) -> None:
        stats = self.pool.stats()
        lengths = {lease.slot.offset: lease.slot.length for lease in self.held}
        assert stats.slots == len(lengths)
        assert stats.leased_bytes == sum(lengths.values())
        assert stats.leased_bytes <= stats.high_water_bytes <= stats.length
        assert stats.total_leases == self.total

    def teardown(self) -> None:
        for owner in OWNERS:
            self.pool.release_owner(owner)
        assert self.pool.stats().leased_bytes == 0


TestHolders = HoldersModel.TestCase
TestHolders.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)


@dataclasses.dataclass
class Asked:
    task: asyncio.Task[Lease]
    pages: int
    order: int


class QueueDriver:
    """Carries out random steps and checks after each that nobody was overtaken and no room lies idle."""

    def __init__(self) -> None:
        self.pool = make_pool()
        self.waiting: list[Asked] = []
        self.granted: list[Asked] = []
        self.asked = 0

    async def step(self, action: str, number: int) -> None:
        if action == "ask":
            pages = number % POOL_PAGES + 1
            task = asyncio.create_task(self.pool.acquire(pages * PAGE_BYTES, OWNERS[number % 3]))
            self.waiting.append(Asked(task, pages, self.asked))
            self.asked += 1
        elif action == "release" and self.granted:
            self.granted.pop(number % len(self.granted)).task.result().release()
        elif action == "cancel" and self.waiting:
            self.waiting.pop(number % len(self.waiting)).task.cancel()
        elif action == "release and cancel" and self.granted and self.waiting:
            # the grant and the cancellation meet in one turn of the loop
            self.granted.pop(number % len(self.granted)).task.result().release()
            self.waiting.pop(0).task.cancel()

    async def check(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        served = [asked for asked in self.waiting if asked.task.done()]
        assert served == self.waiting[: len(served)], "somebody was overtaken"
        self.granted += served
        del self.waiting[: len(served)]
        stats = self.pool.stats()
        assert stats.waiting == len(self.waiting)
        assert stats.leased_bytes == sum(asked.pages for asked in self.granted) * PAGE_BYTES, "a slot leaked"
        if self.waiting:
            assert stats.largest_free_bytes < self.waiting[0].pages * PAGE_BYTES, "the first waits beside enough room"

    async def run(self, steps: list[tuple[str, int]]) -> None:
        for action, number in steps:
            await self.step(action, number)
            await self.check()
        while self.granted:
            await self.step("release", 0)
            await self.check()
        assert not self.waiting, "all room came back, so everybody was served"


ACTIONS = st.sampled_from(["ask", "ask", "release", "cancel", "release and cancel"])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(ACTIONS, st.integers(0, 10_000)), max_size=60))
def test_requests_are_served_first_come_first_served_and_none_leaks(steps: list[tuple[str, int]]) -> None:
    asyncio.run(QueueDriver().run(steps))
