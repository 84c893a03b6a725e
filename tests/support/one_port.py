"""The `tcp` transport on the port of a control channel, for tests of the transport alone."""

from __future__ import annotations

import asyncio
import dataclasses
import threading

from fedrdma_fate.gateway.peers.control_channel import ControlServer
from fedrdma_fate.gateway.peers.control_stream import ControlStream
from fedrdma_fate.transport.tcp import TcpSettings, TcpTransport

_SECONDS = 10.0
"""For a server to start or stop."""


class OnePortTransport(TcpTransport):
    """Its connections are accepted by a control server, on an event loop in a thread."""

    def __init__(self, settings: TcpSettings) -> None:
        super().__init__(dataclasses.replace(settings, on_control_port=True))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="one port", daemon=True)
        self._thread.start()
        address = f"{settings.host}:{settings.port}"
        self._server = ControlServer(address, lambda: None, _end, data=self)
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(_SECONDS)

    def close(self) -> None:
        """Stop the server as well."""
        super().close()
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SECONDS)
        self._loop.close()


async def _end(stream: ControlStream) -> None:
    stream.close()
