"""A decorator for any transport that does, on purpose and repeatably, what networks do by accident. For tests."""

from __future__ import annotations

import dataclasses
import os
import random
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

import msgspec

from fedrdma_fate.core.x.chunking import TAGS, chunk_of_immediate
from fedrdma_fate.ports import (
    ChunkService,
    Completion,
    CompletionKind,
    Draft,
    Endpoint,
    EndpointAddress,
    LentRegion,
    Opener,
    RemoteSlot,
    Role,
    Slot,
    Transport,
)
from fedrdma_fate.transport.endpoint_base import EndpointHealth, unavailable

Operation = Literal["expose", "withdraw", "post_write", "post_bytes", "post_chunk", "progress"]


@dataclasses.dataclass(frozen=True, slots=True)
class FaultPlan:
    """What goes wrong on one connection, on the side that is decorated; by default nothing.

    Writes, bytes and operations are counted from the start of the connection, the first is number 1.

    Attributes:
        seed: of every random choice (which byte is corrupted, which completion is delayed or doubled).
        refuse_connect: `connect` raises TRANSPORT_UNAVAILABLE.
        break_after_bytes: the link breaks when a post would bring the bytes posted above this number.
        break_at: the link breaks instead of carrying out the n-th call of this operation.
        silent_after_writes: after so many posts nothing goes out or comes in, not even ACKs, and nothing breaks.
        delay_completions: a completion is held back for up to so many calls of `progress`; their order stays.
        duplicate_share: share of IMMEDIATE, LANDED and CHUNK_IMMEDIATE completions that come twice, from 0 to 1.
        corrupt_landed: these writes, LANDED or CHUNK_IMMEDIATE where the transport saw the place, have one byte changed
            in the slot before they are reported.
        corrupt_posted_bytes: these calls of `post_bytes` send one byte changed: a header damaged at the receiver.
        chunk_loss: share of chunks that are lost; unless it is 0, the chunk service is not reliable, and a chunk that
            went through is not sent again.
        lost_always: indices of chunks that are lost each time that they are sent; the chunk service is not reliable.
        lost_from: until this has happened those of `lost_always` are not lost; None: they are from the beginning.
        reorder_share: share of CHUNK_IMMEDIATE and DATAGRAM completions that overtake those before them.
        truncate_at: of the n-th post only the first half arrives, nothing after it, and some calls of `progress` later
            the link breaks: what a reset in the middle of a write leaves.
        half_open_after_writes: after so many posts the link is closed for the peer, while here nothing is heard of it.
        deaf_after_writes: after so many posts nothing comes in, and what is posted still goes out.
        mute_after_writes: after so many posts nothing goes out, not even ACKs, and what comes in is still heard.
        withdrawn_key_at: the n-th post names a key that does not open anything, or nothing any more.
    """

    seed: int = 0
    refuse_connect: bool = False
    break_after_bytes: int | None = None
    break_at: tuple[Operation, int] | None = None
    silent_after_writes: int | None = None
    delay_completions: int = 0
    duplicate_share: float = 0.0
    corrupt_landed: frozenset[int] = frozenset()
    corrupt_posted_bytes: frozenset[int] = frozenset()
    chunk_loss: float = 0.0
    lost_always: frozenset[int] = frozenset()
    lost_from: threading.Event | None = None
    reorder_share: float = 0.0
    truncate_at: int | None = None
    half_open_after_writes: int | None = None
    deaf_after_writes: int | None = None
    mute_after_writes: int | None = None
    withdrawn_key_at: int | None = None

    @property
    def loses_chunks(self) -> bool:
        return bool(self.chunk_loss or self.lost_always)


REORDERED = (CompletionKind.CHUNK_IMMEDIATE, CompletionKind.DATAGRAM)
"""What may overtake: queue pairs and datagrams each go their own way."""
TRUNCATED_TURNS = 3
"""Calls of `progress` between the half of a write and the end of its link: the half has landed by then."""
NO_FAULTS = FaultPlan()


