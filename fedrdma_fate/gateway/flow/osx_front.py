"""Takes what FATE Flow sends to OSX: `DataTransferService.unaryCall` of gRPC on loopback, a channel for each call.

grpcio has threads of its own, which wait for the event loop; nothing on the event loop waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent import futures

import grpc

from fedrdma_fate.gateway.flow.call import Answer, SchedulingCall
from fedrdma_fate.gateway.flow.calls import FlowCalls
from fedrdma_fate.gateway.flow.packet import call_of, packet_of
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, TransportError
from fedrdma_fate.wire.frames import MOST_CALL_BYTES

SERVICE = "com.webank.ai.eggroll.api.networking.proxy.DataTransferService"
METHOD = "unaryCall"

MOST_THREADS = 32
"""Calls at once, each with a thread that waits: a scheduler makes one after the other, for each of its jobs."""

MOST_CALLS_AT_ONCE = 128
"""Of which some wait for a thread; more are refused by grpcio."""

CALL_SECONDS = 60
"""For a connection, and half of it for a call that is still under way then: FATE Flow makes one for each call, of 10 s.
A call that is begun and not made has one of the threads for as long."""

IDLE_SECONDS = 10
"""For a connection without a call."""

_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # the packet of the longest body that is carried, with its headers
    ("grpc.max_receive_message_length", 2 * MOST_CALL_BYTES),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
    ("grpc.max_connection_age_ms", CALL_SECONDS * 500),
    ("grpc.max_connection_age_grace_ms", CALL_SECONDS * 500),
)

_STATUS = {
    ErrorCode.CALL_REFUSED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.WRONG_PARTY: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.LIMIT_REACHED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.CALLS_UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    ErrorCode.CALL_IN_DOUBT: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""Of gRPC; UNAVAILABLE for others."""


class OsxFront:
    """Belongs to the event loop's thread, but for what grpcio calls."""

    def __init__(self, address: str, calls: FlowCalls) -> None:
        """
        Args:
            address: host:port to listen on; port 0 takes a free one.
            calls: carries calls out.
        """
        self._address = address
        self._calls = calls
        self._loop = asyncio.get_running_loop()
        self._workers: futures.ThreadPoolExecutor | None = None
        self._server: grpc.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the address cannot be had.
        """
        workers = futures.ThreadPoolExecutor(MOST_THREADS, "osx-front")
        server = grpc.server(workers, options=_OPTIONS, maximum_concurrent_rpcs=MOST_CALLS_AT_ONCE)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self._unary_call)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        try:
            self.port = server.add_insecure_port(self._address)
        except RuntimeError:
            self.port = 0
        if not self.port:
            workers.shutdown(wait=False)
            raise TransportError(
                ErrorCode.TRANSPORT_UNAVAILABLE, f"cannot listen on {self._address}.", "Check `listen.osx`."
            )
        server.start()
        self._server, self._workers = server, workers

    async def stop(self) -> None:
        """Stop listening, and end all calls; may be repeated."""
        server, self._server = self._server, None
        if server is None or self._workers is None:
            return
        self._calls.repeats.close()
        await asyncio.to_thread(server.stop(None).wait)
        self._workers.shutdown(wait=False)

    def _unary_call(self, packet: bytes, context: grpc.ServicerContext) -> bytes:
        """In a thread of grpcio's."""
        try:
            call = call_of(packet, self._calls.further_headers)
            gone = asyncio.Event()
            if not context.add_callback(lambda: self._tell(gone)):
                # it is over: what was begun now could not be found again by who makes the call again
                raise EOFError
            answer = asyncio.run_coroutine_threadsafe(self._outcome(call, gone), self._loop).result()
            return packet_of(call, answer)
        except FedRDMAError as error:
            told = f"[{error.code}] {error.message}".encode("ascii", "replace").decode()
            context.abort(_STATUS.get(error.code, grpc.StatusCode.UNAVAILABLE), told)
        except (EOFError, futures.CancelledError):
            context.abort(grpc.StatusCode.CANCELLED, "nobody waits for it")
        raise AssertionError("unreachable: abort raises")

    async def _outcome(self, call: SchedulingCall, gone: asyncio.Event) -> Answer:
        return await self._calls.repeats.outcome(call, gone.wait())

    def _tell(self, gone: asyncio.Event) -> None:
        # the loop may be over by then
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(gone.set)
