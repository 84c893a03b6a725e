"""AMQP: RabbitMQ on the server's host, pika at all: as FedComm does it, and with confirms and acknowledgements."""

from __future__ import annotations

import contextlib
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

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
from fedrdma_fate.bench.protocols.brokers import RABBITMQ_BESIDE_BYTES, RABBITMQ_MOST_BYTES
from fedrdma_fate.bench.rabbitmq import START_WITHIN_SECONDS, USER, Broker, running_rabbitmq

DOWN, UP = "fedserver", "fedbench"
"""FedComm's exchanges."""
UNACKNOWLEDGED = 16
"""Messages that the broker sends ahead where they are acknowledged."""
MOST_CARRIED_BYTES = RABBITMQ_MOST_BYTES - RABBITMQ_BESIDE_BYTES
"""Of a model by one message."""
_HEADER = struct.Struct("!IHI")
"""Round, sender, and the number of the part."""
_GONE = "the broker is gone"


def parts_of(model: bytes, number: int, sender: int, most: int = MOST_CARRIED_BYTES) -> Iterator[bytes]:
    """A model as messages of so many bytes at most, beside the header."""
    for part, at in enumerate(range(0, len(model), most)):
        yield _HEADER.pack(number, sender, part) + model[at : at + most]


class Assembly:
    """Parts of models of one round; none is taken twice, or at another length than its own."""

    def __init__(self, number: int, senders: Sequence[int], models: Models, most: int = MOST_CARRIED_BYTES) -> None:
        self._number, self._models, self._size, self._most = number, models, models.size, most
        self._parts: dict[int, dict[int, bytes]] = {sender: {} for sender in senders}
        self._whole: dict[int, float] = {}
        self.dropped = 0

    @property
    def moments(self) -> dict[int, float]:
        """When the models that are whole were so, by sender."""
        return self._whole

    @property
    def missing_bytes(self) -> int:
        """Of all models."""
        held = sum(len(part) for parts in self._parts.values() for part in parts.values())
        return (len(self._parts) - len(self._whole)) * self._size - held

    @property
    def missing(self) -> int:
        """Models that are not whole."""
        return len(self._parts) - len(self._whole)

    def add(self, body: bytes, moment: float) -> None:
        """A message; what is no part of a model that is waited for is dropped and counted.

        Raises:
            SystemExit: it made a model whole that is not what its sender had sent.
        """
        if len(body) < _HEADER.size:
            self.dropped += 1
            return
        number, sender, part = _HEADER.unpack_from(body)
        carried = body[_HEADER.size :]
        wanted = min(self._most, self._size - part * self._most)
        parts = self._parts.get(sender)
        if number != self._number or parts is None or sender in self._whole or part in parts or len(carried) != wanted:
            self.dropped += 1
            return
        parts[part] = carried
        if sum(map(len, parts.values())) == self._size:
            self._models.take(b"".join(parts[at] for at in sorted(parts)), sender, self._number)
            self._whole[sender] = moment
            parts.clear()


