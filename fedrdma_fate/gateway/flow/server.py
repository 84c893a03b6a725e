"""The own FATE Flow server: a call goes to it once, and comes back as its answer or as an error with a code."""

from __future__ import annotations

import asyncio

import h11

from fedrdma_fate.gateway.flow.call import Answer, SchedulingCall, is_json
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import MOST_CALL_BYTES

SERVER_SECONDS = 30.0
"""For FATE Flow to answer: as long as the three tries of whoever asks take together."""

MOST_STATUS = 599
"""Of an answer (RFC 9110, section 15); frames of the control channel carry no greater one."""

_READ_BYTES = 64 * 1024
"""At once: an answer has some hundred bytes."""


class FlowServer:
    """Belongs to the event loop's thread."""

    def __init__(self, host: str, port: int, seconds: float = SERVER_SECONDS) -> None:
        """
        Args:
            host: where it listens.
            port: its HTTP port.
            seconds: for an answer.
        """
        self._host = host
        self._port = port
        self._seconds = seconds

    @property
    def address(self) -> str:
        """host:port."""
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    async def carry_out(self, call: SchedulingCall) -> Answer:
        """Make a call, once, and wait for the answer.

        Raises:
            GatewayError: FLOW_UNUSABLE when there is none, or none that FATE Flow gives.
        """
        try:
            return await asyncio.wait_for(self._exchange(call), self._seconds)
        except asyncio.TimeoutError:
            raise self._unusable(f"has not answered within {self._seconds:g} s") from None
        except OSError as error:
            raise self._unusable(f"cannot be reached: {error.strerror or error}") from error
        except h11.ProtocolError as error:
            raise self._unusable(f"answered what is no HTTP: {error}") from error

    async def _exchange(self, call: SchedulingCall) -> Answer:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            http = h11.Connection(h11.CLIENT)
            headers = [
                ("Host", self.address),
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(call.body))),
                ("Connection", "close"),
                *call.headers,
            ]
            request = h11.Request(method="POST", target=call.path, headers=headers)
            for event in (request, h11.Data(call.body), h11.EndOfMessage()):
                writer.write(http.send(event) or b"")
            await writer.drain()
            return await self._read(http, reader)
        finally:
            # all has been read, or nothing more is wanted
            writer.transport.abort()

    async def _read(self, http: h11.Connection, reader: asyncio.StreamReader) -> Answer:
        status, kind, body = 0, "", bytearray()
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(_READ_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
                kind = dict(event.headers).get(b"content-type", b"").decode("latin-1")
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MOST_CALL_BYTES:
                    raise self._unusable(f"answered more than {MOST_CALL_BYTES} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return self._answer(status, kind, bytes(body))
            elif not isinstance(event, h11.InformationalResponse):
                raise self._unusable("ended the connection without an answer")

    def _answer(self, status: int, kind: str, body: bytes) -> Answer:
        if status > MOST_STATUS:
            raise self._unusable(f"answered with status {status}, which is none of HTTP")
        if not is_json(body):
            raise self._unusable(f"answered with status {status} and {kind or 'no type'}, which is no JSON")
        return Answer(status, body)

    def _unusable(self, what: str) -> GatewayError:
        return GatewayError(
            ErrorCode.FLOW_UNUSABLE,
            f"FATE Flow at {self.address} {what}.",
            "See that it runs, and that `flow.server` of its site's gateway is its HTTP port.",
        )
