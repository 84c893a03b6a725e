"""Two gateways' peers, step by step: control channels, data paths, restarts, memory, and who is told what."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.core.plan import HEADER_SPACE_BYTES
from fedrdma_fate.engine.link import Link
from fedrdma_fate.gateway.control import ControlStream
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import (
    INLINE_LIMIT_BYTES,
    Connect,
    Delivered,
    Goodbye,
    GrantRequest,
    Inline,
    MessageKey,
    Offer,
    Party,
    Refused,
    Undeliverable,
    decode_frame,
    encode_frame,
)
from tests.support.twin import PARTIES, Twin, run_virtually, threadless_links

BODY = random.Random(3).randbytes(200_000)
Scenario = Callable[[Twin], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def twin_in(directory: Path, **settings: Any) -> AsyncIterator[Twin]:
    twin = Twin(directory, **settings)
    try:
        yield twin
    finally:
        twin.close()


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Plays a scenario with a new twin."""

    def play(scenario: Scenario, **settings: Any) -> None:
        async def run() -> None:
            async with twin_in(tmp_path, **settings) as twin:
                await scenario(twin)

        with threadless_links():
            run_virtually(run())

    return play


async def work(twin: Twin, rounds: int = 30) -> None:
    """Both sides do what they can, for a while."""
    for _ in range(rounds):
        for site in twin.halves:
            await twin.turn(site)
            await twin.carry(site)


def pull(twin: Twin, key: MessageKey | None) -> asyncio.Task[bytes]:
    assert key is not None
    return asyncio.create_task(twin.get(key))


def peer_of(twin: Twin, site: str) -> Any:
    return twin.halves[site].peer


def key_to(twin: Twin, destination: Party, source: Party | None = None) -> MessageKey:
    return MessageKey("s", "m", "t", source or twin.halves["a"].party, destination)


# --- control channels ---


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
def test_of_two_channels_that_met_half_way_the_one_of_the_smaller_name_stays(
    play: Callable[..., None], order: str
) -> None:
    async def scenario(twin: Twin) -> None:
        streams = await both_dial(twin, order)
        for at, half in enumerate(twin.halves.values()):
            assert half.peer._stream is streams["a"][at]
            assert streams["b"][at]._closed
            assert not streams["a"][at]._closed

    play(scenario)


def test_a_farewell_on_the_channel_that_was_replaced_does_not_end_the_new_one(play: Callable[..., None]) -> None:
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


def test_a_site_that_dials_again_has_given_its_earlier_channel_up(play: Callable[..., None]) -> None:
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
    play: Callable[..., None], garbage: bytes, caplog: pytest.LogCaptureFixture
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


def test_frames_that_make_no_sense_end_the_channel_only(play: Callable[..., None]) -> None:
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


