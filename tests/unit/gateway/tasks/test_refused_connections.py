"""Connections to the tasks' socket of users who may not have them: told why, and next to nothing is kept for them."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.client.protocol import (
    LENGTH_PREFIX,
    MAX_FRAME_BYTES,
    Error,
    ReleaseLeases,
    decode_reply,
    encode_message,
)
from fedrdma_fate.gateway.tasks import socket as task_socket
from fedrdma_fate.gateway.tasks.refused_connections import MOST_OF_A_USER as MOST_REFUSED_OF_A_USER
from fedrdma_fate.gateway.tasks.refused_connections import MOST_REFUSED
from fedrdma_fate.gateway.tasks.socket import TaskSocket
from fedrdma_fate.gateway.tasks.turns import TURN_REQUESTS
from fedrdma_fate.wire.errors import ErrorCode

STRANGER = 12_345
FEW = 20


class Maker:
    """Admits everybody, or nobody."""

    def __init__(self, admits: bool) -> None:
        self._admits = admits

    def admits(self, _user: int) -> bool:
        return self._admits

    def begin(self, _user: int) -> Any:
        return self

    def answer(self, _request: object) -> None:
        return None

    def end(self) -> None:
        return None


def serve(admits: bool, work: Callable[[TaskSocket, str], Awaitable[None]], maker: Maker | None = None) -> None:
    async def scenario() -> None:
        with tempfile.TemporaryDirectory(prefix="fr") as directory:
            serving = TaskSocket(Path(directory, "s"), maker or Maker(admits), shared=True)
            await serving.start()
            try:
                await work(serving, f"{directory}/s")
            finally:
                await serving.stop()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def connect(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.connect(path)
    made.setblocking(False)
    return made


async def read_error(connection: socket.socket) -> Error | None:
    """What it was told; None where it was only closed."""
    loop = asyncio.get_running_loop()
    raw = b""
    try:
        while more := await loop.sock_recv(connection, 65536):
            raw += more
    except ConnectionError:
        return None
    finally:
        connection.close()
    if not raw:
        return None
    reply = decode_reply(raw[LENGTH_PREFIX.size :])
    assert isinstance(reply, Error)
    return reply


def test_a_user_who_is_refused_is_told_why_and_what_it_sends_is_kept_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    come = 0

    def user(_connection: object) -> int:
        nonlocal come
        come += 1
        return STRANGER

    monkeypatch.setattr(task_socket, "peer_user", user)

    async def work(serving: TaskSocket, path: str) -> None:
        connections = [connect(path) for _ in range(40)]
        for connection in connections:
            # the beginning of a request that never ends
            connection.send(LENGTH_PREFIX.pack(MAX_FRAME_BYTES) + bytes(1 << 16))
        # who comes when others are gone has the place of one
        while come < len(connections):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert serving._refused._of_user.total() <= MOST_REFUSED_OF_A_USER
        told = await asyncio.gather(*map(read_error, connections))
        assert [each.code for each in told if each] == [ErrorCode.USER_REFUSED.value] * MOST_REFUSED_OF_A_USER
        assert not serving._refused._of_user

    serve(False, work)


def test_many_users_who_are_refused_take_no_more_than_some_places(monkeypatch: pytest.MonkeyPatch) -> None:
    users = iter(range(1000, 2000))
    monkeypatch.setattr(task_socket, "peer_user", lambda _connection: next(users))

    async def work(serving: TaskSocket, path: str) -> None:
        connections = [connect(path) for _ in range(90)]
        await asyncio.sleep(0.2)
        assert serving._refused._of_user.total() <= MOST_REFUSED
        await asyncio.gather(*map(read_error, connections))

    serve(False, work)


@pytest.mark.parametrize("by", ["number", "descriptors"])
def test_a_listed_user_has_so_many_connections_and_the_gateways_own_as_many_as_it_likes(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    async def some(path: str, count: int) -> list[socket.socket]:
        made = []
        for _ in range(count):
            made.append(connect(path))
            await asyncio.sleep(0.001)
        return made

    async def work(serving: TaskSocket, path: str) -> None:
        if by == "number":
            monkeypatch.setattr(task_socket, "MOST_OF_A_USER", FEW)
        else:
            monkeypatch.setattr(resource, "getrlimit", lambda _which: (4 * FEW, 1 << 20))
        monkeypatch.setattr(task_socket, "peer_user", lambda _connection: STRANGER)
        kept = await some(path, FEW)
        while serving._of_user[STRANGER] < FEW:
            await asyncio.sleep(0.01)
        refused = await read_error(connect(path))
        assert refused is not None
        assert refused.code == ErrorCode.LIMIT_REACHED.value
        monkeypatch.setattr(task_socket, "peer_user", lambda _connection: os.geteuid())
        kept += await some(path, FEW + 1)
        while serving._of_user[os.geteuid()] <= FEW:
            await asyncio.sleep(0.01)
        for connection in kept:
            connection.close()
        while any(serving._of_user.values()):
            await asyncio.sleep(0.01)

    serve(True, work)


def test_of_a_listed_user_so_many_requests_are_begun_in_one_turn_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_socket, "peer_user", lambda _connection: STRANGER)
    turn, begun = 0, Counter[int]()
    request = encode_message(ReleaseLeases((1,)))

    class Counting(Maker):
        def answer(self, _request: object) -> None:
            begun[turn] += 1

    async def work(_serving: TaskSocket, path: str) -> None:
        nonlocal turn
        connections = [connect(path) for _ in range(50)]
        for connection in connections:
            connection.send(request * 32)
        while begun.total() < 50 * 32:
            turn += 1
            await asyncio.sleep(0)
        assert max(begun.values()) <= TURN_REQUESTS
        for connection in connections:
            connection.close()

    serve(True, work, Counting(True))
