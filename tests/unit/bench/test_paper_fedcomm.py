"""`fedrdma bench paper fedcomm`: FedComm's figures by number, what they ask, and ours beside what its text states."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.paper.fedcomm import FIGURES, _signed_cell
from fedrdma_fate.bench.paper.published import NOT_STATED
from fedrdma_fate.bench.plots import Series
from fedrdma_fate.bench.protocols import stress
from fedrdma_fate.bench.protocols.rows import select_protocol_rows
from fedrdma_fate.bench.wan.testbed import TestbedRun
from fedrdma_fate.cli import bench_paper_fedcomm as command
from fedrdma_fate.cli.main import main
from tests.support.repository import ROOT

SECONDS = {"tcp-serial": 6.0, "udp-fedcomm": 3.0, "mqtt-0": 4.0, "amqp-fanout": 4.0, "zmtp-pub": 5.0}
BESIDE_STRESS = 2.0
"""Times as long."""


class Machine:
    """Hosts, in a testbed or on loopback, that take so long by row; what they were asked to run."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.failing: set[str] = set()
        self.interrupts_at = 0

    def run(self, where: str, silos: int, program: Sequence[str]) -> TestbedRun:
        row, rounds = program[1].split(",")[0], int(program[3])
        self.asked.append((where, row))
        if len(self.asked) == self.interrupts_at:
            raise KeyboardInterrupt
        if row in self.failing:
            raise RowError("the testbed is tired")
        seconds = SECONDS.get(row, 4.5) * (BESIDE_STRESS if "--flows" in program or where == "busy" else 1.0)
        told = [self._round(seconds, silos, number, "--train" in program) for number in range(rounds)]
        lines = f"[0] {json.dumps(told)}\n" * len(program[1].split(","))
        return TestbedRun(lines, {"lost": {}, "overflowed": {}}, 1.0)

    def _round(self, seconds: float, silos: int, number: int, trains: bool) -> dict[str, Any]:
        trained = {"accuracy": min(0.9, 0.1 * (number + 1)), "digest": f"{number:064x}"} if trains else {}
        usage = dict.fromkeys(("server_cpu_seconds", "silos_cpu_seconds", "broker_cpu_seconds"), 0.1)
        return {
            "seconds": seconds,
            "fedcomm_seconds": seconds,
            "silo_seconds": [seconds] * silos,
            "down_seconds": [1.0] * silos,
            "usage": {**usage, "broker_peak_bytes": 0},
            **dict.fromkeys(("resent_bytes", "tcp_resent_bytes", "sent_bytes", "received_bytes", "dropped"), 0),
            **dict.fromkeys(("missing_down_bytes", "missing_up_bytes"), 0),
            **trained,
        }


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()

    @dataclasses.dataclass
    class Hosts:
        where: str
        silos: int

        def check(self) -> None:
            made.asked.append(("checked", ""))

        def run_all(self, program: Sequence[str], memory_bytes: int) -> TestbedRun:
            del memory_bytes
            return made.run(self.where, self.silos, program)

    def testbed(_repository: Path, link: Any, *_: Any, more: Sequence[str]) -> Hosts:
        return Hosts(f"{link.rate_bps / 1e6:g} {link.loss:g}", int(more[1]) - 1)

    def loopback(_repository: Path, silos: int, _limit: float, busy: bool) -> Hosts:
        return Hosts("busy" if busy else "loopback", silos)

    def all_there(names: Sequence[str]) -> list[Any]:
        return [dataclasses.replace(row, find_problem=lambda _: None) for row in select_protocol_rows(names)]

    monkeypatch.setattr(command, "Testbed", testbed)
    monkeypatch.setattr(command, "Loopback", loopback)
    monkeypatch.setattr(command, "select_protocol_rows", all_there)
    monkeypatch.setattr(command, "provide_brokers", lambda *_: None)
    monkeypatch.setattr(stress, "find_program", lambda name: f"/bin/{name}")
    return made


def fedcomm(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "paper", "fedcomm", "--checkout", str(ROOT), *arguments])


def figure(*arguments: str) -> dict[str, Any]:
    """The document of one figure."""
    done = fedcomm(*arguments, "--json")
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["figures"]
    return dict(found)


