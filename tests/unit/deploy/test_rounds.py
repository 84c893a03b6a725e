"""The testbed's program for rounds: how hosts meet, what a round is, what its gateways know, and what it is asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deploy.softroce.programs import rounds
from deploy.softroce.programs.counters import Counters
from deploy.softroce.programs.meeting import Chair, Seat, chaired, seated
from deploy.softroce.programs.rounds import Options, configuration, parse_options, run_arbiter, run_silo
from deploy.softroce.programs.trace_tail import Tail
from fedrdma_fate.bench.incast.rows import IncastRow, all_incast_rows
from fedrdma_fate.bench.incast.settings import IncastSetting
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.gateway.config.schema import parse_config

OPTIONS = Options("fedrdma-x", 4 * 2**20, 2, True, {})


@pytest.fixture(autouse=True)
def hosts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Make this process a host of a testbed: its number, and how many there are."""

    def become(me: int, count: int) -> None:
        addresses = [f"127.0.0.{number + 1}" for number in range(count)]
        monkeypatch.setenv("TESTBED_HOST", str(me))
        monkeypatch.setenv("TESTBED_HOSTS", ",".join(addresses))

    become(0, 3)
    return become


# --- meetings ---


def test_hosts_hear_each_other_in_the_order_of_their_numbers_whoever_comes_first(tmp_path: Path) -> None:
    place = tmp_path / "meeting"

    def attend(number: int) -> object:
        with seated(number, place) as seat:
            seat.say(f"I am {number}")
            return seat.hear()

    with ThreadPoolExecutor(2) as pool:
        heard = [pool.submit(attend, number) for number in (2, 1)]
        with chaired(2, place) as chair:
            assert chair.hear() == ["I am 1", "I am 2"]
            chair.tell({"begin": 1.5})
            assert [each.result() for each in heard] == [{"begin": 1.5}] * 2


def test_a_host_that_leaves_ends_the_meeting_for_the_others(tmp_path: Path) -> None:
    place = tmp_path / "meeting"

    def leave() -> None:
        with seated(1, place):
            pass

    leaving = threading.Thread(target=leave)
    leaving.start()
    with chaired(1, place) as chair:
        leaving.join()
        with pytest.raises(SystemExit, match="host 1 has left"):
            chair.hear()


def test_a_meeting_that_nobody_calls_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.softroce.programs.meeting.PATIENCE_SECONDS", 0.01)
    with pytest.raises(SystemExit, match="calls no meeting"), seated(1, tmp_path / "meeting"):
        pass


# --- rounds ---


class FakeChair(Chair):
    """Silos that say what they are told to."""

    def __init__(self, said: list[list[Any]]) -> None:
        super().__init__([])
        self.told: list[Any] = []
        self._said = iter(said)

    def tell(self, what: object) -> None:
        self.told.append(what)

    def hear(self) -> list[Any]:
        return next(self._said)


class FakeArbiter:
    """Has everything at once, 20 and 30 ms behind the moment that it was told."""

    def __init__(self, chair: FakeChair) -> None:
        self._chair = chair

    def take(self, number: int) -> list[float]:
        return [self._chair.told[number] + 0.02, self._chair.told[number] + 0.03]

    def give(self, number: int) -> int:
        del number
        return 5

    def knows(self) -> dict[str, Any]:
        return {"found_by": "probed"}


def test_a_round_lasts_until_the_last_silo_has_the_aggregate_and_counts_what_all_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "read_counters", lambda: Counters(100, 10))
    later = time.monotonic() + 100
    told = {"resent": 7, "tcp_resent_bytes": 3, "sent_bytes": 20}
    said = [{"got": later, **told}, {"got": later + 1, **told}]
    chair = FakeChair([["ready"] * 2, said, said])
    made = run_arbiter(FakeArbiter(chair), chair, OPTIONS)
    assert chair.told[-1] == "done"
    for number, one in enumerate(made):
        assert one["begun"] == chair.told[number]
        assert one["seconds"] == pytest.approx(later + 1 - one["begun"])
        assert one["up_seconds"] < 1
        assert one["silo_seconds"] == pytest.approx([0.02, 0.03])
        assert (one["resent_bytes"], one["tcp_resent_bytes"], one["sent_bytes"]) == (19, 6, 40)
        assert one["found_by"] == "probed"