class FaultyTransport:
    """Applies one plan to each connection in turn; connections beyond the plans have no faults."""

    def __init__(self, inner: Transport, plans: Iterable[FaultPlan]) -> None:
        self.inner = inner
        self._plans = deque(plans)
        self.strikes = 0
        """How often what was planned has happened."""

    def _struck(self) -> None:
        self.strikes += 1

    @property
    def name(self) -> str:
        return self.inner.name

    def open(self, role: Role) -> Draft:
        """Start one data path, which the next plan will spoil."""
        plan = self._plans.popleft() if self._plans else NO_FAULTS
        return FaultyDraft(self.inner.open(role), plan, self._struck)

    def heal(self) -> None:
        """Connections from now on have no faults."""
        self._plans.clear()

    def close(self) -> None:
        """Close the inner transport."""
        self.inner.close()


class FaultyDraft:
    """A draft whose endpoint will be faulty."""

    def __init__(self, inner: Draft, plan: FaultPlan, on_strike: Callable[[], None] = lambda: None) -> None:
        self._inner = inner
        self._plan = plan
        self._on_strike = on_strike

    @property
    def address(self) -> EndpointAddress:
        return self._inner.address

    def connect(self, peer: EndpointAddress, timeout: float) -> Endpoint:
        """Connect, unless the plan refuses.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE, planned or real.
        """
        if self._plan.refuse_connect:
            self._on_strike()
            self._inner.close()
            raise unavailable("faulty", "the fault plan refuses to connect")
        return FaultyEndpoint(self._inner.connect(peer, timeout), self._plan, self._on_strike)

    def abandon(self) -> None:
        """Abandon the inner draft."""
        self._inner.abandon()

    def close(self) -> None:
        """Close the inner draft."""
        self._inner.close()