def stated(document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["what"]: (one["paper"], one["ours"]) for one in document["stated"]}


# --- what is measured ---


def test_all_of_the_paper_s_figures_with_values_are_there() -> None:
    assert list(FIGURES) == list(range(3, 12))


def test_a_figure_has_the_paper_s_rows_and_ours_on_its_networks_with_its_models(machine: Machine) -> None:
    document = figure("8", "--rounds", "1")
    assert machine.asked[0] == ("checked", "")
    assert {where for where, _ in machine.asked[1:]} == {"5 0", "20 0", "60 0"}
    rows = ["tcp-serial", "mqtt-0", "amqp-fanout", "zmtp-pub", "fedrdma-x/udp"]
    assert [row for _, row in machine.asked[1:]] == rows * 6
    assert (document["name"], document["rounds"], document["failures"]) == ("fedcomm-figure8", 1, {})
    assert [one["model"] for one in document["settings"]] == ["vgg5", "vgg8"] * 3


def test_losses_take_the_place_of_networks_in_figure_6(machine: Machine) -> None:
    figure("6", "--model", "vgg5", "--ours", "none")
    assert list(dict.fromkeys(where for where, _ in machine.asked[1:])) == ["20 0", "20 0.05", "20 0.1", "20 0.2"]


def test_a_busy_core_is_measured_on_loopback_beside_a_calm_one(machine: Machine) -> None:
    document = figure("9", "--model", "vgg8", "--ours", "fedrdma-x/tcp")
    assert {where for where, _ in machine.asked} == {"loopback", "busy"}
    assert [one["clock"] for one in document["settings"]] == ["real", "real"]


def test_accuracy_is_trained_on_wi_fi_in_figure_11(machine: Machine) -> None:
    document = figure("11", "--ours", "none")
    assert {where for where, _ in machine.asked[1:]} == {"60 0"}
    assert all(one["train"] == "vgg5" for one in document["settings"])
    assert stated(document)["mqtt-0, largest difference from TCP"] == ("below 0.5%", "0.00%")


def test_what_two_figures_share_is_measured_once_and_again_never_with_an_output(
    machine: Machine, tmp_path: Path
) -> None:
    asked = ("--network", "4g", "--model", "vgg5", "--rounds", "2", "--output", str(tmp_path))
    assert fedcomm("8", "10", *asked).exit_code == 0
    calm = [row for where, row in machine.asked if where == "20 0"]
    assert calm.count("tcp-serial") == 2, "without stress and with it"
    measured = len(machine.asked)
    assert fedcomm("8", *asked).exit_code == 0
    assert machine.asked[measured:] == [("checked", "")]
    assert {"paper-fedcomm-figure8.json", "paper-fedcomm-figure10.html"} <= {one.name for one in tmp_path.iterdir()}


# --- ours beside the paper's ---


def test_factors_of_the_text_stand_beside_ours(machine: Machine) -> None:
    del machine
    document = figure("8", "--model", "vgg5", "--network", "3g,wifi", "--rounds", "2")
    assert stated(document) == {
        "TCP over AMQP, 3g, vgg5": ("1.75×", "1.50×"),
        "TCP over AMQP, wifi, vgg5": ("2.5×", "1.50×"),
    }


def test_what_stress_adds_is_the_sum_of_the_networks(machine: Machine) -> None:
    del machine
    document = figure("10", "--model", "vgg8", "--rounds", "2", "--ours", "none")
    # three networks, two rounds, as long again
    assert stated(document)["added, tcp-serial, vgg8"] == ("+158 s", "+36 s")
    assert _signed_cell(-0.25) == "-0.25 s"


def test_accuracies_of_the_repository_stand_beside_ours_as_far_as_rounds_go(machine: Machine) -> None:
    del machine
    told = stated(figure("7", "--network", "4g", "--rounds", "5", "--ours", "none"))
    assert told["tcp-serial after round 1, 4g (its repository)"] == ("44.48%", "10.0 %")
    assert told["tcp-serial after round 100, 4g (its repository)"] == ("81.51%", "-")


