"""Offers that come by a datagram as well as by the control channel, as the gateway takes them."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.engine.events import Payload
from fedrdma_fate.ports import ChunkService
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import Abort, MessageKey, Offer, Party, Refused, Restart, decode_frame
from tests.support.endpoints import MemoryTransport, MemoryWire
from tests.support.twin import Twin, run_virtually, threadless_links

BODY = random.Random(5).randbytes(100_000)
Scenario = Callable[[Twin], Coroutine[Any, Any, None]]


def lossy_wire() -> MemoryWire:
    wire = MemoryWire()
    wire.chunk_service = ChunkService(reliable=False, self_paced=False, queue_pairs=2)
    wire.has_datagrams = True
    return wire


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Scenario], None]:
    """Plays a scenario with a twin whose data path is up, with slots granted."""

    async def run(scenario: Scenario) -> None:
        twin = Twin(tmp_path, mode="fedrdma-x")
        try:
            for transports in twin.transports.values():
                tcp = transports["tcp"]
                assert isinstance(tcp, MemoryTransport)
                tcp.make_wire = lossy_wire
            await twin.connect()
            await work(twin, carry=True)
            await scenario(twin)
        finally:
            twin.close()

    def play(scenario: Scenario) -> None:
        with threadless_links():
            run_virtually(run(scenario))

    return play


async def work(twin: Twin, *, carry: bool) -> None:
    """Both sides do what they can, for a while; the control channel may be stuck."""
    for _ in range(30):
        for site in twin.halves:
            await twin.turn(site)
            if carry:
                await twin.carry(site)


def told(twin: Twin, site: str) -> list[Any]:
    """Frames that a site has sent and that have not been carried."""
    stream = twin.halves[site].stream
    assert stream is not None
    return [decode_frame(raw) for raw in list(stream._outgoing._queue) if raw is not None]  # type: ignore[attr-defined]


def test_a_message_comes_while_the_control_channel_is_stuck_and_once(play: Callable[[Scenario], None]) -> None:
    async def scenario(twin: Twin) -> None:
        b = twin.halves["b"]
        key = twin.put("a", "m", BODY)
        await work(twin, carry=False)
        assert key is not None
        assert b.hub.mailbox.summary()["messages"] == 1
        assert twin.halves["a"].peer.sending.pending == 0
        offers = [frame for frame in told(twin, "a") if isinstance(frame, Offer)]
        assert len(offers) == 1
        while told(twin, "a"):
            await twin.carry("a", 1)
            await twin.turn("b")
        assert not [frame for frame in told(twin, "b") if isinstance(frame, Restart | Refused)]
        await twin.quiesce()
        assert b.hub.mailbox.summary()["messages"] == 1
        assert b.peer.receiving._announced == {}
        assert await twin.get(key) == BODY
        await twin.quiesce()
        assert b.hub.receive_pool.stats().slots == b.credits_held()
        assert twin.halves["a"].hub.send_pool.stats().slots == 0

    play(scenario)


def test_a_datagram_for_a_stranger_begins_nothing_and_is_not_answered(play: Callable[[Scenario], None]) -> None:
    async def scenario(twin: Twin) -> None:
        a, b = twin.halves["a"], twin.halves["b"]
        key = MessageKey("s", "m", "t", a.party, Party("arbiter", "7"))
        lease = a.hub.send_pool.lease(len(BODY), "task")
        assert lease is not None
        a.peer.sending.put_payload(key, "object", Payload(lease.slot, len(BODY)), lease, None)
        before = len(told(twin, "b"))
        await work(twin, carry=False)
        assert len(told(twin, "b")) == before
        await work(twin, carry=True)
        await twin.quiesce()
        assert a.peer.sending.pending == 0
        assert b.hub.mailbox.summary()["messages"] == 0
        with pytest.raises(Exception, match=ErrorCode.WRONG_PARTY.value):
            a.hub.mailbox.sessions.raise_push_failure("s", key.source)

    play(scenario)


@pytest.mark.parametrize("ending", ["delivered", "given up"])
def test_a_datagram_that_comes_after_the_end_begins_nothing(play: Callable[[Scenario], None], ending: str) -> None:
    async def scenario(twin: Twin) -> None:
        b = twin.halves["b"]
        key = twin.put("a", "m", BODY)
        assert key is not None
        for _ in range(3):
            await twin.turn("a")
        (offer,) = [frame for frame in told(twin, "a") if isinstance(frame, Offer)]
        if ending == "given up":
            await twin.carry("a")
            await twin.turn("b")
            b.peer._on_frame(Abort(offer.transfer, ErrorCode.TRANSFER_ABORTED.value, "enough"))
        await work(twin, carry=True)
        slots, messages = b.hub.receive_pool.stats().slots, b.hub.mailbox.summary()["messages"]
        b.peer.offered(offer)
        await twin.turn("b")
        assert told(twin, "b") == []
        assert (b.hub.receive_pool.stats().slots, b.hub.mailbox.summary()["messages"]) == (slots, messages)
        assert b.peer.receiving._announced == {}

    play(scenario)
