"""The end of a connection of a control channel."""

from __future__ import annotations

import asyncio
import socket

import pytest

from fedrdma_fate.gateway.peers import control_connection
from fedrdma_fate.gateway.peers.control_connection import ControlConnection


async def _closed_with_much_unread() -> bool:
    """A side that has greeted and reads nothing, and a channel that is closed with megabytes for it: does it end?"""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[ControlConnection] = loop.create_future()
    server = await loop.create_server(
        lambda: ControlConnection(None, server_side=True, on_ready=made.set_result), "127.0.0.1", 0
    )
    with socket.create_connection(server.sockets[0].getsockname()):
        connection = await made
        connection.stream.admit()
        for _ in range(16):
            connection.stream.write(bytes(1 << 20))
        # as where a newer channel of the same peer takes its place
        connection.stream.close()
        try:
            await asyncio.wait_for(connection.ended.wait(), 3)
        except asyncio.TimeoutError:
            connection.abort()
            return False
        finally:
            server.close()
        return True


def test_a_channel_that_is_closed_is_not_kept_by_who_does_not_read_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_connection, "FAREWELL_SECONDS", 0.2)
    assert asyncio.run(_closed_with_much_unread())
