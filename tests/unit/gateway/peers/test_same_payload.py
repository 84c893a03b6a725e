"""One payload for several parties of a peer: it goes once, and each of them is served from its slot."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from fedrdma_fate.engine.payload import Payload
from fedrdma_fate.gateway.peers import same_payload
from fedrdma_fate.gateway.spilling import make_room
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import (
    PROBE_TRANSFERS_FROM,
    Delivered,
    Frame,
    MessageKey,
    Mode,
    Offer,
    Party,
    Refused,
    SamePayload,
    SamePayloadGone,
    decode_frame,
    encode_frame,
)
from tests.support.twin import Twin
from tests.support.twin_play import BODY, Play, Scenario, key_to, player, sent_by, work

NAMES = ["m1", "m2", "m3", "m4"]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Plays a scenario with a twin whose data path is up, with slots granted."""

    def play(scenario: Scenario, **settings: object) -> None:
        async def connected(twin: Twin) -> None:
            await twin.connect()
            await work(twin)
            await scenario(twin)

        player(tmp_path)(connected, **{"mode": "fedrdma-e", **settings})

    return play


class Frames:
    """What was said on a control channel, while it was carried."""

    def __init__(self, twin: Twin) -> None:
        self.twin = twin
        self.seen: list[Frame] = []

    async def work(self, rounds: int = 30) -> None:
        for _ in range(rounds):
            for site in self.twin.halves:
                await self.twin.turn(site)
                self.seen += sent_by(self.twin, site)
                await self.twin.carry(site)

    def count(self, kind: type[Frame]) -> int:
        return sum(isinstance(frame, kind) for frame in self.seen)


def slots_of(twin: Twin, site: str = "b") -> int:
    """Receive slots with messages in them."""
    half = twin.halves[site]
    return half.context.receive_pool.stats().slots - half.credits_held()


class Kept:
    """A payload that a task of a's keeps, to push it again."""

    def __init__(self, twin: Twin) -> None:
        self.twin = twin
        lease = twin.halves["a"].context.send_pool.lease(len(BODY), "task")
        assert lease is not None
        lease.slot.view[:] = BODY
        self.lease, self.payload = lease, Payload(lease.slot, len(BODY))

    def push(self, name: str, loss_share: float = 0.0) -> MessageKey:
        a, b = self.twin.halves["a"], self.twin.halves["b"]
        key = MessageKey("s", name, "t", a.party, b.party)
        a.peer.sending.put_payload(key, "object", self.payload, self.lease.share(), None, loss_share)
        return key


@pytest.mark.parametrize("mode", ["fedrdma", "fedrdma-e", "fedrdma-x"])
def test_it_goes_once_and_each_message_is_pulled_by_itself_and_the_last_gives_the_slot_back(
    play: Play, mode: Mode
) -> None:
    async def scenario(twin: Twin) -> None:
        frames = Frames(twin)
        keys = twin.put_to_several("a", NAMES, BODY)
        await frames.work()
        assert (frames.count(Offer), frames.count(SamePayload), frames.count(SamePayloadGone)) == (1, 3, 0)
        assert twin.halves["a"].peer.sending.pending == 0
        assert twin.halves["b"].context.mailbox.summary()["messages"] == 4
        assert slots_of(twin) == 1
        for key in keys:
            assert slots_of(twin) == 1
            assert await twin.get(key) == BODY
        assert slots_of(twin) == 0

    play(scenario, mode=mode)


