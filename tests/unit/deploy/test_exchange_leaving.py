"""A silo that dies in a round of the program `exchange`: it ends with the silo's name, whatever a protocol waits in."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.softroce.programs.exchange import leaving
from deploy.softroce.programs.exchange.interface import MEETING
from deploy.softroce.programs.meeting import Chair, chaired, seated
from fedrdma_fate.bench.protocols.brokers import mqtt_problem, quic_problem, zmtp_problem
from tests.support.repository import ROOT

SIZE = 200_000
PATIENCE_SECONDS = 100.0
DYING = """
import os, signal
from deploy.softroce.programs.exchange import __main__ as program, interface, leaving

leaving.GRACE_SECONDS, leaving.UNWIND_SECONDS = 1.0, 10.0

def compute(self, number):
    if (self.host, number) == (2, 1):
        os.kill(os.getpid(), signal.SIGKILL)

interface.MadeModels.compute = compute
program.main()
"""
"""The program, but silo 2 dies in its second round, once it has the server's model."""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "protocol",
    [
        "tcp-serial",
        "udp-indexed",
        "grpc-stream",
        "fedrdma-x/tcp",
        pytest.param("mqtt-0", marks=pytest.mark.skipif(mqtt_problem(SIZE) is not None, reason="no mosquitto")),
        pytest.param("quic", marks=pytest.mark.skipif(quic_problem() is not None, reason="no aioquic")),
        *(
            pytest.param(name, marks=pytest.mark.skipif(zmtp_problem(SIZE) is not None, reason="no pyzmq"))
            for name in ("zmtp-pub", "zmtp-dealer")
        ),
    ],
)
def test_a_silo_that_dies_in_a_round_ends_it_with_its_name(tmp_path: Path, protocol: str) -> None:
    told = {
        "TESTBED_HOSTS": "127.0.0.1,127.0.0.2,127.0.0.3",
        "TESTBED_RATE": "",
        MEETING: str(tmp_path / "meeting"),
        "PYTHONPATH": str(ROOT),
    }
    kept = {name: value for name, value in os.environ.items() if name != "TESTBED_NETDEV"}
    command = [sys.executable, "-c", DYING, protocol, str(SIZE), "3", "--computing-seconds", "0"]
    hosts = []
    for number in range(3):
        with (tmp_path / f"errors-{number}").open("wb") as errors:
            hosts.append(
                subprocess.Popen(
                    command,
                    env={**kept, **told, "TESTBED_HOST": str(number)},
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                )
            )
    try:
        server, _, dead = hosts
        assert dead.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        status = server.wait(PATIENCE_SECONDS)
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    said = (tmp_path / "errors-0").read_text()
    assert status == 1, said
    # what is missing is said by who notices first
    assert "host 2 left" in said, said
    assert "round 2" in said


# --- who has left ---


class Endings:
    """Of the process, if it were one of its own."""

    def __init__(self) -> None:
        self.ended, self.said = threading.Event(), list[str]()

    def end_now(self, why: str) -> None:
        self.said.append(why)
        self.ended.set()


@pytest.fixture(autouse=True)
def endings(monkeypatch: pytest.MonkeyPatch) -> Endings:
    """Nothing here ends this process."""
    made = Endings()
    monkeypatch.setattr(leaving, "end_now", made.end_now)
    monkeypatch.setattr(leaving, "UNWIND_SECONDS", 3600.0)
    monkeypatch.setattr(leaving, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(leaving, "GRACE_SECONDS", 0.01)
    return made


def in_round(chair: Chair, number: int, does: Callable[[], object]) -> None:
    with leaving.ended_by_who_leaves(chair, number):
        does()


@pytest.fixture
def met(tmp_path: Path) -> Iterator[tuple[Chair, list[Any]]]:
    """Host 0's chair, and the seats of two others."""
    place = tmp_path / "meeting"
    there: list[tuple[int, Any, Any]] = []

    def come(number: int) -> None:
        seat = seated(number, place)
        there.append((number, seat.__enter__(), seat))

    comers = [threading.Thread(target=come, args=(number,)) for number in (1, 2)]
    for one in comers:
        one.start()
    with chaired(2, place) as chair:
        for one in comers:
            one.join()
        yield chair, [entry for _, *entry in sorted(there, key=lambda each: each[0])]


def test_who_is_silent_is_there_and_who_has_said_something_is_not_gone_until_that_is_heard(met: Any) -> None:
    chair, ((first, leave_first), (second, leave_second)) = met
    assert chair.gone() == []
    first.say("last words")
    leave_first.__exit__(None, None, None)
    leave_second.__exit__(None, None, None)
    assert chair.gone() == [2]
    del second


def test_a_round_that_all_stay_in_is_left_alone_and_the_signal_is_given_back(
    met: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chair, _ = met
    before = signal.getsignal(signal.SIGUSR1)
    looked = threading.Event()
    gone = chair.gone

    def counting() -> list[int]:
        looked.set()
        return list(gone())

    monkeypatch.setattr(chair, "gone", counting)
    with leaving.ended_by_who_leaves(chair, 0):
        assert looked.wait(PATIENCE_SECONDS)
    assert signal.getsignal(signal.SIGUSR1) == before


def test_who_waits_without_a_limit_is_told_by_name_and_round(met: Any) -> None:
    chair, ((_, leave_first), _) = met
    leave_first.__exit__(None, None, None)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(SystemExit, match="host 1 left: models of round 4 were not delivered"):
        in_round(chair, 3, lambda: ours.recv(1))


def test_what_the_server_says_itself_has_the_name_of_who_left(met: Any) -> None:
    chair, (_, (_, leave_second)) = met
    leave_second.__exit__(None, None, None)
    with pytest.raises(SystemExit, match="host 2 left in round 1: the other host hung up"):
        in_round(chair, 0, lambda: sys.exit("the other host hung up"))


def test_what_fails_while_all_are_there_is_left_as_it_is(met: Any) -> None:
    chair, _ = met
    with pytest.raises(ValueError, match="another model"), leaving.ended_by_who_leaves(chair, 0):
        raise ValueError("another model")


def test_a_server_whose_threads_still_wait_is_ended(
    met: Any, monkeypatch: pytest.MonkeyPatch, endings: Endings
) -> None:
    monkeypatch.setattr(leaving, "UNWIND_SECONDS", 0.01)
    chair, ((_, leave_first), _) = met
    leave_first.__exit__(None, None, None)
    with pytest.raises(SystemExit):
        in_round(chair, 1, threading.Event().wait)
    assert endings.ended.wait(PATIENCE_SECONDS)
    assert endings.said == ["host 1 left: models of round 2 were not delivered"]
