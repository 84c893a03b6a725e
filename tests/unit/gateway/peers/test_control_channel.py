"""Control channels on real sockets: frames both ways, limits of strangers, ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from fedrdma_fate.gateway.peers import control_channel
from fedrdma_fate.gateway.peers.control_channel import ControlServer, dial
from fedrdma_fate.gateway.peers.control_connection import GREETING_BYTES, MOST_FRAME_BYTES
from fedrdma_fate.gateway.peers.control_stream import ControlStream
from fedrdma_fate.gateway.peers.newcomers import BURST, MOST_NEWCOMERS
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, TransportError
from tests.support.control import framed

Handler = Callable[[ControlStream], Awaitable[None]]
Refusals = list[tuple[str, str, FedRDMAError]]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


async def echo(stream: ControlStream) -> None:
    """A peer that greets, and says everything again."""
    first = await stream.read()
    if first is None:
        return
    stream.admit()
    stream.write(first)
    while (frame := await stream.read()) is not None:
        stream.write(frame)


@contextlib.asynccontextmanager
async def serving(handler: Handler, refusals: Refusals | None = None) -> AsyncIterator[tuple[ControlServer, str]]:
    def refused(host: str, error: FedRDMAError, why: str = "") -> None:
        if refusals is not None:
            refusals.append((why, host, error))

    server = ControlServer("127.0.0.1:0", lambda: None, handler, refused)
    await server.start()
    try:
        yield server, f"127.0.0.1:{server.port}"
    finally:
        await server.stop()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


def test_frames_go_both_ways_in_order_and_as_long_as_they_may_be() -> None:
    async def scenario() -> None:
        async with serving(echo) as (_, address), dial(address, None, 5) as stream:
            stream.write(b"hello")
            assert await stream.read() == b"hello"
            stream.admit()
            frames = [bytes([number]) * number * 100 for number in range(100)] + [bytes(MOST_FRAME_BYTES)]
            for frame in frames:
                stream.write(frame)
            assert [await stream.read() for _ in frames] == frames
            assert stream.remote_host == "127.0.0.1"

    run(scenario())


def test_what_was_queued_before_the_end_still_arrives() -> None:
    async def farewell(stream: ControlStream) -> None:
        await stream.read()
        stream.write(b"why")
        stream.close()

    async def scenario() -> None:
        async with serving(farewell) as (_, address), dial(address, None, 5) as stream:
            stream.write(b"hello")
            # unread there, which must not take the answer from us
            stream.write(bytes(100_000))
            assert await stream.read() == b"why"
            stream.admit()
            assert await stream.read() is None

    run(scenario())


def test_a_stranger_that_only_half_closes_is_still_answered() -> None:
    async def scenario() -> None:
        async with serving(echo) as (_, address):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(framed(b"hello"))
            writer.write_eof()
            assert await reader.read() == framed(b"hello")
            writer.close()

    run(scenario())


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        ((GREETING_BYTES + 1).to_bytes(4, "big"), "a frame of 16385 bytes"),
        ((GREETING_BYTES - 4).to_bytes(4, "big") + bytes(GREETING_BYTES), None),
        (b"\x16\x03\x01\x02\x00", "speaks TLS"),
    ],
    ids=["announced", "exactly", "tls"],
)
def test_a_greeting_has_a_length(sent: bytes, complaint: str | None) -> None:
    seen: list[bytes | None] = []
    failures: list[FedRDMAError | None] = []

    async def first(stream: ControlStream) -> None:
        seen.append(await stream.read())
        failures.append(stream.failure)

    async def scenario() -> None:
        async with serving(first) as (_, address):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(sent)
            assert await reader.read() == b""
            writer.close()

    run(scenario())
    if complaint is None:
        assert seen == [bytes(GREETING_BYTES - 4)]
    else:
        assert seen == [None]
        (failure,) = failures
        assert failure is not None
        assert failure.code is ErrorCode.MALFORMED_FRAME
        assert complaint in failure.message


def test_of_a_stranger_nothing_is_read_behind_its_greeting() -> None:
    async def scenario() -> None:
        streams: list[ControlStream] = []
        read: list[bytes | None] = []
        over = asyncio.Event()

        async def ponder(stream: ControlStream) -> None:
            streams.append(stream)
            await over.wait()
            stream.admit()
            for _ in range(11):
                read.append(await stream.read())

        async with serving(ponder) as (_, address):
            _, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(framed(b"again") * 11)
            await until(lambda: bool(streams) and streams[0]._incoming.qsize() == 1)
            for _ in range(20):
                await asyncio.sleep(0)
            assert streams[0]._incoming.qsize() == 1
            over.set()
            await until(lambda: read == [b"again"] * 11)
            writer.close()

    run(scenario())


def test_a_frame_of_a_peer_has_a_length_too() -> None:
    failures: list[FedRDMAError | None] = []

    async def listen(stream: ControlStream) -> None:
        await echo(stream)
        failures.append(stream.failure)

    async def scenario() -> None:
        async with serving(listen) as (_, address):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(framed(b"hello"))
            await reader.readexactly(9)
            writer.write((MOST_FRAME_BYTES + 1).to_bytes(4, "big"))
            assert await reader.read() == b""
            writer.close()

    run(scenario())
    (failure,) = failures
    assert failure is not None
    assert failure.code is ErrorCode.MALFORMED_FRAME


def test_who_does_not_greet_in_time_is_told_so_by_who_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_channel, "GREETING_SECONDS", 0.05)
    reasons: list[str] = []

    async def wait(stream: ControlStream) -> None:
        assert await stream.read() is None
        reasons.append(stream.end_reason)

    async def scenario() -> None:
        async with serving(wait) as (server, address):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            assert await reader.read() == b""
            writer.close()
            await until(lambda: server.unknown == 0)

    run(scenario())
    assert reasons == [" within 0.05 s"]


def test_idle_connections_take_a_known_number_of_places_and_an_honest_one_gets_its_own() -> None:
    refusals: Refusals = []

    async def scenario() -> None:
        async with serving(echo, refusals) as (server, address):
            host, port = address.split(":")
            idle = [await asyncio.open_connection(host, port) for _ in range(BURST + 30)]
            await until(lambda: server.unknown == MOST_NEWCOMERS and len(refusals) == 30)
            # another address
            reader, writer = await asyncio.open_connection(host, port, local_addr=("127.0.0.2", 0))
            writer.write(framed(b"hello"))
            assert await reader.readexactly(9) == framed(b"hello")
            # it is known, so it takes none of these places
            await until(lambda: server.unknown == MOST_NEWCOMERS - 1)
            for _, each in idle:
                each.close()
            await until(lambda: server.unknown == 0)
            writer.write(framed(b"again"))
            assert await reader.readexactly(9) == framed(b"again")
            writer.close()

    run(scenario())
    assert {(why, host) for why, host, _ in refusals} == {("too-often", "127.0.0.1"), ("crowded-out", "127.0.0.1")}


def test_nobody_there_is_an_error_with_the_reason() -> None:
    async def scenario() -> None:
        async with serving(echo) as (_, address):
            pass
        with pytest.raises(TransportError) as caught:
            async with dial(address, None, 5):
                pass
        assert caught.value.code is ErrorCode.PEER_UNREACHABLE
        assert "does not answer" in caught.value.message

    run(scenario())


def test_a_server_that_stops_ends_its_streams() -> None:
    async def scenario() -> None:
        async with serving(echo) as (server, address), dial(address, None, 5) as stream:
            stream.write(b"hello")
            assert await stream.read() == b"hello"
            stream.admit()
            await server.stop()
            assert await stream.read() is None

    run(scenario())


def test_an_address_that_is_taken_is_an_error() -> None:
    async def scenario() -> None:
        async with serving(echo) as (_, address):
            with pytest.raises(TransportError) as caught:
                await ControlServer(address, lambda: None, echo).start()
            assert caught.value.code is ErrorCode.TRANSPORT_UNAVAILABLE

    run(scenario())
