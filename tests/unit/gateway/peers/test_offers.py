"""Offers that come by a datagram as well as by the control channel, as the gateway takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrdma_fate.engine.events import TransferAnnounced
from fedrdma_fate.engine.payload import Payload
from fedrdma_fate.ports import ChunkService
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import Abort, MessageKey, Offer, Party, Refused, Restart
from tests.support.endpoints import MemoryTransport, MemoryWire
from tests.support.twin import Twin
from tests.support.twin_play import BODY, Play, Scenario, player, sent_by, work


def lossy_wire() -> MemoryWire:
    wire = MemoryWire()
    wire.chunk_service = ChunkService(reliable=False, self_paced=False, queue_pairs=2)
    wire.has_datagrams = True
    return wire


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Plays a scenario with a twin whose data path is up, with slots granted."""

    def play(scenario: Scenario) -> None:
        async def connected(twin: Twin) -> None:
            for transports in twin.transports.values():
                tcp = transports["tcp"]
                assert isinstance(tcp, MemoryTransport)
                tcp.make_wire = lossy_wire
            await twin.connect()
            await work(twin)
            await scenario(twin)

        player(tmp_path)(connected, mode="fedrdma-x")

    return play


def test_a_message_comes_while_the_control_channel_is_stuck_and_once(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        b = twin.halves["b"]
        key = twin.put("a", "m", BODY)
        await work(twin, carry=False)
        assert key is not None
        assert b.context.mailbox.summary()["messages"] == 1
        assert twin.halves["a"].peer.sending.pending == 0
        offers = [frame for frame in sent_by(twin, "a") if isinstance(frame, Offer)]
        assert len(offers) == 1
        while sent_by(twin, "a"):
            await twin.carry("a", 1)
            await twin.turn("b")
        assert not [frame for frame in sent_by(twin, "b") if isinstance(frame, Restart | Refused)]
        await twin.quiesce()
        assert b.context.mailbox.summary()["messages"] == 1
        assert not b.peer.receiving._announced
        assert await twin.get(key) == BODY
        await twin.quiesce()
        assert b.context.receive_pool.stats().slots == b.credits_held()
        assert twin.halves["a"].context.send_pool.stats().slots == 0

    play(scenario)


def test_a_datagram_for_a_stranger_begins_nothing_and_is_not_answered(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        a, b = twin.halves["a"], twin.halves["b"]
        key = MessageKey("s", "m", "t", a.party, Party("arbiter", "7"))
        lease = a.context.send_pool.lease(len(BODY), "task")
        assert lease is not None
        a.peer.sending.put_payload(key, "object", Payload(lease.slot, len(BODY)), lease, None)
        before = len(sent_by(twin, "b"))
        await work(twin, carry=False)
        assert len(sent_by(twin, "b")) == before
        await work(twin)
        await twin.quiesce()
        assert a.peer.sending.pending == 0
        assert b.context.mailbox.summary()["messages"] == 0
        with pytest.raises(Exception, match=ErrorCode.WRONG_PARTY.value):
            a.context.mailbox.sessions.raise_push_failure("s", key.source)

    play(scenario)


@pytest.mark.parametrize("ending", ["delivered", "given up"])
def test_a_datagram_that_comes_after_the_end_begins_nothing(play: Play, ending: str) -> None:
    async def scenario(twin: Twin) -> None:
        b = twin.halves["b"]
        key = twin.put("a", "m", BODY)
        assert key is not None
        for _ in range(3):
            await twin.turn("a")
        (offer,) = [frame for frame in sent_by(twin, "a") if isinstance(frame, Offer)]
        if ending == "given up":
            await twin.carry("a")
            await twin.turn("b")
            b.peer._on_frame(Abort(offer.transfer, ErrorCode.TRANSFER_ABORTED.value, "enough"))
        await work(twin)
        slots, messages = b.context.receive_pool.stats().slots, b.context.mailbox.summary()["messages"]
        b.peer._on_link_event("tcp", TransferAnnounced(offer))
        await twin.turn("b")
        assert sent_by(twin, "b") == []
        assert (b.context.receive_pool.stats().slots, b.context.mailbox.summary()["messages"]) == (slots, messages)
        assert not b.peer.receiving._announced

    play(scenario)
