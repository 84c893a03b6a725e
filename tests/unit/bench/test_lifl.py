"""`fedrdma bench lifl`: virtual time, sums by several gateways in it, and what its commands show."""

from __future__ import annotations

import functools
import json
import math

import pytest
from click.testing import CliRunner

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.lifl.costs import Costs, Hop, measure_costs, told
from fedrdma_fate.bench.lifl.figure8 import NOT_STATED, figure8
from fedrdma_fate.bench.lifl.hierarchy import Network, System, add_up
from fedrdma_fate.bench.lifl.simulation import Link, OneByOne, Worker, World
from fedrdma_fate.cli import bench_lifl
from fedrdma_fate.cli.main import main

COSTS = Costs(1e-9, 0.5, 0.2, 0.0, {"grpc": Hop(4e-9, 2e-9), "broker-sidecar": Hop(8e-9, 6e-9)}, 1000)
"""Adding a gigabyte takes a second."""
FAST = Network(math.inf, math.inf)
ONE = 1_000_000_000
"""Bytes of an update."""


def test_events_happen_in_order_and_none_in_the_past() -> None:
    world, seen = World(), []
    world.at(2.0, lambda: seen.append("later"))
    world.at(1.0, lambda: seen.append("first"))
    world.at(1.0, lambda: seen.append("second"))
    world.run()
    assert seen == ["first", "second", "later"]
    with pytest.raises(ValueError, match="an event at 1"):
        world.at(1.0, lambda: None)


def test_transfers_share_a_link_and_none_has_more_than_its_own() -> None:
    world = World()
    ends: dict[str, float] = {}
    link = Link(world, 100.0, 60.0)
    link.send(120, lambda: ends.update(first=world.now))
    # alone at 60 for a second, then at 50 beside another one
    world.at(1.0, lambda: link.send(100, lambda: ends.update(second=world.now)))
    world.run()
    assert ends["first"] == pytest.approx(1 + 60 / 50)
    # what is left of the second one goes at 60
    assert ends["second"] == pytest.approx(2.2 + 40 / 60)
    assert link.carried == 220


def test_many_transfers_that_end_together_end_once_each() -> None:
    world, ends = World(), []
    link = Link(world, 7.0, 3.0)
    for number in range(50):
        world.at(number % 3 * 0.1, lambda: link.send(10, lambda: ends.append(world.now)))
    world.run()
    assert len(ends) == 50
    assert max(ends) == pytest.approx(500 / 7)


def test_what_is_done_one_by_one_keeps_its_order() -> None:
    world, ends = World(), []
    line = OneByOne(lambda count, done: world.after(count, done))
    for count in (3, 1, 2):
        line.put(count, functools.partial(lambda count: ends.append((count, world.now)), count))
    assert line.waiting == 2
    world.run()
    assert ends == [(3, 3), (1, 4), (2, 6)]


def test_a_worker_that_has_to_start_does_so_once() -> None:
    world, ends = World(), []
    worker = Worker(world, 1.0, 0.25, 10.0)
    for _ in range(2):
        worker.add(4, lambda: ends.append(world.now))
    world.run()
    assert ends == [14.25, 18.5]
    assert (worker.first, worker.last, worker.busy_seconds) == (0.0, 18.5, 8.0)


def test_one_gateway_adds_each_update_once() -> None:
    arrivals = [(0.0, 3), (0.0, 3), (5.0, 3)]
    found = add_up(System("ours", warm=True, eager=True), COSTS, FAST, ONE, arrivals, 3)
    assert found.seconds == pytest.approx(6)
    assert found.cpu_seconds == pytest.approx(3)
    assert (found.gateways, found.started, found.moved_bytes) == (1, 0, 0)
    lazy = add_up(System("lazy", warm=True, eager=False), COSTS, FAST, ONE, arrivals, 3)
    assert lazy.seconds == pytest.approx(8)


