"""`fedrdma bench wan`: transfers over WAN links of the testbed."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import click

from fedrdma_fate.bench.report import DataTable, Plot, terminal_table, write_report
from fedrdma_fate.bench.wan.checkpoint import Conditions, MeasurementLog
from fedrdma_fate.bench.wan.overview import slices, to_overview, to_overview_plots
from fedrdma_fate.bench.wan.results import to_plots, to_table
from fedrdma_fate.bench.wan.rows import WanRow, all_wan_rows, find_program, select_wan_rows
from fedrdma_fate.bench.wan.settings import Setting, parse_payload_sizes, parse_peculiarities, parse_settings
from fedrdma_fate.bench.wan.sweep import Sweep, run_sweep
from fedrdma_fate.bench.wan.testbed import Testbed, find_checkout
from fedrdma_fate.bench.wan.zoo import ALL, ZOO_ROWS, select_zoo, to_zoo_document, to_zoo_table, zoo_settings
from fedrdma_fate.cli.bench_shared import (
    INTERRUPTED_STATUS,
    checkout_option,
    console,
    end_with,
    ended_in_order,
    is_given,
    json_option,
    kernel_option,
    limit_option,
    open_log,
    progress,
    resumed_output_option,
)
from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

LOG_NAME = "bench-wan.measured.jsonl"
_LINK_OPTIONS = (
    "rate",
    "rate_trace",
    "rtt",
    "buffer",
    "loss",
    "jitter",
    "reorder",
    "slots",
    "back_slots",
    "burst",
    "delay_packets",
    "mtu",
    "policer",
    "nic_rate",
    "back_rate",
    "back_loss",
    "cross",
)
"""Parameters that describe a link."""


@click.command()
@click.option("--rate", default="10gbit", show_default=True, help="Of the link's bottleneck.")
@click.option(
    "--rate-trace",
    type=click.Path(),
    help="In place of --rate: a file with lines of seconds and bit/s, perhaps with 'repeat' at its end.",
)
@click.option("--rtt", default="20ms", show_default=True, help="Round-trip time.")
@click.option("--buffer", default="4MB", show_default=True, help="What the bottleneck holds before it drops, or bdp.")
@click.option("--loss", default="0", show_default=True, help="Packets lost each way, such as 0.1%.")
@click.option("--jitter", default="0", show_default=True, help="By which packets are earlier or later, such as 1ms.")
@click.option("--reorder", is_flag=True, help="Packets overtake each other by the jitter; else their order is kept.")
@click.option(
    "--slots", default="0", show_default=True, help="Packets go on every so often, as by radio, such as 10ms."
)
@click.option("--back-slots", help="The same on the way back; as --slots by default.")
@click.option("--burst", default=1.0, show_default=True, type=click.FloatRange(1), help="Packets lost in a row.")
@click.option("--delay-packets", type=click.IntRange(1), help="On their way at most, further ones are dropped.")
@click.option("--mtu", type=click.IntRange(576, 65535), help="Bytes of an IP packet; RDMA's largest fits 4200.")
@click.option("--policer", help="Drop what exceeds RATE:BURST, such as 500mbit:100kB, and queue nothing.")
@click.option("--nic-rate", help="At which the hosts' cards send; ten times --rate by default.")
@click.option("--back-rate", help="Of the bottleneck on the way back; as --rate by default.")
@click.option("--back-loss", help="Packets lost on the way back; as --loss by default.")
@click.option("--cross", help="TCP flows that come and go beside it: FLOWS or FLOWS:ON:OFF, such as 2:1s:500ms.")
@click.option(
    "--zoo",
    is_flag=False,
    flag_value=ALL,
    help="In place of a link: a fixed list of paths that are not ideal, or those of it that are named, with commas.",
)
@click.option("--size", default="256MiB", show_default=True, help="Of the payload.")
@click.option("--rows", default="all", show_default=True, help="Names of rows, with commas between.")
@click.option("--repeat", default=3, show_default=True, type=click.IntRange(1, 1000), help="Transfers after the first.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**32), help="Of the losses.")
@kernel_option
@limit_option(600.0)
@checkout_option
@json_option
@resumed_output_option("plots and a report")
def wan(
    rate: str,
    rate_trace: str | None,
    rtt: str,
    buffer: str,
    loss: str,
    jitter: str,
    reorder: bool,
    slots: str,
    back_slots: str | None,
    burst: float,
    delay_packets: int | None,
    mtu: int | None,
    policer: str | None,
    nic_rate: str | None,
    back_rate: str | None,
    back_loss: str | None,
    cross: str | None,
    zoo: str | None,
    size: str,
    rows: str,
    repeat: int,
    seed: int,
    kernel: str,
    limit: float,
    checkout: Path | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Time payloads over WAN links, in virtual time: by each mode between two gateways over RDMA, by one RDMA write,
    by TCP and by gRPC. Rate, RTT, buffer, loss, jitter and size may be lists with commas: all combinations are
    measured."""
    with told_plainly(), ended_in_order():
        if rate_trace is not None and is_given("rate"):
            raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, "--rate and --rate-trace: the trace is the rate, give one.")
        common = parse_peculiarities(
            reorder=reorder,
            slots=slots,
            back_slots=back_slots,
            burst=burst,
            delay_packets=delay_packets,
            mtu=mtu,
            policer=policer,
            nic_rate=nic_rate,
            back_rate=back_rate,
            back_loss=back_loss,
            rate_trace=rate_trace,
            cross=cross,
        )
        if zoo is None:
            settings, chosen = parse_settings(rate, rtt, buffer, loss, size, jitter, common), _choose(rows)
        else:
            settings, chosen = _zoo_settings(zoo, size), _zoo_rows(rows)
        repository = find_checkout(checkout)

        def make_hosts(setting: Setting) -> Testbed:
            return Testbed(repository, setting.link, seed, kernel, limit)

        make_hosts(settings[0]).check()
        conditions = Conditions(repeat, seed, kernel)
        log = open_log(output, LOG_NAME, lambda path: MeasurementLog(path, conditions))
        with progress() as tell:
            sweep = run_sweep(settings, chosen, make_hosts, repeat, log, tell)
        shown = _zoo_shown(sweep) if zoo is not None else _shown(sweep)
        _show(shown, as_json)
        if output is not None and sweep.measured:
            _write(sweep, shown, output)
    if sweep.interrupted:
        missing, asked = len(sweep.failures), sum(row.name not in one.left_out for one in settings for row in chosen)
        click.echo(f"fedrdma: interrupted; {missing} of {asked} are not measured", err=True)
        sys.exit(INTERRUPTED_STATUS)
    end_with(sweep.failures)


