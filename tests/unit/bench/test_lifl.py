"""`fedrdma bench lifl`: virtual time, sums by several gateways in it, and what its commands show."""

from __future__ import annotations

import functools
import json
import math

import pytest
from click.testing import CliRunner

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.lifl import sites, writers
from fedrdma_fate.bench.lifl.costs import Costs, Hop, measure_costs, told
from fedrdma_fate.bench.lifl.figure8 import NOT_STATED, figure8
from fedrdma_fate.bench.lifl.hierarchy import Network, System, add_up
from fedrdma_fate.bench.lifl.simulation import Link, OneByOne, Worker, World
from fedrdma_fate.bench.lifl.sites import TREE, WAYS, Links, RoundSetting, Tree, play
from fedrdma_fate.bench.lifl.workload import SYSTEMS, WORKLOADS, Workload, figure9, figure9_table, figure10
from fedrdma_fate.cli import bench_lifl
from fedrdma_fate.cli.main import main

COSTS = Costs(1e-9, 0.5, 0.0, {"grpc": Hop(4e-9, 2e-9), "broker-sidecar": Hop(8e-9, 6e-9)}, 1000)
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
    assert cold.cpu_seconds == pytest.approx(2 * 0.5 + 6)


def test_a_hop_is_paid_for_each_update_and_each_sum() -> None:
    arrivals = [(0.0, 0), (0.0, 1)]
    found = add_up(System("SF", warm=True, eager=True, hop=COSTS.hops["grpc"]), COSTS, FAST, ONE, arrivals, 0)
    assert found.seconds == pytest.approx(4 + 1 + 4 + 1)
    assert found.cpu_seconds == pytest.approx(3 * 1 + 3 * 2)


def test_a_top_without_updates_of_its_own_adds_the_sums_of_the_others() -> None:
    for eager in (True, False):
        found = add_up(System("SL", warm=False, eager=eager), COSTS, FAST, ONE, [(0.0, 0), (3.0, 1)], 2)
        # lazy or not, the last update, its start and the top's, and the last sum
        assert found.seconds == pytest.approx(3 + 0.5 + 1 + (1 if eager else 0.0) + (0 if eager else 2))
        assert found.started == 3


def test_updates_of_clients_share_the_link_of_their_gateway() -> None:
    network = Network(ONE / 4, ONE)
    ours = System("ours", warm=True, eager=True)
    found = add_up(ours, COSTS, network, ONE, [(0.0, 0), (0.0, 0)], 0, from_clients=True)
    # both are there after eight seconds
    assert found.seconds == pytest.approx(8 + 2)
    assert found.moved_bytes == 0


def test_a_worker_that_is_told_of_an_update_ahead_has_started_when_it_adds() -> None:
    world, ends = World(), []
    worker = Worker(world, 1.0, 0.0, 10.0)
    world.at(0.0, worker.wake)
    world.at(12.0, lambda: worker.add(1, lambda: ends.append(world.now)))
    world.run()
    assert ends == [13.0]


LINKS = Links(ONE, 4 * ONE, 5.0)
"""A site takes a second for an update, the arbiter serves four at a time."""


def test_a_round_s_sums_of_sites_are_sooner_for_a_burst_and_as_soon_for_a_trickle() -> None:
    burst, trickle = RoundSetting(64, 8, 0.5), RoundSetting(64, 8, 600.0)
    seconds = {
        (setting, way): play(setting, way, COSTS, LINKS, ONE, 1).after_last
        for setting in (burst, trickle)
        for way in WAYS
    }
    assert seconds[burst, "site-sums"] * 3 < seconds[burst, "eager"] <= seconds[burst, "lazy"]
    assert seconds[trickle, "eager"] < seconds[trickle, "lazy"] / 3
    assert seconds[trickle, "site-sums"] <= seconds[trickle, "eager"] + LINKS.wait + 1


def test_every_update_goes_once_be_it_alone_or_in_a_sum() -> None:
    setting = RoundSetting(10, 2, 0.0)
    alone, summed = (play(setting, way, COSTS, LINKS, ONE, 1) for way in ("eager", "site-sums"))
    assert (alone.transfers, alone.up_bytes) == (10, 10 * ONE)
    assert (summed.transfers, summed.up_bytes) == (2, 2 * ONE)
    # who comes after the wait goes alone, and so does one that was there by itself
    late = play(RoundSetting(4, 2, 1000.0), "site-sums", COSTS, LINKS, ONE, 1)
    assert late.transfers == 4


TREE_OF_TWO = Tree(3, 2, 10 * ONE)
"""A parent takes three sums, each over a link ten times as fast as that to the arbiter."""