class Listener:
    """A connection of its own, in a thread, as in FedComm: what comes to an exchange, with the moment."""

    def __init__(self, parameters: pika.ConnectionParameters, exchange: str, confirming: bool) -> None:
        """Connect and bind a queue of its own.

        Raises:
            SystemExit: the broker does not take it.
        """
        self._came: queue.SimpleQueue[tuple[float, bytes] | None] = queue.SimpleQueue()
        ready: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._connection: pika.BlockingConnection | None = None
        self._channel: BlockingChannel | None = None
        listening = (parameters, exchange, confirming, ready)
        self._thread = threading.Thread(target=self._listen, args=listening, name="amqp", daemon=True)
        self._thread.start()
        try:
            problem = ready.get(timeout=START_WITHIN_SECONDS)
        except queue.Empty as error:
            raise SystemExit("the broker takes no subscription") from error
        if problem is not None:
            raise SystemExit(f"the broker takes no subscription: {problem}")

    def receive(self, number: int, senders: Sequence[int], models: Models) -> Assembly:
        """The round's models of these hosts, whole.

        Raises:
            SystemExit: the broker is gone, or nothing comes; with what was not delivered.
        """
        assembly = Assembly(number, senders, models)
        deadline = time.monotonic() + NEVER_SECONDS
        while assembly.missing:
            try:
                one = self._came.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                one = None
            if one is None:
                why = _GONE if time.monotonic() < deadline else f"nothing came in {NEVER_SECONDS:g} s"
                lacking = f"{assembly.missing} models ({assembly.missing_bytes:,} bytes) of round {number + 1}"
                raise SystemExit(f"{why}: {lacking} were not delivered")
            moment, body = one
            assembly.add(body, moment)
        return assembly

    def close(self) -> None:
        """Leave the broker."""
        if self._connection is not None and self._channel is not None:
            # the thread may have left by itself
            with contextlib.suppress(AMQPError):
                self._connection.add_callback_threadsafe(self._channel.stop_consuming)
        self._thread.join()

    def _listen(
        self,
        parameters: pika.ConnectionParameters,
        exchange: str,
        confirming: bool,
        ready: queue.SimpleQueue[str | None],
    ) -> None:
        try:
            self._connection = pika.BlockingConnection(parameters)
            self._channel = channel = self._connection.channel()
            channel.exchange_declare(exchange, exchange_type="fanout")
            own = channel.queue_declare("", exclusive=True).method.queue
            channel.queue_bind(own, exchange)
            if confirming:
                channel.basic_qos(prefetch_count=UNACKNOWLEDGED)

            def take(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
                del properties
                self._came.put((time.monotonic(), body))
                if confirming:
                    channel.basic_ack(method.delivery_tag)

            channel.basic_consume(own, take, auto_ack=not confirming)
            ready.put(None)
            channel.start_consuming()
            self._connection.close()
        except (AMQPError, OSError) as error:
            # whichever of the two is waited for
            ready.put(f"{type(error).__name__} {error}".strip())
        finally:
            self._came.put(None)


class Publisher:
    """The other connection of a host."""

    def __init__(self, parameters: pika.ConnectionParameters, exchange: str, confirming: bool) -> None:
        self._exchange = exchange
        try:
            self._connection = pika.BlockingConnection(parameters)
            self._channel = self._connection.channel()
            self._channel.exchange_declare(exchange, exchange_type="fanout")
            if confirming:
                self._channel.confirm_delivery()
        except (AMQPError, OSError) as error:
            raise SystemExit(f"the broker takes no publisher: {type(error).__name__}") from error

    def publish(self, model: bytes, number: int, sender: int) -> None:
        """All messages of a model; returns when they are written, or confirmed.

        Raises:
            SystemExit: the broker is gone, or does not take them.
        """
        done = 0
        try:
            for body in parts_of(model, number, sender):
                self._channel.basic_publish(self._exchange, "", body)
                done += len(body) - _HEADER.size
        except (AMQPError, OSError) as error:
            why = f"{_GONE} ({type(error).__name__})"
            raise SystemExit(f"{why}: {len(model) - done:,} bytes of round {number + 1} were not delivered") from error

    def close(self) -> None:
        """Leave the broker."""
        with contextlib.suppress(AMQPError, OSError):
            self._connection.close()


def _parameters(address: str, port: int, password: str) -> pika.ConnectionParameters:
    return pika.ConnectionParameters(
        host=address,
        port=port,
        credentials=pika.PlainCredentials(USER, password),
        # nobody reads the publisher's connection between rounds
        heartbeat=0,
        socket_timeout=START_WITHIN_SECONDS,
        stack_timeout=START_WITHIN_SECONDS,
        blocked_connection_timeout=NEVER_SECONDS,
    )


class AmqpServer(ResentByKernel):
    """Publishes to all, and takes what silos publish."""

    def __init__(self, listener: Listener, publisher: Publisher, host: Host, options: Options) -> None:
        self._listener, self._publisher, self._models = listener, publisher, models_of(0, options)
        self._silos = range(1, host.silos + 1)

    def exchange(self, number: int) -> Exchanged:
        self._publisher.publish(self._models.own(number), number, 0)
        sent = time.monotonic()
        done = self._listener.receive(number, self._silos, self._models)
        first, *others = (Received(done.moments[silo]) for silo in self._silos)
        return Exchanged(sent, (Received(first.moment, 0, done.dropped), *others))


class AmqpSilo(PlainSilo):
    """Takes what the server publishes, and publishes its own."""

    def __init__(self, listener: Listener, publisher: Publisher, host: Host, options: Options) -> None:
        self._listener, self._publisher, self._host = listener, publisher, host
        self._models = models_of(host.number, options)

    def receive(self, number: int) -> Received:
        done = self._listener.receive(number, [0], self._models)
        return Received(done.moments[0], 0, done.dropped)

    def send(self, number: int) -> None:
        self._publisher.publish(self._models.own(number), number, self._host.number)


@contextlib.contextmanager
def broker_of(host: Host, options: Options, plugins: Sequence[str] = ()) -> Iterator[Broker]:
    """The one that serves all protocols of this run, or one for this protocol alone, with these plugins."""
    if options.broker is not None:
        yield options.broker
        return
    with running_rabbitmq(host.address, plugins) as broker:
        yield broker


@contextlib.contextmanager
def _joined(
    parameters: pika.ConnectionParameters, listens: str, publishes: str, confirming: bool
) -> Iterator[tuple[Listener, Publisher]]:
    with (
        contextlib.closing(Listener(parameters, listens, confirming)) as listener,
        contextlib.closing(Publisher(parameters, publishes, confirming)) as publisher,
    ):
        yield listener, publisher


def amqp_server(confirming: bool) -> Callable[[Host, Chair, Options], contextlib.AbstractContextManager[Server]]:
    """Of `amqp-confirm`, or of `amqp-fanout`."""

    @contextlib.contextmanager
    def opened(host: Host, chair: Chair, options: Options) -> Iterator[Server]:
        with broker_of(host, options) as broker:
            parameters = _parameters(broker.address, broker.port, broker.password)
            with _joined(parameters, UP, DOWN, confirming) as (listener, publisher):
                chair.tell([broker.port, broker.password])
                chair.hear()
                yield AmqpServer(listener, publisher, host, options)
            # nobody is cut off by the broker's end
            chair.hear()

    return opened


def amqp_silo(confirming: bool) -> Callable[[Host, Seat, Options], contextlib.AbstractContextManager[Silo]]:
    """Of `amqp-confirm`, or of `amqp-fanout`."""

    @contextlib.contextmanager
    def opened(host: Host, seat: Seat, options: Options) -> Iterator[Silo]:
        port, password = seat.hear()
        parameters = _parameters(host.addresses[0], port, password)
        with _joined(parameters, DOWN, UP, confirming) as (listener, publisher):
            seat.say("subscribed")
            yield AmqpSilo(listener, publisher, host, options)
        seat.say("away")

    return opened
