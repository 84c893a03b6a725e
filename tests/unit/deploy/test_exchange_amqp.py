"""AMQP in the program `exchange`: a real RabbitMQ where there is one, its end, and messages that are not right."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.softroce.programs.exchange import rounds
from deploy.softroce.programs.exchange.__main__ import take_part
from deploy.softroce.programs.exchange.interface import Host, MadeModels, Options, model_of
from fedrdma_fate.bench import rabbitmq
from fedrdma_fate.bench.ports import free_ports
from fedrdma_fate.bench.protocols.brokers import RabbitMq, amqp_problem
from fedrdma_fate.bench.rabbitmq import MANAGEMENT, USER, Broker, running_rabbitmq

SIZE = 20_000
"""Bytes of a model."""
PATIENCE_SECONDS = 120.0
ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")

amqp = pytest.importorskip("deploy.softroce.programs.exchange.amqp", exc_type=ImportError, reason="pika is missing")

RABBITMQ = pytest.mark.skipif(amqp_problem(SIZE) is not None, reason=f"AMQP {amqp_problem(SIZE)}")
SLOW_TO_START = pytest.mark.timeout(600)
"""A broker that shares two cores with other tests may take a minute."""


def parameters(broker: Broker) -> Any:
    return amqp._parameters(broker.address, broker.port, broker.password)


def runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def wait_for_end(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(map(runs, pids)):
        assert time.monotonic() < deadline, "it runs on"
        time.sleep(0.05)


@contextlib.contextmanager
def joined(broker: Broker, confirming: bool) -> Iterator[tuple[Any, Any]]:
    """Who listens to what it publishes itself."""
    with amqp._joined(parameters(broker), amqp.UP, amqp.UP, confirming) as ends:
        yield ends


# --- with a broker ---


@RABBITMQ
@SLOW_TO_START
def test_one_broker_serves_both_protocols_and_models_go_down_to_every_silo_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.0)
    monkeypatch.delenv("TESTBED_NETDEV", raising=False)
    # neither is believed, nor is either's broker touched
    monkeypatch.setenv("RABBITMQ_NODENAME", "other@localhost")
    monkeypatch.setenv("RABBITMQ_NODE_PORT", "5672")
    started: list[Broker] = []

    @contextlib.contextmanager
    def counting(*asked: Any) -> Iterator[Broker]:
        with running_rabbitmq(*asked) as broker:
            started.append(broker)
            yield broker

    monkeypatch.setattr(rabbitmq, "running_rabbitmq", counting)
    monkeypatch.setattr(amqp, "running_rabbitmq", counting)
    asked = Options("amqp-fanout,amqp-confirm", SIZE, 2, computing_seconds=0.0)
    everyone = [Host(number, ADDRESSES, tmp_path / "meeting") for number in range(3)]
    with ThreadPoolExecutor(3) as pool:
        told, *others = [
            part.result()
            for part in [pool.submit(lambda host: list(take_part(host, asked)), host) for host in everyone]
        ]
    assert others == [[], []]
    assert [len(protocol) for protocol in told] == [2, 2]
    for one in (each for protocol in told for each in protocol):
        assert len(one["silo_seconds"]) == len(one["down_seconds"]) == 2
        assert one["fedcomm_seconds"] <= one["seconds"]
        assert (one["missing_down_bytes"], one["missing_up_bytes"], one["dropped"]) == (0, 0, 0)
    (broker,) = started
    # and nothing is left of it
    assert not psutil.pid_exists(broker.pid)
    with pytest.raises(ConnectionRefusedError), socket.create_connection((broker.address, broker.port)):
        pass


@RABBITMQ
@SLOW_TO_START
def test_a_broker_that_is_killed_in_a_round_fails_it_with_what_was_not_delivered() -> None:
    with running_rabbitmq("127.0.0.1") as broker:
        with joined(broker, confirming=True) as (listener, publisher):
            publisher.publish(b"of another round", 2, 1)
            publisher.publish(model_of(1, 3, SIZE), 3, 1)
            assert listener.receive(3, [1], MadeModels(0, SIZE)).dropped == 1
            os.kill(broker.pid, signal.SIGKILL)
            with pytest.raises(
                SystemExit, match=r"the broker is gone: 2 models \(40,000 bytes\) of round 4 were not d"
            ):
                listener.receive(3, [1, 2], MadeModels(0, SIZE))
            with pytest.raises(
                SystemExit, match=r"the broker is gone \(.*\): 20,000 bytes of round 5 were not delivered"
            ):
                publisher.publish(model_of(1, 4, SIZE), 4, 1)
        with pytest.raises(SystemExit, match="the broker takes no subscription"):
            amqp.Listener(parameters(broker), amqp.UP, confirming=False)
        with pytest.raises(SystemExit, match="the broker takes no publisher"):
            amqp.Publisher(parameters(broker), amqp.UP, confirming=False)


@RABBITMQ
@SLOW_TO_START
def test_a_broker_ends_with_the_process_that_started_it_however_that_ends() -> None:
    program = (
        "import sys\n"
        "from fedrdma_fate.bench.rabbitmq import running_rabbitmq\n"
        f"with running_rabbitmq('127.0.0.1', [{MANAGEMENT!r}]) as broker:\n"
        "    print(broker.management_port, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        management_port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", management_port)):
            pass
        family = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(family) >= 2
        process.kill()
    wait_for_end(family)


# --- brokers that do not start ---


def fake(tmp_path: Path, server: str) -> RabbitMq:
    """A RabbitMQ whose programs are shell scripts."""
    binaries = tmp_path / "emulator"
    binaries.mkdir(parents=True)
    found = RabbitMq(binaries / "rabbitmq-server", tmp_path, binaries)
    for name, script in (("rabbitmq-server", server), ("epmd", "exec sleep 600")):
        (binaries / name).write_text(f"#!/bin/sh\n{script}\n")
        (binaries / name).chmod(0o755)
    return found


def test_ports_that_another_takes_meanwhile_are_left_to_it_and_others_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "listens.py"
    program.write_text(
        "import re, socket, time\n"
        "port = re.search(r'listeners.tcp.1 = .*:(.*)', open('rabbitmq.conf').read())[1]\n"
        "held = socket.create_server(('127.0.0.1', int(port)))\n"
        "time.sleep(600)\n"
    )
    found = fake(tmp_path, f"exec {shlex.quote(sys.executable)} {shlex.quote(str(program))}")
    monkeypatch.setattr(rabbitmq, "find_rabbitmq", lambda: found)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        chosen = [[taken, *free_ports(3)], free_ports(4)]
        monkeypatch.setattr(rabbitmq, "free_ports", lambda _: chosen.pop(0))
        with running_rabbitmq("127.0.0.1") as broker:
            assert broker.port != taken
        monkeypatch.setattr(rabbitmq, "free_ports", lambda _: [taken, *free_ports(3)])
        with pytest.raises(SystemExit, match="Address already in use"), running_rabbitmq("127.0.0.1"):
            pass


def test_a_broker_that_does_not_start_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    monkeypatch.setattr(
        rabbitmq, "find_rabbitmq", lambda: fake(tmp_path, f"echo $$ >{pids}\necho no luck today\nexit 1")
    )
    with pytest.raises(SystemExit, match="RabbitMQ does not start: no luck today"), running_rabbitmq("127.0.0.1"):
        pass
    wait_for_end([int(pids.read_text())])
    assert not [one for one in psutil.Process().children() if "sleep" in one.name()]


def test_without_rabbitmq_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbitmq, "find_rabbitmq", lambda: None)
    with pytest.raises(SystemExit, match="there is no RabbitMQ"), running_rabbitmq("127.0.0.1"):
        pass


def test_a_broker_is_told_nothing_that_this_process_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBITMQ_CONFIG_FILE", "/etc/rabbitmq/rabbitmq.conf")
    monkeypatch.setenv("ERL_EPMD_PORT", "4369")
    monkeypatch.setenv("ERL_FLAGS", "-s evil")
    made = rabbitmq._environment(tmp_path, fake(tmp_path, ""), 20001, 20002)
    assert "ERL_FLAGS" not in made
    assert (made["RABBITMQ_CONFIG_FILE"], made["ERL_EPMD_PORT"]) == (f"{tmp_path}/rabbitmq.conf", "20002")
    # the cookie
    assert made["HOME"] == str(tmp_path)


def test_a_broker_listens_on_its_own_ports_alone(tmp_path: Path) -> None:
    rabbitmq._configure(tmp_path, fake(tmp_path / "x", ""), "10.0.0.1", 20001, 20002, "secret", [MANAGEMENT])
    lines = (tmp_path / "rabbitmq.conf").read_text().splitlines()
    assert {"listeners.tcp.1 = 10.0.0.1:20001", "management.tcp.port = 20002", f"default_user = {USER}"} <= set(lines)
    assert (tmp_path / "plugins").read_text() == f"[{MANAGEMENT}].\n"


# --- messages ---


def messages(number: int = 0, sender: int = 1) -> list[bytes]:
    return list(amqp.parts_of(model_of(1, 0, SIZE), number, sender, 8_000))


def assembly() -> Any:
    return amqp.Assembly(0, [1, 2], MadeModels(0, SIZE), 8_000)


def test_a_model_that_no_message_carries_is_cut_and_put_together_in_any_order() -> None:
    parts = messages()
    assert len(parts) == 3
    made = assembly()
    for moment, body in enumerate(reversed(parts)):
        assert made.moments == {}
        made.add(body, float(moment))
    assert (made.moments, made.missing, made.missing_bytes, made.dropped) == ({1: 2.0}, 1, SIZE, 0)
    # what comes after it is whole
    made.add(parts[0], 9.0)
    assert (made.moments, made.dropped) == ({1: 2.0}, 1)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        messages(number=1)[0],
        messages(sender=3)[0],
        messages()[0][:-1],
        messages()[0] + b"x",
        messages()[0][:6] + b"\x00\x00\x00\x03" + messages()[0][10:],
        messages()[0][:6] + b"\xff\xff\xff\xff" + messages()[0][10:],
    ],
    ids=["empty", "short", "round", "sender", "cut", "long", "behind the end", "far behind the end"],
)
def test_messages_that_are_not_right_are_dropped_and_counted(body: bytes) -> None:
    made = assembly()
    made.add(body, 1.0)
    assert (made.dropped, made.missing_bytes) == (1, 2 * SIZE)


def test_a_part_that_comes_twice_counts_once() -> None:
    made = assembly()
    for _ in range(2):
        made.add(messages()[1], 1.0)
    assert (made.dropped, made.missing_bytes) == (1, 2 * SIZE - 8_000)


def test_a_model_that_came_as_something_else_ends_the_round() -> None:
    made = assembly()
    first, *others = messages()
    made.add(first[:-1] + bytes([first[-1] ^ 1]), 1.0)
    made.add(others[0], 1.0)
    with pytest.raises(SystemExit, match="of what host 1 sent in round 1, 1 bytes came as something else"):
        made.add(others[1], 1.0)
