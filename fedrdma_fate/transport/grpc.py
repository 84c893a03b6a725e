"""The baseline: a gRPC stream that carries the payload in messages of 1 MiB, as FATE does.

One call per link, opened by the active side; ACKs ride back on it, and so does the passive side's own data. Payloads
are copied into messages and out of them, which is in the nature of this transport; at most `QUEUED_MESSAGES` messages
wait in each direction, so memory stays at a few MiB a link.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Protocol

import grpc

from fedrdma_fate.ports import Draft, Endpoint, EndpointAddress, Role
from fedrdma_fate.transport.endpoint_base import TOKEN_BYTES, address_number, address_text, address_token, unavailable
from fedrdma_fate.transport.grpc_endpoint import LARGEST_MESSAGE, NAME, GrpcEndpoint
from fedrdma_fate.transport.grpc_pipe import MessagePipe
from fedrdma_fate.wire.errors import TransportError

SERVICE = "fedrdma.Data"
METHOD = "Stream"
TOKEN_KEY = "fedrdma-token-bin"  # noqa: S105 - the name of a field

MOST_LINKS = 64
"""Links that dial in at once; each keeps a thread of the server busy."""

_WELCOME = b"FRDMok\x00\x01"
_OPTIONS = (
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_HANDSHAKE_MILLISECONDS = 5_000
"""A connection that has not begun to speak HTTP/2 by then, after TLS, is closed, as at the control port. grpcio has no
bound on how many there are meanwhile."""
_SERVER_OPTIONS = (
    *_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MILLISECONDS),
)
_CLIENT_OPTIONS = (*_OPTIONS, ("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


@dataclasses.dataclass(frozen=True, slots=True)
class GrpcSettings:
    """Parameters of the `grpc` transport.

    Attributes:
        host: address to listen on.
        port: port to listen on, shared by all links; 0 lets the kernel choose.
        advertised_host: address that peers are told to dial; `host` when None.
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertised_host: str | None = None


class GrpcSecurity(Protocol):
    """Mutual TLS, in which each side takes one certificate alone, known beforehand. Any thread may call."""

    def for_server(self) -> grpc.ServerCredentials:
        """For all who dial."""
        ...

    def peer_certificate(self, context: grpc.ServicerContext) -> bytes | None:
        """The certificate of who dialled, DER."""
        ...

    def for_channel(self, certificate: bytes) -> tuple[grpc.ChannelCredentials, str]:
        """For a channel to the owner of a certificate, DER, and the name to expect in it.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when that cannot be.
        """
        ...


class GrpcTransport:
    """Serves one port for every link of this gateway.

    Begins with the first link: a server of grpcio's blocking kind takes turns at the process's sockets with its asyncio
    kind, looks at them five times a second, and now and then holds up a frame of the control channel for as long.
    """

    def __init__(self, settings: GrpcSettings, security: GrpcSecurity | None = None) -> None:
        """Take the port.

        Args:
            settings: parameters.
            security: makes it one of mutual TLS; None does without.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the port cannot be had.
        """
        self._settings = settings
        self._security = security
        self._calls = _Calls(security)
        self._workers = futures.ThreadPoolExecutor(MOST_LINKS, "grpc-data")
        self._server = grpc.server(self._workers, options=_SERVER_OPTIONS)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._calls.serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        place = _place(settings.host, settings.port)
        try:
            if security is None:
                self._port = self._server.add_insecure_port(place)
            else:
                self._port = self._server.add_secure_port(place, security.for_server())
        except RuntimeError as error:
            self._workers.shutdown()
            raise unavailable(
                NAME, f"cannot listen on {place}: {error}", "Set listen.grpc to a free address."
            ) from error
        self._serves = False

    @property
    def name(self) -> str:
        return NAME

    @property
    def port(self) -> int:
        """The port that is served."""
        return self._port

    def open(self, role: Role, certificate: bytes | None = None) -> Draft:
        """Start one data path.

        Args:
            role: which side dials.
            certificate: the peer's, DER, which alone is taken where there is TLS.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the transport is closed, the peer's certificate is not known, or
                the kernel gives no thread to serve by.
        """
        if self._security is not None and certificate is None:
            raise unavailable(NAME, "the peer's certificate is not known")
        if role == "active":
            return _ActiveDraft(self._security, certificate)
        host = self._settings.advertised_host or self._settings.host
        self._serve()
        return _PassiveDraft(self._calls, {"host": host, "port": self._port}, certificate)

    def close(self) -> None:
        """Stop serving; links that dialled in end, those dialled from here live on."""
        self._calls.close()
        # one that was never started keeps its port, and one that has no thread cannot be waited for
        with contextlib.suppress(TransportError):
            self._serve()
            self._server.stop(None).wait()
        self._workers.shutdown()

    def _serve(self) -> None:
        if not self._serves:
            # one whose thread does not start cannot be started again
            _require_a_thread()
            self._serves = True
            self._server.start()