def _zoo_settings(names: str, sizes: str) -> list[Setting]:
    """The zoo's paths, which are what they are.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: there is none of a name, or the user describes a link of his own besides.
    """
    given = [name for name in _LINK_OPTIONS if is_given(name)]
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--zoo and {option}: the paths of the zoo are what they are.")
    return zoo_settings(select_zoo(names), parse_payload_sizes(sizes) if is_given("size") else None)


def _zoo_rows(names: str) -> list[WanRow]:
    return _choose(names if is_given("rows") else ",".join(ZOO_ROWS))


def _choose(names: str) -> list[WanRow]:
    """The rows of these names; of all, those whose programs are on this machine."""
    if names != "all":
        return select_wan_rows([name.strip() for name in names.split(",")])
    chosen = []
    for row in all_wan_rows():
        if row.needs is None or find_program(row.needs) is not None:
            chosen.append(row)
        else:
            click.echo(f"fedrdma: {row.name} is left out: {row.needs} is not on this machine", err=True)
    return chosen


@dataclasses.dataclass(frozen=True, slots=True)
class _Shown:
    """What is told of a sweep.

    Attributes:
        document: for programs.
        tables: for the terminal.
        details: tables of the report before these.
        plots: makes those of the report, which takes a while.
    """

    document: dict[str, object]
    tables: list[DataTable]
    details: list[DataTable]
    plots: Callable[[], list[Plot]]


def _shown(sweep: Sweep) -> _Shown:
    tables = [*_each_table(sweep), *(to_overview(part) for part in slices(sweep.measured))]
    return _Shown(sweep.to_document(), tables, [], lambda: _plots(sweep))


def _zoo_shown(sweep: Sweep) -> _Shown:
    tables = [to_zoo_table(sweep)] if sweep.measured else []
    return _Shown(to_zoo_document(sweep), tables, _each_table(sweep), list)


def _each_table(sweep: Sweep) -> list[DataTable]:
    return [to_table(run.setting.link, run.setting.payload_bytes, run.measurements) for run in sweep.measured]


def _show(shown: _Shown, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(shown.document, indent=2))
        return
    for table in shown.tables:
        console().print(terminal_table(table))


def _plots(sweep: Sweep) -> list[Plot]:
    runs = sweep.measured
    if len(runs) > 1:
        return [plot for part in slices(runs) for plot in to_overview_plots(part)]
    return [plot for run in runs for plot in to_plots(run.setting.link, run.setting.payload_bytes, run.measurements)]


def _write(sweep: Sweep, shown: _Shown, output: Path) -> None:
    path = output / "bench-wan.json"
    path.write_text(json.dumps(shown.document, indent=2) + "\n", encoding="utf-8")
    paragraphs = ["Shares of the link's rate; the first transfer on fresh connections, and the median of those after."]
    paragraphs += [f"{name} was not measured: {reason}" for name, reason in sweep.failures.items()]
    page, tables = output / "bench-wan.html", [*shown.details, *shown.tables]
    for written in [path, *write_report(page, "fedrdma bench wan", paragraphs, tables, shown.plots())]:
        click.echo(f"wrote {written}", err=True)