def test_in_a_tree_one_sum_for_each_at_the_top_comes_to_the_arbiter() -> None:
    setting = RoundSetting(16, 8, 0.0)
    tree = play(setting, TREE, COSTS, LINKS, ONE, 1, TREE_OF_TWO)
    assert (tree.asked, tree.levels, tree.transfers) == (2, 2, 2)
    assert (tree.up_bytes, tree.between_bytes) == (2 * ONE, 6 * ONE)
    # eight sums take the arbiter's link twice as long as four at a time do, two of them once
    assert tree.after_last < play(setting, "site-sums", COSTS, LINKS, ONE, 1).after_last
    deeper = play(setting, TREE, COSTS, LINKS, ONE, 1, Tree(2, 3, 10 * ONE))
    assert (deeper.asked, deeper.levels, deeper.between_bytes) == (2, 3, 6 * ONE)


def test_a_tree_of_one_level_is_the_sums_of_sites() -> None:
    setting = RoundSetting(64, 8, 3.0)
    flat, summed = (play(setting, way, COSTS, LINKS, ONE, 1, Tree(3, 1, ONE)) for way in (TREE, "site-sums"))
    assert (flat.seconds, flat.up_bytes, flat.transfers) == (summed.seconds, summed.up_bytes, summed.transfers)


def test_in_a_tree_each_update_counts_once_though_sites_are_late_at_their_parents() -> None:
    # a sum of a thousand seconds at a parent, which waits for twice five
    slow = play(RoundSetting(24, 8, 0.0), TREE, COSTS, LINKS, ONE, 1, Tree(3, 2, ONE / 1000))
    assert slow.transfers == 2 + 18
    # three levels, of which each withdraws what those below have withdrawn before
    for rate in (ONE / 1000, ONE / 10, ONE):
        deep = play(RoundSetting(64, 30, 40.0), TREE, COSTS, LINKS, ONE, 1, Tree(3, 3, rate))
        assert deep.up_bytes == deep.transfers * ONE
    spread = play(RoundSetting(24, 8, 1000.0), TREE, COSTS, LINKS, ONE, 1, TREE_OF_TWO)
    assert spread.up_bytes == spread.transfers * ONE
    alone = play(RoundSetting(8, 8, 0.0), TREE, COSTS, LINKS, ONE, 1, TREE_OF_TWO)
    # of one party there is no sum at a site, and the parent adds nothing
    assert (alone.between_bytes, alone.transfers) == (0, 8)


def test_more_sites_than_clients_are_no_trouble() -> None:
    assert play(RoundSetting(2, 5, 1.0), "site-sums", COSTS, LINKS, ONE, 1).transfers == 2


SMALL = Workload("resnet18", 6, 20.0, 5.0, WORKLOADS[0].stated)


def test_figure_9_plays_the_same_rounds_by_all_and_ours_is_no_later() -> None:
    ours, always_on, serverless = figure9(SMALL, COSTS, 40_000_000, 50, 3)
    assert [each.system for each in (ours, always_on, serverless)] == list(SYSTEMS)
    assert ours.seconds <= always_on.seconds <= serverless.seconds
    assert ours.cpu_seconds < always_on.cpu_seconds < serverless.cpu_seconds
    # always on: five nodes for the whole round
    assert always_on.reserved_seconds == pytest.approx(5 * always_on.seconds)
    assert ours.hours == pytest.approx(50 * ours.seconds / 3600)
    shown = figure9_table([ours, always_on, serverless], 40_000_000)
    assert [row[5] for row in shown.rows] == ["0.9 h", "1.4 h", "2.4 h"]


def test_figure_10_has_every_client_in_one_window() -> None:
    series = figure10(SMALL, COSTS, 40_000_000, 5.0, 1)
    assert sum(window.arrivals for window in series.windows) == SMALL.clients
    assert all(window.active["SF"] <= 5.0 + 1e-9 for window in series.windows)
    assert max(window.active["ours"] for window in series.windows) >= 1


def test_a_model_learns_to_tell_the_characters_of_other_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "GOAL", 0.15)
    told_at: list[str] = []
    rounds, accuracy = writers.rounds_to_goal(8, 1, told_at.append)
    assert 1 < rounds < 60
    assert accuracy >= 0.15


def test_a_goal_that_is_not_reached_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "MOST_ROUNDS", 1)
    rounds, accuracy = writers.rounds_to_goal(2, 1)
    assert (rounds, accuracy < 0.5) == (1, True)


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


@pytest.mark.parametrize("command", ["figure8", "figure9", "figure10", "rounds"])
def test_a_figure_prints_costs_and_tables_and_its_document(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(bench_lifl, "measure_costs", lambda *_, **__: COSTS)
    monkeypatch.setattr(writers, "rounds_to_goal", lambda *_: (50, 0.7))
    monkeypatch.setattr(sites, "SETTINGS", sites.SETTINGS[:4])
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
