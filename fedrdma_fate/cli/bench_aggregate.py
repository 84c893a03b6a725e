"""`fedrdma bench aggregate`: sums of masked updates."""

from __future__ import annotations

import json

import click

from fedrdma_fate.bench.aggregate import (
    MODELS,
    ROWS,
    TRANSPORTS,
    measure_aggregate,
    to_document,
    to_table,
)
from fedrdma_fate.bench.aggregate_capacity import capacity_document, capacity_table, measure_capacity
from fedrdma_fate.bench.aggregate_ray import is_installed
from fedrdma_fate.bench.aggregate_setting import AggregateSetting, make_update
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.report import terminal_table
from fedrdma_fate.cli.bench_shared import console, end_with, ended_in_order, json_option, progress
from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.wire.errors import ConfigError, ErrorCode


@click.command()
@click.option("--model", type=click.Choice(list(MODELS)), default="resnet18", show_default=True)
@click.option("--parameters", type=click.IntRange(10_000), help="Instead of --model: of a model of any size.")
@click.option("--updates", default=8, show_default=True, type=click.IntRange(2, 128), help="Clients, one update each.")
@click.option("--room", type=click.IntRange(2), help="Updates that the arbiter's receive region has room for; all.")
@click.option("--transport", default=TRANSPORTS[0], show_default=True, type=click.Choice(TRANSPORTS))
@click.option("--sites", default=2, show_default=True, type=click.IntRange(2, 8), help="Of the rows that have some.")
@click.option("--rows", default="all", show_default=True, help="Names of rows, with commas between.")
@click.option("--capacity", is_flag=True, help="Instead: how many updates at once this host's workers add.")
@click.option("--arrivals", default=40, show_default=True, type=click.IntRange(5), help="Of each step of --capacity.")
@json_option
def aggregate(
    model: str,
    parameters: int | None,
    updates: int,
    room: int | None,
    transport: str,
    sites: int,
    rows: str,
    capacity: bool,
    arrivals: int,
    as_json: bool,
) -> None:
    """Time the sum of masked updates when the first rank comes last.

    Added by the gateway as they come (slots), by rank (slots-rank), by FATE's loop (fate); a round of --sites that
    send their sums, and get one copy of the aggregate (sites), all by the first of them (sites-tree), or all for each
    party (sites-alone); by four leaves and a top: in shared memory (tree), joined by gRPC (grpc), through a process
    that stores and forwards (broker), with proxies besides (broker-sidecar), as actors of Ray where that is installed
    (ray); beside one memcpy and one addition.
    """
    with told_plainly(), ended_in_order():
        name = model if parameters is None else f"{parameters} parameters"
        # room for the sum as well
        setting = AggregateSetting(name, parameters or MODELS[model], updates, room or updates + 1, transport, sites)
        if capacity:
            end_with(_capacity(setting, arrivals, as_json=as_json))
            return
        with progress() as tell:
            measured, failures = measure_aggregate(setting, _chosen(rows), tell)
        if as_json:
            click.echo(json.dumps(to_document(measured), indent=2))
        else:
            console().print(terminal_table(to_table(setting, measured)))
    end_with(failures)


def _capacity(setting: AggregateSetting, arrivals: int, *, as_json: bool) -> dict[str, str]:
    """Why there is none, if there is none."""
    try:
        with progress() as tell:
            found = measure_capacity(setting, make_update(setting), arrivals, tell)
    except RowError as error:
        return {"capacity": str(error)}
    if as_json:
        click.echo(json.dumps(capacity_document(found), indent=2))
    else:
        console().print(terminal_table(capacity_table(setting, found)))
    return {}


def _chosen(rows: str) -> list[str]:
    if rows == "all":
        if is_installed():
            return list(ROWS)
        click.echo("fedrdma: the row ray is left out: Ray is not installed", err=True)
        return [name for name in ROWS if name != "ray"]
    names = [name.strip() for name in rows.split(",")]
    for name in names:
        if name not in ROWS:
            raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"there is no row {name!r}.", f"Rows: {', '.join(ROWS)}.")
    return names
