"""The program `exchange`: each protocol between hosts on loopback, and what it does with what is not right.

More than 500 lines: one program, and all of its protocols are held to the same by the same helpers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deploy.softroce.programs.exchange import datagrams, rounds, tcp
from deploy.softroce.programs.exchange.__main__ import ends_of, parse_options, take_part
from deploy.softroce.programs.exchange.__main__ import main as exchange_main
from deploy.softroce.programs.exchange.datagrams import (
    FEDCOMM,
    INDEXED,
    PIECE_BYTES,
    Assembly,
    EndMarks,
    Inbox,
    Kind,
    datagrams_of,
    send_paced,
    wire_bytes,
)
from deploy.softroce.programs.exchange.gateways import configuration, probes
from deploy.softroce.programs.exchange.interface import (
    MEETING,
    Exchanged,
    Host,
    MadeModels,
    Options,
    Received,
    differing_bytes,
    host_of_environment,
    model_of,
    require_whole,
)
from deploy.softroce.programs.exchange.usage import Usage
from deploy.softroce.programs.meeting import Chair, chaired, seated
from fedrdma_fate.bench.ports import free_ports
from fedrdma_fate.bench.protocols.brokers import mqtt_problem
from fedrdma_fate.bench.protocols.rows import all_protocol_rows
from fedrdma_fate.gateway.config.schema import parse_config

SIZE = 20_000
"""Bytes of a model: whole pieces and a part, and no more than any socket's buffer holds."""
PATIENCE_SECONDS = 60.0
ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.0)
    # what is on its way on a busy machine may be late: a model that is whole is not waited for so long
    monkeypatch.setattr(datagrams, "LAST_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(datagrams, "INDEXED", dataclasses.replace(INDEXED, silo_silence=PATIENCE_SECONDS))
    monkeypatch.delenv("TESTBED_NETDEV", raising=False)


def options(protocol: str, size: int = SIZE, count: int = 2) -> Options:
    return Options(protocol, size, count, computing_seconds=0.0)


def exchange(place: Path, asked: Options, hosts: int = 3) -> list[dict[str, Any]]:
    """What the server says of rounds between threads on loopback."""
    everyone = [Host(number, ADDRESSES[:hosts], place) for number in range(hosts)]
    with ThreadPoolExecutor(hosts) as pool:
        parts = [pool.submit(lambda host: list(take_part(host, asked)), host) for host in everyone]
        told, *others = [part.result() for part in parts]
    assert others == [[]] * (hosts - 1)
    (protocol,) = told
    return protocol


# --- each protocol ---


def _why_not_cubic() -> str:
    with socket.socket() as connection:
        try:
            tcp._choose(connection, "cubic")
        except SystemExit as error:
            return str(error)
    return ""


NO_CUBIC = _why_not_cubic()
CUBIC = pytest.mark.skipif(bool(NO_CUBIC), reason=NO_CUBIC)
ZMTP = pytest.mark.skipif(importlib.util.find_spec("zmq") is None, reason="pyzmq is not installed")
MQTT = pytest.mark.skipif(mqtt_problem(SIZE) is not None, reason=f"MQTT {mqtt_problem(SIZE)}")


@pytest.mark.parametrize(
    "protocol",
    [
        "tcp-serial",
        pytest.param("tcp-cubic", marks=CUBIC),
        "tcp-reno",
        "udp-indexed",
        "grpc-stream",
        *(pytest.param(name, marks=ZMTP) for name in ("zmtp-pub", "zmtp-dealer")),
        *(pytest.param(name, marks=MQTT) for name in ("mqtt-0", "mqtt-1", "mqtt-2")),
    ],
)
def test_models_go_down_to_every_silo_and_come_back_from_each(tmp_path: Path, protocol: str) -> None:
    told = exchange(tmp_path / "meeting", options(protocol))
    assert len(told) == 2
    for one in told:
        assert len(one["silo_seconds"]) == len(one["down_seconds"]) == 2
        assert one["seconds"] == max(one["silo_seconds"])
        assert one["fedcomm_seconds"] <= one["seconds"]
        assert (one["missing_down_bytes"], one["missing_up_bytes"], one["dropped"]) == (0, 0, 0)


def test_without_positions_silos_wait_for_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagrams, "LAST_SECONDS", 0.1)
    monkeypatch.setattr(datagrams, "FEDCOMM", dataclasses.replace(FEDCOMM, silo_silence=0.2))
    (one,) = exchange(tmp_path / "meeting", options("udp-fedcomm", count=1))
    assert min(one["down_seconds"]) >= 0.2
    assert 0 <= one["missing_down_bytes"] <= 2 * SIZE