@pytest.mark.parametrize("number", [7, 11])
def test_curves_of_accuracy_of_all_rows_and_networks_are_in_one_plot(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    drawn: list[tuple[list[float], dict[str, list[float | None]]]] = []

    def line_plot(title: str, _x_label: str, _y_label: str, x: Sequence[float], series: Sequence[Series]) -> bytes:
        assert title == f"Figure {number}, vgg5"
        drawn.append((list(x), {one.label: list(one.values) for one in series}))
        return b"a picture"

    monkeypatch.setattr("fedrdma_fate.bench.paper.fedcomm.line_plot", line_plot)
    machine.failing = {"fedrdma-x/udp"}
    assert fedcomm(str(number), "--network", "3g,wifi", "--rounds", "3", "--output", str(tmp_path)).exit_code == 1
    ((x, curves),) = drawn
    networks = ["wifi"] if number == 11 else ["3g", "wifi"]
    assert x == [1, 2, 3]
    assert list(curves) == [f"{row}, {one}" for row in [*FIGURES[number].rows, "fedrdma-x/udp"] for one in networks]
    assert curves["tcp-serial, wifi"] == pytest.approx([0.1, 0.2, 0.3])
    assert curves["fedrdma-x/udp, wifi"] == [None] * 3, "what was not measured has no curve"
    assert (tmp_path / f"paper-fedcomm-figure{number}-vgg5.png").read_bytes() == b"a picture"


@pytest.mark.parametrize("number", FIGURES)
def test_every_figure_says_that_its_values_are_not_stated(machine: Machine, number: int) -> None:
    del machine
    done = fedcomm(str(number), "--rounds", "1")
    assert done.exit_code == 0, done.output
    assert NOT_STATED in done.stdout
    assert "What the paper's text states" in done.stdout


def test_a_row_that_fails_is_named_and_the_others_are_shown(machine: Machine) -> None:
    machine.failing = {"amqp-fanout"}
    done = fedcomm("8", "--network", "4g", "--model", "vgg5", "--rounds", "1")
    assert done.exit_code == 1
    assert "fedcomm-figure8: amqp-fanout was not measured: the testbed is tired" in done.stderr
    assert "6.00 s" in done.stdout


def test_an_interrupted_figure_shows_what_there_is_and_none_after_it(machine: Machine) -> None:
    machine.interrupts_at = 3
    done = fedcomm("3", "8", "--network", "4g", "--model", "vgg5", "--rounds", "1", "--ours", "none")
    assert done.exit_code == 130
    assert "Figure 3" in done.stdout
    assert "Figure 8" not in done.stdout


# --- what is refused, before anything is measured ---


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["2"], 2, "there is no figure '2': 3 to 11"),
        (["eight"], 2, "there is no figure 'eight'"),
        (["8", "--network", "5g"], 1, "--network: '5g' is none of 3g, 4g, wifi"),
        (["8", "--model", "vgg6"], 1, "--model: 'vgg6' is none of vgg5, vgg8"),
        (["8", "--ours", "pigeons"], 1, "there is no row 'pigeons'"),
        (["11", "--network", "3g"], 1, "figure 11 has network wifi, models vgg5, none of which was asked for"),
        (["7", "--model", "vgg8"], 1, "figure 7 has models vgg5, none of which was asked for"),
        (["8", "10", "--silos", "1"], 1, "--stress net: a flow goes between two silos"),
        (["7", "--data", "/no/pictures"], 1, "--data"),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_is_measured(
    machine: Machine, arguments: list[str], status: int, said: str
) -> None:
    done = fedcomm(*arguments)
    assert done.exit_code == status, done.output
    assert said in done.output
    assert machine.asked == []


def test_without_stress_ng_no_figure_is_measured(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress, "find_program", lambda _: None)
    done = fedcomm()
    assert done.exit_code == 1
    assert "apt-get install stress-ng" in done.stderr
    assert machine.asked == []


def test_without_a_testbed_it_says_what_to_do(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["bench", "paper", "fedcomm", "3", "--checkout", str(tmp_path)])
    assert done.exit_code == 1
    assert f"[FR505] {tmp_path} holds no testbed" in done.stderr
