"""Takes what FATE sends to OSX, by gRPC on loopback, a channel for each call.

`DataTransferService.unaryCall` is FATE Flow's scheduling; what else is served here, others hand in.

grpcio has threads of its own, which wait for the event loop; nothing on the event loop waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Protocol

import grpc

from fedrdma_fate.gateway.flow.call import Answer, SchedulingCall, refused
from fedrdma_fate.gateway.flow.call_watch import CallWatch
from fedrdma_fate.gateway.flow.calls import FlowCalls
from fedrdma_fate.gateway.flow.packet import call_of, packet_of
from fedrdma_fate.gateway.flow.repeats import Repeats
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, TransportError
from fedrdma_fate.wire.frames import MOST_CALL_BYTES

SERVICE = "com.webank.ai.eggroll.api.networking.proxy.DataTransferService"
METHOD = "unaryCall"

MOST_THREADS = 1024
"""Calls at once, each with a thread that waits, made when it is needed: a scheduler makes one after the other, for each
of its jobs; of queues 512 pops may wait, and 384 pushes."""

MOST_CALLS_AT_ONCE = 1280
"""Of which some wait for a thread; more are refused by grpcio."""

CALL_SECONDS = 60
"""For a scheduling call: FATE Flow gives it up after 10 s. One that is begun and not made has a thread for as long."""

IDLE_SECONDS = 30
"""For a connection without a call: FATE makes one for each call, and keeps one for each queue to its end. On a machine
so busy that a call comes later than this behind its connection, grpcio would end it as unavailable: 2 were too few."""

MOST_PACKET_BYTES = 2 * MOST_CALL_BYTES
"""Of the longest body that is carried, with its headers."""

_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # messages of queues have what gRPC can carry
    ("grpc.max_receive_message_length", 2**31 - 1),
    ("grpc.max_send_message_length", -1),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
)

_STATUS = {
    ErrorCode.QUEUE_CALL_REFUSED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.CALL_REFUSED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.WRONG_PARTY: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.LIMIT_REACHED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.CALLS_UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    ErrorCode.CALL_IN_DOUBT: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""Of gRPC; UNAVAILABLE for others."""


class Service(Protocol):
    """What else is served."""

    def handler(self) -> grpc.GenericRpcHandler:
        """What grpcio calls, in threads of its own."""
        ...

    def wait(self) -> None:
        """In a thread: all calls are ended, and some may still be at what cannot be broken off; bounded."""
        ...

    def close(self) -> None:
        """Nobody calls any more."""
        ...


class Scheduling(Protocol):
    """Who carries scheduling calls out, by who makes them."""

    @property
    def further_headers(self) -> tuple[str, ...]:
        """Names of headers that travel besides those of FATE Flow, in lower case."""
        ...

    def of(self, context: grpc.ServicerContext) -> Repeats:
        """What carries out those of a caller, in whatever thread; raises FedRDMAError where it may make none."""
        ...

    def reading(self, context: grpc.ServicerContext) -> contextlib.AbstractContextManager[None]:
        """Held while a call of a caller is read; raises FedRDMAError where too many are."""
        ...

    def close(self) -> None:
        """Nobody calls any more."""
        ...


class OwnScheduling:
    """Of the own FATE Flow, which alone reaches loopback."""

    def __init__(self, calls: FlowCalls) -> None:
        """
        Args:
            calls: carries them out.
        """
        self._calls = calls

    @property
    def further_headers(self) -> tuple[str, ...]:
        """See `Scheduling`."""
        return self._calls.further_headers

    def of(self, _context: grpc.ServicerContext) -> Repeats:
        """See `Scheduling`."""
        return self._calls.repeats

    def reading(self, _context: grpc.ServicerContext) -> contextlib.AbstractContextManager[None]:
        """See `Scheduling`; it may make as many as it likes."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """See `Scheduling`."""
        self._calls.repeats.close()


class OsxFront:
    """Belongs to the event loop's thread, but for what grpcio calls."""

    def __init__(
        self,
        key: str,
        address: str,
        scheduling: Scheduling,
        watch: CallWatch,
        further: Sequence[Service] = (),
        credentials: Callable[[], grpc.ServerCredentials] | None = None,
    ) -> None:
        """
        Args:
            key: of the configuration, where the address is from.
            address: host:port to listen on; port 0 takes a free one.
            scheduling: carries scheduling calls out.
            watch: of all calls that come here.
            further: what else is served.
            credentials: for TLS; None for none.
        """
        self._key = key
        self._address = address
        self._scheduling = scheduling
        self._watch = watch
        self._further = further
        self._credentials = credentials
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
        # as a stream of one message, the same on the wire, it is read with an eye on the time
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_unary_rpc_method_handler(self._unary_call)
        scheduling = grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})
        server.add_generic_rpc_handlers((scheduling, *(each.handler() for each in self._further)))
        try:
            if self._credentials is None:
                self.port = server.add_insecure_port(self._address)
            else:
                self.port = server.add_secure_port(self._address, self._credentials())
        except RuntimeError:
            self.port = 0
        if not self.port:
            workers.shutdown(wait=False)
            raise TransportError(
                ErrorCode.TRANSPORT_UNAVAILABLE, f"cannot listen on {self._address}.", f"Check `{self._key}`."
            )
        server.start()
        self._server, self._workers = server, workers
        self._watch.start(self.port)

    async def stop(self) -> None:
        """Stop listening, and end all calls; may be repeated."""
        server, self._server = self._server, None
        if server is None or self._workers is None:
            return
        self._scheduling.close()
        self._watch.stop()
        await asyncio.to_thread(server.stop(None).wait)
        self._workers.shutdown(wait=False)
        for each in self._further:
            await asyncio.to_thread(each.wait)
            each.close()

    def _unary_call(self, received: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """In a thread of grpcio's."""
        try:
            if not self._watch.began(context):
                raise EOFError
            repeats = self._scheduling.of(context)
            packet = self._packet(received, context)
            call = call_of(packet, self._scheduling.further_headers)
            gone = asyncio.Event()
            if not context.add_callback(lambda: self._tell(gone)):
                # it is over: what was begun now could not be found again by who makes the call again
                raise EOFError
            answer = asyncio.run_coroutine_threadsafe(self._outcome(repeats, call, gone), self._loop).result()
            return packet_of(call, answer)
        except FedRDMAError as error:
            told = f"[{error.code}] {error.message}".encode("ascii", "replace").decode()
            context.abort(_STATUS.get(error.code, grpc.StatusCode.UNAVAILABLE), told)
        except (EOFError, futures.CancelledError):
            context.abort(grpc.StatusCode.CANCELLED, "nobody waits for it")
        raise AssertionError("unreachable: abort raises")

    def _packet(self, received: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with self._scheduling.reading(context), self._watch.within(context, CALL_SECONDS):
            packet = next(received, b"")
        if len(packet) > MOST_PACKET_BYTES:
            raise refused(f"it has {len(packet)} bytes; {MOST_PACKET_BYTES} is the limit")
        return packet

    async def _outcome(self, repeats: Repeats, call: SchedulingCall, gone: asyncio.Event) -> Answer:
        return await repeats.outcome(call, gone.wait())

    def _tell(self, gone: asyncio.Event) -> None:
        # the loop may be over by then
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(gone.set)