def test_every_row_of_the_benchmark_is_a_protocol_that_the_program_knows() -> None:
    for row in all_protocol_rows():
        if row.find_problem(SIZE) is None:
            assert ends_of(row.name).server


def test_a_protocol_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no protocol 'pigeon'"):
        list(take_part(Host(0, ADDRESSES, tmp_path / "meeting"), options("pigeon")))


def test_a_congestion_control_that_the_kernel_has_not_is_named() -> None:
    with socket.socket() as connection, pytest.raises(SystemExit, match="the kernel has no TCP pigeon"):
        tcp._choose(connection, "pigeon")


def test_a_congestion_control_that_is_not_for_everybody_is_named_with_what_to_set() -> None:
    class Refusing(socket.socket):
        def setsockopt(self, *_: object) -> None:
            raise PermissionError

    with Refusing() as connection, pytest.raises(SystemExit, match="only root may use TCP cubic here: add it to net"):
        tcp._choose(connection, "cubic")


# --- rounds ---


class _Chair(Chair):
    """Silos that say what they are told to."""

    def __init__(self, said: list[list[Any]]) -> None:
        super().__init__([])
        self.told: list[Any] = []
        self._said = iter(said)

    def tell(self, what: object) -> None:
        self.told.append(what)

    def hear(self) -> list[Any]:
        return next(self._said)


def test_a_round_ends_with_the_last_silo_and_computing_is_taken_off_both_clocks() -> None:
    chair = _Chair([])

    class Server:
        def exchange(self, number: int) -> Exchanged:
            begin = chair.told[number]
            return Exchanged(begin + 2.0, (Received(begin + 9.0, 3, 1), Received(begin + 7.0, 4, 0)))

        def resent(self, number: int) -> int:
            del number
            return 100

    silo = {"missing": 5, "dropped": 6, "resent": 10, "tcp_resent_bytes": 1}
    moment = time.monotonic()
    chair._said = iter(
        [
            ["ready"] * 2,
            [{**silo, "got": moment}, {**silo, "got": moment}],
            [{"own_seconds": 1.0, "broker_seconds": 0.0, "broker_peak_bytes": 0}] * 2,
        ]
    )
    (one,) = rounds.run_server(
        Server(), chair, dataclasses.replace(options("tcp-serial", count=1), computing_seconds=3)
    )
    assert one["seconds"] == pytest.approx(6.0)
    assert one["fedcomm_seconds"] == pytest.approx(4.0)
    assert one["silo_seconds"] == pytest.approx([6.0, 4.0])
    assert (one["missing_up_bytes"], one["missing_down_bytes"], one["dropped"]) == (7, 10, 13)
    assert (one["resent_bytes"], one["tcp_resent_bytes"]) == (120, 2)


@pytest.mark.parametrize(("count", "counted"), [(1, 1), (2, 1), (5, 4)])
def test_cpu_time_counts_from_the_second_round_on_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, count: int, counted: int
) -> None:
    chair = _Chair([])

    class Server:
        used = 0.0

        def exchange(self, number: int) -> Exchanged:
            # to begin costs more than a round
            self.used += 1.0 if number else 100.0
            return Exchanged(chair.told[number], (Received(chair.told[number] + 1.0),))

        def resent(self, number: int) -> int:
            del number
            return 0

    server = Server()
    silo = {"missing": 0, "dropped": 0, "resent": 0, "tcp_resent_bytes": 0, "got": time.monotonic()}
    silo_used = {"own_seconds": 3.0 * counted, "broker_seconds": 0.0, "broker_peak_bytes": 0}
    chair._said = iter([*([["ready"], [silo]] * count), [silo_used]])
    monkeypatch.setattr(rounds, "usage", lambda: Usage(server.used, 0.0, 0))
    monkeypatch.setattr(MadeModels, "cpu_seconds", lambda *_: 0.0)
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.0)
    made = rounds.run_server(server, chair, options("tcp-serial", count=count))
    used = made[0]["usage"]
    assert used["server_cpu_seconds"] == pytest.approx(100.0 if count == 1 else 1.0)
    assert used["silos_cpu_seconds"] == pytest.approx(3.0)


