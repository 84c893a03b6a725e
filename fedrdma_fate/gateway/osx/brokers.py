"""OSX brokers of peers: what goes to them goes as from another broker, and comes to be known by their answers.

Nothing is sent again: whoever pushes is told that it failed, and whether it may have arrived is not known then.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable

import grpc

from fedrdma_fate.gateway.flow.call import Answer, SchedulingCall
from fedrdma_fate.gateway.flow.osx_front import METHOD as FLOW_METHOD
from fedrdma_fate.gateway.flow.osx_front import MOST_PACKET_BYTES
from fedrdma_fate.gateway.flow.osx_front import SERVICE as FLOW_SERVICE
from fedrdma_fate.gateway.flow.packet import answer_in, request_packet
from fedrdma_fate.gateway.osx import envelope, requests
from fedrdma_fate.gateway.osx.requests import Queue
from fedrdma_fate.obs.complaints import cut
from fedrdma_fate.security.identity import site_of_pem
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, MemoryPoolError, TransportError

MOST_BROKER_BYTES = 128 * 1024 * 1024
"""Of a push that OSX 2.2 may take: a file of its queues has as much. It refuses some hundred bytes less, too."""

PUSH_SECONDS = 300.0
"""For a broker to take a message: as long as a client has to push it."""

CALL_SECONDS = 30.0
"""For a scheduling call: as long as the three tries of FATE Flow take together."""

_OPTIONS = (
    # of an answer: it says how it went, or is a packet of scheduling
    ("grpc.max_receive_message_length", MOST_PACKET_BYTES),
    ("grpc.max_send_message_length", -1),
    # whoever pushes decides whether it goes again
    ("grpc.enable_retries", 0),
    # after an error the next call has a channel of its own, which would else share the pause of the one before
    ("grpc.use_local_subchannel_pool", 1),
)

_NOT_CERTAIN = "Whether the message is there is not known; see the broker's log, and run the job again."


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerState:
    """What there is to tell of a broker.

    Attributes:
        pushed: messages that it took.
        failed: those that it did not take, as far as is known.
        last_error: of the latest call, empty where that went well.
    """

    pushed: int = 0
    failed: int = 0
    last_error: str = ""


Secure = Callable[[], tuple[grpc.ChannelCredentials, str]]


class Broker:
    """Of one peer. Any thread may call, but where it says otherwise.

    Attributes:
        site: name of the peer's.
        address: host:port.
        state: what there is to tell.
    """

    def __init__(self, site: str, address: str, secure: Secure | None) -> None:
        """
        Args:
            site: name of the peer's.
            address: host:port.
            secure: for TLS, of the moment, and the name to expect in its certificate; None for none. May block.
        """
        self.site = site
        self.address = address
        self.state = BrokerState()
        self._secure = secure
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None

    def push(self, queue: Queue, topic: str, request: memoryview, watch: Callable[[Callable[[], None]], bool]) -> None:
        """Have it take a message, and wait until it says so.

        Args:
            queue: of which it is.
            topic: the same, as the client wrote it.
            request: a PushInbound.
            watch: gets what ends the call, to be called when nobody waits any more; False where nobody does already.

        Raises:
            GatewayError: BROKER_FAILED.
            MemoryPoolError: PAYLOAD_TOO_LARGE.
            EOFError: nobody waits for it any more.
        """
        if len(request) > MOST_BROKER_BYTES:
            raise MemoryPoolError(
                ErrorCode.PAYLOAD_TOO_LARGE,
                f"a message of {len(request)} bytes is for {queue.destination} at {self.site}, whose OSX broker keeps "
                f"{MOST_BROKER_BYTES} at most.",
                "Set federation.osx.max_message_size to 67108864 or less, as long as that site has a broker.",
            )
        invoke: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._get_channel().unary_unary(
            f"/{envelope.SERVICE}/{envelope.METHOD}"
        )
        call = invoke.future(
            envelope.inbound(request), timeout=PUSH_SECONDS, metadata=envelope.metadata_of(queue, topic)
        )

        def cancel() -> None:
            call.cancel()

        if not watch(cancel):
            cancel()
        try:
            code, message = envelope.outcome_of(call.result())
        except grpc.FutureCancelledError as error:
            self._note("its client went away")
            raise EOFError from error
        except grpc.RpcError as error:
            self._forget_channel()
            raise self._failed(_why(error), _NOT_CERTAIN) from error
        except ValueError as error:
            raise self._failed(str(error), "See that an OSX broker of FATE 2.2 listens there.") from error
        if code != requests.OK:
            raise self._failed(
                f"did not take a message: {cut(code)} {cut(message)}", "See its route table, and its log."
            )
        self._note("")

    async def carry_out(self, call: SchedulingCall) -> Answer:
        """Have the FATE Flow behind it carry out a scheduling call, once. On the event loop.

        Raises:
            GatewayError: BROKER_FAILED.
        """
        loop = asyncio.get_running_loop()
        channel = await asyncio.to_thread(self._get_channel)
        unary: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{FLOW_SERVICE}/{FLOW_METHOD}")
        under_way = unary.future(request_packet(call), timeout=CALL_SECONDS)
        done = asyncio.Event()

        def tell(_call: object) -> None:
            # the loop may be over by then
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

        under_way.add_done_callback(tell)
        try:
            await done.wait()
        finally:
            under_way.cancel()
        try:
            answer = answer_in(under_way.result())
        except grpc.RpcError as error:
            self._forget_channel()
            raise self._failed(_why(error), "See that it runs, and its route table and log.") from error
        except ValueError as error:
            raise self._failed(str(error), "See that an OSX broker of FATE 2.2 listens there.") from error
        self._note("")
        return answer

    def close(self) -> None:
        """End all calls."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _get_channel(self) -> grpc.Channel:
        """May block.

        Raises:
            GatewayError: BROKER_FAILED.
        """
        with self._lock:
            if self._channel is not None:
                return self._channel
        options, secure = _OPTIONS, self._secure
        if secure is None:
            made = grpc.insecure_channel(self.address, options)
        else:
            try:
                credentials, name = secure()
            except (OSError, TransportError) as error:
                what = (error.message if isinstance(error, TransportError) else str(error)).rstrip(".")
                raise self._failed(f"cannot be reached by TLS: {what}", "See `peers[].tls`, and its log.") from error
            made = grpc.secure_channel(self.address, credentials, (*options, ("grpc.ssl_target_name_override", name)))
        with self._lock:
            kept = self._channel = self._channel or made
        if kept is not made:
            # of two calls that connected at once, the other one's serves both
            made.close()
        return kept

    def _forget_channel(self) -> None:
        """The next call connects anew, and with TLS asks for the certificate, which may be another by now."""
        with self._lock:
            self._channel = None

    def _failed(self, what: str, remedy: str) -> GatewayError:
        self._note(what)
        return GatewayError(
            ErrorCode.BROKER_FAILED, f"the OSX broker of {self.site}, at {self.address}, {what}.", remedy
        )

    def _note(self, trouble: str) -> None:
        with self._lock:
            before = self.state
            self.state = BrokerState(before.pushed + (not trouble), before.failed + bool(trouble), trouble)


class BrokerSites:
    """Who of the brokers calls. Any thread may call."""

    def __init__(self, sites: Iterable[str], *, tls: bool) -> None:
        """
        Args:
            sites: peers that have a broker.
            tls: whether they show certificates.
        """
        self._sites = tuple(sites)
        self._tls = tls

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """All that `calling` may say."""
        return tuple((site,) for site in self._sites) if self._tls else (self._sites,)

    def calling(self, context: grpc.ServicerContext) -> tuple[str, ...]:
        """Those that a call may come from: one, by its certificate, or all where there are none.

        Raises:
            GatewayError: QUEUE_CALL_REFUSED: from none of them.
        """
        if not self._tls:
            return self._sites
        shown = context.auth_context().get("x509_pem_cert")
        try:
            site = site_of_pem(bytes(shown[0])) if shown else ""
        except ValueError:
            site = ""
        if site not in self._sites:
            raise requests.refused(f"the certificate is of {site!r:.80}, and no OSX broker of a peer")
        return (site,)


def _why(error: grpc.RpcError) -> str:
    assert isinstance(error, grpc.Call)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return "is none: what listens there knows no such call"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "has not answered in time"
    return f"did not answer: {error.code().name}, {cut(error.details() or '')}"