def test_an_internal_error_ends_the_channel_and_not_the_peer(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_silent_peer_is_lost(play: Callable[..., None]) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await asyncio.sleep(9)
        assert peer_of(twin, "a").connected
        await asyncio.sleep(2)
        assert not peer_of(twin, "a").connected
        assert "silent for 10 s" in peer_of(twin, "a").last_error

    play(scenario, timeouts={"peer_silence": 10.0})


def test_a_peer_that_answers_is_kept_and_its_round_trip_is_known(play: Callable[..., None]) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        for _ in range(100):
            for site in twin.halves:
                await twin.carry(site)
            await asyncio.sleep(1)
        assert peer_of(twin, "a").connected
        assert peer_of(twin, "a").rtt_seconds is not None

    play(scenario, timeouts={"peer_silence": 10.0})


def test_a_peer_whose_event_loop_is_busy_and_whose_transfer_goes_on_is_kept(play: Callable[..., None]) -> None:
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
    play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(twin: Twin) -> None:
        twin.halves["b"].hub.config = _with_parties(twin.halves["b"].hub.config, ("host:2", "arbiter:2"))
        await twin.connect()

    play(scenario)
    assert "b serves host:2, arbiter:2; it is configured here as serving host:2" in caplog.text


def _with_parties(config: Any, parties: tuple[str, ...]) -> Any:
    import msgspec

    return msgspec.structs.replace(config, parties=parties)


# --- small messages ---


def test_a_small_message_that_was_lost_with_the_channel_is_sent_again_and_kept_once(play: Callable[..., None]) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        key = twin.put("a", "m", b"small")
        await twin.carry("a")
        # its confirmation is lost
        await twin.lose_control("a")
        await twin.lose_control("b")
        await twin.connect()
        await work(twin)
        assert peer_of(twin, "a").sending.pending == 0
        assert twin.halves["b"].hub.mailbox.summary()["messages"] == 1
        assert await twin.get(key) == b"small"  # type: ignore[arg-type]

    play(scenario)


def test_a_small_message_of_more_than_the_limit_is_refused(play: Callable[..., None]) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        inline = Inline(1, key_to(twin, PARTIES["b"]), "bytes", bytes(INLINE_LIMIT_BYTES + 1))
        peer_of(twin, "b").receiving.on_inline(inline)
        assert ErrorCode.MALFORMED_FRAME.value in [frame.code for frame in _sent(twin, "b", Refused)]
        assert peer_of(twin, "b").connected

    play(scenario)


def _sent(twin: Twin, site: str, kind: type[Any]) -> list[Any]:
    """Frames of a kind that a site has sent and that have not been carried."""
    stream = twin.halves[site].stream
    assert stream is not None
    queued = [decode_frame(raw) for raw in list(stream._outgoing._queue) if raw is not None]  # type: ignore[attr-defined]
    return [frame for frame in queued if isinstance(frame, kind)]


# --- wrong party ---


@pytest.mark.parametrize("size", [10, 200_000])
@pytest.mark.parametrize("wrong", ["destination", "source"])
def test_a_message_of_or_for_a_party_that_is_not_there_is_refused_and_both_sides_know(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture, size: int, wrong: str
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        stranger = Party("arbiter", "7")
        key = key_to(twin, stranger) if wrong == "destination" else key_to(twin, PARTIES["b"], stranger)
        _put_as(twin, key, BODY[:size])
        await work(twin)
        assert peer_of(twin, "a").sending.pending == 0
        with pytest.raises(FedRDMAError) as caught:
            twin.halves["a"].hub.mailbox.sessions.raise_push_failure("s", key.source)
        assert caught.value.code is ErrorCode.WRONG_PARTY
        await twin.quiesce()
        assert twin.halves["a"].hub.send_pool.stats().slots == 0
        assert twin.halves["b"].hub.receive_pool.stats().slots == twin.halves["b"].credits_held()

    play(scenario)
    told = [record.getMessage() for record in caplog.records if ErrorCode.WRONG_PARTY.value in record.getMessage()]
    assert any(text.startswith("refused") for text in told)
    assert any("was not delivered" in text for text in told)


def _put_as(twin: Twin, key: MessageKey, body: bytes) -> None:
    from fedrdma_fate.engine.events import Payload

    half = twin.halves["a"]
    if len(body) <= INLINE_LIMIT_BYTES:
        half.peer.sending.put_inline(key, "bytes", body)
        return
    lease = half.hub.send_pool.lease(len(body), "task")
    assert lease is not None
    lease.slot.view[:] = body
    half.peer.sending.put_payload(key, "object", Payload(lease.slot, len(body)), lease, None)


# --- memory ---


def test_a_payload_that_no_receive_slot_can_ever_hold_is_refused_and_both_sides_know(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(twin: Twin) -> None:
        key = twin.put("a", "huge", bytes(1_500_000))
        assert key is not None
        waiting = pull(twin, key)
        await twin.connect()
        await work(twin)
        with pytest.raises(FedRDMAError) as pushed:
            twin.halves["a"].hub.mailbox.sessions.raise_push_failure("s", key.source)
        with pytest.raises(FedRDMAError) as pulled:
            await waiting
        for error in (pushed.value, pulled.value):
            assert error.code is ErrorCode.PAYLOAD_TOO_LARGE
        assert twin.halves["a"].hub.send_pool.stats().slots == 0

    play(scenario)
    told = [
        record.getMessage() for record in caplog.records if ErrorCode.PAYLOAD_TOO_LARGE.value in record.getMessage()
    ]
    assert any(text.startswith("refused transfer") for text in told)
    assert any("was not delivered to b" in text for text in told)


def test_a_payload_as_large_as_the_receive_memory_gets_through_the_rings_of_all(play: Callable[..., None]) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        assert twin.halves["b"].credits_held() == 2
        body = random.Random(1).randbytes(2**20 - HEADER_SPACE_BYTES)
        arrived = pull(twin, twin.put("a", "m", body))
        await work(twin, 100)
        assert await arrived == body
        await work(twin)
        await twin.quiesce()

    play(scenario)


def test_after_a_large_message_the_next_like_it_starts_without_asking_until_others_need_the_room(
    play: Callable[..., None],
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        receiving = twin.halves["b"].peer.receiving
        asked: list[GrantRequest] = []
        answer = receiving.on_grant_request

        def on_grant_request(request: GrantRequest, link: Link) -> None:
            asked.append(request)
            answer(request, link)

        receiving.on_grant_request = on_grant_request  # type: ignore[method-assign]
        for length in (140_000, 140_010, 140_020):
            arrived = pull(twin, twin.put("a", f"m{length}", bytes(length), "fedrdma-x"))
            await work(twin, 100)
            assert await arrived == bytes(length)
            await work(twin)
            # the ring, and one more as long as there is room for two of those
            assert twin.halves["b"].credits_held() == 3
        assert len(asked) == 1
        body = bytes(2**20 - HEADER_SPACE_BYTES)
        arrived = pull(twin, twin.put("a", "all of it", body, "fedrdma-x"))
        await work(twin, 100)
        assert await arrived == body
        await twin.quiesce()

    play(scenario)


def test_the_slot_for_another_large_message_is_granted_as_soon_as_its_task_lets_go_of_the_last(
    play: Callable[..., None],
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        key = twin.put("a", "m", bytes(300_000), "fedrdma-x")
        await work(twin, 100)
        assert twin.halves["b"].credits_held() == 2, "there is room for one more like it, and not for two"
        await pull(twin, key)
        await work(twin)
        assert twin.halves["b"].credits_held() == 3

    play(scenario)


def test_a_peer_that_is_gone_holds_no_credits(play: Callable[..., None]) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        assert twin.halves["b"].hub.receive_pool.stats().slots == 2
        await twin.lose_control("b")
        await twin.turn("b")
        assert twin.halves["b"].hub.receive_pool.stats().slots == 0

    play(scenario)


def test_a_peer_that_is_gone_waits_for_no_memory(play: Callable[..., None]) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        pool = twin.halves["b"].hub.receive_pool
        held = pool.lease(700_000, "task")
        assert held is not None
        key = twin.put("a", "m", random.Random(1).randbytes(600_000))
        await work(twin)
        assert pool.stats().waiting == 1
        await twin.lose_control("b")
        await twin.settle()
        assert pool.stats().waiting == 0
        held.release()
        await twin.quiesce()
        assert len(await twin.get(key)) == 600_000  # type: ignore[arg-type]

    play(scenario)


def test_a_request_for_a_slot_that_holds_no_header_is_refused(play: Callable[..., None]) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        for slot_bytes in (-1, 0, 63):
            peer_of(twin, "b").grant_wanted(GrantRequest("tcp", 1, slot_bytes))
            await twin.settle()
        assert [frame.code for frame in _sent(twin, "b", Refused)] == [ErrorCode.MALFORMED_FRAME.value] * 3
        assert peer_of(twin, "b").receiving._requests == {}

    play(scenario)


# --- restarts ---


def test_what_was_on_its_way_to_a_gateway_that_is_restarted_is_sent_anew(play: Callable[..., None]) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        key = twin.put("a", "m", BODY)
        await twin.turn("a")
        await twin.carry("a")
        await twin.turn("b")
        await twin.restart("b")
        arrived = pull(twin, key)
        await twin.quiesce()
        assert await arrived == BODY
        assert peer_of(twin, "a").sending.pending == 0

    play(scenario)


def test_who_waits_for_a_message_whose_sender_was_restarted_in_the_middle_is_told(play: Callable[..., None]) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        waiting = pull(twin, twin.put("a", "m", BODY))
        await work(twin, 3)
        await asyncio.sleep(0.2)
        await twin.turn("b")
        assert peer_of(twin, "b").transfers()
        await twin.restart("a")
        await twin.quiesce()
        with pytest.raises(FedRDMAError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.TRANSFER_ABORTED
        assert "the gateway of a was restarted" in caught.value.message
        half = twin.halves["b"]
        assert half.hub.receive_pool.stats().slots == half.credits_held()

    play(scenario)


# --- transports ---


def test_a_path_that_only_the_other_side_knows_to_be_lost_is_told_and_connected_anew(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        path = peer_of(twin, "a").paths.main
        assert path.up
        before = path.attempt
        wish = Connect("tcp", "it broke", 0, True, {})
        peer_of(twin, "a")._on_frame(wish)
        assert not path.up
        for _ in range(20):
            await work(twin, 2)
            await asyncio.sleep(0.1)
        assert path.up
        assert path.attempt > before

    with caplog.at_level(logging.WARNING):
        play(scenario)
    assert "data path to b over tcp: b has lost it, and asks for a new one" in caplog.text


def test_when_the_transport_cannot_be_connected_both_sides_take_the_next(play: Callable[..., None]) -> None:
    async def scenario(twin: Twin) -> None:
        for transports in twin.transports.values():
            transports["tcp"].refusing = True
        keys = [twin.put("a", "m", BODY), twin.put("b", "n", BODY)]
        arrived = [pull(twin, key) for key in keys]
        await twin.connect()
        for _ in range(40):
            await work(twin, 2)
            await asyncio.sleep(0.2)
        assert [await each for each in arrived] == [BODY, BODY]
        for site in twin.halves:
            assert set(peer_of(twin, site).paths.paths) == {"grpc"}
            assert peer_of(twin, site).paths.main.up
        assert "tcp: could not be connected (" in peer_of(twin, "a").paths.main.reason

    play(scenario)


def test_falling_back_to_a_path_that_mode_grpc_uses_already_is_known_to_both(play: Callable[..., None]) -> None:
    async def scenario(twin: Twin) -> None:
        for transports in twin.transports.values():
            transports["tcp"].refusing = True
        arrived = [
            pull(twin, twin.put("b", "n", BODY, "grpc")),
            pull(twin, twin.put("a", "m", BODY, "fedrdma-e")),
            pull(twin, twin.put("b", "m", BODY, "fedrdma")),
        ]
        await twin.connect()
        for _ in range(40):
            await work(twin, 2)
            await asyncio.sleep(0.2)
        assert [await each for each in arrived] == [BODY] * 3

    play(scenario)


def test_a_message_that_waits_for_its_peer_is_shown(play: Callable[..., None]) -> None:
    async def scenario(twin: Twin) -> None:
        twin.put("a", "m", BODY)
        (shown,) = peer_of(twin, "a").transfers()
        assert (shown.state, shown.total_bytes) == ("waiting-for-peer", len(BODY))

    play(scenario)


# --- telling both sides ---


def test_who_waits_is_told_of_a_message_that_will_not_come_though_the_channel_was_lost_meanwhile(
    play: Callable[..., None],
) -> None:
    async def scenario(twin: Twin) -> None:
        key = twin.put("a", "m", BODY)
        waiting = pull(twin, key)
        peer_of(twin, "a").sending.give_up(ErrorCode.GATEWAY_STOPPING, "the gateway of a stops")
        await twin.quiesce()
        with pytest.raises(FedRDMAError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.GATEWAY_STOPPING

    play(scenario)


def test_a_notice_that_was_lost_with_the_channel_is_told_again(play: Callable[..., None]) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        waiting = pull(twin, twin.put("a", "m", BODY))
        peer_of(twin, "a").sending.give_up(ErrorCode.GATEWAY_STOPPING, "the gateway of a stops")
        assert len(_sent(twin, "a", Undeliverable)) == 1
        await twin.lose_control("a")
        await twin.lose_control("b")
        await twin.quiesce()
        with pytest.raises(FedRDMAError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.GATEWAY_STOPPING

    play(scenario)