class _Calls:
    """Calls that came, for the drafts that wait for them, by token."""

    def __init__(self, security: GrpcSecurity | None) -> None:
        self._security = security
        self._changed = threading.Condition()
        self._pipes: dict[bytes, MessagePipe | None] = {}
        self._certificates: dict[bytes, bytes | None] = {}
        self._closed = False

    def serve(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Handle one call, in a thread of the server, for as long as the link lives."""
        metadata = dict(context.invocation_metadata())
        pipe = MessagePipe()
        if not self._arrive(metadata.get(TOKEN_KEY), pipe, requests, context):
            pipe.close(linger=0)
            context.abort(grpc.StatusCode.NOT_FOUND, "no link waits here under this token")
        yield from pipe.outgoing()

    def expect(self, certificate: bytes | None) -> bytes:
        token = secrets.token_bytes(TOKEN_BYTES)
        with self._changed:
            if self._closed:
                raise unavailable(NAME, "the server is closed")
            self._pipes[token] = None
            self._certificates[token] = certificate
        return token

    def wait(self, token: bytes, timeout: float) -> MessagePipe:
        """The call that brought the token.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when none comes in time.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._pipes.get(token) or token not in self._pipes, timeout)
            pipe = self._pipes.pop(token, None)
            self._certificates.pop(token, None)
        if pipe is None:
            raise unavailable(NAME, f"the peer's call did not come within {timeout:g} s")
        return pipe

    def forget(self, token: bytes) -> None:
        with self._changed:
            pipe = self._pipes.pop(token, None)
            self._certificates.pop(token, None)
            self._changed.notify_all()
        if pipe is not None:
            pipe.close(linger=0)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            tokens = list(self._pipes)
        for token in tokens:
            self.forget(token)

    def _arrive(
        self, token: object, pipe: MessagePipe, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> bool:
        """Hand the call to the draft that waits for it; False when none does, or another call was faster."""
        with self._changed:
            if not isinstance(token, bytes) or token not in self._pipes or self._pipes[token] is not None:
                return False
            if self._security is not None and self._security.peer_certificate(context) != self._certificates[token]:
                return False
            self._pipes[token] = pipe
            context.add_callback(lambda: pipe.end("the peer is gone"))
            pipe.start(requests, context.cancel)
            self._changed.notify_all()
            return True


class _PassiveDraft:
    def __init__(self, calls: _Calls, address: dict[str, str | int], certificate: bytes | None) -> None:
        self._calls = calls
        self._token = calls.expect(certificate)
        self._address = address

    @property
    def address(self) -> EndpointAddress:
        return {**self._address, "token": self._token.hex()}

    def connect(self, peer: EndpointAddress, timeout: float) -> Endpoint:  # noqa: ARG002 - the active side has no address
        """Wait for the peer's call.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when it does not come in time.
        """
        try:
            pipe = self._calls.wait(self._token, timeout)
        finally:
            self.close()
        pipe.put(_WELCOME)
        return GrpcEndpoint(pipe)

    def abandon(self) -> None:
        """See `ports.Draft`."""
        self._calls.forget(self._token)

    def close(self) -> None:
        """Drop the draft, and a call that came for it."""
        self._calls.forget(self._token)


class _ActiveDraft:
    def __init__(self, security: GrpcSecurity | None, certificate: bytes | None) -> None:
        self._security = security
        self._certificate = certificate

    @property
    def address(self) -> EndpointAddress:
        return {}

    def connect(self, peer: EndpointAddress, timeout: float) -> Endpoint:
        """Call the peer.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when it does not answer in time, or not as it should.
        """
        host, port = address_text(NAME, peer, "host"), address_number(NAME, peer, "port", 65535)
        token = address_token(NAME, peer)
        deadline = time.monotonic() + timeout
        # a channel with a call whose thread does not start is never closed
        _require_a_thread()
        channel = self._channel(_place(host, port))
        pipe = MessagePipe()
        method: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/{METHOD}")
        call = method(pipe.outgoing(), metadata=((TOKEN_KEY, token),))
        pipe.start(call, call.cancel)
        answer = pipe.wait(deadline - time.monotonic())
        if answer != _WELCOME:
            reason = pipe.ended or f"it did not answer within {timeout:g} s"
            pipe.close(linger=0)
            channel.close()
            raise unavailable(NAME, f"{_place(host, port)}: {reason}")
        return GrpcEndpoint(pipe, channel)

    def abandon(self) -> None:
        """It dials, and waits no longer than that takes."""

    def close(self) -> None:
        """Nothing is held before `connect`."""

    def _channel(self, place: str) -> grpc.Channel:
        if self._security is None or self._certificate is None:
            return grpc.insecure_channel(place, options=_CLIENT_OPTIONS)
        credentials, name = self._security.for_channel(self._certificate)
        options = (*_CLIENT_OPTIONS, ("grpc.ssl_target_name_override", name))
        return grpc.secure_channel(place, credentials, options=options)


def _require_a_thread() -> None:
    """See that the kernel gives threads just now.

    Raises:
        TransportError: TRANSPORT_UNAVAILABLE.
    """
    thread = threading.Thread(target=int, name="grpc-trial")
    try:
        thread.start()
    except RuntimeError as error:
        raise _no_thread(error) from error
    thread.join()


def _no_thread(error: RuntimeError) -> TransportError:
    remedy = (
        "Give the gateway more memory, or more threads, where its control group or a limit (ulimit) keeps it short."
    )
    return unavailable(NAME, str(error), remedy)


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