def test_what_is_pushed_when_the_first_has_come_is_served_from_its_slot_while_somebody_has_it(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        frames = Frames(twin)
        kept = Kept(twin)
        first = kept.push("m1")
        await frames.work()
        # a task has pulled it, and still uses it
        message = await twin.halves["b"].context.mailbox.take(first, None)
        second = kept.push("m2")
        await frames.work()
        assert (frames.count(Offer), frames.count(SamePayloadGone)) == (1, 0)
        message.discard()
        assert slots_of(twin) == 1
        assert await twin.get(second) == BODY
        assert slots_of(twin) == 0

    play(scenario)


def test_where_nobody_has_it_any_more_it_goes_once_more_for_all_that_are_left(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        frames = Frames(twin)
        kept = Kept(twin)
        assert await asyncio.gather(asyncio.create_task(twin.get(kept.push("m1"))), frames.work())
        assert slots_of(twin) == 0
        keys = [kept.push(name) for name in NAMES[1:]]
        await frames.work(60)
        assert (frames.count(Offer), frames.count(SamePayloadGone)) == (2, 3)
        for key in keys:
            assert await twin.get(key) == BODY

    play(scenario)


@pytest.mark.parametrize("why", ["an older peer", "mode grpc", "something may be missing"])
def test_each_goes_by_itself(play: Play, why: str) -> None:
    async def scenario(twin: Twin) -> None:
        frames = Frames(twin)
        if why == "an older peer":
            peer = twin.halves["a"].peer
            assert peer.hello is not None
            peer.hello = msgspec.structs.replace(peer.hello, same_payload=False)
        if why == "something may be missing":
            kept = Kept(twin)
            keys = [kept.push(name, loss_share=0.1) for name in NAMES]
        else:
            keys = twin.put_to_several("a", NAMES, BODY, "grpc" if why == "mode grpc" else None)
        await frames.work(100)
        assert (frames.count(Offer), frames.count(SamePayload)) == (4, 0)
        for key in keys:
            assert await twin.get(key) == BODY

    play(scenario, mode="fedrdma-x" if why == "something may be missing" else "fedrdma-e")


def test_when_the_peer_is_of_an_older_version_now_each_goes_by_itself(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        keys = twin.put_to_several("a", NAMES, BODY)
        await twin.settle()
        await twin.lose_control("a")
        await twin.lose_control("b")
        b = twin.halves["b"].peer
        hello = b.own_hello
        b.own_hello = lambda: msgspec.structs.replace(hello(), same_payload=False)  # type: ignore[method-assign]
        await twin.quiesce()
        for key in keys:
            assert await twin.get(key) == BODY

    play(scenario)


def test_when_the_first_is_given_up_another_brings_it(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        frames = Frames(twin)
        keys = twin.put_to_several("a", NAMES, BODY)
        await twin.carry("a")
        sending = twin.halves["a"].peer.sending
        first = next(iter(sending._transfers.values()))
        assert sending._links.cancel(
            first.path, first.outgoing.transfer, ErrorCode.TRANSFER_ABORTED, "the test says so"
        )
        await frames.work(60)
        for key in keys[1:]:
            assert await twin.get(key) == BODY
        assert (sending.pending, slots_of(twin)) == (0, 0)
        assert twin.halves["b"].context.mailbox.summary()["messages"] == 0
        # the first, and the second, which brings it to the two others
        assert frames.count(Offer) <= 2

    play(scenario)


def test_a_session_that_ends_takes_all_of_them(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        twin.put_to_several("a", NAMES, BODY)
        await twin.carry("a")
        assert len(twin.halves["b"].peer.receiving.same) == 3
        twin.halves["a"].peer.sending.end_session("s")
        await twin.quiesce()
        assert len(twin.halves["b"].peer.receiving.same) == 0
        assert (twin.halves["a"].peer.sending.pending, slots_of(twin)) == (0, 0)
        assert twin.halves["a"].context.send_pool.stats().slots == 0

    play(scenario)


def test_where_there_is_no_room_all_of_them_leave_the_slot_for_one_file(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        keys = twin.put_to_several("a", NAMES, BODY)
        await work(twin, 60)
        context = twin.halves["b"].context
        pool = context.receive_pool
        wanted = asyncio.create_task(pool.acquire(pool.stats().largest_free_bytes + len(BODY), "peer:a"))
        while not wanted.done():
            make_room(context, pool)
            await asyncio.sleep(1)
        assert context.mailbox.summary()["spilled_messages"] == 4
        files = [path.stat() for path in context.spill.path.iterdir() if path.stat().st_size == len(BODY)]
        assert (len(files), len({each.st_ino for each in files})) == (4, 1)
        wanted.result().release()
        for key in keys:
            assert await twin.get(key) == BODY

    play(scenario)


# -- what a hostile peer says -----------------------------------------------------------------------------------------


async def told(twin: Twin, frame: Frame) -> list[Frame]:
    """What b answers to a frame of a's."""
    half = twin.halves["b"]
    assert half.stream is not None
    while await twin.carry("b"):
        pass
    half.stream._incoming.put_nowait(encode_frame(frame))
    await twin.settle()
    return [frame for frame in sent_by(twin, "b") if not hasattr(frame, "stamp")]


def frame_of(twin: Twin, **changes: object) -> SamePayload:
    key = key_to(twin, twin.halves["b"].party)
    frame = SamePayload(77, key, "object", len(BODY), 76, is_coming=False)
    return msgspec.structs.replace(frame, **changes)


def test_a_transfer_that_nobody_knows_brings_nothing(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        assert await told(twin, frame_of(twin)) == [SamePayloadGone(77, 76)]
        assert await told(twin, frame_of(twin, transfer=PROBE_TRANSFERS_FROM, is_coming=True)) == [
            SamePayloadGone(PROBE_TRANSFERS_FROM, 76)
        ]
        assert twin.halves["b"].context.mailbox.summary()["messages"] == 0

    play(scenario)


def test_a_payload_of_another_length_is_not_that_one(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        key = twin.put("a", "m0", BODY)
        await work(twin)
        assert key is not None
        message = twin.halves["b"].context.mailbox.find(key)
        assert message is not None
        wrong = frame_of(twin, same_as=message.transfer, total_bytes=len(BODY) + 1, is_coming=True)
        assert await told(twin, wrong) == [SamePayloadGone(77, message.transfer)]
        # and the right one is taken, once
        right = frame_of(twin, same_as=message.transfer)
        assert await told(twin, right) == [Delivered(77)]
        assert await told(twin, right) == [Delivered(77)]
        assert twin.halves["b"].context.mailbox.summary()["messages"] == 2
        assert slots_of(twin) == 1

    play(scenario)


def test_a_message_of_or_to_somebody_elses_party_is_refused(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        stranger = Party("arbiter", "7")
        for key in (key_to(twin, stranger), key_to(twin, twin.halves["b"].party, stranger)):
            (refused,) = await told(twin, frame_of(twin, key=key, is_coming=True))
            assert isinstance(refused, Refused)
            assert refused.code == ErrorCode.WRONG_PARTY.value
        assert len(twin.halves["b"].peer.receiving.same) == 0

    play(scenario)


def test_more_than_may_wait_are_not_waited_for_and_one_that_is_told_again_waits_once(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(same_payload, "MOST_WAITING", 3)

    async def scenario(twin: Twin) -> None:
        waiting = twin.halves["b"].peer.receiving.same
        for number in (1, 2, 2, 2, 3):
            assert await told(twin, frame_of(twin, transfer=number, is_coming=True)) == []
        assert len(waiting) == 3
        assert await told(twin, frame_of(twin, transfer=4, is_coming=True)) == [SamePayloadGone(4, 76)]
        await twin.restart("a")
        await twin.quiesce()
        assert len(waiting) == 0

    play(scenario)


def test_a_message_beyond_the_limits_of_its_site_is_refused(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        keys = twin.put_to_several("a", NAMES, BODY)
        await work(twin, 60)
        mailbox = twin.halves["b"].context.mailbox
        # the one that brings the bytes was let come when nothing was here
        assert mailbox.summary()["messages"] == 3
        assert twin.halves["a"].peer.sending.pending == 0
        for key in keys:
            if mailbox.has(key):
                assert await twin.get(key) == BODY
        assert slots_of(twin) == 0

    play(scenario, limits={"messages": 2})


def test_a_peer_that_has_nothing_any_more_over_and_over_ends_with_a_transfer_of_each(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        twin.put_to_several("a", NAMES, BODY)
        a = twin.halves["a"]
        assert a.stream is not None
        for _ in range(20):
            for frame in sent_by(twin, "a"):
                if isinstance(frame, SamePayload):
                    a.stream._incoming.put_nowait(encode_frame(SamePayloadGone(frame.transfer, frame.same_as)))
            await twin.carry("a")
            await twin.settle()
        paths = {pending.path for pending in a.peer.sending._transfers.values()}
        assert paths == {"tcp"}
        # of what goes otherwise by now, and of what there is not, nothing is meant
        for transfer in (*a.peer.sending._transfers, 1 << 40):
            a.stream._incoming.put_nowait(encode_frame(SamePayloadGone(transfer, 1)))
        await twin.settle()
        await work(twin, 100)
        assert a.peer.sending.pending == 0

    play(scenario)


def test_the_frames_come_back_as_they_were_told(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        for frame in (frame_of(twin), SamePayloadGone(1, 2)):
            assert decode_frame(encode_frame(frame)) == frame

    play(scenario)
