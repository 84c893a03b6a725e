"""One port for control channels and data paths: the first byte tells them apart, and before it they are bounded."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fedrdma_fate.gateway.peers import control_channel
from fedrdma_fate.gateway.peers.control_channel import ControlServer, dial
from fedrdma_fate.gateway.peers.control_stream import ControlStream
from fedrdma_fate.gateway.peers.newcomers import BURST, MOST_NEWCOMERS
from fedrdma_fate.transport import listener
from fedrdma_fate.transport.tcp import PassiveDraft, TcpSettings, TcpTransport
from fedrdma_fate.wire.errors import FedRDMAError
from tests.support.control import framed

Refusals = list[tuple[str, str]]

HELLO = listener._HELLO.pack(listener._HELLO_MAGIC, b"s" * 16, 0, 1)
"""Of a data path that nobody waits for."""


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


class Port:
    """A control server that takes connections of data paths as well."""

    def __init__(self, refusals: Refusals) -> None:
        self.data = TcpTransport(TcpSettings(streams=2, on_control_port=True))
        self.opened: list[asyncio.StreamWriter] = []

        def refused(host: str, error: FedRDMAError, why: str = "") -> None:
            del host
            refusals.append((why, error.message))

        self.server = ControlServer("127.0.0.1:0", lambda: None, echo, refused, None, self.data)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def connect(self, first: bytes = b"", source: str = "127.0.0.1") -> asyncio.StreamReader:
        """Somebody dials and says so much; what comes back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, local_addr=(source, 0))
        writer.write(first)
        self.opened.append(writer)
        return reader


@contextlib.asynccontextmanager
async def listening(refusals: Refusals) -> AsyncIterator[Port]:
    port = Port(refusals)
    await port.server.start()
    try:
        yield port
    finally:
        for writer in port.opened:
            writer.close()
        port.data.close()
        await port.server.stop()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


async def is_dropped(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return await reader.read() == b""
    return True


async def data_path(port: Port) -> list[socket.socket]:
    """Both ends of both streams of one."""
    loop = asyncio.get_running_loop()
    waiting, dialling = port.data.open("passive"), TcpTransport(TcpSettings(streams=2))
    assert isinstance(waiting, PassiveDraft)
    try:
        active = dialling.open("active")
        assert not isinstance(active, PassiveDraft)
        with ThreadPoolExecutor(2) as executor:
            dialled = loop.run_in_executor(executor, active.meet, waiting.address, 10)
            met = loop.run_in_executor(executor, waiting.meet, active.address, 10)
            return [*await dialled, *await met]
    finally:
        dialling.close()


def test_control_channels_and_data_paths_come_to_one_port() -> None:
    refusals: Refusals = []

    async def scenario() -> None:
        async with listening(refusals) as port, dial(port.address, None, 5) as stream:
            stream.write(b"hello")
            assert await stream.read() == b"hello"
            stream.admit()
            streams = await data_path(port)
            assert {each.getpeername()[1] for each in streams[:2]} == {port.server.port}
            for ours, theirs in zip(streams[2:], streams[:2], strict=True):
                theirs.sendall(b"chunks")
                ours.setblocking(True)
                assert ours.recv(64) == b"chunks"
            stream.write(b"still here")
            assert await stream.read() == b"still here"
            await until(lambda: port.server.unknown == 0)
            for each in streams:
                each.close()

    run(scenario())
    assert refusals == []


def test_the_address_names_the_port_that_the_control_channel_has() -> None:
    async def scenario() -> None:
        async with listening([]) as port:
            draft = port.data.open("passive")
            assert (draft.address["port"], draft.address["control"]) == (port.server.port, 1)
            draft.close()

    run(scenario())


def test_who_is_told_another_host_is_not_told_that_the_control_channel_leads_there() -> None:
    transport = TcpTransport(TcpSettings(port=9370, advertised_host="203.0.113.5", on_control_port=True))
    draft = transport.open("passive")
    assert (draft.address["host"], draft.address["port"], "control" in draft.address) == ("203.0.113.5", 9370, False)
    draft.close()
    transport.close()


@pytest.mark.parametrize("first", [b"", b"F", HELLO[:8], HELLO[:-1]])
def test_who_does_not_say_in_time_what_it_is_is_dropped(first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_channel, "GREETING_SECONDS", 0.05)
    refusals: Refusals = []

    async def scenario() -> None:
        async with listening(refusals) as port:
            assert await is_dropped(await port.connect(first))
            assert port.server.unknown == 0

    run(scenario())
    ((why, what),) = refusals
    assert (why, "within 0.05 s" in what) == ("too-slow", True)


def test_who_begins_as_a_control_channel_and_does_not_go_on_is_ended_by_who_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_channel, "GREETING_SECONDS", 0.5)
    refusals: Refusals = []

    async def scenario() -> None:
        async with listening(refusals) as port:
            # a length, and nothing of the frame
            assert await is_dropped(await port.connect(b"\x00"))
            await until(lambda: port.server.unknown == 0)

    run(scenario())
    assert refusals == []


