"""MQTT: mosquitto on the server's host, paho-mqtt at all; a model is one message, as in FedComm."""

from __future__ import annotations

import contextlib
import queue
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

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
from fedrdma_fate.bench.ports import PORTS_TRIED, free_ports, is_taken, listens
from fedrdma_fate.bench.protocols.brokers import find_mosquitto

DOWN, UP = "fedserver", "fedbench"
"""FedComm's topics."""
START_WITHIN_SECONDS = 60.0
"""A broker that does not listen by then will not."""
STOP_WITHIN_SECONDS = 10.0
"""A broker that has not ended by then, when it was asked to, is killed."""
_LOOK_AGAIN_SECONDS = 0.01
"""Between two looks at whether the broker listens."""
_HEADER = struct.Struct("!IH")
"""Round and sender."""
_GONE = "the broker is gone"


@contextlib.contextmanager
def running_mosquitto(address: str) -> Iterator[int]:
    """A broker with a configuration and a directory of its own; its port. It is ended by its id.

    Raises:
        SystemExit: there is no mosquitto, or it does not start; with what it said last.
    """
    program = find_mosquitto()
    if program is None:
        raise SystemExit("there is no mosquitto")
    with tempfile.TemporaryDirectory() as name:
        # as root it becomes another user, who is to read this
        Path(name).chmod(0o755)
        broker, port = _start(program, address, Path(name))
        try:
            yield port
        finally:
            _end(broker)


def _start(program: str, address: str, home: Path) -> tuple[subprocess.Popen[bytes], int]:
    """At a port that nobody takes before it does."""
    configuration, log = home / "mosquitto.conf", home / "log"
    for _ in range(PORTS_TRIED):
        (port,) = free_ports(1)
        lines = (f"listener {port} {address}", "allow_anonymous true", "max_queued_messages 0", "persistence false")
        configuration.write_text("\n".join(lines) + "\n")
        with log.open("wb") as said:
            broker = subprocess.Popen([program, "-c", str(configuration)], stdout=said, stderr=said, cwd=home)
        try:
            if _comes_to_listen(broker, port):
                return broker, port
        except BaseException:
            _end(broker)
            raise
        _end(broker)
        if not is_taken(address, port):
            break
    last = log.read_text(errors="replace").splitlines()
    raise SystemExit(f"mosquitto does not start: {last[-1] if last else 'it said nothing'}")


def _comes_to_listen(broker: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + START_WITHIN_SECONDS
    while broker.poll() is None and time.monotonic() < deadline:
        if listens(broker.pid, port):
            return True
        time.sleep(_LOOK_AGAIN_SECONDS)
    return False


def _end(broker: subprocess.Popen[bytes]) -> None:
    broker.terminate()
    try:
        broker.wait(STOP_WITHIN_SECONDS)
    except subprocess.TimeoutExpired:
        broker.kill()
        broker.wait()


class Member:
    """A client of the broker: what it subscribed to comes as it was received, with the moment."""

    def __init__(self, address: str, port: int, topic: str, quality: int) -> None:
        """Connect and subscribe.

        Raises:
            SystemExit: the broker does not take it.
        """
        self._quality = quality
        self._came: queue.SimpleQueue[tuple[float, bytes | bytearray] | None] = queue.SimpleQueue()
        ready: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._client = Client(CallbackAPIVersion.VERSION2, reconnect_on_failure=False)

        def subscribe(client: Client, *_: object) -> None:
            client.subscribe(topic, quality)

        self._client.on_message = self._on_message
        self._client.on_disconnect = lambda *_: self._came.put(None)
        self._client.on_connect = subscribe
        self._client.on_subscribe = lambda *_: ready.put(None)
        self._client.connect(address, port)
        self._client.loop_start()
        try:
            ready.get(timeout=START_WITHIN_SECONDS)
        except queue.Empty as error:
            raise SystemExit("the broker takes no subscription") from error

    def publish(self, topic: str, number: int, sender: int, model: bytes) -> None:
        """One message; returns when the client has taken it."""
        self._client.publish(topic, _HEADER.pack(number, sender) + model, self._quality)

    def receive(
        self, number: int, senders: int, models: Models, of: Callable[[int], bool]
    ) -> tuple[dict[int, float], int]:
        """The round's models of so many hosts: when each was there, and how many messages were dropped.

        Raises:
            SystemExit: the broker is gone, or nothing comes; with what was not delivered.
        """
        there: dict[int, float] = {}
        dropped = 0
        deadline = time.monotonic() + NEVER_SECONDS
        while len(there) < senders:
            try:
                one = self._came.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                one = None
            if one is None:
                why = _GONE if time.monotonic() < deadline else f"nothing came in {NEVER_SECONDS:g} s"
                raise SystemExit(f"{why}: {senders - len(there)} models of round {number + 1} were not delivered")
            moment, payload = one
            told = _HEADER.unpack_from(payload) if len(payload) >= _HEADER.size else (-1, -1)
            if told[0] != number or not of(told[1]) or told[1] in there:
                dropped += 1
                continue
            models.take(payload[_HEADER.size :], told[1], number)
            there[told[1]] = moment
        return there, dropped

    def close(self) -> None:
        """Leave the broker."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_message(self, client: Client, told: Any, message: MQTTMessage) -> None:
        del client, told
        self._came.put((time.monotonic(), message.payload))


class MqttServer(ResentByKernel):
    """Publishes to all, and takes what silos publish."""

    def __init__(self, member: Member, host: Host, options: Options) -> None:
        self._member, self._silos, self._models = member, host.silos, models_of(0, options)

    def exchange(self, number: int) -> Exchanged:
        self._member.publish(DOWN, number, 0, self._models.own(number))
        sent = time.monotonic()
        there, dropped = self._member.receive(number, self._silos, self._models, lambda who: 1 <= who <= self._silos)
        first, *others = (Received(there[silo]) for silo in sorted(there))
        return Exchanged(sent, (Received(first.moment, 0, dropped), *others))


class MqttSilo(PlainSilo):
    """Takes what the server publishes, and publishes its own."""

    def __init__(self, member: Member, host: Host, options: Options) -> None:
        self._member, self._host, self._models = member, host, models_of(host.number, options)

    def receive(self, number: int) -> Received:
        there, dropped = self._member.receive(number, 1, self._models, lambda who: who == 0)
        return Received(there[0], 0, dropped)

    def send(self, number: int) -> None:
        self._member.publish(UP, number, self._host.number, self._models.own(number))


def mqtt_server(quality: int) -> Callable[[Host, Chair, Options], contextlib.AbstractContextManager[Server]]:
    """Of `mqtt-` and a quality of service; the broker is its child."""

    @contextlib.contextmanager
    def opened(host: Host, chair: Chair, options: Options) -> Iterator[Server]:
        with (
            running_mosquitto(host.address) as port,
            contextlib.closing(Member(host.address, port, UP, quality)) as member,
        ):
            chair.tell(port)
            chair.hear()
            yield MqttServer(member, host, options)

    return opened


def mqtt_silo(quality: int) -> Callable[[Host, Seat, Options], contextlib.AbstractContextManager[Silo]]:
    """Of `mqtt-` and a quality of service."""

    @contextlib.contextmanager
    def opened(host: Host, seat: Seat, options: Options) -> Iterator[Silo]:
        with contextlib.closing(Member(host.addresses[0], int(seat.hear()), DOWN, quality)) as member:
            seat.say("subscribed")
            yield MqttSilo(member, host, options)

    return opened
