"""`fedrdma bench lifl`: the LIFL paper's figures, the data path's measured, those about planning in virtual time."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from fedrdma_fate.bench.aggregate import MODELS
from fedrdma_fate.bench.aggregate_setting import AggregateSetting
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.lifl import figure4, figure7, figure13, sites, workload, writers
from fedrdma_fate.bench.lifl import figure8 as orchestration
from fedrdma_fate.bench.lifl.costs import Costs, measure_costs, told
from fedrdma_fate.bench.lifl.hops import setting_of
from fedrdma_fate.bench.report import DataTable, terminal_table
from fedrdma_fate.cli.bench_shared import console, end_with, ended_in_order, json_option, progress
from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.core.sum_tree import MOST_LEVELS
from fedrdma_fate.quantities import parse_rate
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

MASKED_BYTES = 16
"""Of a parameter, as FATE masks it."""
SINGLE_BYTES = 4
"""Of a parameter in single precision, as the paper's updates have them."""

_parameters_option = click.option(
    "--parameters",
    default=2_000_000,
    show_default=True,
    type=click.IntRange(10_000),
    help="Of the update by which costs are measured.",
)
_bytes_option = click.option(
    "--bytes-per-parameter", "each", default=SINGLE_BYTES, show_default=True, type=click.IntRange(1, 64)
)
_size_option = click.option(
    "--parameters", type=click.IntRange(20_000), help="Instead of the models: of one of any size."
)
_update_bytes_option = click.option(
    "--bytes-per-parameter", "each", default=SINGLE_BYTES, show_default=True, type=click.IntRange(4, 64)
)
_models_option = click.option(
    "--models", default=",".join(MODELS), show_default=True, help="Names of models, with commas between."
)
_repeats_option = click.option(
    "--repeats", default=5, show_default=True, type=click.IntRange(1, 100), help="Of each row; the median counts."
)


@click.group()
def lifl() -> None:
    """The LIFL paper's figures: of the data path (4, 7, 13) measured, of planning and placement (the others) in virtual
    time with costs measured on this machine."""


@lifl.command()
@click.option("--clients", default=10_000, show_default=True, type=click.IntRange(1, 1_000_000))
@json_option
def placement(clients: int, as_json: bool) -> None:
    """The paper's section 6.1: time placements of many clients, and one estimate of what comes."""
    found = orchestration.placement_times(clients)
    if as_json:
        click.echo(json.dumps({"rows": [dataclasses.asdict(each) for each in found]}, indent=2))
        return
    rows = [(each.policy, str(each.clients), f"{1000 * each.seconds:.3f} ms", each.stated) for each in found]
    console().print(terminal_table(DataTable("Placements", ("policy", "clients", "takes", "paper"), rows)))


@lifl.command(name="figure4")
@click.option("--model", type=click.Choice(list(MODELS)), default="resnet152", show_default=True)
@_size_option
@_update_bytes_option
@click.option(
    "--updates",
    default=figure4.UPDATES,
    show_default=True,
    type=click.IntRange(2, 64),
    help="Trainers, one update each.",
)
@json_option
def figure4_command(model: str, parameters: int | None, each: int, updates: int, as_json: bool) -> None:
    """The paper's Figures 4 and 7(c), measured: a round's aggregation by ours, by leaves and a top over gRPC (WH), and
    by one aggregator over gRPC (NH)."""
    with told_plainly(), ended_in_order():
        setting = setting_of(model, parameters, each, updates)
        with progress() as tell:
            found, failures = figure4.figure4(setting, tell)
        _show(found, lambda: [figure4.to_table(found, setting)], failures, as_json=as_json)


@lifl.command(name="figure7")
@_models_option
@_size_option
@_update_bytes_option
@_repeats_option
@json_option
def figure7_command(models: str, parameters: int | None, each: int, repeats: int, as_json: bool) -> None:
    """The paper's Figure 7(a, b), measured: one update from a leaf to the top, in shared memory (ours), by gRPC (SF),
    and past a broker and proxies (SL). Its 7(c) is with figure4."""
    with told_plainly(), ended_in_order():
        settings = _models(models, parameters, each)
        with progress() as tell:
            found, failures = figure7.figure7(settings, repeats, tell)
        _show(found, lambda: figure7.to_tables(found), failures, as_json=as_json)


@lifl.command()
@click.option("--model", type=click.Choice(list(MODELS)), default="resnet152", show_default=True)
@_bytes_option
@_parameters_option
@json_option
def figure8(model: str, each: int, parameters: int, as_json: bool) -> None:
    """The paper's Figure 8: updates that are all there at once, on five nodes: what placement, warm workers and eager
    addition bring."""
    update_bytes = MODELS[model] * each

    def make(costs: Costs) -> tuple[Any, Sequence[DataTable]]:
        steps = orchestration.figure8(costs, update_bytes)
        tables = [orchestration.to_table(steps, between, update_bytes) for between in ("stated", "link")]
        return orchestration.to_document(steps), tables

    _measured(parameters, as_json, make)


