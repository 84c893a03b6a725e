"""Slots in which a transfer may go on by another data path: how many are kept, for how long, and for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from fedrdma_fate.core.held import Held
from fedrdma_fate.engine.kept_slot import KeptSlot
from fedrdma_fate.engine.told_tags import ToldTags
from fedrdma_fate.gateway.coming_updates import ComingUpdates
from fedrdma_fate.gateway.config.schema import ReceiveConfig
from fedrdma_fate.gateway.link_sharing import LinkSharing
from fedrdma_fate.gateway.peers import kept_transfers
from fedrdma_fate.gateway.peers.kept_transfers import MOST_KEPT
from fedrdma_fate.gateway.peers.receiving import Receiving, pool_owner
from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.obs.complaints import Complaints
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import (
    PROBE_TRANSFERS_FROM,
    TAGS_OF_A_RUN,
    ChunkTags,
    Delivered,
    GrantRequest,
    Offer,
)
from fedrdma_fate.wire.sealed import INTRODUCTION_BYTES, RECORD_OVERHEAD
from tests.support.endpoints import HeapRegion
from tests.support.engine import KEY
from tests.support.twin import run_virtually

KIB = 1024
IDLE_SECONDS = 60.0


def offer_of(transfer: int) -> Offer:
    return Offer("tcp", transfer, KEY, "bytes", 50_000, "fedrdma-e", 1, 1000, 0)


class Link:
    """One that notes what is granted: for which transfer, which slot, and what is kept there."""

    def __init__(self) -> None:
        self.granted: list[tuple[int, Slot, KeptSlot | None]] = []
        self.alive = True

    def grant(self, grant: int, slot: Slot, transfer: int, kept: KeptSlot | None = None) -> None:
        del grant
        self.granted.append((transfer, slot, kept))


class Site:
    """A gateway's dealings with one peer, on two data paths."""

    def __init__(self) -> None:
        self.pool = SlotPool(HeapRegion(16 * 1024 * KIB), "receive", sharers=[pool_owner("b")])
        self.context: Any = SimpleNamespace(
            receive_pool=self.pool,
            sharing=LinkSharing(ReceiveConfig(), lambda _site, _share: None),
            tasks=set(),
            complaints=Complaints(),
            recalls={self.pool: []},
            making_room=set(),
            coming_updates=ComingUpdates(),
            config=SimpleNamespace(timeouts=SimpleNamespace(idle=IDLE_SECONDS)),
            mailbox=SimpleNamespace(in_region=lambda _region: iter(()), fail=lambda *_: ""),
        )
        self.receiving = Receiving("b", self.context, lambda _frame: None, lambda: None)
        self.old: Any = Link()
        self.new: Any = Link()

    async def ask(self, transfer: int, link: Any, slot_bytes: int = 64 * KIB) -> None:
        self.receiving.on_grant_request(GrantRequest("tcp", transfer, slot_bytes), link)
        while self.context.tasks:
            await asyncio.sleep(0)

    async def interrupt(self, transfer: int) -> KeptSlot:
        """It has a slot on the old path, which ends."""
        await self.ask(transfer, self.old)
        _, slot, _ = self.old.granted[-1]
        offer = offer_of(transfer)
        kept = KeptSlot(offer, slot, Held(((0, 1000),)))
        self.receiving.keep(kept)
        return kept


