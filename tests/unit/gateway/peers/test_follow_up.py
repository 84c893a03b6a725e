"""A short frame goes behind the last one of a burst, where that is not acknowledged soon."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

import pytest

from fedrdma_fate.gateway.peers import follow_up
from fedrdma_fate.gateway.peers.control_channel import ControlServer, dial
from fedrdma_fate.gateway.peers.control_stream import ControlStream
from fedrdma_fate.gateway.peers.follow_up import FOLLOW_UP, FOLLOW_UP_SECONDS, FollowUp, unacked_packets
from fedrdma_fate.wire.frames import Pong, decode_frame
from tests.support.twin import Twin, run_virtually
from tests.support.twin_play import Play, peer_of


class Channel:
    """What a connection is to it."""

    def __init__(self) -> None:
        self.written: list[float] = []
        self.unacked = True
        self.loop = asyncio.get_running_loop()
        self.following = FollowUp(self.write, lambda: self.unacked)

    def write(self, frame: bytes) -> None:
        assert frame == FOLLOW_UP
        self.written.append(self.loop.time())


def run(work: Coroutine[Any, Any, None]) -> None:
    run_virtually(work)


def test_one_goes_behind_the_last_of_a_burst_and_only_where_that_is_not_acknowledged() -> None:
    async def scenario() -> None:
        channel = Channel()
        for _ in range(5):
            channel.following.note_sent()
            await asyncio.sleep(FOLLOW_UP_SECONDS / 2)
        last = channel.loop.time() - FOLLOW_UP_SECONDS / 2
        await asyncio.sleep(1)
        assert channel.written == [pytest.approx(last + FOLLOW_UP_SECONDS)]
        channel.unacked = False
        channel.following.note_sent()
        await asyncio.sleep(1)
        assert len(channel.written) == 1
        channel.unacked = True
        await asyncio.sleep(1)
        assert len(channel.written) == 1, "nothing was sent since"

    run(scenario())


def test_nothing_follows_on_a_channel_that_has_ended() -> None:
    async def scenario() -> None:
        channel = Channel()
        channel.following.note_sent()
        channel.following.close()
        await asyncio.sleep(1)
        assert channel.written == []

    run(scenario())


def test_what_tcp_has_not_seen_acknowledged_is_told_by_the_kernel() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as dialled:
        assert unacked_packets(dialled) == 0
        accepted, _ = server.accept()
        with accepted:
            # it takes its time to acknowledge
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            # on a busy machine it may have acknowledged one before anybody looks
            assert any(dialled.send(b"x") and unacked_packets(dialled) for _ in range(50))
            accepted.send(b"y")
            assert dialled.recv(1) == b"y", "with which it acknowledges"
            assert unacked_packets(dialled) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        unacked_packets(dialled)


def test_it_goes_by_the_connection_behind_its_frames_where_the_stream_is_a_peers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedrdma_fate.gateway.peers.control_connection.unacked_packets", lambda _connection: 1)

    async def listen(stream: ControlStream) -> None:
        stream.admit()
        while (frame := await stream.read()) is not None:
            heard.append(frame)

    heard: list[bytes] = []

    async def scenario() -> None:
        server = ControlServer("127.0.0.1:0", lambda: None, listen)
        await server.start()
        async with dial(f"127.0.0.1:{server.port}", None, 5) as stream:
            stream.admit()
            stream.write(b"greeting")
            await asyncio.sleep(5 * follow_up.FOLLOW_UP_SECONDS)
            assert FOLLOW_UP not in heard, "a stranger's is not followed"
            stream.followed = True
            stream.write(b"frame")
            while FOLLOW_UP not in heard:
                await asyncio.sleep(0.001)
        await server.stop()

    asyncio.run(scenario())
    assert heard == [b"greeting", b"frame", FOLLOW_UP]


def test_a_peer_has_nothing_to_do_for_it(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        peer = peer_of(twin, "a")
        assert peer._stream is not None
        assert peer._stream.followed
        before = peer.rtt_seconds
        frame = decode_frame(FOLLOW_UP)
        assert isinstance(frame, Pong)
        peer._on_frame(frame)
        assert peer.rtt_seconds == before

    play(scenario)
