"""Leases of slots: who holds which piece of a region, and who waits for room.

Everything here belongs to one thread, that of the gateway's event loop; nothing blocks.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from fedrdma_fate.memory.allocator import SlotAllocator
from fedrdma_fate.memory.region import PAGE_BYTES
from fedrdma_fate.memory.waiting import Request, Shares, Waiting
from fedrdma_fate.ports import Region, Slot
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError


@dataclasses.dataclass(frozen=True, slots=True)
class PoolStats:
    """What a pool looks like now; sizes in bytes, leased ones rounded up to whole pages.

    Attributes:
        name: as in the configuration: `send` or `receive`.
        length: size of the region.
        leased_bytes: in leased slots.
        largest_free_bytes: the longest slot that could be had now.
        slots: slots leased, however many hold each.
        waiting: requests waiting for room.
        high_water_bytes: the most that was ever leased at once.
        total_leases: slots leased since the start.
    """

    name: str
    length: int
    leased_bytes: int
    largest_free_bytes: int
    slots: int
    waiting: int
    high_water_bytes: int
    total_leases: int


class Lease:
    """One holder's hold on a slot. The slot is free again when the last of its holders has released."""

    __slots__ = ("_pool", "_slot", "owner")

    def __init__(self, pool: SlotPool, slot: Slot, owner: str) -> None:
        """Leases come from `SlotPool.lease` or `SlotPool.acquire`, and from `share`."""
        self._pool: SlotPool | None = pool
        self._slot = slot
        self.owner = owner

    @property
    def slot(self) -> Slot:
        """The slot, exactly as long as was asked for.

        Raises:
            MemoryPoolError: LEASE_UNKNOWN after `release`: the bytes may be another message's by now.
        """
        self._holding()
        return self._slot

    def share(self, owner: str | None = None) -> Lease:
        """One more holder of the same slot, for `owner` or, without one, for the same owner.

        Raises:
            MemoryPoolError: LEASE_UNKNOWN after `release`.
        """
        return self._holding().hold(self._slot, self.owner if owner is None else owner)

    def trim(self, length: int) -> None:
        """Keep the first `length` bytes only, where nobody else holds the slot.

        Raises:
            MemoryPoolError: LEASE_UNKNOWN after `release`.
        """
        self._slot = self._holding().trim(self._slot, length, self.owner)

    def release(self) -> None:
        """Let go; again is nothing."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.let_go(self, self._slot)

    def _holding(self) -> SlotPool:
        if self._pool is None:
            raise MemoryPoolError(ErrorCode.LEASE_UNKNOWN, f"{self.owner} has already released this lease.")
        return self._pool


class PageKeeper(Protocol):
    """Keeps the pages of a cold region."""

    def take(self, offset: int, length: int) -> None:
        """A slot was leased: it needs pages.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when there are none.
        """
        ...

    def give_back(self, offset: int, length: int) -> None:
        """A slot is free again."""
        ...


class SlotPool:
    """Leases slots of one region: first come first served, or in turns between sharers; see `memory.waiting`.

    Attributes:
        when_freed: called each time a slot has become free that nobody waited for.
        when_wanted: called when a request that waited for its own owner's slots alone now waits for others' as well.
    """

    def __init__(
        self, region: Region, name: str, pages: PageKeeper | None = None, sharers: Iterable[str] | None = None
    ) -> None:
        """Manage the whole region.

        Args:
            region: what to lease.
            name: `send` or `receive`, for people.
            pages: gives slots of a cold region their pages and takes them away; None for a warm one.
            sharers: owners that share the region and take turns; None: first come first served.
        """
        self._pages = pages
        self._region = region
        self._name = name
        self._allocator = SlotAllocator(region.length, PAGE_BYTES)
        self._holders: dict[int, int] = {}
        self._leases: dict[str, dict[Lease, None]] = {}
        self._shares = None if sharers is None else Shares(region.length, sharers, PAGE_BYTES)
        self._waiting: Waiting[Lease] = Waiting(self._shares)
        self._held: Counter[str] = Counter()
        self._high_water_bytes = 0
        self._total_leases = 0
        self._longest_request = 0
        self._closed = False
        self.when_freed: list[Callable[[], None]] = []
        self.when_wanted: list[Callable[[], None]] = []

    @property
    def region(self) -> Region:
        """What the slots are pieces of."""
        return self._region

    @property
    def wanted(self) -> tuple[int, str | None]:
        """Bytes that should be spilled or freed, 0 when nobody waits, and of which owner alone; None: of all."""
        return self._waiting.wanted(self._held)

    @property
    def can_spare(self) -> bool:
        """Whether slots may stay leased for long: nobody waits, and another of the longest so far would still fit."""
        return not self._somebody_next and self._allocator.largest_free >= self._longest_request

    @property
    def most_bytes(self) -> int:
        """The longest slot that one owner can ever have."""
        return self._allocator.length if self._shares is None else self._shares.most

    @property
    def _somebody_next(self) -> bool:
        """Whether somebody waits for what others hold, and goes before those who come now."""
        return bool(self._waiting.next(self._held))

    def stats(self) -> PoolStats:
        """A snapshot for status and metrics."""
        return PoolStats(
            name=self._name,
            length=self._region.length,
            leased_bytes=self._leased_bytes,
            largest_free_bytes=self._allocator.largest_free,
            slots=len(self._holders),
            waiting=len(self._waiting),
            high_water_bytes=self._high_water_bytes,
            total_leases=self._total_leases,
        )

    def has_room_for(self, *lengths: int) -> bool:
        """Whether slots of these lengths could all be had now."""
        if self._somebody_next:
            return False
        taken: list[int] = []
        for length in lengths:
            offset = self._allocator.allocate(length)
            if offset is None:
                break
            taken.append(offset)
        for offset in taken:
            self._allocator.free(offset)
        return len(taken) == len(lengths)

    def lease(self, length: int, owner: str) -> Lease | None:
        """A slot of `length` bytes at once, or None when there is no room or others wait already.

        Raises:
            MemoryPoolError: PAYLOAD_TOO_LARGE when it could never fit; REGION_UNAVAILABLE after `close`.
            ValueError: length is negative.
        """
        self._check(length)
        if self._somebody_next or self._waiting.of(owner):
            return None
        return self._take(length, owner)

    def lease_at(self, offset: int, length: int, owner: str) -> Lease | None:
        """The slot that begins there, which an earlier run had leased; None where it is not free, or lies outside.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when a cold region has no pages for it.
            ValueError: length is negative.
        """
        if not self._allocator.allocate_at(offset, length):
            return None
        return self._lease_allocated(offset, length, owner)

    def give_back_free(self) -> None:
        """Take the pages of all that is not leased away, where the region is cold: an earlier run had used them."""
        if self._pages is not None:
            for offset, length in self._allocator.holes():
                self._pages.give_back(offset, length)

    async def acquire(self, length: int, owner: str, timeout: float | None = None) -> Lease:
        """A slot of `length` bytes, as soon as all who asked before have theirs and there is room.

        May be cancelled: a slot that was just granted goes back.

        Args:
            length: bytes.
            owner: who will hold it.
            timeout: seconds; None waits for ever.

        Raises:
            MemoryPoolError: PAYLOAD_TOO_LARGE at once when it could never fit; POOL_TIMEOUT; LEASE_UNKNOWN when
                `release_owner` named this owner meanwhile; REGION_UNAVAILABLE when the pool closed.
            ValueError: length is negative.
        """
        self._check(length)
        request: Request[Lease] = Request(length, owner, asyncio.get_running_loop().create_future())
        self._waiting.add(request)
        self._serve()
        try:
            if not request.future.done():
                await asyncio.wait((request.future,), timeout=timeout)
            if not request.future.done():
                raise self._timed_out(length, timeout)
            return request.future.result()
        except (MemoryPoolError, asyncio.CancelledError):
            self._withdraw(request)
            raise

    def hold(self, slot: Slot, owner: str) -> Lease:
        """One more holder of a leased slot; what `Lease.share` calls."""
        self._holders[slot.offset] += 1
        return self._register(slot, owner)

    def trim(self, slot: Slot, length: int, owner: str) -> Slot:
        """What is left of a slot whose end is given back; what `Lease.trim` calls."""
        if length >= slot.length or self._holders[slot.offset] > 1:
            return slot
        kept = slot.part(0, length)
        freed = self._allocator.shrink(slot.offset, length)
        self._account(owner, -freed)
        if freed:
            if self._pages is not None:
                self._pages.give_back(slot.offset + self._allocator.rounded(length), freed)
            self._serve()
        return kept

    def let_go(self, lease: Lease, slot: Slot) -> None:
        """A holder is gone; what `Lease.release` calls, once."""
        before = self._somebody_next
        held = self._leases[lease.owner]
        del held[lease]
        if not held:
            del self._leases[lease.owner]
        self._account(lease.owner, -self._allocator.rounded(slot.length))
        self._holders[slot.offset] -= 1
        if not self._holders[slot.offset]:
            del self._holders[slot.offset]
            if self._pages is not None:
                self._pages.give_back(slot.offset, slot.length)
            self._allocator.free(slot.offset)
            self._serve()
            if self._somebody_next and not before:
                for tell in self.when_wanted:
                    tell()
            if not self._somebody_next:
                for tell in self.when_freed:
                    tell()

    def release_owner(self, owner: str) -> int:
        """Release all that a dead task held and refuse what it waited for; how many leases that were."""
        for request in [request for request in self._waiting.all() if request.owner == owner]:
            reason = f"{owner} is gone and waits no longer for {self._name} memory."
            self._refuse(request, MemoryPoolError(ErrorCode.LEASE_UNKNOWN, reason))
        leases = list(self._leases.get(owner, ()))
        for lease in leases:
            lease.release()
        self._serve()
        return len(leases)

    def close(self) -> None:
        """Refuse everybody who waits and everybody who comes. Leases stay valid until released. May be repeated."""
        self._closed = True
        for request in self._waiting.all():
            self._refuse(request, self._closed_error())

    @property
    def _leased_bytes(self) -> int:
        return self._allocator.length - self._allocator.free_bytes

    def _check(self, length: int) -> None:
        if self._closed:
            raise self._closed_error()
        if length < 0:
            raise ValueError(f"a slot cannot have {length} bytes")
        if length > self.most_bytes:
            reserved = self._allocator.length - self.most_bytes
            kept = f", of which {reserved} are kept for others" if reserved else ""
            raise MemoryPoolError(
                ErrorCode.PAYLOAD_TOO_LARGE,
                f"{length} bytes do not fit into {self._name} memory of {self._allocator.length} bytes{kept}.",
                f"Raise memory.{self._name}_bytes in the gateway's configuration.",
            )
        self._longest_request = max(self._longest_request, length)

    def _take(self, length: int, owner: str) -> Lease | None:
        piece = 0
        if self._shares is not None:
            rounded = self._allocator.rounded(length)
            if self._allocator.free_bytes - rounded < self._shares.reserved_for_others(owner, self._held):
                return None
            piece = self._shares.kept_in_one_piece(rounded, owner, self._held)
        offset = self._allocator.allocate(length, piece)
        return None if offset is None else self._lease_allocated(offset, length, owner)

    def _lease_allocated(self, offset: int, length: int, owner: str) -> Lease:
        if self._pages is not None:
            try:
                self._pages.take(offset, length)
            except MemoryPoolError:
                self._allocator.free(offset)
                raise
        self._holders[offset] = 1
        self._total_leases += 1
        self._high_water_bytes = max(self._high_water_bytes, self._leased_bytes)
        return self._register(Slot(self._region, offset, length), owner)

    def _register(self, slot: Slot, owner: str) -> Lease:
        lease = Lease(self, slot, owner)
        self._leases.setdefault(owner, {})[lease] = None
        self._account(owner, self._allocator.rounded(slot.length))
        return lease

    def _account(self, owner: str, change: int) -> None:
        self._held[owner] += change
        if not self._held[owner]:
            del self._held[owner]

    def _serve(self) -> None:
        """Serve those who wait, in their order, as far as there is room."""
        while any(self._serve_one(request) for request in self._waiting.next(self._held)):
            pass

    def _serve_one(self, request: Request[Lease]) -> bool:
        """Whether it waits no longer."""
        try:
            lease = self._take(request.length, request.owner)
        except MemoryPoolError as error:
            self._refuse(request, error)
            return True
        if lease is None:
            return False
        self._waiting.served(request)
        request.future.set_result(lease)
        return True

    def _refuse(self, request: Request[Lease], error: MemoryPoolError) -> None:
        self._waiting.remove(request)
        request.future.set_exception(error)

    def _withdraw(self, request: Request[Lease]) -> None:
        """Whoever asked takes no lease, though it may have been granted in this very turn of the loop."""
        if not request.future.done():
            self._waiting.remove(request)
            self._serve()
        elif request.future.exception() is None:
            request.future.result().release()

    def _timed_out(self, length: int, timeout: float | None) -> MemoryPoolError:
        now = self.stats()
        return MemoryPoolError(
            ErrorCode.POOL_TIMEOUT,
            f"no room for {length} bytes in {self._name} memory within {timeout} s: {now.leased_bytes} of "
            f"{now.length} bytes leased in {now.slots} slots, largest gap {now.largest_free_bytes} bytes, "
            f"{now.waiting - 1} others wait.",
            f"Raise memory.{self._name}_bytes, or see in `fedrdma status` who holds the slots.",
        )

    def _closed_error(self) -> MemoryPoolError:
        return MemoryPoolError(ErrorCode.REGION_UNAVAILABLE, f"{self._name} memory is closed: the gateway is stopping.")