def play(scenario: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await scenario(Site())

    run_virtually(run())


def test_a_transfer_gets_the_slot_that_it_was_in_and_what_is_held_there() -> None:
    async def scenario(site: Site) -> None:
        kept = await site.interrupt(1)
        assert site.pool.stats().slots == 1
        await site.ask(1, site.new)
        assert site.new.granted == [(1, kept.slot, kept)]
        # it is in use: not dropped by what drops those that wait
        site.receiving.kept.drop_all()
        await asyncio.sleep(2 * IDLE_SECONDS)
        assert site.pool.stats().slots == 1

    play(scenario)


def test_another_transfer_does_not() -> None:
    async def scenario(site: Site) -> None:
        kept = await site.interrupt(1)
        await site.ask(2, site.new)
        ((transfer, slot, none),) = site.new.granted
        assert (transfer, none) == (2, None)
        assert slot != kept.slot

    play(scenario)


def test_where_more_room_is_asked_for_it_gets_another_and_the_kept_one_goes_back() -> None:
    async def scenario(site: Site) -> None:
        await site.interrupt(1)
        await site.ask(1, site.new, 128 * KIB)
        ((_, slot, none),) = site.new.granted
        assert none is None
        assert slot.length >= 128 * KIB
        assert site.pool.stats().slots == 1

    play(scenario)


def test_a_request_that_comes_before_the_old_path_has_ended_is_answered_when_it_has() -> None:
    async def scenario(site: Site) -> None:
        await site.ask(1, site.old)
        await site.ask(1, site.new)
        assert site.new.granted == []
        ((_, slot, _),) = site.old.granted
        offer = offer_of(1)
        kept = KeptSlot(offer, slot, Held())
        site.receiving.keep(kept)
        await asyncio.sleep(0)
        assert site.new.granted == [(1, slot, kept)]

    play(scenario)


def test_a_request_whose_own_path_has_ended_by_then_is_not_answered() -> None:
    async def scenario(site: Site) -> None:
        await site.ask(1, site.old)
        await site.ask(1, site.new)
        ((_, slot, _),) = site.old.granted
        site.new.alive = False
        site.receiving.slots_returned((slot,))
        await asyncio.sleep(0)
        assert site.new.granted == []
        assert site.pool.stats().slots == 0

    play(scenario)


def test_it_is_given_up_after_the_idle_time_out() -> None:
    async def scenario(site: Site) -> None:
        await site.interrupt(1)
        await asyncio.sleep(IDLE_SECONDS - 1)
        assert site.pool.stats().slots == 1
        await asyncio.sleep(2)
        assert site.pool.stats().slots == 0
        await site.ask(1, site.new)
        assert site.new.granted[0][2] is None

    play(scenario)


@pytest.mark.parametrize(
    "end",
    [
        lambda receiving: receiving.on_abort(1),
        lambda receiving: receiving._remember(Delivered(1)),
        lambda receiving: receiving.on_undeliverable(KEY, ErrorCode.TRANSFER_ABORTED.value, "gone"),
        lambda receiving: receiving.peer_restarted(),
        lambda receiving: receiving.kept.drop_all(),
    ],
    ids=["given up", "delivered by another path", "will not come", "peer restarted without memory", "memory wanted"],
)
def test_it_is_given_up_when(end: Callable[[Receiving], None]) -> None:
    async def scenario(site: Site) -> None:
        await site.interrupt(1)
        end(site.receiving)
        assert site.pool.stats().slots == 0

    play(scenario)


def test_it_is_kept_for_a_peer_whose_next_run_goes_on() -> None:
    async def scenario(site: Site) -> None:
        kept = await site.interrupt(1)
        site.receiving.peer_restarted(resumes=True)
        await site.ask(1, site.new)
        assert site.new.granted == [(1, kept.slot, kept)]

    play(scenario)


def test_what_has_ended_or_goes_on_elsewhere_is_not_kept() -> None:
    async def scenario(site: Site) -> None:
        await site.ask(1, site.old)
        site.receiving._remember(Delivered(1))
        ((_, slot, _),) = site.old.granted
        offer = offer_of(1)
        site.receiving.keep(KeptSlot(offer, slot, Held()))
        assert site.pool.stats().slots == 0

    play(scenario)


def test_a_peer_has_so_many_kept_and_no_more_and_probes_none() -> None:
    async def scenario(site: Site) -> None:
        for transfer in range(1, MOST_KEPT + 6):
            await site.interrupt(transfer)
        assert site.pool.stats().slots == MOST_KEPT
        await site.ask(5, site.new)
        await site.ask(6, site.new)
        assert [kept is None for _, _, kept in site.new.granted] == [True, False]
        site.receiving.kept.drop_all()
        await site.interrupt(PROBE_TRANSFERS_FROM + 1)
        assert site.pool.stats().slots == 2

    play(scenario)


def test_what_cannot_be_opened_is_given_up_and_its_transfer_begins_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_kept: KeptSlot, _told: ToldTags) -> None:
        raise OverflowError("a mistake")

    async def scenario() -> None:
        site = Site()
        await site.ask(1, site.old)
        _, slot, _ = site.old.granted[-1]
        opener: Any = object()
        site.receiving.keep(KeptSlot(offer_of(1), slot, Held(), sealed=opener))
        await site.ask(1, site.new)
        assert [(transfer, kept) for transfer, _, kept in site.new.granted] == [(1, None)]
        assert site.pool.stats().slots == 1

    monkeypatch.setattr(kept_transfers, "open_told", fail)
    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert "a mistake" in caplog.text


def test_of_a_peer_so_many_tags_are_taken_and_no_more_in_however_many_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of the journal has those of a slot: of one that is too long nobody would read what stands behind it."""
    monkeypatch.setattr(kept_transfers, "MOST_TOLD_BYTES", 200_000)
    tags = bytes(RECORD_OVERHEAD * TAGS_OF_A_RUN)

    async def scenario(site: Site) -> None:
        for transfer in (1, 2):
            await site.ask(transfer, site.old, 4 * 1024 * KIB)
        for number in range(20):
            grant = 1 + number % 2
            about = bytes(INTRODUCTION_BYTES)
            site.receiving.on_chunk_tags(ChunkTags(grant, grant, about, number * TAGS_OF_A_RUN, tags))
        taken = [site.receiving.kept.take_told(grant) for grant in (1, 2)]
        assert [told is not None and told.total_bytes for told in taken] == [len(tags), len(tags)]
        assert 3 * len(tags) > 200_000 > 2 * len(tags)

    play(scenario)
