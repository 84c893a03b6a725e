"""Reads one HTTP request as FATE Flow sends it, and nothing that two readers could understand differently."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import h11

from fedrdma_fate.gateway.flow.call import SchedulingCall, carried
from fedrdma_fate.wire.frames import MOST_CALL_BYTES

MOST_HEAD_BYTES = 16 * 1024
"""Of request line and headers: FATE Flow's have less than one KiB, signed."""

REQUEST_SECONDS = 10.0
"""For a request to have come: as long as FATE Flow itself waits for all of a call."""

_READ_BYTES = 64 * 1024
"""At once."""

_LONE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?!\n)(?!\Z)")
"""Half of a line end (RFC 9112, section 2.2), which some readers take for one, and others do not."""


class BadRequestError(Exception):
    """A request that is not read on.

    Attributes:
        status: of the HTTP answer.
        reason: what is wrong with it.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason


async def read_call(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, further_headers: Sequence[str] = ()
) -> SchedulingCall:
    """The call that a connection brings.

    Args:
        reader: of the connection.
        writer: of it; told to go on where that is waited for.
        further_headers: names, in lower case, of headers that travel besides those of FATE Flow.

    Raises:
        BadRequestError: it is no request, is too long or too slow, or not in the form that FATE Flow uses.
        GatewayError: CALL_REFUSED when a header cannot travel.
        EOFError: the connection ended before the request.
    """
    try:
        return await asyncio.wait_for(_read(reader, writer, further_headers), REQUEST_SECONDS)
    except asyncio.TimeoutError:
        raise BadRequestError(408, f"no whole request within {REQUEST_SECONDS:g} s") from None
    except h11.RemoteProtocolError as error:
        raise BadRequestError(400, str(error)) from error


async def _read(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, further_headers: Sequence[str]
) -> SchedulingCall:
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD_BYTES)
    http.receive_data(await _read_head(reader))
    request = http.next_event()
    if not isinstance(request, h11.Request):
        raise BadRequestError(400, "no request")
    _check(request)
    headers = [(name.decode("ascii"), value.decode("latin-1")) for name, value in request.headers.raw_items()]
    kept = carried(headers, further_headers)
    if http.they_are_waiting_for_100_continue:
        writer.write(http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
    body = bytearray()
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            http.receive_data(await _some(reader))
        elif isinstance(event, h11.Data):
            body += event.data
    if http.trailing_data[0]:
        raise BadRequestError(400, "more than one request")
    return SchedulingCall(request.target.decode("ascii"), kept, bytes(body))


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """All up to the empty line, and what has come with it."""
    data = bytearray()
    seen = 0
    # what has been looked at is not again, however little comes at once
    while (end := data.find(b"\r\n\r\n", max(0, seen - 3))) < 0:
        _check_lines(data, max(0, seen - 1))
        if len(data) > MOST_HEAD_BYTES:
            break
        seen = len(data)
        data += await _some(reader)
    if not 0 <= end <= MOST_HEAD_BYTES:
        raise BadRequestError(431, f"more than {MOST_HEAD_BYTES} bytes before the body")
    _check_lines(data[: end + 2])
    return bytes(data)


def _check_lines(head: bytes | bytearray, begin: int = 0) -> None:
    if _LONE_LINE_END.search(head, begin):
        raise BadRequestError(400, "a line end that is half of one")


async def _some(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(_READ_BYTES)
    if not data:
        raise EOFError
    return data


def _check(request: h11.Request) -> None:
    if request.method != b"POST":
        raise BadRequestError(405, "no POST")
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names or names.count(b"content-length") != 1:
        # which of two lengths counts is what readers disagree about (RFC 9112, section 6.3)
        raise BadRequestError(411, "a body whose length is not said first, once")
    length = dict(request.headers)[b"content-length"]
    if len(length) > 12 or int(length) > MOST_CALL_BYTES:
        raise BadRequestError(413, f"a body of more than {MOST_CALL_BYTES} bytes")