@lifl.command()
@click.option("--model", type=click.Choice(list(MODELS)), default="resnet18", show_default=True)
@click.option("--bytes-per-parameter", "each", default=MASKED_BYTES, show_default=True, type=click.IntRange(1, 64))
@click.option("--site-link", default="1gbit", show_default=True, help="Of each site.")
@click.option("--arbiter-link", default="10gbit", show_default=True, help="Of the arbiter's.")
@click.option("--site-wait", default=5.0, show_default=True, type=click.FloatRange(0), help="As in the configuration.")
@click.option(
    "--fan-in",
    default=0,
    show_default=True,
    type=click.IntRange(0, 10_000),
    help="Also a tree of sites, each of which adds so many sums of others at most; 0: none.",
)
@click.option("--levels", default=2, show_default=True, type=click.IntRange(1, MOST_LEVELS), help="Of that tree.")
@click.option("--near-link", default="1gbit", show_default=True, help="To a parent, shared by those below it.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**32), help="Of when clients are ready.")
@_parameters_option
@json_option
def rounds(
    model: str,
    each: int,
    site_link: str,
    arbiter_link: str,
    site_wait: float,
    fan_in: int,
    levels: int,
    near_link: str,
    seed: int,
    parameters: int,
    as_json: bool,
) -> None:
    """Rounds of 2 to 10,000 clients at some sites: all added at last, each as it comes, and sums of sites; with
    --fan-in also a tree of sites."""
    update_bytes = MODELS[model] * each
    with told_plainly():
        links = sites.Links(parse_rate(site_link) / 8, parse_rate(arbiter_link) / 8, site_wait)
        tree = sites.Tree(fan_in, levels, parse_rate(near_link) / 8) if fan_in else None
    ways = sites.WAYS if tree is None else (*sites.WAYS, sites.TREE)

    def make(costs: Costs) -> tuple[Any, Sequence[DataTable]]:
        played = [
            sites.play(setting, way, costs, links, update_bytes, seed, tree)
            for setting in sites.SETTINGS
            for way in ways
        ]
        return [dataclasses.asdict(one) for one in played], [sites.to_table(played, links, update_bytes, tree)]

    _measured(parameters, as_json, make)


@lifl.command()
@click.option("--rounds", "played", default=10, show_default=True, type=click.IntRange(1, 1000), help="Of each system.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**32), help="Of the training.")
@_bytes_option
@_parameters_option
@json_option
def figure9(played: int, seed: int, each: int, parameters: int, as_json: bool) -> None:
    """The paper's Figure 9: time and processor time to 70 % accuracy, of a small model that is trained here."""

    def make(costs: Costs) -> tuple[Any, Sequence[DataTable]]:
        rows: list[dict[str, object]] = []
        tables = []
        with progress() as tell:
            for load in workload.WORKLOADS:
                update_bytes = MODELS[load.model] * each
                needed, _ = writers.rounds_to_goal(load.clients, seed, tell)
                found = workload.figure9(load, costs, update_bytes, needed, played)
                rows += workload.figure9_document(found)
                tables.append(workload.figure9_table(found, update_bytes))
        return rows, tables

    _measured(parameters, as_json, make, with_hops=True)


@lifl.command()
@click.option("--window", default=5.0, show_default=True, type=click.FloatRange(0.1), help="Seconds.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**32), help="Of when clients are ready.")
@_bytes_option
@_parameters_option
@json_option
def figure10(window: float, seed: int, each: int, parameters: int, as_json: bool) -> None:
    """The paper's Figure 10: arrivals, active workers and processor time of a round."""

    def make(costs: Costs) -> tuple[Any, Sequence[DataTable]]:
        found = [workload.figure10(load, costs, MODELS[load.model] * each, window, seed) for load in workload.WORKLOADS]
        return [dataclasses.asdict(one) for one in found], [workload.figure10_table(one) for one in found]

    _measured(parameters, as_json, make, with_hops=True)


@lifl.command(name="figure13")
@_models_option
@_size_option
@_update_bytes_option
@_repeats_option
@json_option
def figure13_command(models: str, parameters: int | None, each: int, repeats: int, as_json: bool) -> None:
    """The paper's Figure 13, measured: one update from a client to the aggregator, through the gateways (ours), into
    its own queue (SF-mono), past a broker (SF-micro), and a proxy besides (SL-B): delay, processors, memory."""
    with told_plainly(), ended_in_order():
        settings = _models(models, parameters, each)
        with progress() as tell:
            found, failures = figure13.figure13(settings, repeats, tell)
        _show(found, lambda: figure13.to_tables(found), failures, as_json=as_json)


def _models(models: str, parameters: int | None, each: int) -> list[AggregateSetting]:
    """Whose updates are measured.

    Raises:
        ConfigError: there is no such model.
    """
    names = [name.strip() for name in models.split(",")]
    for name in names:
        if name not in MODELS:
            told = f"--models: there is no model {name!r}."
            raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, told, f"Models: {', '.join(MODELS)}.")
    return [setting_of(name, parameters, each, 2) for name in names[: 1 if parameters else None]]


def _show(
    rows: Sequence[Any], tables: Callable[[], Sequence[DataTable]], failures: Mapping[str, str], *, as_json: bool
) -> None:
    """Print what was measured, and end."""
    if as_json:
        click.echo(json.dumps({"rows": [dataclasses.asdict(each) for each in rows]}, indent=2))
    elif rows:
        for table in tables():
            console().print(terminal_table(table))
    end_with(failures)


def _measured(
    parameters: int,
    as_json: bool,
    make: Callable[[Costs], tuple[Any, Sequence[DataTable]]],
    *,
    with_hops: bool = False,
) -> None:
    """Measure costs, and show what comes of them."""
    failures = {}
    with told_plainly():
        try:
            with progress() as tell:
                costs = measure_costs(parameters, tell, with_hops=with_hops)
        except RowError as error:
            failures["costs"] = str(error)
        else:
            rows, tables = make(costs)
            if as_json:
                click.echo(json.dumps({"costs": dataclasses.asdict(costs), "rows": rows}, indent=2))
            else:
                console().print(told(costs))
                for table in tables:
                    console().print(terminal_table(table))
    end_with(failures)
