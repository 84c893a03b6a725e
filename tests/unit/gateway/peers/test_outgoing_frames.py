"""What goes first on a control channel, and what does not."""

from __future__ import annotations

import asyncio

from fedrdma_fate.gateway.peers.control_stream import ControlStream


async def sent(stream: ControlStream, count: int) -> list[bytes]:
    """The next frames that the connection takes."""
    outgoing = stream.outgoing()
    return [await asyncio.wait_for(outgoing.__anext__(), 10) for _ in range(count)]


def test_frames_that_go_first_go_ahead_of_those_that_wait_and_in_order_among_themselves() -> None:
    async def run() -> None:
        stream = ControlStream()
        stream.write(b"greeting")
        assert await sent(stream, 1) == [b"greeting"]
        for number in range(3):
            stream.write(b"small %d" % number)
        stream.write_first(b"call 1")
        stream.write_first(b"call 2")
        assert await sent(stream, 2) == [b"call 1", b"call 2"]
        stream.write_first(b"call 3")
        assert await sent(stream, 4) == [b"call 3", b"small 0", b"small 1", b"small 2"]
        assert stream.unsent_bytes == 0

    asyncio.run(run())


def test_the_greeting_stays_the_first() -> None:
    async def run() -> None:
        stream = ControlStream()
        stream.write(b"greeting")
        stream.write_first(b"call")
        assert await sent(stream, 2) == [b"greeting", b"call"]

    asyncio.run(run())


def test_a_frame_that_goes_first_wakes_who_waits_for_one() -> None:
    async def run() -> None:
        stream = ControlStream()
        stream.write(b"greeting")
        await sent(stream, 1)
        waiting = asyncio.ensure_future(sent(stream, 1))
        await asyncio.sleep(0)
        stream.write_first(b"call")
        assert await waiting == [b"call"]

    asyncio.run(run())


def test_nothing_goes_on_a_stream_that_is_closed() -> None:
    async def run() -> None:
        stream = ControlStream()
        stream.write(b"greeting")
        await sent(stream, 1)
        stream.close()
        stream.write_first(b"call")
        assert [frame async for frame in stream.outgoing()] == []

    asyncio.run(run())


def test_of_frames_that_say_all_anew_the_latest_follows_the_one_that_waits_behind_what_came_since() -> None:
    async def run() -> None:
        stream = ControlStream()
        stream.write_latest(b"state 0")
        assert await sent(stream, 1) == [b"state 0"]
        stream.write_latest(b"state 1")
        stream.write_latest(b"state 2")
        stream.write(b"delivered")
        stream.write_latest(b"state 3")
        assert stream.unsent_bytes == len(b"state 1") + len(b"delivered") + len(b"state 3")
        assert await sent(stream, 3) == [b"state 1", b"delivered", b"state 3"]
        assert stream.unsent_bytes == 0
        stream.write_latest(b"state 4")
        assert await sent(stream, 1) == [b"state 4"]

    asyncio.run(run())


def test_for_a_peer_that_takes_nothing_two_states_are_kept_and_not_all_that_there_were() -> None:
    async def run() -> None:
        stream = ControlStream()
        for number in range(1000):
            stream.write_latest(b"%d" % (1000 + number))
        assert stream.unsent_bytes == 8
        assert await sent(stream, 2) == [b"1000", b"1999"]

    asyncio.run(run())