def test_a_silo_that_dies_ends_the_run(tmp_path: Path) -> None:
    place = tmp_path / "meeting"

    def die() -> None:
        with seated(1, place) as seat, tcp.connected(Host(1, ADDRESSES[:2], place), seat):
            seat.say("ready")

    dying = threading.Thread(target=die)
    dying.start()
    host = Host(0, ADDRESSES[:2], place)
    with (
        pytest.raises((SystemExit, OSError)),
        chaired(1, place) as chair,
        tcp.serial_server(host, chair, options("tcp-serial")) as server,
    ):
        rounds.run_server(server, chair, options("tcp-serial"))
    dying.join()


# --- models ---


def test_each_sender_s_model_is_another_in_each_round() -> None:
    models = {model_of(sender, number, SIZE) for sender in range(3) for number in range(3)}
    assert len(models) == 9
    assert {len(model) for model in models} == {SIZE}


def test_what_came_as_something_else_is_counted_and_ends_a_reliable_protocol() -> None:
    model = bytearray(model_of(1, 2, SIZE))
    assert differing_bytes(model, 1, 2, SIZE) == 0
    model[77] ^= 1
    assert differing_bytes(model, 1, 2, SIZE) == 1
    assert differing_bytes(model[:-1], 1, 2, SIZE) == SIZE
    with pytest.raises(SystemExit, match="of what host 1 sent in round 3, 1 bytes came as something else"):
        require_whole(model, 1, 2, SIZE)


# --- datagrams ---

TOKEN = b"12345678"
SENDER = ("127.0.0.2", 4000)


