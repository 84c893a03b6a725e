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
TestHolders.settings = settings(max_examples=50, stateful_step_count=50)


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


@settings(max_examples=80)
@given(st.lists(st.tuples(ACTIONS, st.integers(0, 10_000)), max_size=60))
def test_requests_are_served_first_come_first_served_and_none_leaks(steps: list[tuple[str, int]]) -> None:
    asyncio.run(QueueDriver().run(steps))


SHARERS = ["a", "b", "c"]


class SharersDriver:
    """Random steps of three that share the pool; after each, none that could be served within its reserve waits."""

    def __init__(self) -> None:
        region: Region = FakeRegion(POOL_PAGES * 8 * PAGE_BYTES)
        self.pool = SlotPool(region, "receive", sharers=SHARERS)
        self.waiting: list[tuple[str, int, asyncio.Task[Lease]]] = []
        self.held: list[tuple[str, Lease]] = []

    async def step(self, action: str, number: int) -> None:
        owner = SHARERS[number % 3]
        if action == "ask":
            pages = number // 3 % (self.pool.most_bytes // PAGE_BYTES) + 1
            self.waiting.append((owner, pages, asyncio.create_task(self.pool.acquire(pages * PAGE_BYTES, owner))))
        elif action == "lease":
            lease = self.pool.lease((number % 9 + 1) * PAGE_BYTES, owner)
            if lease is not None:
                self.held.append((owner, lease))
        elif action == "release" and self.held:
            self.held.pop(number % len(self.held))[1].release()
        elif action == "cancel" and self.waiting:
            self.waiting.pop(number % len(self.waiting))[2].cancel()

    async def check(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        served = [(owner, task.result()) for owner, _, task in self.waiting if task.done()]
        self.waiting = [each for each in self.waiting if not each[2].done()]
        self.held += served
        holds = {owner: sum(lease.slot.length for who, lease in self.held if who == owner) for owner in SHARERS}
        stats = self.pool.stats()
        assert stats.leased_bytes == sum(holds.values()), "a slot leaked"
        assert stats.waiting == len(self.waiting)
        reserved = POOL_PAGES * 8 // 3 // 8 * PAGE_BYTES
        free = stats.length - stats.leased_bytes
        lacking = sum(max(0, reserved - held) for held in holds.values())
        assert free >= lacking, "somebody's reserve is held by others"
        for owner in SHARERS:
            first = next((pages for who, pages, _ in self.waiting if who == owner), 0) * PAGE_BYTES
            if first and holds[owner] + first <= reserved:
                assert stats.largest_free_bytes < first, f"{owner} waits for what is reserved for it"

    async def run(self, steps: list[tuple[str, int]]) -> None:
        for action, number in steps:
            await self.step(action, number)
            await self.check()
        while self.held:
            await self.step("release", 0)
            await self.check()
        assert not self.waiting, "all room came back, so everybody was served"


SHARING = st.sampled_from(["ask", "ask", "lease", "release", "release", "cancel"])


@settings(max_examples=100)
@given(st.lists(st.tuples(SHARING, st.integers(0, 10_000)), max_size=60))
def test_whatever_others_ask_for_each_gets_what_is_reserved_for_it(steps: list[tuple[str, int]]) -> None:
    asyncio.run(SharersDriver().run(steps))
