"""What a task of another host asks on its connection: as any task, and its payloads come and go in pieces."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

import msgspec

from fedrdma_fate.client.protocol import (
    AskProbe,
    AskSessions,
    Attach,
    DropSession,
    ExpectSum,
    Fetch,
    Fill,
    GoOn,
    Piece,
    RemoteRequest,
    Reply,
    Sum,
)
from fedrdma_fate.gateway.tasks.conversation import TaskConversation
from fedrdma_fate.gateway.tasks.socket import Answer
from fedrdma_fate.memory.region import region_unusable
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, MemoryPoolError, WireError


class RemoteConversation:
    """One connection of a task on another host."""

    def __init__(self, inner: TaskConversation) -> None:
        """
        Args:
            inner: what a task of this host would have.
        """
        self._inner = inner

    def answer(self, request: RemoteRequest) -> Answer | Coroutine[Any, Any, Answer | None] | None:
        """The reply, None where there is none to give, or a coroutine that waits for it.

        Raises:
            FedRDMAError: the request is refused; also from the coroutine.
            WireError: the connection is to end.
        """
        match request:
            case Fill():
                self._fill(request)
                return None
            case Fetch():
                return self._fetch(request)
            case Attach():
                # it maps nothing, so nothing of it can be gone on with after a restart
                return self._inner.answer(msgspec.structs.replace(request, secret=b""))
            case GoOn() | Sum() | ExpectSum() | AskProbe() | AskSessions() | DropSession():
                raise GatewayError(
                    ErrorCode.CLIENT_PROTOCOL,
                    f"a task of another host asks for {type(request).__name__}, which is for tasks of this one.",
                )
            case _:
                return self._inner.answer(request)

    def end(self) -> None:
        """The connection is gone."""
        self._inner.end()

    def _fill(self, request: Fill) -> None:
        payload = self._inner.task.sending.get(request.lease)
        if payload is None:
            # its session was dropped meanwhile, say: the commit that follows is told so
            return
        if request.offset + len(request.body) > payload.total_bytes:
            raise WireError(
                ErrorCode.MALFORMED_FRAME,
                f"{len(request.body)} bytes at {request.offset} of a slot of {payload.total_bytes}.",
            )
        with payload.lease.slot.part(request.offset, len(request.body)).view as view:
            view[:] = request.body

    async def _fetch(self, request: Fetch) -> Reply:
        message = self._inner.task.received.get(request.lease)
        if message is None:
            raise MemoryPoolError(
                ErrorCode.LEASE_UNKNOWN, f"lease {request.lease} is of no message that this task has got."
            )
        if request.offset + request.length > message.total_bytes:
            raise GatewayError(
                ErrorCode.CLIENT_PROTOCOL,
                f"{request.length} bytes at {request.offset} of a message of {message.total_bytes}.",
            )
        place, descriptor, offset = message.locate()
        try:
            at = offset + request.offset
            # a disk may take its time
            read = asyncio.to_thread(_read, descriptor, request.length, at) if place == "spilled" else None
            body = _read(descriptor, request.length, at) if read is None else await read
        except OSError as error:
            raise region_unusable(f"the memory of {message.key}", error) from error
        finally:
            os.close(descriptor)
        return Piece(body)


def _read(descriptor: int, length: int, at: int) -> bytes:
    body = os.pread(descriptor, length, at)
    if len(body) != length:
        raise OSError(0, f"{len(body)} bytes lie there in place of {length}")
    return body
