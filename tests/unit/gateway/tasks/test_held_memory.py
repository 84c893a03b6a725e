"""Who holds memory is told when nobody gets any of it, and not while some do."""

from __future__ import annotations

import asyncio
from typing import Any

from fedrdma_fate.client.protocol import CLIENT_PROTOCOL_VERSION, Attach
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.tasks.held_memory import MOST_SHOWN, HeldMemory, Holding
from fedrdma_fate.wire.frames import MemoryHeld, MessageKey, Party
from tests.support.twin import PARTIES, Twin
from tests.support.twin_play import Play, sent_by, work

SLOT = 64 * 1024
GUEST = PARTIES["a"]


class Site:
    """A gateway whose receive memory is full of one message that a task holds."""

    def __init__(self, twin: Twin) -> None:
        context = twin.halves["a"].context
        self.pool = context.receive_pool
        self.received: list[Message] = []
        attach = Attach(CLIENT_PROTOCOL_VERSION, "c", "s", GUEST)
        self.held = HeldMemory(context, lambda: [(attach, self.received)])
        self.hold(self.pool.region.length // 2)
        self.rest = self.pool.lease(self.pool.stats().largest_free_bytes, "peer:b")

    def hold(self, length: int) -> None:
        lease = self.pool.lease(length, "peer:b")
        assert lease is not None
        key = MessageKey("s", f"m{len(self.received)}", "t", PARTIES["b"], GUEST)
        self.received.append(Message(key, "object", length, lease=lease))

    def want(self) -> asyncio.Task[Any]:
        return asyncio.create_task(self.pool.acquire(SLOT, "peer:b"))


def test_who_holds_memory_that_somebody_waits_for_in_vain_is_known_after_two_looks(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        site = Site(twin)
        site.held.look()
        waits = site.want()
        await twin.settle()
        site.held.look()
        assert site.held.holdings == ()
        site.held.look()
        (holding,) = site.held.holdings
        assert holding.parties == (("s", GUEST, site.pool.region.length // 2),)
        assert holding.waiting == 1
        site.received.pop().discard()
        await waits
        site.held.look()
        assert site.held.holdings == ()

    play(scenario)


def test_while_some_get_room_others_wait_and_nothing_is_said(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        site = Site(twin)
        assert site.rest is not None
        length = site.rest.slot.length
        waiting = [asyncio.create_task(site.pool.acquire(length, "peer:b")) for _ in range(4)]
        await twin.settle()
        latest = site.rest
        for each in waiting[:3]:
            site.held.look()
            assert site.held.holdings == ()
            latest.release()
            latest = await each
        site.held.look()
        site.held.look()
        assert len(site.held.holdings) == 1
        waiting[3].cancel()

    play(scenario)


def test_where_tasks_hold_nothing_nothing_is_said_of_them(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        site = Site(twin)
        waits = site.want()
        await twin.settle()
        site.received.clear()
        for _ in range(3):
            site.held.look()
            assert site.held.holdings == ()
        waits.cancel()

    play(scenario)


def test_who_may_not_know_of_a_party_learns_only_how_much_others_hold() -> None:
    holding = Holding("receive", 1, 100, (("s", GUEST, 60), ("t", Party("host", "2"), 30)))
    assert "guest:1 in s 60, others 30" in holding.told(lambda party: party == GUEST)
    assert "guest:1 in s 60, host:2 in t 30" in holding.told(lambda _: True)
    many = Holding("send", 1, 100, tuple(("s", Party("host", str(number)), 1) for number in range(100)))
    assert f"others {100 - MOST_SHOWN}" in many.told(lambda _: True)


def test_only_a_peer_that_waits_is_told_and_once_and_that_it_is_over(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        half = twin.halves["b"]
        holders = ((PARTIES["b"], 5),)
        half.peer.tell_held(holders)
        assert sent_by(twin, "b", MemoryHeld) == []
        full = half.context.receive_pool.lease(half.context.receive_pool.stats().largest_free_bytes, "peer:a")
        assert full is not None
        # more than the ring has, which is recalled for it
        key = twin.put("a", "m", bytes(600_000))
        await work(twin)
        for _ in range(2):
            half.peer.tell_held(holders)
        assert sent_by(twin, "b", MemoryHeld) == [MemoryHeld(holders)]
        await work(twin)
        assert twin.halves["a"].peer.sending.held_there == holders
        full.release()
        assert key is not None
        await work(twin)
        half.peer.tell_held(holders)
        await work(twin)
        assert twin.halves["a"].peer.sending.held_there == ()

    play(scenario)


def test_what_a_peer_said_of_its_memory_is_forgotten_with_its_channel(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        twin.halves["b"].peer.send(MemoryHeld(((PARTIES["b"], 5),)))
        await work(twin)
        assert twin.halves["a"].peer.sending.held_there
        await twin.lose_control("a")
        assert twin.halves["a"].peer.sending.held_there == ()

    play(scenario)
