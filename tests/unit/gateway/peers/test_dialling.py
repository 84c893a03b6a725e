"""Two gateways' peers, step by step: control channels."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from fedrdma_fate.gateway.peers import dialling
from fedrdma_fate.gateway.peers.control_stream import ControlStream
from fedrdma_fate.gateway.peers.dialling import Dialler
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import (
    Delivered,
    Goodbye,
    GrantRequest,
    Inline,
    Offer,
    decode_frame,
    encode_frame,
)
from fedrdma_fate.wire.greetings import LATER_FIELDS, encode_greeting, later_fields_of
from tests.support.twin import PARTIES, Twin, run_virtually
from tests.support.twin_play import BODY, Play, key_to, peer_of, pull, work


async def both_dial(twin: Twin, order: str) -> dict[str, list[ControlStream]]:
    """Both sites dial at once; each site sees the two channels in some order. Their streams, by who dialled."""
    streams: dict[str, list[ControlStream]] = {}
    hellos = {site: half.peer.own_hello() for site, half in twin.halves.items()}
    for dialler in order:
        streams[dialler] = []
        for site, half in twin.halves.items():
            stream = ControlStream()
            other = "b" if site == "a" else "a"
            twin._tasks.add(asyncio.create_task(half.peer.run(stream, hellos[other], dialler)))
            streams[dialler].append(stream)
        await twin.settle()
    return streams


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_of_two_channels_that_met_half_way_the_one_of_the_smaller_name_stays(play: Play, order: str) -> None:
    async def scenario(twin: Twin) -> None:
        streams = await both_dial(twin, order)
        for at, half in enumerate(twin.halves.values()):
            assert half.peer._stream is streams["a"][at]
            assert streams["b"][at]._closed
            assert not streams["a"][at]._closed

    play(scenario)


def test_a_farewell_on_the_channel_that_was_replaced_does_not_end_the_new_one(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        peer = peer_of(twin, "a")
        hello = peer_of(twin, "b").own_hello()
        old, new = ControlStream(), ControlStream()
        twin._tasks.add(asyncio.create_task(peer.run(old, hello, "b")))
        await twin.settle()
        old._incoming.put_nowait(encode_frame(Goodbye("another control channel is in use")))
        twin._tasks.add(asyncio.create_task(peer.run(new, hello, "a")))
        await twin.settle()
        assert peer._stream is new
        assert peer.connected

    play(scenario)


def test_a_site_that_dials_again_has_given_its_earlier_channel_up(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect("b")
        first = twin.halves["a"].stream
        await twin.connect("b")
        assert first is not None
        assert first._closed
        assert peer_of(twin, "a")._stream is twin.halves["a"].stream

    play(scenario)


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\x81\xa5frame\xa7unknown", encode_frame(Delivered(1))[:-1]])
def test_a_malformed_frame_ends_the_channel_and_both_logs_say_so(
    play: Play, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        stream = twin.halves["b"].stream
        assert stream is not None
        stream._incoming.put_nowait(garbage)
        await twin.settle()
        assert not peer_of(twin, "b").connected
        await twin.carry("b")
        assert not peer_of(twin, "a").connected
        key = twin.put("a", "m", BODY)
        arrived = pull(twin, key)
        await twin.quiesce()
        assert await arrived == BODY

    with caplog.at_level(logging.INFO):
        play(scenario)
    told = [record.getMessage() for record in caplog.records if ErrorCode.MALFORMED_FRAME.value in record.getMessage()]
    assert any(text.startswith("control channel of a") for text in told)
    assert any(text.startswith("lost b: it said goodbye") for text in told)


def test_frames_that_make_no_sense_end_the_channel_only(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        for frame in (
            peer_of(twin, "a").own_hello(),
            GrantRequest("carrier-pigeon", 1, 5000),
            Offer("ether", 1, key_to(twin, PARTIES["b"]), "bytes", 1, "grpc", 1, 1, 0),
        ):
            await twin.connect()
            stream = twin.halves["b"].stream
            assert stream is not None
            stream._incoming.put_nowait(encode_frame(frame))
            await twin.settle()
            assert not peer_of(twin, "b").connected
            assert peer_of(twin, "b").offline.is_set()
            await twin.lose_control("a")

    play(scenario)


def test_an_internal_error_ends_the_channel_and_not_the_peer(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()

        def bug(inline: Inline) -> None:
            raise KeyError(inline)

        with monkeypatch.context() as patch:
            patch.setattr(peer_of(twin, "b").receiving, "on_inline", bug)
            key = twin.put("a", "m", b"small")
            await twin.carry("a")
            assert not peer_of(twin, "b").connected
        arrived = pull(twin, key)
        await twin.quiesce()
        assert await arrived == b"small"

    play(scenario)


def test_a_silent_peer_is_lost(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await asyncio.sleep(9)
        assert peer_of(twin, "a").connected
        await asyncio.sleep(2)
        assert not peer_of(twin, "a").connected
        assert "silent for 10 s" in peer_of(twin, "a").last_error

    play(scenario, timeouts={"peer_silence": 10.0})


def test_a_peer_that_answers_is_kept_and_its_round_trip_is_known(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        for _ in range(100):
            for site in twin.halves:
                await twin.carry(site)
            await asyncio.sleep(1)
        assert peer_of(twin, "a").connected
        assert peer_of(twin, "a").rtt_seconds is not None

    play(scenario, timeouts={"peer_silence": 10.0})


def test_a_peer_whose_event_loop_is_busy_and_whose_transfer_goes_on_is_kept(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        twin.put("b", "m", BODY)
        await work(twin, 3)
        for _ in range(5):
            # no control frame of b comes any more, but its link goes on
            assert peer_of(twin, "b").sending.pending
            await twin.turn("b")
            await twin.turn("a")
            await twin.carry("a")
            await asyncio.sleep(3)
        assert peer_of(twin, "a").connected
        await asyncio.sleep(11)
        assert not peer_of(twin, "a").connected

    play(scenario, timeouts={"peer_silence": 10.0}, chunk=10_000)


def test_a_peer_that_serves_other_parties_than_configured_is_warned_about(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(twin: Twin) -> None:
        twin.halves["b"].context.config = _with_parties(twin.halves["b"].context.config, ("host:2", "arbiter:2"))
        await twin.connect()

    play(scenario)
    assert "b serves host:2, arbiter:2; it is configured here as serving host:2" in caplog.text


# --- greetings ---


async def said_to(stream: ControlStream) -> list[str]:
    """The reasons of all goodbyes on an accepted stream, until it ends."""
    frames = [decode_frame(raw) async for raw in stream.outgoing()]
    return [frame.reason for frame in frames if isinstance(frame, Goodbye)]


def test_a_stranger_that_says_nothing_is_told_so_after_the_time_it_has() -> None:
    async def scenario() -> None:
        stream = ControlStream()
        began = asyncio.get_running_loop().time()
        await Dialler("a", {}, 5.0).accept(stream)
        assert asyncio.get_running_loop().time() - began == pytest.approx(5.0, abs=0.1)
        (reason,) = await said_to(stream)
        assert "does not answer within 5 s" in reason

    run_virtually(scenario())


def test_a_stranger_that_ends_the_stream_at_once_is_still_told_why_it_is_refused() -> None:
    async def scenario() -> None:
        stream = ControlStream()
        accepting = asyncio.create_task(Dialler("a", {}, 5.0).accept(stream))
        await asyncio.sleep(1)
        # the end of the stream is seen a turn of the loop after the frame, at the earliest
        stream._incoming.put_nowait(b"no greeting")
        await asyncio.sleep(0)
        stream.close()
        await accepting
        (reason,) = await said_to(stream)
        assert "FR201" in reason

    run_virtually(scenario())


def test_a_gateway_that_stops_waits_for_no_greeting() -> None:
    async def scenario() -> None:
        accepting = asyncio.create_task(Dialler("a", {}, 5.0).accept(ControlStream()))
        await asyncio.sleep(1)
        accepting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await accepting

    run_virtually(scenario())


def test_a_channel_lasts_longer_than_the_time_for_its_greeting(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        half = twin.halves["a"]
        stream = ControlStream()
        accepting = asyncio.create_task(Dialler("a", {"b": half.peer}, 5.0).accept(stream))
        stream._incoming.put_nowait(encode_frame(twin.halves["b"].peer.own_hello()))
        await asyncio.sleep(6)
        assert half.peer.connected
        stream.close()
        await accepting

    play(scenario)


def test_a_gateway_that_has_said_goodbye_takes_no_peer_back(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        half = twin.halves["a"]
        dialler, stream = Dialler("a", {"b": half.peer}, 5.0), ControlStream()
        dialler.stop("the gateway of a stops", forgets=True)
        stream._incoming.put_nowait(encode_frame(twin.halves["b"].peer.own_hello()))
        await dialler.accept(stream)
        # no greeting: by that the peer would believe that this journal goes on
        assert [decode_frame(raw) async for raw in stream.outgoing()] == [Goodbye("the gateway of a stops")]
        assert not half.peer.connected

    play(scenario)


def test_a_gateway_that_has_said_goodbye_dials_nobody(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(twin: Twin) -> None:
        dialled: list[str] = []
        monkeypatch.setattr(dialling, "dial", lambda address, *_: dialled.append(address))
        dialler = Dialler("a", {}, 5.0)
        dialler.stop("the gateway of a stops", forgets=False)
        await asyncio.wait_for(dialler.keep_dialling(peer_of(twin, "a"), "b:1"), 60)
        assert not dialled

    play(scenario)


def nothing(_twin: Twin) -> None:
    """Nothing is to be told to who was away."""


def gives_up_a_push(twin: Twin) -> None:
    twin.put("a", "m", BODY)
    peer_of(twin, "a").sending.give_up(ErrorCode.GATEWAY_STOPPING, "the gateway of a stops")


def drops_what_had_come(twin: Twin) -> None:
    peer_of(twin, "a").receiving.note_lost(1, "the gateway of a stops")


@pytest.mark.parametrize("tells", [nothing, gives_up_a_push, drops_what_had_come])
@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("names_journal", [False, True])
def test_a_channel_that_is_being_opened_when_a_gateway_says_goodbye_ends_with_it(
    play: Play,
    monkeypatch: pytest.MonkeyPatch,
    *,
    forgets: bool,
    names_journal: bool,
    tells: Callable[[Twin], None],
) -> None:
    async def scenario(twin: Twin) -> None:
        stream = ControlStream()

        @contextlib.asynccontextmanager
        async def dial(*_: object) -> AsyncIterator[ControlStream]:
            yield stream
            stream.close()

        monkeypatch.setattr(dialling, "dial", dial)
        dialler, peer = Dialler("a", {}, 5.0), peer_of(twin, "a")
        hello = msgspec.structs.replace(peer_of(twin, "b").own_hello(), journal="its" if names_journal else "")
        opening = asyncio.create_task(dialler.keep_dialling(peer, "b:1"))
        await asyncio.sleep(1)
        # who is not connected does not hear of it
        tells(twin)
        dialler.stop("the gateway of a stops", forgets=forgets)
        stream._incoming.put_nowait(encode_frame(hello))
        await asyncio.wait_for(opening, 60)
        greeting, goodbye = [decode_frame(raw) async for raw in stream.outgoing()]
        assert greeting == peer.own_hello()
        # where something was to be told, the peer ends the sessions that this gateway had part in
        assert goodbye == Goodbye("the gateway of a stops", forgets and names_journal and tells is nothing)
        assert not peer.connected

    play(scenario)


REFUSAL = (
    "[FR201] a control frame of 530 bytes does not parse: Object contains unknown field `site_sums`. Run the same."
)


def test_a_peer_of_an_older_version_is_greeted_with_less_the_next_time_and_once_it_is_updated_with_all(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(twin: Twin) -> None:
        streams: list[ControlStream] = []

        @contextlib.asynccontextmanager
        async def dial(*_: object) -> AsyncIterator[ControlStream]:
            streams.append(ControlStream())
            yield streams[-1]
            streams[-1].close()

        async def greeting(number: int) -> frozenset[str]:
            while len(streams) <= number:
                await asyncio.sleep(0.1)
            async for raw in streams[number].outgoing():
                return later_fields_of(raw)
            raise AssertionError

        monkeypatch.setattr(dialling, "dial", dial)
        peer = peer_of(twin, "a")
        dialling_it = asyncio.create_task(Dialler("a", {}, 5.0).keep_dialling(peer, "b:1"))
        assert await greeting(0) == set(LATER_FIELDS)
        streams[0]._incoming.put_nowait(encode_frame(Goodbye(REFUSAL)))
        assert await greeting(1) == set()
        streams[1]._incoming.put_nowait(encode_frame(peer_of(twin, "b").own_hello()))
        await twin.settle()
        assert peer.connected
        streams[1]._incoming.put_nowait(encode_frame(Goodbye("the gateway of b stops")))
        assert await greeting(2) == set(LATER_FIELDS)
        # one that refuses for the same again is told so, and no less than nothing is left out
        for number in (2, 3, 4):
            streams[number]._incoming.put_nowait(encode_frame(Goodbye(REFUSAL)))
            assert await greeting(number + 1) == (set() if number % 2 == 0 else set(LATER_FIELDS))
        assert "unknown field" in peer.last_error
        dialling_it.cancel()

    play(scenario)


def test_who_greets_without_new_fields_is_answered_without(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        half, stream = twin.halves["a"], ControlStream()
        accepting = asyncio.create_task(Dialler("a", {"b": half.peer}, 5.0).accept(stream))
        stream._incoming.put_nowait(encode_greeting(twin.halves["b"].peer.own_hello(), LATER_FIELDS[:2]))
        async for raw in stream.outgoing():
            assert later_fields_of(raw) == set(LATER_FIELDS[:2])
            break
        assert half.peer.connected
        stream.close()
        await accepting

    play(scenario)


def _with_parties(config: Any, parties: tuple[str, ...]) -> Any:
    return msgspec.structs.replace(config, parties=parties)