class FaultyEndpoint:
    """An endpoint to which things happen. See `ports.Endpoint`."""

    def __init__(self, inner: Endpoint, plan: FaultPlan, on_strike: Callable[[], None] = lambda: None) -> None:
        self._inner = inner
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._health = EndpointHealth(inner.transport)
        self._slots: dict[int, Slot] = {}
        self._calls: dict[Operation, int] = {}
        self._went_through: set[tuple[int, int]] = set()
        self._posted_bytes = 0
        self._posts = 0
        self._landed = 0
        self._turn = 0
        self._held: deque[tuple[int, Completion]] = deque()
        self._always_ready = os.eventfd(1, os.EFD_CLOEXEC)
        # few tests close it, and one process runs thousands of them
        self._close_ready = weakref.finalize(self, os.close, self._always_ready)
        self._seen_keys: list[int] = []
        self._tried = 0
        self._breaks_at_turn: int | None = None
        self._on_strike = on_strike

    @property
    def transport(self) -> str:
        return self._inner.transport

    @property
    def sealed_by_poster(self) -> bool:
        """The inner one's."""
        return self._inner.sealed_by_poster

    @property
    def moved_bytes(self) -> int:
        """The inner one's."""
        return self._inner.moved_bytes

    @property
    def readiness_shows_all(self) -> bool:
        """What is held back here is shown by a descriptor that is always ready."""
        return self._inner.readiness_shows_all

    def open_with(self, opener: Opener) -> bool:
        """Seal."""
        return self._inner.open_with(opener)

    def expose(self, grant: int, slot: Slot) -> RemoteSlot:
        """Expose, and remember the slot for corruption."""
        self._count("expose")
        self._slots[grant] = slot
        if self._past(self._plan.half_open_after_writes):
            return RemoteSlot(grant, 0, slot.length)
        return self._inner.expose(grant, slot)

    def withdraw(self, grant: int) -> None:
        """Withdraw."""
        self._count("withdraw")
        self._slots.pop(grant, None)
        if not self._past(self._plan.half_open_after_writes):
            self._inner.withdraw(grant)

    def drain(self, grant: int) -> None:
        """Drain."""
        self._count("withdraw")
        self._slots.pop(grant, None)
        if not self._past(self._plan.half_open_after_writes):
            self._inner.drain(grant)

    @property
    def still_open(self) -> Collection[int]:
        """The inner one's."""
        return self._inner.still_open

    def post_write(self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int) -> None:
        """Post, unless the plan has broken or silenced the link."""
        self._count("post_write")
        if (half := self._half_of(source)) is not None:
            self._inner.post_write(work_request, half, target, target_offset)
        elif self._posting(source.length):
            self._inner.post_write(work_request, source, self._spoilt(target), target_offset)

    def post_bytes(
        self, work_request: int, data: bytes, target: RemoteSlot, target_offset: int, immediate: int
    ) -> None:
        """Post, perhaps other bytes, unless the plan has broken or silenced the link."""
        self._count("post_bytes")
        if self._calls["post_bytes"] in self._plan.corrupt_posted_bytes:
            self._on_strike()
            data = self._corrupted(data)
        # half of them is not reported to the peer, so it is as if nothing came
        if self._half_of(None) is None and self._posting(len(data)):
            self._inner.post_bytes(work_request, data, self._spoilt(target), target_offset, immediate)

    @property
    def lent_region(self) -> LentRegion | None:
        return self._inner.lent_region

    @property
    def chunk_service(self) -> ChunkService:
        """The inner one, or a lossy one."""
        inner = self._inner.chunk_service
        return dataclasses.replace(inner, reliable=False, self_paced=False) if self._plan.loses_chunks else inner

    def post_chunk(
        self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int, queue_pair: int, immediate: int
    ) -> None:
        """Post, unless it is lost, or the plan has broken or silenced the link."""
        self._count("post_chunk")
        if (half := self._half_of(source)) is not None:
            self._inner.post_write(work_request, half, target, target_offset)
            return
        if not self._posting(source.length):
            return
        target = self._spoilt(target)
        # taken for lost by mistake: a card drops the second copy when the key is gone, a stream ends the link
        mistaken = (target.key, immediate) in self._went_through
        if mistaken or self._is_doomed(immediate) or self._random.random() < self._plan.chunk_loss:
            self._on_strike()
            self._held.append((self._turn, Completion(CompletionKind.WRITE_DONE, work_request)))
        else:
            if self._plan.loses_chunks:
                self._went_through.add((target.key, immediate))
            self._inner.post_chunk(work_request, source, target, target_offset, queue_pair, immediate)

    def _is_doomed(self, immediate: int) -> bool:
        begun = self._plan.lost_from is None or self._plan.lost_from.is_set()
        return begun and chunk_of_immediate(immediate)[1] in self._plan.lost_always

    def post_datagram(self, data: bytes, copies: int = 1, padding: int = 0) -> bool:
        """Send, unless the link is silent, or mute."""
        self._health.check()
        return self._silent or self._mute or self._inner.post_datagram(data, copies, padding)

    def poll_set(self) -> Sequence[tuple[int, int]]:
        """The inner descriptors, and one that is always ready while completions are held back; none in silence."""
        self._health.check()
        if self._silent:
            return []
        ready = [(self._always_ready, select.POLLIN)] if self._held or self._breaks_at_turn else []
        return [*self._inner.poll_set(), *ready]

    def progress(self) -> Sequence[Completion]:
        """Progress, and tamper with what completed."""
        self._count("progress")
        self._turn += 1
        if self._breaks_at_turn is not None and self._turn >= self._breaks_at_turn:
            self._break("the fault plan breaks it behind half of a write")
        if self._silent:
            self._on_strike()
            return []
        if self._past(self._plan.deaf_after_writes):
            if self._inner.progress():
                self._on_strike()
            return []
        for completion in self._inner.progress():
            self._hold(completion)
        ripe: list[Completion] = []
        while self._held and self._held[0][0] <= self._turn:
            ripe.append(self._held.popleft()[1])
        return ripe

    def close(self) -> None:
        """Close the inner endpoint."""
        self._close_ready()
        self._health.lose("it was closed here")
        self._held.clear()
        self._inner.close()

    @property
    def _silent(self) -> bool:
        return self._past(self._plan.silent_after_writes) or self._past(self._plan.half_open_after_writes)

    @property
    def _mute(self) -> bool:
        return self._past(self._plan.mute_after_writes) or self._breaks_at_turn is not None

    def _past(self, posts: int | None) -> bool:
        return posts is not None and self._posts >= posts

    def _half_of(self, source: Slot | None) -> Slot | None:
        """What arrives of a post that is cut short; None where this one is not, or nothing of it arrives."""
        self._tried += 1
        if self._plan.truncate_at != self._tried or self._silent:
            return None
        self._breaks_at_turn = self._turn + TRUNCATED_TURNS
        return None if source is None or source.length < 2 else source.part(0, source.length // 2)

    def _spoilt(self, target: RemoteSlot) -> RemoteSlot:
        """The target, or one behind another key where this post is to name one that is not valid."""
        if self._plan.withdrawn_key_at == self._tried:
            self._on_strike()
            # the first one it ever had, or none that was ever given out: one that still opens a slot is not withdrawn,
            # and who writes there after a message was looked at changes a message of its own
            opens = getattr(self._inner, "opens_at_peer", lambda key: key == target.key)
            withdrawn = next((key for key in self._seen_keys if not opens(key)), target.key ^ 0x7FFF_FFFF)
            return dataclasses.replace(target, key=withdrawn)
        if target.key not in self._seen_keys[:1]:
            self._seen_keys.append(target.key)
            del self._seen_keys[1:]
        return target

    def _count(self, operation: Operation) -> None:
        self._health.check()
        self._calls[operation] = self._calls.get(operation, 0) + 1
        if self._plan.break_at == (operation, self._calls[operation]):
            self._break(f"the fault plan breaks it at {operation} number {self._calls[operation]}")

    def _posting(self, length: int) -> bool:
        """Account for a post; whether it is to be carried out."""
        limit = self._plan.break_after_bytes
        if limit is not None and self._posted_bytes + length > limit:
            self._break(f"the fault plan breaks it after {limit} bytes")
        if self._silent or self._mute:
            self._on_strike()
            return False
        self._posted_bytes += length
        self._posts += 1
        if self._past(self._plan.half_open_after_writes):
            # this one went out, and then the peer's end is gone
            self._on_strike()
            self._inner.close()
        return True

    def _break(self, reason: str) -> None:
        self._on_strike()
        self._health.lose(reason)
        self._inner.close()
        self._health.check()

    def _hold(self, completion: Completion) -> None:
        if completion.kind in (CompletionKind.LANDED, CompletionKind.CHUNK_IMMEDIATE):
            self._landed += 1
            if self._landed in self._plan.corrupt_landed:
                self._on_strike()
                self._corrupt_slot(completion)
                # damaged on the way, as far as anybody can tell: what the transport saw of it is not true
                completion = msgspec.structs.replace(completion, digest=None)
        # a completion never overtakes an earlier one, but where the network reorders
        due = max(self._turn + self._random.randint(0, self._plan.delay_completions), self._last_due())
        if due > self._turn:
            self._on_strike()
        self._held.append((due, completion))
        self._overtake(completion.kind)
        doubled = self._random.random() < self._plan.duplicate_share
        if doubled and completion.kind is not CompletionKind.WRITE_DONE:
            self._on_strike()
            self._held.append((due, completion))

    def _overtake(self, kind: CompletionKind) -> None:
        if kind not in REORDERED or len(self._held) < 2 or self._random.random() >= self._plan.reorder_share:
            return
        before_due, before = self._held[-2]
        if before.kind in REORDERED:
            self._on_strike()
            due, last = self._held[-1]
            self._held[-2], self._held[-1] = (before_due, last), (due, before)

    def _last_due(self) -> int:
        return self._held[-1][0] if self._held else 0

    def _corrupted(self, data: bytes) -> bytes:
        at = self._random.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :]

    def _corrupt_slot(self, landed: Completion) -> None:
        if landed.kind is CompletionKind.LANDED:
            slot = self._slots.get(landed.immediate)
        else:
            tag = chunk_of_immediate(landed.immediate)[0]
            slot = next((slot for grant, slot in self._slots.items() if grant % TAGS == tag), None)
        if slot is not None and landed.length:
            at = landed.offset + self._random.randrange(landed.length)
            slot.view[at] ^= 0x5A
