"""The control channel: one bidirectional gRPC stream per pair of gateways, each message one control frame."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio

from fedrdma_fate.wire.errors import ErrorCode, TransportError

logger = logging.getLogger(__name__)

METHOD = "/fedrdma.v1.Control/Session"
SERVICE = "fedrdma.v1.Control"

_CLOSE_REASON_SECONDS = 0.5
"""For what was queued last, the Goodbye with the reason, to get out before the channel is torn down."""
_MOST_FRAME_BYTES = 4 * 1024 * 1024
"""gRPC's own default for what is received, here for what is sent as well: 64 times an Inline frame's payload."""
_OPTIONS = [
    ("grpc.max_receive_message_length", _MOST_FRAME_BYTES),
    ("grpc.max_send_message_length", _MOST_FRAME_BYTES),
]
_SERVER_OPTIONS = [*_OPTIONS, ("grpc.so_reuseport", 0)]
# a proxy for the web is not one for us, and a new attempt must not wait for the back-off of an earlier one
_CLIENT_OPTIONS = [*_OPTIONS, ("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]


class ControlStream:
    """Frames in order, both ways. Writing never waits; frames are queued until the stream takes them.

    Attributes:
        end_reason: why nothing more comes, where that is known, to follow what is said of the peer; else an empty
            string.
        remote_host: address of the other end, where that is known. gRPC does not tell it to the side that dialled.
    """

    def __init__(self) -> None:
        self.remote_host: str | None = None
        self._incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._closed = False
        self.end_reason = ""

    def write(self, frame: bytes) -> None:
        """Queue a frame; silently dropped once the stream is closed, as it would be on a broken one."""
        if not self._closed:
            self._outgoing.put_nowait(frame)

    async def read(self) -> bytes | None:
        """The next frame, or None when the stream has ended."""
        return None if self._closed and self._incoming.empty() else await self._incoming.get()

    def stop_reading(self, reason: str) -> None:
        """Let `read` say that the stream has ended, for a reason; what is queued for the peer still goes."""
        self.end_reason = reason
        self._incoming.put_nowait(None)

    def close(self) -> None:
        """Send what is queued, then end the stream. May be repeated."""
        if not self._closed:
            self._closed = True
            self._outgoing.put_nowait(None)
            self._incoming.put_nowait(None)

    async def outgoing(self) -> AsyncIterator[bytes]:
        """What the gRPC call sends."""
        while (frame := await self._outgoing.get()) is not None:
            yield frame

    async def pump_incoming(self, frames: AsyncIterator[bytes]) -> None:
        """Take in what the gRPC call receives, until it ends for whatever reason, which is noted."""
        try:
            async for frame in frames:
                self._incoming.put_nowait(frame)
        except grpc.aio.AioRpcError as error:
            self.end_reason = f": {error.details() or error.code().name}"
        except grpc.RpcError as error:
            self.end_reason = f": {error}"
        finally:
            self.close()


StreamHandler = Callable[[ControlStream], Awaitable[None]]


class ControlServer:
    """Accepts control streams from other gateways."""

    def __init__(self, address: str, credentials: grpc.ServerCredentials | None, handler: StreamHandler) -> None:
        self._address = address
        self._credentials = credentials
        self._handler = handler
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the address cannot be had.
        """
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._serve)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Session": handler}),))
        try:
            if self._credentials is None:
                self.port = server.add_insecure_port(self._address)
            else:
                self.port = server.add_secure_port(self._address, self._credentials)
        except RuntimeError as error:
            raise _cannot_listen(self._address, str(error)) from error
        if self.port == 0:
            raise _cannot_listen(self._address, "the address is taken or not ours")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Stop listening and end all streams."""
        if self._server is not None:
            await self._server.stop(grace=_CLOSE_REASON_SECONDS)
            self._server = None

    async def _serve(
        self, frames: AsyncIterator[bytes], _context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        stream = ControlStream()
        pump = asyncio.create_task(stream.pump_incoming(frames))
        handler = asyncio.ensure_future(self._handler(stream))
        try:
            async for frame in stream.outgoing():
                yield frame
        finally:
            stream.close()
            pump.cancel()
            await asyncio.wait([pump, handler])
            if not handler.cancelled() and (error := handler.exception()) is not None:
                logger.error("a control channel died", exc_info=error)


@contextlib.asynccontextmanager
async def dial(address: str, credentials: grpc.ChannelCredentials | None) -> AsyncIterator[ControlStream]:
    """A control stream to the gateway at host:port; ends when the context is left.

    Nothing is raised where nobody answers: the stream then just ends.
    """
    if credentials is None:
        channel = grpc.aio.insecure_channel(address, options=_CLIENT_OPTIONS)
    else:
        channel = grpc.aio.secure_channel(address, credentials, options=_CLIENT_OPTIONS)
    stream = ControlStream()
    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(METHOD)
    call = method(stream.outgoing())
    pump = asyncio.create_task(stream.pump_incoming(call.__aiter__()))
    try:
        yield stream
    finally:
        stream.close()
        try:
            # let what was queued last (a Goodbye) get out before the channel is torn down
            await asyncio.wait([pump], timeout=_CLOSE_REASON_SECONDS)
        finally:
            call.cancel()
            pump.cancel()
            await channel.close()


def _cannot_listen(address: str, reason: str) -> TransportError:
    return TransportError(
        ErrorCode.TRANSPORT_UNAVAILABLE, f"cannot listen on {address}: {reason}.", "Check `listen.control`."
    )
