"""Two gateways' peers, step by step: restarts, data paths, parties that are not there, and who is told what."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import (
    INLINE_LIMIT_BYTES,
    Connect,
    Inline,
    MessageKey,
    Party,
    Ping,
    Refused,
    Undeliverable,
)
from tests.support.endpoints import MemoryTransport
from tests.support.twin import PARTIES, Twin
from tests.support.twin_play import BODY, Play, key_to, peer_of, pull, sent_by, work

# --- small messages ---


def test_a_small_message_that_was_lost_with_the_channel_is_sent_again_and_kept_once(play: Play) -> None:
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
        assert twin.halves["b"].context.mailbox.summary()["messages"] == 1
        assert await twin.get(key) == b"small"  # type: ignore[arg-type]

    play(scenario)


def test_a_small_message_of_more_than_the_limit_is_refused(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        inline = Inline(1, key_to(twin, PARTIES["b"]), "bytes", bytes(INLINE_LIMIT_BYTES + 1))
        peer_of(twin, "b").receiving.on_inline(inline)
        assert ErrorCode.MALFORMED_FRAME.value in [frame.code for frame in sent_by(twin, "b", Refused)]
        assert peer_of(twin, "b").connected

    play(scenario)


# --- wrong party ---


@pytest.mark.parametrize("size", [10, 200_000])
@pytest.mark.parametrize("wrong", ["destination", "source"])
def test_a_message_of_or_for_a_party_that_is_not_there_is_refused_and_both_sides_know(
    play: Play, caplog: pytest.LogCaptureFixture, size: int, wrong: str
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
            twin.halves["a"].context.mailbox.sessions.raise_push_failure("s", key.source)
        assert caught.value.code is ErrorCode.WRONG_PARTY
        await twin.quiesce()
        assert twin.halves["a"].context.send_pool.stats().slots == 0
        assert twin.halves["b"].context.receive_pool.stats().slots == twin.halves["b"].credits_held()

    play(scenario)
    told = [record.getMessage() for record in caplog.records if ErrorCode.WRONG_PARTY.value in record.getMessage()]
    assert any(text.startswith("refused") for text in told)
    assert any("was not delivered" in text for text in told)


def _put_as(twin: Twin, key: MessageKey, body: bytes) -> None:
    from fedrdma_fate.engine.payload import Payload

    half = twin.halves["a"]
    if len(body) <= INLINE_LIMIT_BYTES:
        half.peer.sending.put_inline(key, "bytes", body)
        return
    lease = half.context.send_pool.lease(len(body), "task")
    assert lease is not None
    lease.slot.view[:] = body
    half.peer.sending.put_payload(key, "object", Payload(lease.slot, len(body)), lease, None)


# --- restarts ---


def test_what_was_on_its_way_to_a_gateway_that_is_restarted_is_sent_anew(play: Play) -> None:
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


def test_who_waits_for_a_message_whose_sender_was_restarted_in_the_middle_is_told(play: Play) -> None:
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
        assert half.context.receive_pool.stats().slots == half.credits_held()

    play(scenario)


# --- transports ---


def test_a_path_that_only_the_other_side_knows_to_be_lost_is_told_and_connected_anew(
    play: Play, caplog: pytest.LogCaptureFixture
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


def test_when_the_transport_cannot_be_connected_both_sides_take_the_next(play: Play) -> None:
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


def test_falling_back_to_a_path_that_mode_grpc_uses_already_is_known_to_both(play: Play) -> None:
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


def test_a_message_that_waits_for_its_peer_is_shown(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        twin.put("a", "m", BODY)
        (shown,) = peer_of(twin, "a").transfers()
        assert (shown.state, shown.total_bytes) == ("waiting-for-peer", len(BODY))

    play(scenario)


# --- telling both sides ---


def test_who_waits_is_told_of_a_message_that_will_not_come_though_the_channel_was_lost_meanwhile(
    play: Play,
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


def test_a_notice_that_was_lost_with_the_channel_is_told_again(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        waiting = pull(twin, twin.put("a", "m", BODY))
        peer_of(twin, "a").sending.give_up(ErrorCode.GATEWAY_STOPPING, "the gateway of a stops")
        assert len(sent_by(twin, "a", Undeliverable)) == 1
        await twin.lose_control("a")
        await twin.lose_control("b")
        await twin.quiesce()
        with pytest.raises(FedRDMAError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.GATEWAY_STOPPING

    play(scenario)


# --- which data path `auto` takes ---


def answer_ping(peer: Any, round_trip: float) -> None:
    """A ping is answered after so long, and not a moment later: on a busy machine one may pass before it is looked."""
    now = time.monotonic()
    with pytest.MonkeyPatch.context() as stopped:
        stopped.setattr(time, "monotonic", lambda: now)
        peer._on_pong(now - round_trip)


async def chosen_at(twin: Twin, round_trips: list[float]) -> tuple[str | None, str]:
    """The main path, and why, of two that offer `udp`, when pings are answered after so long."""
    for transports in twin.transports.values():
        transports["udp"] = MemoryTransport("udp", {})
    twin.halves = {site: twin._make(site) for site in twin.halves}
    await twin.connect()
    peer = peer_of(twin, "a")
    for round_trip in round_trips:
        assert peer.paths.main is None, "chosen before it is known how long the path is"
        assert sent_by(twin, "a", Ping), "nobody would answer"
        twin.halves["a"].stream._outgoing._queue.clear()  # type: ignore[union-attr, attr-defined]
        answer_ping(peer, round_trip)
    main = peer.paths.main
    return peer.paths.main_transport, "" if main is None else main.reason


@pytest.mark.parametrize(
    ("round_trips", "transport", "reason"),
    [
        ([0.02, 0.021, 0.019], "udp", "UDP passes"),
        ([0.0004], "tcp", "udp: a round trip of 0.4 ms, for UDP it is 5 ms at least"),
        ([0.5, 0.02, 0.001], "tcp", "udp: a round trip of 1.0 ms"),
    ],
    ids=["long", "short", "short, on a busy host"],
)
def test_auto_takes_udp_in_mode_fedrdma_x_where_the_round_trip_is_long(
    play: Play, round_trips: list[float], transport: str, reason: str
) -> None:
    async def scenario(twin: Twin) -> None:
        name, why = await chosen_at(twin, round_trips)
        assert name == transport
        assert reason in why

    play(scenario, transport="auto", mode="fedrdma-x")


@pytest.mark.parametrize("settings", [{"transport": "auto"}, {"transport": "tcp", "mode": "fedrdma-x"}])
def test_without_that_mode_or_with_a_transport_of_its_own_nobody_waits_for_a_round_trip(
    play: Play, settings: dict[str, str]
) -> None:
    async def scenario(twin: Twin) -> None:
        assert (await chosen_at(twin, []))[0] == "tcp"

    play(scenario, **settings)


def test_where_udp_is_asked_for_it_is_taken_at_once_however_short_the_path(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        assert (await chosen_at(twin, []))[0] == "udp"

    play(scenario, transport="udp", mode="fedrdma-x")


def test_links_are_told_the_least_round_trip_also_where_their_path_was_up_before_any_ping_was_answered(
    play: Play,
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await twin.quiesce()
        peer = peer_of(twin, "a")
        link = next(iter(peer.paths.paths.values())).link
        told: list[float] = []
        link.hint = lambda rtt, _rate: told.append(rtt)  # type: ignore[method-assign]
        least = peer.main_path.least_round_trip
        for factor in (0.5, 2.0, 0.25):
            answer_ping(peer, factor * least)
        assert len(told) == 2, "one that took longer tells of the hosts, and nothing of the path"
        assert told[1] < told[0] < least

    play(scenario)
