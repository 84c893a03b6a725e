"""`fedrdma bench wan`: transfers over WAN links of the testbed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from fedrdma_fate.bench.report import DataTable, Plot, terminal_table, write_report
from fedrdma_fate.bench.wan.checkpoint import Conditions, MeasurementLog
from fedrdma_fate.bench.wan.overview import slices, to_overview, to_overview_plots
from fedrdma_fate.bench.wan.results import to_plots, to_table
from fedrdma_fate.bench.wan.rows import WanRow, all_wan_rows, find_program, select_wan_rows
from fedrdma_fate.bench.wan.settings import Setting, parse_peculiarities, parse_settings
from fedrdma_fate.bench.wan.sweep import Sweep, run_sweep
from fedrdma_fate.bench.wan.testbed import Testbed, find_checkout
from fedrdma_fate.cli.bench_shared import (
    checkout_option,
    console,
    end_with,
    ended_in_order,
    is_given,
    json_option,
    kernel_option,
    make_directory,
    progress,
)
from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

LOG_NAME = "bench-wan.measured.jsonl"
_INTERRUPTED_STATUS = 130
"""As of a program that Ctrl-C has ended in a shell: 128 and the number of SIGINT."""


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
@click.option("--burst", default=1.0, show_default=True, type=click.FloatRange(1), help="Packets lost in a row.")
@click.option("--delay-packets", type=click.IntRange(1), help="On their way at most, further ones are dropped.")
@click.option("--mtu", type=click.IntRange(576, 65535), help="Bytes of an IP packet; RDMA's largest fits 4200.")
@click.option("--policer", help="Drop what exceeds RATE:BURST, such as 500mbit:100kB, and queue nothing.")
@click.option("--nic-rate", help="At which the hosts' cards send; ten times --rate by default.")
@click.option("--back-rate", help="Of the bottleneck on the way back; as --rate by default.")
@click.option("--back-loss", help="Packets lost on the way back; as --loss by default.")
@click.option("--cross", help="TCP flows that come and go beside it: FLOWS or FLOWS:ON:OFF, such as 2:1s:500ms.")
@click.option("--size", default="256MiB", show_default=True, help="Of the payload.")
@click.option("--rows", default="all", show_default=True, help="Names of rows, with commas between.")
@click.option("--repeat", default=3, show_default=True, type=click.IntRange(1, 1000), help="Transfers after the first.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**32), help="Of the losses.")
@kernel_option
@click.option("--limit", default=600.0, show_default=True, type=click.FloatRange(1), help="Wall seconds for one row.")
@checkout_option
@json_option
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for plots and a report; what it holds of an earlier run is not measured again.",
)
def wan(
    rate: str,
    rate_trace: str | None,
    rtt: str,
    buffer: str,
    loss: str,
    jitter: str,
    reorder: bool,
    burst: float,
    delay_packets: int | None,
    mtu: int | None,
    policer: str | None,
    nic_rate: str | None,
    back_rate: str | None,
    back_loss: str | None,
    cross: str | None,
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
        settings, chosen = parse_settings(rate, rtt, buffer, loss, size, jitter, common), _choose(rows)
        repository = find_checkout(checkout)

        def make_hosts(setting: Setting) -> Testbed:
            return Testbed(repository, setting.link, seed, kernel, limit)

        make_hosts(settings[0]).check()
        log = _open_log(output, Conditions(repeat, seed, kernel))
        with progress() as tell:
            sweep = run_sweep(settings, chosen, make_hosts, repeat, log, tell)
        _show(sweep, as_json)
        if output is not None and sweep.measured:
            _write(sweep, output)
    if sweep.interrupted:
        missing = len(sweep.failures)
        click.echo(f"fedrdma: interrupted; {missing} of {len(settings) * len(chosen)} are not measured", err=True)
        sys.exit(_INTERRUPTED_STATUS)
    end_with(sweep.failures)


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


def _open_log(output: Path | None, conditions: Conditions) -> MeasurementLog:
    if output is None:
        return MeasurementLog(None, conditions)
    make_directory(output)
    path = output / LOG_NAME
    log = MeasurementLog(path, conditions)
    if not log.is_empty:
        click.echo(f"fedrdma: {path} holds measurements, which are not made again; remove it to make them", err=True)
    return log


def _show(sweep: Sweep, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(sweep.to_document(), indent=2))
        return
    for table in _tables(sweep):
        console().print(terminal_table(table))


def _tables(sweep: Sweep) -> list[DataTable]:
    runs = sweep.measured
    each = [to_table(run.setting.link, run.setting.payload_bytes, run.measurements) for run in runs]
    return each + [to_overview(part) for part in slices(runs)]


def _plots(sweep: Sweep) -> list[Plot]:
    runs = sweep.measured
    if len(runs) > 1:
        return [plot for part in slices(runs) for plot in to_overview_plots(part)]
    return [plot for run in runs for plot in to_plots(run.setting.link, run.setting.payload_bytes, run.measurements)]


def _write(sweep: Sweep, output: Path) -> None:
    path = output / "bench-wan.json"
    path.write_text(json.dumps(sweep.to_document(), indent=2) + "\n", encoding="utf-8")
    paragraphs = ["Shares of the link's rate; the first transfer on fresh connections, and the median of those after."]
    paragraphs += [f"{name} was not measured: {reason}" for name, reason in sweep.failures.items()]
    page = output / "bench-wan.html"
    for written in [path, *write_report(page, "fedrdma bench wan", paragraphs, _tables(sweep), _plots(sweep))]:
        click.echo(f"wrote {written}", err=True)
