"""ZMTP, by pyzmq: publish and subscribe, as FedComm does it; and sockets that wait where the other end is full."""

from __future__ import annotations

import contextlib
import math
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import zmq

from deploy.softroce.programs.exchange.interface import (
    Exchanged,
    Host,
    Models,
    Options,
    PlainSilo,
    Received,
    ResentByKernel,
    Server,
    Silo,
    models_of,
)
from deploy.softroce.programs.exchange.tcp import NEVER_SECONDS
from deploy.softroce.programs.meeting import Chair, Seat

PART_BYTES = 64 * 2**10
"""Of a message of `zmtp-dealer`."""
WAITING_PARTS = 16
"""That either end holds before the sender waits: a MiB."""
UNDELIVERED_SECONDS = 60.0
"""A subscriber waits so long for a model; then it was not delivered, for publishers drop without a word."""
_HELLO_SECONDS = 0.01
"""Between greetings of a publisher, until all its subscribers have had one."""
_HEADER = struct.Struct("!IH")
"""Round and sender."""
_HELLO = b"hello"


def published(number: int, sender: int, model: bytes) -> list[bytes]:
    """A model as a message of two frames: round and sender, and all its bytes."""
    return [_HEADER.pack(number, sender), model]


class Subscriber:
    """Models from publishers; what is not one of those that are waited for is dropped and counted."""

    def __init__(self, sock: zmq.Socket[bytes], models: Models) -> None:
        self._socket, self._models = sock, models

    def greeted(self) -> None:
        """Wait for a publisher's greeting: the subscription has come to it.

        Raises:
            SystemExit: none came.
        """
        if not self._socket.poll(int(NEVER_SECONDS * 1000)):
            raise SystemExit("a publisher does not greet")
        self._socket.recv_multipart()

    def receive(self, number: int, senders: Sequence[int]) -> list[Received]:
        """The round's models of all these hosts; of those that do not come in time all bytes are missing."""
        there: dict[int, float] = {}
        dropped = 0
        deadline = time.monotonic() + UNDELIVERED_SECONDS
        while len(there) < len(senders) and (left := deadline - time.monotonic()) > 0:
            if not self._socket.poll(math.ceil(left * 1000)):
                break
            frames, moment = self._socket.recv_multipart(), time.monotonic()
            if frames == [_HELLO]:
                continue
            sender = self._sender_of(frames, number)
            if sender is None or sender not in senders or sender in there:
                dropped += 1
                continue
            self._models.take(frames[1], sender, number)
            there[sender] = moment
        late = time.monotonic()
        received = [
            Received(there[sender]) if sender in there else Received(late, missing_bytes=self._models.size)
            for sender in senders
        ]
        return [Received(received[0].moment, received[0].missing_bytes, dropped), *received[1:]]

    def _sender_of(self, frames: Sequence[bytes], number: int) -> int | None:
        """None: it is no model of this round."""
        if len(frames) != 2 or len(frames[0]) != _HEADER.size:
            return None
        round_number, sender = _HEADER.unpack(frames[0])
        return int(sender) if round_number == number else None


@contextlib.contextmanager
def _greeting(publisher: zmq.Socket[bytes]) -> Iterator[None]:
    """Greet subscribers meanwhile: FedComm waits for half a minute instead."""
    ends = threading.Event()

    def greet() -> None:
        while not ends.wait(_HELLO_SECONDS):
            publisher.send_multipart([_HELLO])

    greeter = threading.Thread(target=greet, daemon=True)
    greeter.start()
    try:
        yield
    finally:
        ends.set()
        greeter.join()


