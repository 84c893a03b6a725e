"""Where the tasks' socket lies: a stale one is replaced and nothing else, no link followed, another's left alone."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.gateway.tasks.socket import Conversation, TaskSocket
from fedrdma_fate.wire.errors import ErrorCode, GatewayError


class Nobody:
    """Serves none."""

    def admits(self, _user: int) -> bool:
        return False

    def begin(self, user: int) -> Conversation:
        raise AssertionError(user)


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fr") as directory:
        yield Path(directory) / "gateway.sock"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


def leave_stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def test_a_stale_socket_is_replaced_and_the_own_one_removed_in_the_end(path: Path) -> None:
    async def scenario() -> None:
        leave_stale(path)
        tasks = TaskSocket(path, Nobody())
        await tasks.start()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        await tasks.stop()
        assert not path.exists()

    run(scenario())


@pytest.mark.parametrize("linked", [True, False])
def test_what_is_no_socket_is_left_alone(path: Path, linked: bool) -> None:
    async def scenario() -> None:
        own = path.with_name("own") if linked else path
        own.write_text("kept")
        if linked:
            path.symlink_to(own)
        with pytest.raises(GatewayError, match="no socket") as refused:
            await TaskSocket(path, Nobody()).start()
        assert refused.value.code is ErrorCode.GATEWAY_UNREACHABLE
        assert path.read_text() == "kept"

    run(scenario())


def test_a_socket_for_all_users_is_made_so_that_no_other_file_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = path.with_name("key")
    key.write_text("secret")
    key.chmod(0o600)

    class Socket(socket.socket):
        def bind(self, address: Any) -> None:
            super().bind(address)
            # whoever may write to the directory is faster than the gateway
            path.rename(path.with_name("moved"))
            path.symlink_to(key)

    async def scenario() -> None:
        tasks = TaskSocket(path, Nobody(), shared=True)
        with monkeypatch.context() as raced:
            raced.setattr(socket, "socket", Socket)
            await tasks.start()
        assert stat.S_IMODE(path.with_name("moved").stat().st_mode) == 0o666
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        await tasks.stop()
        assert key.read_text() == "secret"

    masked = os.umask(0o077)
    try:
        run(scenario())
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(masked)


def test_a_gateway_that_stops_leaves_the_socket_of_another_one(path: Path) -> None:
    async def scenario() -> None:
        first, second = TaskSocket(path, Nobody()), TaskSocket(path, Nobody())
        await first.start()
        path.unlink()
        await second.start()
        await first.stop()
        assert stat.S_ISSOCK(path.lstat().st_mode)
        await second.stop()

    run(scenario())
