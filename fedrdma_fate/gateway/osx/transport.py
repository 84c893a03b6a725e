"""`PrivateTransferTransport` of gRPC: push, pop, peek and release of OSX's queues.

Each call has a thread of grpcio's, and a pop has it as long as it waits. All are served as streams of one message, the
same on the wire: so a request is read when there is a turn for it, and a pop hears whether its answer was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, TypeVar

import grpc

from fedrdma_fate.gateway.flow.call_watch import CallWatch
from fedrdma_fate.gateway.osx import envelope, requests
from fedrdma_fate.gateway.osx.brokers import Broker, BrokerSites
from fedrdma_fate.gateway.osx.queues import Pop, Queues
from fedrdma_fate.gateway.osx.refused_pushes import UnreadPushes
from fedrdma_fate.gateway.osx.room import AnswerRoom, PushRoom
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES

logger = logging.getLogger(__name__)

SERVICE = "org.ppc.ptp.PrivateTransferTransport"

MOST_POPS = 512
"""That wait or are answered, each with a thread: a party has one, and one for each partition of a table that it
pulls at once."""

MOST_SECONDS = 300.0
"""For a client to send its push, or to take its answer: 2 GiB at 7 MB/s."""

SHORT_SECONDS = 60.0
"""For a client to send a request that has no payload."""

STOP_SECONDS = 10.0
"""That a stop waits for what is just being written or read: 2 GB take one or two."""

PEEK_SECONDS = 1.0
"""That a peek waits: so long an answer of the queue may be under way, after which its message is there again."""

_STATUS = {
    ErrorCode.QUEUE_CALL_REFUSED: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.ENGINES_MIXED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.WRONG_PARTY: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.LIMIT_REACHED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.PAYLOAD_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.GATEWAY_STOPPING: grpc.StatusCode.UNAVAILABLE,
}
"""Of gRPC; ABORTED for others."""

Result = TypeVar("Result")
Requests = Iterator[bytes]


class _Call:
    """One call, from a thread of grpcio's. Few turns of the event loop: each costs a change of threads.

    Attributes:
        context: grpcio's.
        watch: ends it where it takes too long.
        metadata: what came with it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, context: grpc.ServicerContext, watch: CallWatch) -> None:
        self._loop = loop
        self.context = context
        self.watch = watch
        self._work: asyncio.Task[Any] | None = None
        self._is_gone = False
        if not (watch.began(context) and context.add_callback(self._over)):
            raise EOFError
        self.is_gone = lambda: self._is_gone
        self.metadata = {str(name): str(value) for name, value in context.invocation_metadata()}

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run something on the event loop, as long as the client is there.

        Raises:
            CancelledError: of concurrent.futures: it is not.
        """
        outcome: futures.Future[Result] = futures.Future()

        def begin() -> None:
            self._work = task = self._loop.create_task(work)
            task.add_done_callback(end)
            if self._is_gone:
                task.cancel()

        def end(task: asyncio.Task[Result]) -> None:
            # what has a result keeps it, also where the client has gone away just now: whoever began it sees to that
            self._work = None
            if task.cancelled():
                outcome.set_exception(futures.CancelledError())
            elif (error := task.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(task.result())

        self._loop.call_soon_threadsafe(begin)
        return outcome.result()

    def soon(self, act: Callable[[], object]) -> None:
        """Have the event loop do something."""
        # the loop may be over by then
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act)

    def _over(self) -> None:
        """In a thread of grpcio's: it has ended, or its client has gone."""
        self._is_gone = True
        # what begins from now on looks itself
        if self._work is not None:
            self.soon(self._cancel)

    def _cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()


