"""Flows beside the rounds of the program `exchange`: where they go, what they bring, and that they end."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.softroce.programs.exchange import rounds
from deploy.softroce.programs.exchange.__main__ import parse_options, take_part
from deploy.softroce.programs.exchange.flows import Taken, _until, receivers_of
from deploy.softroce.programs.exchange.interface import Host, Options
from fedrdma_fate.bench.protocols.stress import FLOWS
from tests.support.sites import eventually

SIZE = 20_000
ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")


def test_silos_go_together_in_pairs_and_an_odd_one_is_left_alone() -> None:
    assert [receivers_of(number, "silos", 4) for number in range(5)] == [[], [2], [1], [4], [3]]
    assert [receivers_of(number, "silos", 3) for number in range(4)] == [[], [2], [1], []]


def test_or_all_go_into_the_server() -> None:
    assert [receivers_of(number, "server", 3) for number in range(4)] == [[], [0], [0], [0]]


def test_the_command_offers_what_the_program_knows(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in FLOWS:
        assert parse_options(["tcp-cubic", "1", "1", "--flows", kind]).flows == kind
    with pytest.raises(SystemExit):
        parse_options(["tcp-cubic", "1", "1", "--flows", "pigeons"])
    assert "pigeons" in capsys.readouterr().err


def test_what_came_between_two_moments_is_taken_evenly_between_notes() -> None:
    notes = [(10.0, 0), (11.0, 1000), (13.0, 5000)]
    assert [_until(notes, moment) for moment in (9.0, 10.0, 10.5, 11.0, 12.0, 13.0, 14.0)] == [
        0,
        0,
        500,
        1000,
        3000,
        5000,
        5000,
    ]


def test_where_no_flow_goes_there_is_no_rate() -> None:
    assert Taken().rate(0.0, 1.0) is None


def test_a_flow_s_rate_is_what_came_and_what_it_cost_is_counted() -> None:
    taken, (sender, receiver) = Taken(), socket.socketpair()
    began = time.monotonic()
    thread = threading.Thread(target=taken.take, args=(receiver,), daemon=True)
    with sender, receiver:
        taken.start(thread)
        sent = 0
        while sent < 4_000_000 or taken.cpu_seconds() == 0.0:
            sender.sendall(bytes(50_000))
            sent += 50_000
        eventually(lambda: (taken.rate(began, time.monotonic()) or 0.0) > 0)
        sender.shutdown(socket.SHUT_WR)
        thread.join()
    assert taken.cpu_seconds() == 0.0, "what has ended costs nothing"
    rate = taken.rate(began, began + 1.0)
    assert rate is not None
    assert 0 < rate <= 8 * sent


@pytest.mark.parametrize("kind", FLOWS)
def test_models_arrive_whole_beside_flows_which_end_with_the_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.2)
    monkeypatch.delenv("TESTBED_NETDEV", raising=False)
    # so that something comes while models do
    asked = Options("tcp-reno", SIZE, 2, computing_seconds=0.2, flows=kind)
    everyone = [Host(number, ADDRESSES, tmp_path / "meeting") for number in range(4)]
    before = threading.active_count()
    with ThreadPoolExecutor(4) as pool:
        parts = [pool.submit(lambda host: list(take_part(host, asked)), host) for host in everyone]
        (told,), *_ = [part.result() for part in parts]
    assert [(one["missing_down_bytes"], one["missing_up_bytes"]) for one in told] == [(0, 0), (0, 0)]
    assert all(one["flow_bps"] is not None for one in told)
    assert threading.active_count() == before


def test_without_flows_no_rate_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.0)
    monkeypatch.delenv("TESTBED_NETDEV", raising=False)
    asked = Options("tcp-reno", SIZE, 1, computing_seconds=0.0)
    everyone = [Host(number, ADDRESSES[:2], tmp_path / "meeting") for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        parts = [pool.submit(lambda host: list(take_part(host, asked)), host) for host in everyone]
        ((one,),), _ = [part.result() for part in parts]
    assert one["flow_bps"] is None