def inbox(kind: Kind, size: int = SIZE) -> Inbox:
    """Which takes what its tests give it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        made = Inbox(sock, TOKEN, {SENDER: 1}, kind, MadeModels(0, size))
    made.open(0)
    return made


def _datagrams(number: int = 0, sender: int = 1, token: bytes = TOKEN, positions: bool = True) -> list[bytes]:
    return list(datagrams_of(model_of(1, 0, SIZE), (SIZE,), token, number, sender, positions))


def told(seconds: float) -> bool:
    """The end has come."""
    del seconds
    return True


def test_datagrams_in_any_order_make_the_model() -> None:
    box = inbox(INDEXED)
    for datagram in reversed(_datagrams()):
        box.take(datagram, SENDER)
    assert box.wait(1, 0.0, told).missing_bytes == 0
    assert box._assemblies[1].model == model_of(1, 0, SIZE)


@pytest.mark.parametrize(
    ("spoil", "address"),
    [
        (lambda _: _datagrams(token=b"87654321")[0], SENDER),
        (lambda _: _datagrams(number=1)[0], SENDER),
        (lambda _: _datagrams(sender=2)[0], SENDER),
        (lambda whole: whole[:-1], SENDER),
        (lambda whole: whole + b"x", SENDER),
        (lambda whole: whole[:5], SENDER),
        (lambda _: b"", SENDER),
        (lambda whole: whole, ("127.0.0.9", 4000)),
        (lambda whole: whole[:14] + b"\xff\xff\xff\xff" + whole[18:], SENDER),
    ],
    ids=["token", "round", "sender", "cut", "long", "short", "empty", "stranger", "position"],
)
def test_datagrams_that_are_not_right_are_dropped_and_counted(
    spoil: Callable[[bytes], bytes], address: tuple[str, int]
) -> None:
    box = inbox(INDEXED)
    box.take(spoil(_datagrams()[0]), address)
    done = box.wait(1, 0.0, told)
    assert (done.missing_bytes, done.dropped) == (SIZE, 1)


def test_a_datagram_that_comes_twice_counts_once() -> None:
    box = inbox(INDEXED)
    for _ in range(2):
        box.take(_datagrams()[3], SENDER)
    done = box.wait(1, 0.0, told)
    assert (done.missing_bytes, done.dropped) == (SIZE - PIECE_BYTES, 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds, which pass where somebody sleeps."""
    now = [100.0]
    monkeypatch.setattr(datagrams.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(datagrams.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def _ended(clock: list[float], after: float) -> Callable[[float], bool]:
    """An end that is told so many seconds from now."""
    due = clock[0] + after

    def is_told(seconds: float) -> bool:
        clock[0] = min(clock[0] + seconds, max(clock[0], due))
        return clock[0] >= due

    return is_told


def test_where_datagrams_are_missing_the_pace_of_the_others_tells_the_end_and_not_a_late_packet_of_tcp(
    clock: list[float],
) -> None:
    box, pieces = inbox(INDEXED), _datagrams()
    for position, datagram in enumerate(pieces):
        clock[0] = 100.0 + 0.001 * position
        # one in the middle and the last two are lost
        if position not in (4, len(pieces) - 2, len(pieces) - 1):
            box.take(datagram, SENDER)
    done = box.wait(1, 0.05, _ended(clock, 30.0))
    last = 100.0 + 0.001 * (len(pieces) - 1)
    assert done.moment == pytest.approx(last + 0.001 * datagrams.LATE_DATAGRAMS)
    assert done.missing_bytes == SIZE - sum(
        len(pieces[at]) - len(pieces[at][:18]) for at in range(len(pieces) - 2) if at != 4
    )


def test_where_none_before_another_is_missing_tcp_tells_the_end(clock: list[float]) -> None:
    box, pieces = inbox(INDEXED), _datagrams()
    for position, datagram in enumerate(pieces[:-1]):
        clock[0] = 100.0 + 0.001 * position
        box.take(datagram, SENDER)
    begun = clock[0]
    assert box.wait(1, 0.05, _ended(clock, 3.0)).moment == pytest.approx(begun + 3.05)


def test_a_model_without_positions_ends_when_tcp_says_so_however_much_is_missing(clock: list[float]) -> None:
    box, pieces = inbox(FEDCOMM), _datagrams(positions=False)
    for datagram in pieces[1:]:
        clock[0] += 0.001
        box.take(datagram, SENDER)
    begun = clock[0]
    assert box.wait(1, 2.0, _ended(clock, 30.0)).moment == pytest.approx(begun + 32.0)


def test_a_peer_that_says_nothing_ends_the_wait(clock: list[float]) -> None:
    with pytest.raises(SystemExit, match="nothing came for 600 s"):
        inbox(INDEXED).wait(1, 0.05, _ended(clock, 10_000.0))


def test_an_end_that_is_late_is_not_that_of_the_next_round() -> None:
    ours, others = socket.socketpair()
    with ours, others:
        marks, told_by = EndMarks(ours), EndMarks(others)
        assert not marks.is_told(0, 0.0)
        told_by.tell(0)
        # of the round before
        assert not marks.is_told(1, 0.2)
        told_by.tell(1)
        assert marks.is_told(1, 10.0)
        assert marks.is_told(0, 0.0)
        others.close()
        with pytest.raises(SystemExit, match="hung up"):
            marks.is_told(2, 10.0)


def test_without_positions_a_lost_piece_shifts_what_is_behind_it_and_zeros_are_at_the_end() -> None:
    assembly, model = Assembly(FEDCOMM, (SIZE,), b""), model_of(1, 0, SIZE)
    pieces = [model[at : at + PIECE_BYTES] for at in range(0, SIZE, PIECE_BYTES)]
    for piece in (*pieces[:2], *pieces[3:]):
        assert assembly.add(0, piece)
    assert assembly.missing_bytes == PIECE_BYTES
    assert assembly.model == b"".join((*pieces[:2], *pieces[3:])) + bytes(PIECE_BYTES)
    # more than the model holds is not taken
    assert assembly.add(0, pieces[2])
    assert not assembly.add(0, pieces[2])


def test_with_positions_what_is_missing_stays_as_the_receiver_had_it() -> None:
    before, model = model_of(1, 0, SIZE), model_of(1, 1, SIZE)
    assembly = Assembly(INDEXED, (SIZE,), before)
    assert assembly.add(1, model[PIECE_BYTES : 2 * PIECE_BYTES])
    assert assembly.model[:PIECE_BYTES] == before[:PIECE_BYTES]
    assert assembly.model[PIECE_BYTES : 2 * PIECE_BYTES] == model[PIECE_BYTES : 2 * PIECE_BYTES]
    assert assembly.model[2 * PIECE_BYTES :] == before[2 * PIECE_BYTES :]


def test_a_datagram_of_fedcomm_s_is_two_packets_at_an_mtu_of_1500() -> None:
    assert wire_bytes(PIECE_BYTES + 18, 1500) == PIECE_BYTES + 18 + 8 + 2 * 34
    assert wire_bytes(100, 1500) == 100 + 8 + 34


def test_pacing_sends_no_faster_than_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(datagrams.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(datagrams.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    sent: list[tuple[float, Any]] = []

    class Socket:
        def sendto(self, datagram: bytes, address: object) -> None:
            assert len(datagram) == 1000
            sent.append((now[0], address))

    addresses = [("a", 1), ("b", 2)]
    send_paced(Socket(), iter([bytes(1000)] * 3), addresses, 8e3, 1500)  # type: ignore[arg-type]
    step = wire_bytes(1000, 1500) * 8 / 8e3
    assert [moment for moment, _ in sent] == pytest.approx([100.0 + step * number for number in (0, 0, 1, 1, 2, 2)])
    assert [address for _, address in sent] == addresses * 3


# --- ZMTP ---


@pytest.fixture
def subscriber() -> Iterator[tuple[Any, Any]]:
    """A publisher, and a subscriber that has joined it."""
    zmq = pytest.importorskip("zmq")
    from deploy.softroce.programs.exchange.zmtp import Subscriber, _greeting

    context = zmq.Context()
    try:
        publisher, sock = context.socket(zmq.PUB), context.socket(zmq.SUB)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        sock.subscribe(b"")
        sock.connect(f"tcp://127.0.0.1:{port}")
        made = Subscriber(sock, MadeModels(0, SIZE))
        with _greeting(publisher):
            made.greeted()
        yield publisher, made
    finally:
        context.destroy(linger=0)


def test_what_a_publisher_drops_is_counted_as_not_delivered(
    subscriber: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.softroce.programs.exchange.zmtp.UNDELIVERED_SECONDS", 0.05)
    (received,) = subscriber[1].receive(0, [1])
    assert received.missing_bytes == SIZE


def test_messages_that_are_no_models_of_the_round_are_dropped_and_counted(subscriber: tuple[Any, Any]) -> None:
    from deploy.softroce.programs.exchange.zmtp import published

    publisher, made = subscriber
    for frames in (
        [b"x"],
        [b"x", b"y", b"z"],
        *(published(number, sender, model_of(sender, number, SIZE)) for number, sender in ((1, 1), (0, 7), (0, 1))),
    ):
        publisher.send_multipart(frames)
    (received,) = made.receive(0, [1])
    assert (received.missing_bytes, received.dropped) == (0, 4)


@ZMTP
def test_a_dealer_whose_silo_sends_too_much_or_nothing_is_told_of_by_the_bytes() -> None:
    import zmq

    from deploy.softroce.programs.exchange.zmtp import receive_parts

    class Socket:
        def __init__(self, parts: list[bytes]) -> None:
            self._parts = parts

        def recv(self) -> bytes:
            if not self._parts:
                raise zmq.Again
            return self._parts.pop(0)

    assert receive_parts(Socket([b"ab", b"c"]), 3) == b"abc"  # type: ignore[arg-type]
    with pytest.raises(SystemExit, match="1 bytes more came than a model has"):
        receive_parts(Socket([b"ab", b"cd"]), 3)  # type: ignore[arg-type]
    with pytest.raises(SystemExit, match="1 bytes did not come in"):
        receive_parts(Socket([b"ab"]), 3)  # type: ignore[arg-type]


# --- MQTT ---


@MQTT
def test_a_broker_that_is_killed_in_a_round_fails_it_with_what_was_not_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from deploy.softroce.programs.exchange import mqtt

    brokers: list[subprocess.Popen[bytes]] = []

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            brokers.append(self)

    monkeypatch.setattr(mqtt.subprocess, "Popen", Popen)
    with mqtt.running_mosquitto("127.0.0.1") as port:
        member = mqtt.Member("127.0.0.1", port, mqtt.UP, 1)
        with contextlib.closing(member):
            brokers[0].kill()
            with pytest.raises(SystemExit, match="the broker is gone: 2 models of round 4 were not delivered"):
                member.receive(3, 2, MadeModels(0, SIZE), lambda _: True)
    assert brokers[0].returncode is not None


@MQTT
def test_messages_of_strangers_or_of_another_round_are_dropped_and_counted() -> None:
    from deploy.softroce.programs.exchange import mqtt

    with (
        mqtt.running_mosquitto("127.0.0.1") as port,
        contextlib.closing(mqtt.Member("127.0.0.1", port, mqtt.UP, 2)) as member,
    ):
        member._client.publish(mqtt.UP, b"x", 2)
        member.publish(mqtt.UP, 1, 1, model_of(1, 1, SIZE))
        member.publish(mqtt.UP, 0, 9, model_of(9, 0, SIZE))
        member.publish(mqtt.UP, 0, 1, model_of(1, 0, SIZE))
        there, dropped = member.receive(0, 1, MadeModels(0, SIZE), lambda who: who == 1)
    assert (list(there), dropped) == ([1], 3)


@MQTT
def test_a_port_that_another_takes_meanwhile_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from deploy.softroce.programs.exchange import mqtt

    with socket.create_server(("127.0.0.1", 0)) as other:
        chosen = [other.getsockname()[1], *free_ports(1)]
        monkeypatch.setattr(mqtt, "free_ports", lambda _: [chosen.pop(0)])
        with mqtt.running_mosquitto("127.0.0.1") as port:
            assert port != other.getsockname()[1]
            with contextlib.closing(mqtt.Member("127.0.0.1", port, mqtt.UP, 1)):
                pass
        # nobody has come to who has the port
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
        monkeypatch.setattr(mqtt, "free_ports", lambda _: [other.getsockname()[1]])
        with pytest.raises(SystemExit, match="Address already in use"), mqtt.running_mosquitto("127.0.0.1"):
            pass


@MQTT
def test_a_broker_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deploy.softroce.programs.exchange import mqtt

    broken = tmp_path / "mosquitto"
    broken.write_text("#!/bin/sh\necho no luck today\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(mqtt, "find_mosquitto", lambda: str(broken))
    with (
        pytest.raises(SystemExit, match="mosquitto does not start: no luck today"),
        mqtt.running_mosquitto("127.0.0.1"),
    ):
        pass
    monkeypatch.setattr(mqtt, "find_mosquitto", lambda: None)
    with pytest.raises(SystemExit, match="there is no mosquitto"), mqtt.running_mosquitto("127.0.0.1"):
        pass


# --- gateways ---


@pytest.mark.parametrize("row", [row.name for row in all_protocol_rows() if "/" in row.name])
def test_the_gateways_of_every_row_are_configured(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_HOSTS", ",".join(ADDRESSES))
    for number in range(3):
        monkeypatch.setenv("TESTBED_HOST", str(number))
        document = configuration(tmp_path, Host(number, ADDRESSES, tmp_path), options(row), 9370)
        parse_config(document)
        addresses = [peer["address"] for peer in document["peers"]]
        assert addresses == (["127.0.0.1:9370"] if number else [None, None])


def test_gateways_write_a_trace_only_where_no_cpu_time_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTBED_HOSTS", ",".join(ADDRESSES))
    monkeypatch.setenv("TESTBED_HOST", "0")
    host, asked = Host(0, ADDRESSES, tmp_path), options("fedrdma-x/tcp")
    assert "trace" not in configuration(tmp_path, host, asked, 9370)
    monkeypatch.setenv("TESTBED_NETDEV", "eth0")
    assert configuration(tmp_path, host, asked, 9370)["trace"] == str(tmp_path / "trace.jsonl")


def test_gateways_are_waited_for_until_the_own_link_is_probed_where_it_is(tmp_path: Path) -> None:
    three, two = Host(0, ADDRESSES, tmp_path), Host(0, ADDRESSES[:2], tmp_path)
    for probing in ("fedrdma-x/udp", "fedrdma-x/verbs", "fedrdma-e/udp", "grpc/grpc"):
        assert probes(three, options(probing))
        assert not probes(two, options(probing))
    assert not probes(three, options("fedrdma-x/tcp"))


# --- what is asked ---


def test_the_host_is_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_HOSTS", "10.0.0.1,10.0.0.2")
    monkeypatch.setenv("TESTBED_HOST", "1")
    monkeypatch.delenv(MEETING, raising=False)
    host = host_of_environment()
    assert (host.number, host.address, host.silos) == (1, "10.0.0.2", 1)
    assert host.meeting == Path("/run/meeting")
    monkeypatch.setenv(MEETING, "/elsewhere")
    assert host_of_environment().meeting == Path("/elsewhere")


@pytest.mark.parametrize("told", [{}, {"TESTBED_HOST": "1"}, {"TESTBED_HOSTS": "10.0.0.1"}])
def test_who_is_no_host_of_a_testbed_is_told_how_to_become_one(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, str]
) -> None:
    for name in ("TESTBED_HOSTS", "TESTBED_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="scripts/testbed run"):
        host_of_environment()


def test_its_options_are_explained_outside_a_testbed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TESTBED_HOSTS", raising=False)
    monkeypatch.setattr(sys, "argv", ["exchange", "--help"])
    with pytest.raises(SystemExit) as ended:
        exchange_main()
    assert ended.value.code == 0
    assert "--computing-seconds" in capsys.readouterr().out


def test_options_are_read() -> None:
    asked = parse_options(["udp-indexed", "1000", "3", "--down-bps", "2e6", "--mtu", "4200"])
    assert asked == Options("udp-indexed", 1000, 3, down_bps=2e6, mtu=4200)
    with pytest.raises(SystemExit):
        parse_options(["udp-indexed", "many", "3"])
