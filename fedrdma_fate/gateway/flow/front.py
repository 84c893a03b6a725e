"""Takes what FATE Flow sends to its proxy: HTTP on loopback, a connection for each call."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging

from fedrdma_fate.gateway.accepting import Acceptor, listen_at
from fedrdma_fate.gateway.config.schema import split_address
from fedrdma_fate.gateway.flow.call import Answer
from fedrdma_fate.gateway.flow.calls import FlowCalls
from fedrdma_fate.gateway.flow.request import BadRequestError, read_call
from fedrdma_fate.obs.complaints import Complaints
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 256
"""At once, each with a call: a scheduler makes one after the other, for each of its jobs."""

LAST_BYTES_SECONDS = 2.0
"""For an answer to be taken; and, where the request was not read to its end, for the rest of it to be thrown away, as
closing at once would take the answer from whoever still sends (RFC 9112, section 9.6)."""

_BACKLOG = 256
"""Connections that the kernel completes ahead of us: as many as may be there."""

_READ_BYTES = 64 * 1024
"""At once, of what is thrown away."""

_FEDERATED_ERROR = 104
"""FATE Flow's own code for a call that its proxy did not bring back (ofx/api/models/fate_flow/resource.py)."""

_STATUS = {
    ErrorCode.CALL_REFUSED: 403,
    ErrorCode.WRONG_PARTY: 403,
    ErrorCode.LIMIT_REACHED: 503,
    ErrorCode.PEER_UNREACHABLE: 503,
    ErrorCode.CALL_IN_DOUBT: 504,
}
"""Of HTTP; 502 for others."""


class FlowFront:
    """Belongs to the event loop's thread."""

    def __init__(self, address: str, calls: FlowCalls, complaints: Complaints) -> None:
        """
        Args:
            address: host:port to listen on; port 0 takes a free one.
            calls: carries calls out.
            complaints: about requests that are none.
        """
        self._address = address
        self._calls = calls
        self._complaints = complaints
        self._acceptor: Acceptor | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> None:
        """Listen.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the address cannot be had.
        """
        host, port = split_address("listen.flow", self._address)
        listening = await listen_at(host, port, _BACKLOG, key="listen.flow", address=self._address)
        self._acceptor = Acceptor(listening, self._make, "listen.flow", self._complaints)
        self.port = self._acceptor.port

    async def stop(self) -> None:
        """Stop listening, and end all connections; may be repeated."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        self._calls.repeats.close()
        for task in list(self._serving):
            task.cancel()
        if self._serving:
            await asyncio.wait(list(self._serving))

    def _make(self) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader()
        return asyncio.StreamReaderProtocol(reader, self._on_connection)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= MOST_CONNECTIONS or self._acceptor is None:
            self._complain("more than %s connections at once", MOST_CONNECTIONS)
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (EOFError, OSError):
            # whoever called has gone
            return
        except Exception:
            logger.exception("a scheduling call died")
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            call = await read_call(reader, writer, self._calls.further_headers)
            answer = await self._calls.repeats.outcome(call, reader.read(1))
        except BadRequestError as error:
            self._complain("answered a request with %s: %s", error.status, error.reason)
            answer, told = _in_words(error.status, ErrorCode.CALL_REFUSED, error.reason)
        except FedRDMAError as error:
            answer, told = _in_words(_STATUS.get(error.code, 502), error.code, error.message)
        else:
            told = ""
        _write(writer, answer, told)
        await _until_taken(reader)

    def _complain(self, message: str, *values: object) -> None:
        self._complaints.add(logger, "request to listen.flow", "listen.flow", message, *values)


def _in_words(status: int, code: ErrorCode, message: str) -> tuple[Answer, str]:
    """An answer of the gateway's own, in the form of FATE Flow's; and what it says, with its code."""
    told = f"[{code.value}] {message}"
    return Answer(status, json.dumps({"code": _FEDERATED_ERROR, "message": told}).encode()), told


def _write(writer: asyncio.StreamWriter, answer: Answer, reason: str) -> None:
    """Answer; FATE Flow shows its users the reason of an answer that is an error, and nothing else of it."""
    shown = "".join(char if " " <= char <= "~" else "?" for char in reason)
    head = (
        f"HTTP/1.1 {answer.status} {shown or http.client.responses.get(answer.status, '')}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode("ascii") + answer.body)
    writer.write_eof()


async def _until_taken(reader: asyncio.StreamReader) -> None:
    """Until the other side has closed the connection: it has the answer then. What it still sends is thrown away."""

    async def rest() -> None:
        while await reader.read(_READ_BYTES):
            pass

    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(rest(), LAST_BYTES_SECONDS)