def test_what_is_known_of_a_link_is_what_the_latest_share_of_one_that_sends_to_it_was_made_of() -> None:
    def share(direction: str, rate: float | None, found_by: str) -> dict[str, Any]:
        return {"event": "share", "direction": direction, "link_bits_per_second": rate, "found_by": found_by}

    events = [{"event": "link"}, share("receive", None, "unknown"), share("receive", 8e8, "probed")]
    trace = "\n".join(json.dumps(event) for event in [*events, share("send", 1e9, "arrivals"), {"event": "offer"}])
    assert rounds.link_known(trace) == {"link_bits_per_second": 8e8, "found_by": "probed"}
    assert rounds.link_known('{"event": "link"}\n') == {}


def test_silos_begin_one_after_the_other_within_a_millisecond(
    hosts: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "read_counters", lambda: Counters(0, 0))
    begun: list[float] = []

    class Silo:
        def prepare(self, number: int) -> None: ...

        def put(self, number: int) -> None:
            begun.append(now[0] + number)

        def get(self, number: int) -> None: ...

        def resent(self, number: int) -> int:
            return number

    class FakeSeat(Seat):
        def __init__(self) -> None: ...

        def say(self, what: object) -> None: ...

        def hear(self) -> float:
            return 50.0

    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    for me in (1, 2, 8):
        now[0] = 49.0
        hosts(me, 9)
        run_silo(Silo(), FakeSeat(), Options("fedrdma-x", 1, 1, False, {}))
    assert begun == pytest.approx([50.0, 50.000125, 50.000875])


# --- gateways ---


@pytest.mark.parametrize("kind", ["fedrdma-x", "fedrdma-x-udp", "grpc"])
@pytest.mark.parametrize(("silos", "size"), [(1, 10**6), (16, 4 * 2**20), (8, 64 * 2**20)])
def test_silos_know_the_arbiter_alone_and_dial_it_with_room_for_what_comes(
    kind: str, silos: int, size: int, hosts: Callable[[int, int], None], tmp_path: Path
) -> None:
    options = Options(kind, size, 1, False, {})
    hosts(0, silos + 1)
    arbiter = parse_config(configuration(tmp_path, options))
    hosts(silos, silos + 1)
    silo = parse_config(configuration(tmp_path, options))
    assert [(peer.site, peer.address) for peer in silo.peers] == [("site0", "127.0.0.1:9370")]
    assert [(peer.site, peer.address) for peer in arbiter.peers] == [
        (f"site{number}", None) for number in range(1, silos + 1)
    ]
    assert arbiter.memory.receive_bytes >= min(2 * silos * size, 900 * 2**20)
    assert silo.memory.send_bytes > size


def test_what_is_set_reaches_the_gateways(tmp_path: Path) -> None:
    options = parse_options(["fedrdma-x", "1000000", "3", "--down", "--set", "repair_chunks=false"])
    assert options == Options("fedrdma-x", 10**6, 3, True, {"repair_chunks": False})
    assert parse_config(configuration(tmp_path, options)).repair_chunks is False


@pytest.mark.parametrize("row", all_incast_rows(), ids=lambda row: row.name)
def test_what_a_row_of_the_benchmark_asks_for_is_taken_by_program_and_gateways(row: IncastRow, tmp_path: Path) -> None:
    setting = IncastSetting(WanLink(10**9, 20_000_000, 500_000, 0.0), 2, 10**6)
    options = parse_options(row.program(setting, 3)[1:])
    assert (options.kind, options.size, options.rounds) == (row.kind, 10**6, 3)
    assert len(options.settings) == len(row.settings)
    if not row.kind.startswith("tcp-"):
        parse_config(configuration(tmp_path, options))


# --- the trace ---


def test_a_message_to_several_peers_is_waited_for_until_all_have_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    events = [{"event": "sent", "name": "a0", "peer": peer} for peer in ("site1", "site2")]
    trace.write_text(json.dumps(events[0]) + "\n" + json.dumps({"event": "sent", "name": "m0"}) + "\n")
    tail = Tail(trace, patience=0.05)
    with pytest.raises(SystemExit, match=r"a0 was not delivered in 0.05 s"):
        tail.wait_for_end("a0", 2)
    with trace.open("a") as file:
        file.write("".join(json.dumps(event) + "\n" for event in events))
    assert tail.wait_for_end("a0", 2) == events
    with trace.open("a") as file:
        file.write(json.dumps({"event": "undeliverable", "name": "m1", "reason": "gone"}) + "\n")
    with pytest.raises(SystemExit, match="m1 was not delivered: gone"):
        tail.wait_for_end("m1")
