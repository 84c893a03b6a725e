"""`fedrdma bench incast`: what is asked, the least a round takes, what is made of the arbiter's words, and failures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.incast.results import IncastMeasurement, Round, read_measurement, to_document, to_plot, to_table
from fedrdma_fate.bench.incast.rows import all_incast_rows, select_incast_rows
from fedrdma_fate.bench.incast.runner import IncastSweep, Log, measure, run_incast
from fedrdma_fate.bench.incast.settings import IncastSetting, parse_incast_settings
from fedrdma_fate.bench.sweep import INTERRUPTED
from fedrdma_fate.bench.wan.checkpoint import KeptMeasurements
from fedrdma_fate.bench.wan.settings import Peculiarities
from fedrdma_fate.bench.wan.testbed import TestbedRun
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.cli import bench_incast as command
from fedrdma_fate.cli.main import main
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, TransportError

LINK = WanLink(10**9, 20_000_000, 500_000, 0.0)
SETTING = IncastSetting(LINK, 8, 4 * 2**20)
MIB4 = 4 * 2**20


def bench_incast(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "incast", *arguments])


def told(begun: float, seconds: float, silos: int = 8, **more: Any) -> dict[str, Any]:
    """What the arbiter says of a round."""
    counted = {"resent_bytes": 1000, "tcp_resent_bytes": 7, "sent_bytes": 5000}
    return {
        "begun": begun,
        "seconds": seconds,
        "up_seconds": seconds,
        "silo_seconds": [seconds * (number + 1) / silos for number in range(silos)],
        **counted,
        **more,
    }


class Hosts:
    """Say what they are told to; may fail or be interrupted at a run by its number."""

    def __init__(
        self, rounds: Sequence[dict[str, Any]], failing: int | None = None, stopped: int | None = None
    ) -> None:
        self.rounds, self.failing, self.stopped = rounds, failing, stopped
        self.programs: list[Sequence[str]] = []
        self.memory: list[int] = []

    def run_all(self, program: Sequence[str], memory_bytes: int) -> TestbedRun:
        self.programs.append(program)
        self.memory.append(memory_bytes)
        if len(self.programs) == self.stopped:
            raise KeyboardInterrupt
        if len(self.programs) == self.failing:
            raise RowError("the testbed is tired")
        counts = {
            "lost": {"1": 2, "2": 3},
            "overflowed": {"0": 40, "1": 1},
            "queues": {"0": [[0.5, 9999], [2.0, 100], [4.0, 300]], "1": [[2.5, 200]]},
        }
        return TestbedRun(f"[1] noise\n[0] a warning\n[0] {json.dumps(self.rounds)}\n", counts, 12.0)


def row(name: str) -> Any:
    (found,) = select_incast_rows([name])
    return found


# --- what is asked ---


def test_lists_are_run_in_all_combinations_silos_outermost() -> None:
    settings = parse_incast_settings("8, 16", "1gbit,10gbit", "20ms", "bdp", "0", "4MiB", False, Peculiarities())
    assert [(one.silos, one.link.rate_bps, one.link.buffer_bytes) for one in settings] == [
        (8, 10**9, 2_500_000),
        (8, 10**10, 25_000_000),
        (16, 10**9, 2_500_000),
        (16, 10**10, 25_000_000),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--silos", "0"], "[FR102] --silos: '0' is no number from 1 to 64"),
        (["--silos", "65"], "[FR102] --silos: '65' is no number from 1 to 64"),
        (["--silos", "many"], "[FR102] --silos: 'many' is no number"),
        (["--silos", "8.5"], "[FR102] --silos: '8.5' is no number"),
        (["--silos", "-8"], "[FR102] --silos: '-8' is no number"),
        (["--silos", "9" * 5000], "[FR102] --silos: "),
        (["--silos", "٨"], "[FR102] --silos: "),
        (["--silos", "8,8"], "[FR102] --silos: '8,8' has a value twice"),
        (["--rate", "fast"], "[FR102] --rate: 'fast' is not a rate"),
        (["--loss", "1"], "[FR102] --loss: '1' is not a loss"),
        (["--size", "0"], "[FR102] --size: '0': a size cannot be zero"),
        (["--nic-rate", "fast"], "[FR102] --nic-rate: 'fast' is not a rate"),
        (["--rows", "tcp-vegas"], "[FR102] there is no row 'tcp-vegas'"),
        (["--checkout", "/nowhere"], "[FR505] /nowhere holds no testbed"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_option(arguments: list[str], said: str) -> None:
    done = bench_incast(*arguments)
    assert done.exit_code == 1
    assert said in done.output


def test_without_a_kernel_nothing_is_measured_and_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(_: object) -> None:
        raise TransportError(ErrorCode.TESTBED_UNAVAILABLE, "the testbed: there is no nic kernel.", "Build one.")

    monkeypatch.setattr("fedrdma_fate.bench.wan.testbed.Testbed.check", check)
    done = bench_incast()
    assert done.exit_code == 1
    assert "[FR505]" in done.output
    assert "there is no nic kernel" in done.output


# --- the least ---


def test_the_least_is_all_payloads_with_their_headers_at_the_link_s_rate_and_half_a_round_trip() -> None:
    # 1024 packets of 4096 bytes, 58 bytes of headers each
    assert SETTING.wire_bytes == MIB4 + 1024 * 58
    assert SETTING.least_seconds == pytest.approx(8 * (MIB4 + 1024 * 58) * 8 / 1e9 + 0.01)
    small = dataclasses.replace(LINK, mtu_bytes=1500)
    assert IncastSetting(small, 1, 1025).wire_bytes == 1025 + 2 * 58


def test_on_the_way_down_the_card_or_a_silo_s_link_is_what_holds_it_up() -> None:
    one_link = SETTING.wire_bytes * 8 / 1e9
    fast = dataclasses.replace(SETTING, down=True)
    assert fast.least_seconds - SETTING.least_seconds == pytest.approx(one_link + 0.01)
    slow = dataclasses.replace(fast, link=dataclasses.replace(LINK, nic_rate_bps=10**9))
    assert slow.least_seconds - SETTING.least_seconds == pytest.approx(8 * one_link + 0.01)


# --- what is made of it ---


def test_a_row_has_the_rounds_what_was_sent_again_and_the_deepest_buffer_of_each() -> None:
    hosts = Hosts([told(1.0, 2.0), told(3.0, 1.0)])
    measured = measure(row("fedrdma-x"), SETTING, hosts, 2)
    assert hosts.programs == [["deploy.softroce.programs.rounds", "fedrdma-x", str(MIB4), "2"]]
    assert measured.round_seconds == [2.0, 1.0]
    assert (measured.resent_bytes, measured.missing_share) == (2000, 0.0)
    # what a buffer held before the first round is not the rounds'
    assert [one.queue_bytes for one in measured.rounds] == [200, 300]
    assert (measured.lost_packets, measured.overflowed_packets) == (5, 41)
    assert measure(row("tcp-cubic"), SETTING, Hosts([told(1.0, 2.0)]), 1).resent_bytes == 7


def test_the_way_down_is_asked_for() -> None:
    hosts = Hosts([told(1.0, 2.0)])
    measure(row("grpc"), dataclasses.replace(SETTING, down=True), hosts, 1)
    assert hosts.programs[0][-1] == "--down"


def test_a_guest_with_seventeen_hosts_fits_into_a_small_machine() -> None:
    for each in all_incast_rows():
        assert each.guest_bytes(dataclasses.replace(SETTING, silos=16)) < 7.5e9


@pytest.mark.parametrize(
    ("rounds", "problem"),
    [
        ([told(1.0, 2.0)], "made 1 rounds instead of 2"),
        ([told(1.0, 2.0), {"begun": 3.0}], "did not say how long its rounds took"),
        ([told(1.0, 2.0), told(3.0, 1.0, silos=7)], "when the payload of each of 8 silos was there"),
    ],
)
def test_an_arbiter_that_says_too_little_fails_the_row(rounds: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(RowError, match=problem):
        measure(row("fedrdma-x"), SETTING, Hosts(rounds), 2)


# --- a sweep ---


def _log(path: Path | None = None, **conditions: object) -> Log:
    return KeptMeasurements(path, conditions or {"rounds": 1}, command._describe, read_measurement)


def sweep(hosts: Hosts, log: Log | None = None, names: Sequence[str] = ("fedrdma-x", "tcp-bbr")) -> IncastSweep:
    return run_incast([SETTING], select_incast_rows(names), lambda _: hosts, 1, log or _log(), lambda _: None)


def test_a_row_that_fails_is_named_and_the_others_go_on() -> None:
    done = sweep(Hosts([told(1.0, 2.0)], failing=1))
    assert done.failures == {"fedrdma-x": "the testbed is tired"}
    assert [one.name for one in done.runs[0].measurements] == ["tcp-bbr"]


def test_an_interrupted_sweep_says_what_is_missing_and_goes_on_with_it(tmp_path: Path) -> None:
    path = tmp_path / "measured"
    first = sweep(Hosts([told(1.0, 2.0)], stopped=2), _log(path))
    assert (first.interrupted, first.failures) == (True, {"tcp-bbr": INTERRUPTED})
    hosts = Hosts([told(1.0, 5.0)])
    second = sweep(hosts, _log(path))
    assert [one.round_seconds for one in second.runs[0].measurements] == [[2.0], [5.0]]
    assert first.runs[0].measurements[0] == second.runs[0].measurements[0]
    assert len(hosts.programs) == 1
    # other conditions are another measurement
    other = Hosts([told(1.0, 6.0)])
    sweep(other, _log(path, rounds=2))
    assert len(other.programs) == 2


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "measured"
    for content in ('{"what": {}, "measured": {"name": "x"}}\n', '{"what": {}, "measured": {"rounds": 3}}\n', "[]\n"):
        path.write_text(content)
        with pytest.raises(ConfigError) as refused:
            _log(path)
        assert refused.value.code is ErrorCode.CONFIG_BAD_VALUE


# --- what is shown ---


def _measured(*seconds: float) -> IncastMeasurement:
    rounds = [Round(each, each, (each / 2, each), 2**20, 2**25, 400_000) for each in seconds]
    return IncastMeasurement("fedrdma-x", tuple(rounds), 1, 2, 3.0)


def test_the_document_has_the_least_and_of_each_row_the_rounds() -> None:
    document = to_document(SETTING, [_measured(1.0, 0.5)], {"grpc": "tired"})
    assert document["least_seconds"] == SETTING.least_seconds
    assert document["failures"] == {"grpc": "tired"}
    rows = document["rows"]
    assert isinstance(rows, list)
    (shown,) = rows
    wanted = {"name": "fedrdma-x", "round_seconds": [1.0, 0.5], "resent_bytes": 2**21, "queue_bytes": 400_000}
    assert wanted | {"missing_share": 0.0, "silo_mean_seconds": 0.5625} == {
        key: shown[key] for key in (*wanted, "missing_share", "silo_mean_seconds")
    }
    assert json.loads(json.dumps(document)) == document | {"rows": json.loads(json.dumps(rows))}


def test_the_table_has_times_over_the_least_and_shares_of_the_payloads() -> None:
    table = to_table(SETTING, [_measured(1.0, 0.5, 0.4)])
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    least = SETTING.least_seconds
    assert cells["× least"] == f"{0.5 / least:.2f}"
    assert cells["its × least"] == f"{1.0 / least:.2f}"
    assert cells["p99"] == "1.00 s"
    # a MiB a round of 32
    assert cells["sent again"] == "3.1 %"
    assert to_plot("name", SETTING, [_measured(1.0)]).png.startswith(b"\x89PNG")


def test_the_99th_percentile_leaves_out_a_hundredth() -> None:
    assert _measured(*range(1, 201)).p99_seconds == 198
    assert _measured(3.0, 9.0).p99_seconds == 9.0


def test_a_run_is_shown_written_and_ends_with_the_status_of_its_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrdma_fate.bench.wan.testbed.Testbed.check", lambda _: None)
    hosts = Hosts([told(1.0, 2.0, silos=2)] * 2, failing=2)
    monkeypatch.setattr("fedrdma_fate.bench.wan.testbed.Testbed.run_all", lambda _, *asked: hosts.run_all(*asked))
    asked = ["--silos", "2", "--rounds", "2", "--rows", "fedrdma-x,grpc", "--output", str(tmp_path / "new")]
    done = bench_incast(*asked)
    assert done.exit_code == 1
    assert "grpc was not measured: the testbed is tired" in done.output
    assert "2 silos with 4 MiB each over 1 Gbit/s, RTT 20 ms" in done.output
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {"bench-incast.json", "bench-incast.html", "bench-incast-1.png", "bench-incast.measured.jsonl"}
    # the second time only what failed is measured
    again = bench_incast(*asked, "--json")
    assert again.exit_code == 0
    assert len(hosts.programs) == 3
    document = json.loads(again.stdout)
    assert [each["name"] for each in document["rows"]] == ["fedrdma-x", "grpc"]