@pytest.mark.parametrize(
    ("first", "why"),
    [(b"FRDMno way, for this is none", "malformed"), (b"Finally", "malformed"), (HELLO, "no-path")],
)
def test_who_begins_as_nobody_does_or_comes_for_nothing_is_dropped_at_once(first: bytes, why: str) -> None:
    refusals: Refusals = []

    async def scenario() -> None:
        async with listening(refusals) as port:
            assert await is_dropped(await port.connect(first))
            assert port.server.unknown == 0

    run(scenario())
    assert [reason for reason, _ in refusals] == [why]


def test_who_ends_before_it_has_said_anything_is_counted() -> None:
    refusals: Refusals = []

    async def scenario() -> None:
        async with listening(refusals) as port:
            await port.connect()
            port.opened[0].close()
            await until(lambda: bool(refusals))
            assert port.server.unknown == 0

    run(scenario())
    assert [reason for reason, _ in refusals] == ["cut"]


def test_garbage_goes_the_way_of_a_control_channel_which_ends() -> None:
    refusals: Refusals = []

    async def scenario() -> None:
        async with listening(refusals) as port:
            assert await is_dropped(await port.connect(b"GET / HTTP/1.1\r\n\r\n"))
            await until(lambda: port.server.unknown == 0)

    run(scenario())
    assert refusals == []


def test_a_hello_in_pieces_is_put_together() -> None:
    refusals: Refusals = []

    async def scenario() -> None:
        async with listening(refusals) as port:
            draft = port.data.open("passive")
            token = bytes.fromhex(str(draft.address["token"]))
            reader = await port.connect()
            for byte in listener._HELLO.pack(listener._HELLO_MAGIC, token, 0, 1):
                port.opened[0].write(bytes([byte]))
                await asyncio.sleep(0.001)
            with ThreadPoolExecutor(1) as executor:
                meeting = asyncio.get_running_loop().run_in_executor(executor, draft.meet, {"streams": 1}, 10)
                (met,) = await meeting
            assert await reader.readexactly(len(listener._WELCOME)) == listener._WELCOME
            met.close()
            await until(lambda: port.server.unknown == 0)

    run(scenario())
    assert refusals == []


@pytest.mark.parametrize("first", [b"", b"F", b"\x00"], ids=["silent", "as a data path", "as a control channel"])
def test_whatever_they_began_newcomers_share_the_same_places_and_others_get_in(first: bytes) -> None:
    refusals: Refusals = []

    async def scenario() -> None:
        async with listening(refusals) as port:
            for _ in range(BURST + 30):
                await port.connect(first)
            await until(lambda: port.server.unknown == MOST_NEWCOMERS and len(refusals) == 30)
            # another address
            reader = await port.connect(framed(b"hello"), "127.0.0.2")
            assert await reader.readexactly(9) == framed(b"hello")
            await until(lambda: port.server.unknown == MOST_NEWCOMERS - 1)

    run(scenario())
    assert {why for why, _ in refusals} == {"too-often", "crowded-out"}


def test_streams_of_data_paths_that_are_waited_for_do_not_count_as_dialling_too_often() -> None:
    refusals: Refusals = []

    async def scenario() -> None:
        async with listening(refusals) as port:
            for _ in range(BURST):
                for each in await data_path(port):
                    each.close()

    run(scenario())
    assert refusals == []


def test_a_server_that_stops_drops_who_has_not_said_anything() -> None:
    refusals: Refusals = []

    async def scenario() -> None:
        async with listening(refusals) as port:
            readers = [await port.connect(first) for first in (b"", b"F")]
            await until(lambda: port.server.unknown == 2)
            await port.server.stop()
            for reader in readers:
                assert await is_dropped(reader)

    run(scenario())
    assert refusals == []