@contextlib.contextmanager
def _sockets(host: Host) -> Iterator[tuple[zmq.Context[zmq.Socket[bytes]], zmq.Socket[bytes], int]]:
    """A context, and a bound publisher with its port."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    publisher = context.socket(zmq.PUB)
    try:
        yield context, publisher, publisher.bind_to_random_port(f"tcp://{host.address}")
    finally:
        context.destroy(linger=0)


def _subscriber(context: zmq.Context[zmq.Socket[bytes]], addresses: Sequence[str], models: Models) -> list[Subscriber]:
    """One for each publisher."""
    made = []
    for address in addresses:
        sock = context.socket(zmq.SUB)
        sock.subscribe(b"")
        # a frame that is longer ends its connection
        sock.setsockopt(zmq.MAXMSGSIZE, models.size + _HEADER.size)
        sock.connect(address)
        made.append(Subscriber(sock, models))
    return made


class PublishingServer(ResentByKernel):
    """Publishes to all, and subscribes to each."""

    def __init__(
        self,
        publisher: zmq.Socket[bytes],
        subscribers: Sequence[Subscriber],
        options: Options,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._publisher, self._subscribers, self._pool = publisher, subscribers, pool
        self._models = models_of(0, options)

    def exchange(self, number: int) -> Exchanged:
        self._publisher.send_multipart(published(number, 0, self._models.own(number)))
        sent = time.monotonic()

        def take(silo: int) -> Received:
            return self._subscribers[silo - 1].receive(number, [silo])[0]

        return Exchanged(sent, tuple(self._pool.map(take, range(1, len(self._subscribers) + 1))))


class PublishingSilo(PlainSilo):
    """Publishes to the server, and subscribes to it."""

    def __init__(self, publisher: zmq.Socket[bytes], subscriber: Subscriber, host: Host, options: Options) -> None:
        self._publisher, self._subscriber, self._host = publisher, subscriber, host
        self._models = models_of(host.number, options)

    def receive(self, number: int) -> Received:
        return self._subscriber.receive(number, [0])[0]

    def send(self, number: int) -> None:
        self._publisher.send_multipart(published(number, self._host.number, self._models.own(number)))


@contextlib.contextmanager
def publishing_server(host: Host, chair: Chair, options: Options) -> Iterator[Server]:
    """Of `zmtp-pub`."""
    with _sockets(host) as (context, publisher, port), ThreadPoolExecutor(host.silos) as pool:
        chair.tell(port)
        ports = chair.hear()
        addresses = [f"tcp://{host.addresses[silo]}:{told}" for silo, told in enumerate(ports, start=1)]
        subscribers = _subscriber(context, addresses, models_of(0, options))
        with _greeting(publisher):
            for subscriber in subscribers:
                subscriber.greeted()
            chair.tell("greeted")
            chair.hear()
        yield PublishingServer(publisher, subscribers, options, pool)


@contextlib.contextmanager
def publishing_silo(host: Host, seat: Seat, options: Options) -> Iterator[Silo]:
    """Of `zmtp-pub`."""
    with _sockets(host) as (context, publisher, port):
        address = f"tcp://{host.addresses[0]}:{int(seat.hear())}"
        (subscriber,) = _subscriber(context, [address], models_of(host.number, options))
        seat.say(port)
        with _greeting(publisher):
            subscriber.greeted()
            seat.hear()
        seat.say("greeted")
        yield PublishingSilo(publisher, subscriber, host, options)


# --- with flow control ---


def send_parts(sock: zmq.Socket[bytes], model: bytes) -> None:
    """A model as messages; waits where the other end is full.

    Raises:
        SystemExit: it stays full.
    """
    try:
        for at in range(0, len(model), PART_BYTES):
            sock.send(model[at : at + PART_BYTES])
    except zmq.Again as error:
        raise SystemExit(f"the other host took nothing in {NEVER_SECONDS:g} s") from error


def receive_parts(sock: zmq.Socket[bytes], size: int) -> bytes:
    """A model of this size.

    Raises:
        SystemExit: no more of it comes, or it is longer.
    """
    got = bytearray()
    while len(got) < size:
        try:
            got += sock.recv()
        except zmq.Again as error:
            raise SystemExit(f"{size - len(got)} bytes did not come in {NEVER_SECONDS:g} s") from error
    if len(got) > size:
        raise SystemExit(f"{len(got) - size} bytes more came than a model has")
    return bytes(got)


def _dealer(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    sock = context.socket(zmq.DEALER)
    for option in (zmq.SNDHWM, zmq.RCVHWM):
        sock.setsockopt(option, WAITING_PARTS)
    for option in (zmq.SNDTIMEO, zmq.RCVTIMEO):
        sock.setsockopt(option, int(NEVER_SECONDS * 1000))
    sock.setsockopt(zmq.MAXMSGSIZE, PART_BYTES)
    return sock


class DealingServer(ResentByKernel):
    """A socket for each silo, and a thread."""

    def __init__(self, sockets: Sequence[zmq.Socket[bytes]], options: Options, pool: ThreadPoolExecutor) -> None:
        self._sockets, self._models, self._pool = sockets, models_of(0, options), pool

    def exchange(self, number: int) -> Exchanged:
        model = self._models.own(number)

        def serve(sock: zmq.Socket[bytes]) -> tuple[float, float, bytes]:
            send_parts(sock, model)
            sent = time.monotonic()
            got = receive_parts(sock, self._models.size)
            return sent, time.monotonic(), got

        served = list(self._pool.map(serve, self._sockets))
        for silo, (_, _, got) in enumerate(served, start=1):
            self._models.take(got, silo, number)
        return Exchanged(max(sent for sent, _, _ in served), tuple(Received(moment) for _, moment, _ in served))


class DealingSilo(PlainSilo):
    """One socket to the server."""

    def __init__(self, sock: zmq.Socket[bytes], host: Host, options: Options) -> None:
        self._socket, self._models = sock, models_of(host.number, options)

    def receive(self, number: int) -> Received:
        got, moment = receive_parts(self._socket, self._models.size), time.monotonic()
        self._models.take(got, 0, number)
        return Received(moment)

    def send(self, number: int) -> None:
        send_parts(self._socket, self._models.own(number))


@contextlib.contextmanager
def dealing_server(host: Host, chair: Chair, options: Options) -> Iterator[Server]:
    """Of `zmtp-dealer`."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        sockets = [_dealer(context) for _ in range(host.silos)]
        chair.tell([sock.bind_to_random_port(f"tcp://{host.address}") for sock in sockets])
        with ThreadPoolExecutor(host.silos) as pool:
            yield DealingServer(sockets, options, pool)
    finally:
        context.destroy(linger=0)


@contextlib.contextmanager
def dealing_silo(host: Host, seat: Seat, options: Options) -> Iterator[Silo]:
    """Of `zmtp-dealer`."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        sock = _dealer(context)
        sock.connect(f"tcp://{host.addresses[0]}:{seat.hear()[host.number - 1]}")
        yield DealingSilo(sock, host, options)
    finally:
        context.destroy(linger=0)
