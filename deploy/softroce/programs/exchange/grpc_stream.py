"""Bare gRPC streams: the silo asks for the server's model as a stream of messages, and streams its own up."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from deploy.softroce.programs.exchange.interface import (
    Exchanged,
    Host,
    Options,
    Received,
    ResentByKernel,
    Server,
    Silo,
    models_of,
)
from deploy.softroce.programs.exchange.tcp import NEVER_SECONDS
from deploy.softroce.programs.meeting import Chair, Seat

MESSAGE_BYTES = 2**20
"""Of each message of a stream, as large as FATE cuts its objects."""
_SERVICE = "exchange"
_WHOSE = "silo"


def pieces(model: bytes) -> Iterator[bytes]:
    """A model as messages."""
    for at in range(0, len(model), MESSAGE_BYTES):
        yield model[at : at + MESSAGE_BYTES]


class _Round:
    """What streams have brought of a round, and where they stand."""

    def __init__(self, silos: int) -> None:
        self.begun = threading.Event()
        self.model = b""
        self.sent: dict[int, float] = {}
        self.received: dict[int, tuple[float, bytes]] = {}
        self._silos = silos
        self._changed = threading.Condition()

    def has_sent(self, silo: int) -> None:
        with self._changed:
            self.sent[silo] = time.monotonic()
            self._changed.notify_all()

    def has_received(self, silo: int, moment: float, got: bytes) -> None:
        with self._changed:
            self.received[silo] = moment, got
            self._changed.notify_all()

    def wait(self) -> None:
        with self._changed:
            whole = self._changed.wait_for(lambda: len(self.received) == len(self.sent) == self._silos, NEVER_SECONDS)
        if not whole:
            missing = sorted(set(range(1, self._silos + 1)) - set(self.received))
            raise SystemExit(f"nothing came from silos {missing} in {NEVER_SECONDS:g} s")


class GrpcServer(grpc.GenericRpcHandler, ResentByKernel):
    """Serves both streams; a stream down waits until its round begins."""

    def __init__(self, host: Host, options: Options) -> None:
        self._models = models_of(0, options)
        self._rounds = [_Round(host.silos) for _ in range(options.rounds)]

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        if method == f"/{_SERVICE}/down":
            return grpc.unary_stream_rpc_method_handler(self._down)
        if method == f"/{_SERVICE}/up":
            return grpc.stream_unary_rpc_method_handler(self._up)
        return None

    def exchange(self, number: int) -> Exchanged:
        one = self._rounds[number]
        one.model = self._models.own(number)
        one.begun.set()
        one.wait()
        for silo, (_, got) in sorted(one.received.items()):
            self._models.take(got, silo, number)
        moments = tuple(Received(moment) for _, (moment, _) in sorted(one.received.items()))
        one.received.clear()
        return Exchanged(max(one.sent.values()), moments)

    def _round(self, context: Any) -> tuple[_Round, int]:
        told = dict(context.invocation_metadata())
        return self._rounds[int(told["round"])], int(told[_WHOSE])

    def _down(self, request: bytes, context: Any) -> Iterator[bytes]:
        del request
        one, silo = self._round(context)
        if not one.begun.wait(NEVER_SECONDS):
            raise TimeoutError("the round did not begin")
        yield from pieces(one.model)
        one.has_sent(silo)

    def _up(self, messages: Iterator[bytes], context: Any) -> bytes:
        one, silo = self._round(context)
        got = bytearray()
        for message in messages:
            if len(got) + len(message) > self._models.size:
                raise ValueError(f"silo {silo} sends more than {self._models.size} bytes")
            got += message
        one.has_received(silo, time.monotonic(), bytes(got))
        return b""


class GrpcSilo(ResentByKernel):
    """A channel to the server."""

    def __init__(self, channel: Any, host: Host, options: Options) -> None:
        self._down = channel.unary_stream(f"/{_SERVICE}/down")
        self._up = channel.stream_unary(f"/{_SERVICE}/up")
        self._host, self._models = host, models_of(host.number, options)
        self._stream: Iterator[bytes] = iter(())

    def prepare(self, number: int) -> None:
        self._stream = self._down(b"", metadata=self._told(number), timeout=NEVER_SECONDS, wait_for_ready=True)

    def receive(self, number: int) -> Received:
        got = b"".join(self._stream)
        moment = time.monotonic()
        self._models.take(got, 0, number)
        return Received(moment)

    def send(self, number: int) -> None:
        self._up(pieces(self._models.own(number)), metadata=self._told(number), timeout=NEVER_SECONDS)

    def _told(self, number: int) -> tuple[tuple[str, str], ...]:
        return (("round", str(number)), (_WHOSE, str(self._host.number)))


_LIMITS = [("grpc.max_receive_message_length", 2 * MESSAGE_BYTES)]


@contextlib.contextmanager
def grpc_server(host: Host, chair: Chair, options: Options) -> Iterator[Server]:
    """Of `grpc-stream`."""
    # each silo has a stream either way, and the next round's stream down may be there before this one's ends
    with ThreadPoolExecutor(4 * host.silos) as pool:
        handler = GrpcServer(host, options)
        server = grpc.server(pool, handlers=[handler], options=[*_LIMITS, ("grpc.so_reuseport", 0)])
        chair.tell(server.add_insecure_port(f"{host.address}:0"))
        server.start()
        try:
            yield handler
        finally:
            server.stop(None).wait()


@contextlib.contextmanager
def grpc_silo(host: Host, seat: Seat, options: Options) -> Iterator[Silo]:
    """Of `grpc-stream`."""
    with grpc.insecure_channel(f"{host.addresses[0]}:{int(seat.hear())}", options=_LIMITS) as channel:
        grpc.channel_ready_future(channel).result(NEVER_SECONDS)
        yield GrpcSilo(channel, host, options)
