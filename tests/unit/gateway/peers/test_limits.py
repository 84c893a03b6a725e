"""What one peer may have here: messages, bytes, frames; who asks for more is refused, slowed down, or cut off."""

from __future__ import annotations

import asyncio

import pytest

from fedrdma_fate.core.credits import MOST_CREDITS
from fedrdma_fate.gateway.messages import mailbox as mailboxes
from fedrdma_fate.gateway.peers.metering import FLOOD_SECONDS, FrameMeter
from fedrdma_fate.gateway.peers.outgoing_room import OutgoingRoom
from fedrdma_fate.security.key_schedule import PATH_NONCE_BYTES
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import (
    Connect,
    Delivered,
    Goodbye,
    Grant,
    GrantReturn,
    Inline,
    MessageKey,
    Ping,
    Refused,
    Undeliverable,
    encode_frame,
)
from tests.support.twin import PARTIES, Twin, run_virtually
from tests.support.twin_play import Play, pull, sent_by, work

FEW = {"limits": {"messages": 20, "session_messages": 10, "bytes": "1MiB", "session_bytes": "512KiB"}}


def key(name: str, session: str = "s") -> MessageKey:
    return MessageKey(session, name, "t", PARTIES["a"], PARTIES["b"])


# --- messages that wait ---


@pytest.mark.parametrize(("sessions", "kept"), [(1, 10), (2, 20), (5, 20)])
def test_so_many_small_messages_of_a_peer_and_a_session_wait_and_the_next_are_refused(
    play: Play, sessions: int, kept: int
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        b = twin.halves["b"]
        for number in range(100):
            b.peer._on_frame(Inline(number + 1, key(f"m{number}", f"s{number % sessions}"), "bytes", b"x"))
        assert b.context.mailbox.summary()["messages"] == kept
        assert {answer.code for answer in sent_by(twin, "b", Refused)} == {ErrorCode.LIMIT_REACHED.value}
        assert len(sent_by(twin, "b", Refused)) == 100 - kept
        assert len(sent_by(twin, "b", Delivered)) == kept

    play(scenario, **FEW)


def test_bytes_are_limited_as_well_and_what_somebody_waits_for_is_always_taken(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        b = twin.halves["b"]
        for number in range(9):
            b.peer._on_frame(Inline(number + 1, key(f"m{number}"), "bytes", bytes(65_000)))
        assert b.context.mailbox.summary()["messages"] == 8
        waiting = pull(twin, key("wanted"))
        await twin.settle()
        b.peer._on_frame(Inline(100, key("wanted"), "bytes", bytes(65_000)))
        assert len(await waiting) == 65_000
        assert await pull(twin, key("m0")) == bytes(65_000)
        b.peer._on_frame(Inline(101, key("after"), "bytes", bytes(65_000)))
        assert b.context.mailbox.summary()["messages"] == 8

    play(scenario, **FEW)


def test_a_sender_whose_message_is_refused_hears_why(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        for number in range(11):
            twin.put("a", f"m{number}", b"x")
        await work(twin)
        with pytest.raises(GatewayError) as told:
            twin.halves["a"].context.mailbox.sessions.raise_push_failure("s", PARTIES["a"])
        assert told.value.code is ErrorCode.LIMIT_REACHED

    play(scenario, **FEW)


def test_notices_of_failure_count_as_messages_and_are_forgotten_with_them(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        b = twin.halves["b"]
        for number in range(100):
            b.peer._on_frame(Undeliverable(key(f"m{number}"), "FR303", "y" * 1000))
        assert len(b.context.mailbox._failed) == 10
        b.context.mailbox.leave("s", PARTIES["b"])
        assert b.context.mailbox._failed == {}
        assert b.context.mailbox.budget._uses == {}

    play(scenario, **FEW)


def test_who_waits_for_a_message_that_had_no_room_is_told_though_there_was_none_for_its_notice_either(
    play: Play,
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        keys = [twin.put("a", f"m{number}", b"x") for number in range(15)]
        await work(twin)
        for each in keys[:10]:
            assert await pull(twin, each) == b"x"
        for each in keys[10:]:
            with pytest.raises(GatewayError) as told:
                await asyncio.wait_for(pull(twin, each), 1)
            assert told.value.code is ErrorCode.LIMIT_REACHED
        # what is there is pulled all the same, and other sessions have nothing to do with it
        assert twin.put("a", "more", b"y") is not None
        waits = pull(twin, twin.put("a", "m0", b"z", session="s2"))
        await work(twin)
        assert await pull(twin, key("more")) == b"y"
        assert await waits == b"z"

    play(scenario, **FEW)


def test_a_session_that_is_used_again_knows_nothing_of_notices_that_had_no_room_before(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        mailbox = twin.halves["b"].context.mailbox
        for over in (lambda: mailbox.leave("s", PARTIES["b"]), lambda: mailbox.end("s", "the test ends it")):
            for number in range(11):
                mailbox.fail(key(f"m{number}"), "FR303", "the test says so", "a")
            assert len(mailbox._untold) == 1
            over()
            assert not mailbox._untold
            if not mailbox.sessions.ended.reason("s"):
                mailbox.join("s", PARTIES["b"], None)

    play(scenario, **FEW)


def test_of_few_pairs_of_parties_it_is_known_that_notices_had_no_room(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailboxes, "MOST_UNTOLD", 3)

    async def scenario(twin: Twin) -> None:
        mailbox = twin.halves["b"].context.mailbox
        for number in range(100):
            mailbox.fail(key("m", f"s{number}"), "FR303", "the test says so", "a")
        assert [pair[0] for pair in mailbox._untold] == ["s97", "s98", "s99"]

    play(scenario, **FEW)


def test_long_names_count_as_several_messages(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        b = twin.halves["b"]
        for number in range(10):
            b.peer._on_frame(Inline(number + 1, key(f"{number}" + "n" * 1000), "bytes", b"x"))
        assert b.context.mailbox.summary()["messages"] == 2

    play(scenario, **FEW)


def test_small_messages_lie_in_receive_memory_and_on_disk_where_it_is_full(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        b = twin.halves["b"]
        rest = b.context.receive_pool.lease(2**20 - 8 * 4096, "a task")
        keys = [twin.put("a", f"m{number}", bytes([number]) * 4096) for number in range(30)]
        await work(twin)
        messages = [b.context.mailbox._messages[each] for each in keys if each]
        while any(message.moving for message in messages):
            await asyncio.wait([message.moving for message in messages if message.moving])
        assert all(message.body is None for message in messages)
        assert any(message.lease for message in messages)
        assert any(message.spilled for message in messages)
        assert [await pull(twin, each) for each in keys] == [bytes([number]) * 4096 for number in range(30)]
        assert rest is not None
        rest.release()
        assert b.context.receive_pool.stats().slots == b.credits_held()
        assert b.context.small_bytes == 0

    play(scenario, memory={"send_bytes": "2MiB", "receive_bytes": "1MiB", "ring_slots": 0})


def test_grants_that_come_ahead_of_time_without_end_are_given_back(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        b = twin.halves["b"]
        for number in range(MOST_CREDITS + 100):
            b.peer._on_frame(Grant("tcp", 10_000 + number, 1, 0, 1000))
        await twin.turn("b")
        assert len(sent_by(twin, "b", GrantReturn)) >= 100

    play(scenario)


# --- frames ---


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_who_keeps_to_the_rate_is_never_held_up() -> None:
    clock = Clock()
    meter = FrameMeter(100.0, clock)
    for _ in range(100_000):
        clock.now += 0.0101
        assert meter.pause(100) == 0
    assert not meter.floods


def test_who_sends_more_is_read_at_the_rate_and_floods_after_a_while() -> None:
    clock = Clock()
    meter = FrameMeter(100.0, clock)
    frames = 0
    while not meter.floods:
        clock.now += meter.pause(100)
        frames += 1
    assert clock.now == pytest.approx(FLOOD_SECONDS, rel=0.1)
    assert frames == pytest.approx(100 * (clock.now + 1), rel=0.1)


def test_a_burst_is_no_flood() -> None:
    clock = Clock()
    meter = FrameMeter(100.0, clock)
    for _ in range(100):
        for _ in range(150):
            clock.now += meter.pause(100)
        clock.now += 2
    assert not meter.floods


def test_a_peer_that_floods_is_slowed_down_and_then_cut_off_and_told(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        b = twin.halves["b"]
        assert b.stream is not None
        began = asyncio.get_running_loop().time()
        for number in range(20_000):
            b.stream._incoming.put_nowait(encode_frame(Ping(float(number))))
        while b.peer.connected:
            await asyncio.sleep(1)
        assert FLOOD_SECONDS <= asyncio.get_running_loop().time() - began < 3 * FLOOD_SECONDS
        assert b.peer.shut_out
        (goodbye,) = sent_by(twin, "b", Goodbye)
        assert ErrorCode.LIMIT_REACHED.value in goodbye.reason
        await asyncio.sleep(60)
        assert not b.peer.shut_out

    play(scenario, limits={"frames_per_second": 100})


@pytest.mark.parametrize(("count", "least", "most"), [(5, 0.0, 0.1), (1000, 8.0, 12.0)])
def test_data_paths_of_a_peer_are_begun_no_faster_than_they_can_be_opened(
    play: Play, count: int, least: float, most: float
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        b = twin.halves["b"]
        assert b.stream is not None
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        for number in range(count):
            connect = Connect("grpc", "", 1000 + number, False, {}, bytes(PATH_NONCE_BYTES))
            b.stream._incoming.put_nowait(encode_frame(connect))
        while not b.stream._incoming.empty():
            await asyncio.sleep(0.001)
        assert least <= asyncio.get_running_loop().time() - began <= most
        assert b.peer.connected

    play(scenario)


def test_a_peer_that_floods_and_reconnects_again_and_again_is_cut_off_as_well(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        b = twin.halves["b"]
        began = asyncio.get_running_loop().time()
        while not b.peer.shut_out:
            await twin.connect()
            assert b.stream is not None
            for number in range(500):
                b.stream._incoming.put_nowait(encode_frame(Ping(float(number))))
            await asyncio.sleep(1)
            assert asyncio.get_running_loop().time() - began < 3 * FLOOD_SECONDS

    play(scenario, limits={"frames_per_second": 100})


def test_a_peer_that_reads_nothing_is_cut_off_before_what_is_for_it_fills_memory(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        b = twin.halves["b"]
        assert b.stream is not None
        b.stream.unsent_bytes += 200 * 2**20
        b.stream._incoming.put_nowait(encode_frame(Ping(1.0)))
        await twin.settle()
        assert not b.peer.connected

    play(scenario)


# --- what we keep for a peer ---


def test_a_small_message_for_a_peer_that_is_away_waits_where_much_is_kept_for_it_and_fails_in_the_end() -> None:
    async def scenario() -> None:
        room = OutgoingRoom("b", 10, "bytes", "raise it")
        for _ in range(10):
            room.add(1)
        assert room.is_full
        waiting = asyncio.create_task(room.wait_for_room(600.0))
        await asyncio.sleep(1)
        assert not waiting.done()
        room.remove(1)
        await waiting
        room.add(1)
        with pytest.raises(GatewayError) as refused:
            await room.wait_for_room(600.0)
        assert refused.value.code is ErrorCode.LIMIT_REACHED

    run_virtually(scenario())