def test_two_gateways_add_their_own_and_the_top_the_other_s_sum() -> None:
    network = Network(ONE / 2, ONE / 4)
    arrivals = [(0.0, 0), (0.0, 0), (0.0, 1), (0.0, 1)]
    found = add_up(System("ours", warm=True, eager=True), COSTS, network, ONE, arrivals, 0)
    # both add two, one moves its sum in four seconds, which is added
    assert found.seconds == pytest.approx(2 + 4 + 1)
    assert found.moved_bytes == ONE
    # cold and lazy, the top adds both sums when both are there
    cold = add_up(System("cold", warm=False, eager=False), COSTS, network, ONE, arrivals, 0)
    assert cold.seconds == pytest.approx(0.5 + 2 + 4 + 2)
    assert cold.started == 2
    assert cold.cpu_seconds == pytest.approx(2 * 0.2 + 6)


def test_a_hop_is_paid_for_each_update_and_each_sum() -> None:
    arrivals = [(0.0, 0), (0.0, 1)]
    found = add_up(System("SF", warm=True, eager=True, hop=COSTS.hops["grpc"]), COSTS, FAST, ONE, arrivals, 0)
    assert found.seconds == pytest.approx(4 + 1 + 4 + 1)
    assert found.cpu_seconds == pytest.approx(3 * 1 + 3 * 2)


def test_a_sum_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no updates"):
        add_up(System("ours", warm=True, eager=True), COSTS, FAST, ONE, [], 0)


def test_figure_8_has_every_row_and_only_what_the_paper_s_text_says() -> None:
    steps = figure8(COSTS, ONE, (20, 60))
    assert len(steps) == 2 * 2 * 4
    placed = {(step.updates, step.row): step.sum.gateways for step in steps}
    assert [placed[20, 0], placed[20, 1], placed[60, 0], placed[60, 1]] == [5, 1, 5, 3]
    for step in steps:
        assert (step.sooner is None) == (step.row == 0)
        # what is eager is never later
        assert step.row != 3 or (step.sooner or 0) >= 1
    assert {step.stated for step in steps if step.row == 1} == {"2.1 ×, 1 node", "1.13 ×, 3 nodes"}
    assert figure8(COSTS, ONE, (40,))[1].stated == NOT_STATED


def test_costs_are_measured_and_told() -> None:
    costs = measure_costs(10_000, lambda _: None)
    assert costs.start_seconds > costs.notice_seconds > 0
    assert costs.add_seconds_per_byte > 0
    assert costs.hops == {}
    assert "start of a worker" in told(costs)
    assert "grpc 4.00 ns a byte" in told(COSTS)


@pytest.mark.parametrize("command", ["figure8"])
def test_a_figure_prints_costs_and_tables_and_its_document(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(bench_lifl, "measure_costs", lambda *_, **__: COSTS)
    shown = CliRunner().invoke(main, ["bench", "lifl", command], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "Measured here" in shown.output
    document = json.loads(CliRunner().invoke(main, ["bench", "lifl", command, "--json"]).stdout)
    assert document["costs"]["start_seconds"] == 0.5
    assert document["rows"]
    json.dumps(document, allow_nan=False)


def test_a_figure_whose_costs_cannot_be_measured_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Costs:
        raise RowError("no worker")

    monkeypatch.setattr(bench_lifl, "measure_costs", fail)
    shown = CliRunner().invoke(main, ["bench", "lifl", "figure8"])
    assert shown.exit_code
    assert "no worker" in shown.output


def test_placements_are_timed() -> None:
    rows = json.loads(CliRunner().invoke(main, ["bench", "lifl", "placement", "--clients", "10000", "--json"]).stdout)
    stated = {row["policy"]: row["stated"] for row in rows["rows"]}
    assert stated["best-fit"] == "< 17 ms"
    assert stated["worst-fit"] == NOT_STATED
    assert "17 ms" in CliRunner().invoke(main, ["bench", "lifl", "placement"]).output
