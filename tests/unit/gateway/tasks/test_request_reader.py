"""What is read of a task's requests before they are answered: little, and the end of the connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

import pytest

from fedrdma_fate.client.protocol import LENGTH_PREFIX, PutInline, ReleaseLeases, decode_request, encode_message
from fedrdma_fate.gateway.tasks import request_reader
from fedrdma_fate.gateway.tasks.request_reader import LARGE_REQUEST_BYTES, READ_AHEAD, RequestReader
from fedrdma_fate.wire.errors import WireError
from fedrdma_fate.wire.frames import Party

LARGE = encode_message(PutInline("m", "t", (Party("host", "2"),), "object", bytes(60_000)))
SMALL = encode_message(ReleaseLeases((1,)))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


async def settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


def connection(*pieces: bytes, end: bool = False) -> asyncio.StreamReader:
    stream = asyncio.StreamReader()
    for piece in pieces:
        stream.feed_data(piece)
    if end:
        stream.feed_eof()
    return stream


def unread(stream: asyncio.StreamReader) -> int:
    """Bytes that came and were not taken."""
    return len(stream._buffer)  # type: ignore[attr-defined]


def test_a_large_request_is_read_when_the_one_before_it_was_answered() -> None:
    async def scenario() -> None:
        stream = connection(LARGE, LARGE, LARGE, end=True)
        requests = RequestReader(stream, decode=decode_request)
        await settle()
        assert unread(stream) == 2 * len(LARGE) - LENGTH_PREFIX.size
        for left in (2, 1, 0):
            assert isinstance(await requests.next(), PutInline)
            await settle()
            # it is being answered
            assert unread(stream) == max(0, left * len(LARGE) - LENGTH_PREFIX.size)
        assert await requests.next() is None

    run(scenario())


def test_small_requests_are_read_ahead_up_to_a_bound() -> None:
    async def scenario() -> None:
        assert len(SMALL) < LARGE_REQUEST_BYTES
        stream = connection(*[SMALL] * 100, end=True)
        requests = RequestReader(stream, decode=decode_request)
        await settle()
        # one more waits for its place
        assert unread(stream) == (100 - READ_AHEAD - 1) * len(SMALL)
        for _ in range(100):
            assert isinstance(await requests.next(), ReleaseLeases)
        assert await requests.next() is None

    run(scenario())


def test_large_requests_of_many_connections_share_their_room_and_all_get_their_turn() -> None:
    async def scenario() -> None:
        room = asyncio.Semaphore(2)
        streams = [connection(LARGE, SMALL, end=True) for _ in range(5)]
        readers = [RequestReader(stream, room, decode=decode_request) for stream in streams]
        await settle()
        assert sum(unread(stream) < len(LARGE) - LENGTH_PREFIX.size for stream in streams) == 2

        async def answer_all(requests: RequestReader) -> int:
            answered = 0
            while await requests.next() is not None:
                answered += 1
                await asyncio.sleep(0)
            requests.close()
            return answered

        assert await asyncio.gather(*map(answer_all, readers)) == [2] * 5
        assert room._value == 2

    run(scenario())


@pytest.mark.parametrize("taken", [False, True])
def test_a_connection_that_ends_gives_its_room_back(taken: bool) -> None:
    async def scenario() -> None:
        room = asyncio.Semaphore(1)
        first, second = (
            RequestReader(connection(LARGE), room, decode=decode_request),
            RequestReader(connection(LARGE, end=True), room, decode=decode_request),
        )
        await settle()
        if taken:
            await first.next()
        first.close()
        assert isinstance(await second.next(), PutInline)
        second.close()
        await settle()
        assert room._value == 1

    run(scenario())


def test_the_end_shows_while_an_answer_is_being_worked_out() -> None:
    async def scenario() -> None:
        requests = RequestReader(connection(LARGE, end=True), decode=decode_request)
        await requests.next()
        with pytest.raises(ConnectionError):
            await requests.unless_ended(asyncio.sleep(100))

    run(scenario())


def test_a_large_request_behind_one_that_waits_for_its_answer_has_no_room_that_others_wait_for() -> None:
    async def scenario() -> None:
        room = asyncio.Semaphore(1)
        waits = RequestReader(connection(SMALL, LARGE, end=True), room, decode=decode_request)
        assert isinstance(await waits.next(), ReleaseLeases)
        await settle()
        other = RequestReader(connection(LARGE, end=True), room, decode=decode_request)
        assert isinstance(await other.next(), PutInline)
        other.close()
        # the first one is answered now
        assert isinstance(await waits.next(), PutInline)
        assert await waits.next() is None
        waits.close()
        assert room._value == 1

    run(scenario())


def test_a_task_that_went_away_shows_also_where_a_large_request_of_its_waits_behind_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_reader, "LOOK_SECONDS", 0.01)

    async def scenario() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        task = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
        stream, writer = await asyncio.open_connection(sock=accepted)
        requests = RequestReader(stream, asyncio.Semaphore(1), accepted, decode=decode_request)
        task.sendall(SMALL + LARGE)
        assert isinstance(await requests.next(), ReleaseLeases)
        task.close()
        with pytest.raises(ConnectionError):
            await requests.unless_ended(asyncio.sleep(100))
        requests.close()
        writer.close()
        listening.close()

    run(scenario())


def test_a_large_request_that_is_cut_short_is_no_request() -> None:
    async def scenario() -> None:
        requests = RequestReader(connection(LARGE[:-1], end=True), decode=decode_request)
        with pytest.raises(WireError, match="cut short"):
            await requests.next()

    run(scenario())


def test_a_large_request_that_stands_still_gives_its_room_back() -> None:
    async def scenario() -> None:
        room = asyncio.Semaphore(1)
        stalled = RequestReader(connection(LARGE[:-1]), room, decode=decode_request, large_seconds=0.05)
        with pytest.raises(WireError, match="did not come within"):
            await stalled.next()
        stalled.close()
        other = RequestReader(connection(LARGE, end=True), room, decode=decode_request, large_seconds=60.0)
        assert isinstance(await other.next(), PutInline)
        other.close()

    run(scenario())