class Copying:
    """Counts calls that copy messages from and to the pools. Any thread may call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        """One does."""
        with self._changed:
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until none does; False where one still does after so long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._count, seconds)


class QueueTransport:
    """Belongs to the event loop's thread, but for what grpcio calls."""

    def __init__(self, queues: Queues, watch: CallWatch, brokers: Mapping[str, Broker]) -> None:
        """
        Args:
            queues: the queues.
            watch: of the calls of this site.
            brokers: of peers that have no gateway.
        """
        self._queues = queues
        self._routes = queues.tasks.context.routes
        self._own_site = queues.tasks.context.config.site
        self._loop = asyncio.get_running_loop()
        self._watch = watch
        self._brokers = brokers
        self._pushes = PushRoom()
        self._unread = UnreadPushes(queues.refuse)
        self._answers = AnswerRoom()
        self._copying = Copying()
        self._pops = threading.BoundedSemaphore(MOST_POPS)

    def handler(self) -> grpc.GenericRpcHandler:
        """What grpcio calls."""
        methods = {"push": self._push, "pop": self._pop, "peek": self._peek, "release": self._release}
        told = {name: self._told(act, self._watch) for name, act in methods.items()}
        return grpc.method_handlers_generic_handler(
            SERVICE, {name: grpc.stream_stream_rpc_method_handler(act) for name, act in told.items()}
        )

    def broker_handler(self, sites: BrokerSites, watch: CallWatch) -> grpc.GenericRpcHandler:
        """What grpcio calls where OSX brokers of peers push to parties here.

        Args:
            sites: who they are.
            watch: of their calls.
        """
        invoke = self._told(lambda call, received: self._invoked(call, received, sites), watch)
        return grpc.method_handlers_generic_handler(
            envelope.SERVICE, {envelope.METHOD: grpc.stream_stream_rpc_method_handler(invoke)}
        )

    def wait(self) -> None:
        """All calls are ended: wait in a thread until none has memory of the pools any more, `STOP_SECONDS` at most."""
        if not self._copying.wait(STOP_SECONDS):
            logger.error("calls of OSX's queues still copy messages %s s after they were ended", STOP_SECONDS)

    def close(self) -> None:
        """Nobody calls any more."""
        self._unread.close()
        self._queues.close()

    def _told(
        self, act: Callable[[_Call, Requests], Iterator[bytes]], watch: CallWatch
    ) -> Callable[[Requests, grpc.ServicerContext], Iterator[bytes]]:
        """Errors become those of gRPC, with their code in the text."""

        def answer(received: Requests, context: grpc.ServicerContext) -> Iterator[bytes]:
            try:
                yield from act(_Call(self._loop, context, watch), received)
            except FedRDMAError as error:
                told = f"[{error.code}] {error.message}".encode("ascii", "replace").decode()
                context.abort(_STATUS.get(error.code, grpc.StatusCode.ABORTED), told)
            except OSError as error:
                context.abort(grpc.StatusCode.ABORTED, f"a message cannot be read: {error.strerror or error}")
            except (EOFError, futures.CancelledError):
                context.abort(grpc.StatusCode.CANCELLED, "nobody waits for it")

        return answer

    def _request(self, call: _Call, received: Requests, seconds: float) -> memoryview:
        with call.watch.within(call.context, seconds):
            return memoryview(next(received, b""))

    def _short_request(self, call: _Call, received: Requests) -> memoryview:
        """One that has no payload.

        Raises:
            GatewayError: QUEUE_CALL_REFUSED.
        """
        request = self._request(call, received, SHORT_SECONDS)
        if len(request) > requests.MOST_HEAD_BYTES:
            raise requests.refused(f"it has {len(request)} bytes, and no payload")
        return request

    def _push(self, call: _Call, received: Requests) -> Iterator[bytes]:
        with self._pushes.place(self._site(call), call.is_gone, call.context.cancel) as place:
            request = self._request(call, received, MOST_SECONDS)
            self._pushes.has_read(place, len(request))
            topic, payload = requests.pushed(request)
            queue = requests.queue_of(call.metadata, topic, pops=False)
            self._queues.check_own(queue.source)
            broker = self._brokers.get(self._routes.find(queue.destination) or "")
            if broker is not None:
                self._forward(call, broker, queue, topic, request)
            else:
                self._take(call, queue, payload)
        yield requests.answer()

    def _invoked(self, call: _Call, received: Requests, sites: BrokerSites) -> Iterator[bytes]:
        """A broker brings what a party at its site has pushed."""
        calling = sites.calling(call.context)
        envelope.check_uri(call.metadata)
        # what a broker begins and does not send keeps out none of this site's clients
        way = f"{self._own_site} from {' or '.join(calling)}"
        with contextlib.ExitStack() as place:
            with self._telling(call, calling):
                request = self._brought(call, received, way, place)
            topic, payload = requests.pushed(envelope.pushed_by(request))
            queue = requests.queue_by_broker(call.metadata, topic)
            self._check_brought(queue, calling)
            self._take(call, queue, payload)
        yield envelope.outbound(requests.OK)

    def _brought(self, call: _Call, received: Requests, way: str, place: contextlib.ExitStack) -> memoryview:
        """Read what a broker brings.

        Raises:
            GatewayError: LIMIT_REACHED; BROKER_FAILED where it is ended here, for the broker does not send it.
        """
        slow = threading.Event()

        def end() -> None:
            slow.set()
            call.context.cancel()

        taken = place.enter_context(self._pushes.place(way, call.is_gone, end))
        with call.watch.within(call.context, MOST_SECONDS) as is_late:
            try:
                request = memoryview(next(received, b""))
            except grpc.RpcError:
                if not (slow.is_set() or is_late()):
                    # the broker has gone, or has given it up
                    raise
                request = memoryview(b"")
            if not request and (slow.is_set() or is_late()):
                # of a call that was ended here grpcio says so, or that nothing more comes
                raise GatewayError(
                    ErrorCode.BROKER_FAILED,
                    f"{way} a push was begun and not sent to its end in time.",
                    "See what lies between that broker and this gateway.",
                )
        self._pushes.has_read(taken, len(request))
        return request

    @contextlib.contextmanager
    def _telling(self, call: _Call, calling: Sequence[str]) -> Iterator[None]:
        """What is refused unread is known by its metadata alone, where the broker tells the topic, as OSX does."""
        try:
            yield
        except GatewayError as error:
            with contextlib.suppress(GatewayError):
                queue = requests.queue_by_broker(call.metadata, call.metadata.get(requests.TOPIC, ""))
                self._check_brought(queue, calling)
                call.soon(functools.partial(self._unread.tell, queue, error))
            raise

    def _check_brought(self, queue: requests.Queue, calling: Sequence[str]) -> None:
        """See that a broker that may be one of these pushes for its own parties, to one of this site.

        Raises:
            GatewayError: WRONG_PARTY.
        """
        if self._routes.find(queue.source) not in calling:
            raise GatewayError(
                ErrorCode.WRONG_PARTY,
                f"the broker of {' or '.join(calling)} pushes in the name of {queue.source}, which is not there.",
                "See `parties` of that peer.",
            )
        self._queues.check_own(queue.destination)

    def _take(self, call: _Call, queue: requests.Queue, payload: memoryview) -> None:
        if len(payload) <= INLINE_LIMIT_BYTES:
            call.do(self._queues.push(queue, bytes(payload)))
        else:
            self._push_large(call, queue, payload)

    def _forward(self, call: _Call, broker: Broker, queue: requests.Queue, topic: str, request: memoryview) -> None:
        turn = call.do(self._queues.begin_turn(queue))
        try:
            broker.push(queue, topic, request, call.context.add_callback)
        finally:
            call.soon(turn)

    def _push_large(self, call: _Call, queue: requests.Queue, payload: memoryview) -> None:
        with self._copying.under_way():
            push = call.do(self._queues.begin_push(queue, len(payload)))
            try:
                push.write(payload)
                call.do(push.commit())
            finally:
                call.soon(push.end)

    def _pop(self, call: _Call, received: Requests) -> Iterator[bytes]:
        if not self._pops.acquire(blocking=False):
            raise GatewayError(
                ErrorCode.LIMIT_REACHED, f"{MOST_POPS} pops wait at this gateway.", "Let fewer partitions wait at once."
            )
        try:
            topic, seconds = requests.popped(self._short_request(call, received))
            queue = requests.queue_of(call.metadata, topic, pops=True)
            self._queues.check_own(queue.destination)
            yield from self._handed_over(call, queue, call.do(self._queues.pop(queue, seconds)))
        finally:
            self._pops.release()

    def _peek(self, call: _Call, received: Requests) -> Iterator[bytes]:
        topic, _ = requests.popped(self._short_request(call, received))
        queue = requests.queue_of(call.metadata, topic, pops=True)
        self._queues.check_own(queue.destination)
        yield from self._handed_over(
            call, queue, call.do(self._queues.pop(queue, PEEK_SECONDS, stays=True)), stays=True
        )

    def _handed_over(
        self, call: _Call, queue: requests.Queue, pop: Pop | None, *, stays: bool = False
    ) -> Iterator[bytes]:
        if pop is None:
            yield requests.answer(requests.NOTHING_CAME)
            return
        is_sent = False
        who = queue.session, queue.destination
        try:
            room = self._answers.taken(who, pop.total_bytes, call.is_gone)
            with room, call.watch.within(call.context, MOST_SECONDS):
                with self._copying.under_way():
                    answer = requests.answer(payload=pop.read())
                yield answer
                # grpcio asks for more when it has sent this, and never where it could not
                is_sent = True
        finally:
            call.soon(lambda: pop.end(handed_over=is_sent and not stays))

    def _site(self, call: _Call) -> str:
        """Where a push is for, as far as its metadata say so."""
        return " ".join(sorted(self._routes.sites_of_id(call.metadata.get(requests.TARGET_NODE, ""))))

    def _release(self, call: _Call, received: Requests) -> Iterator[bytes]:
        self._short_request(call, received)
        session = requests.session_of(call.metadata)
        call.do(self._released(session))
        yield requests.answer()

    async def _released(self, session: str) -> None:
        self._queues.release(session)
