"""`fedrdma bench incast`: rounds of many silos and one arbiter in the testbed."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import click

from fedrdma_fate.bench.incast.results import read_measurement, to_plot, to_table
from fedrdma_fate.bench.incast.rows import IncastRow, all_incast_rows, select_incast_rows
from fedrdma_fate.bench.incast.runner import IncastSweep, Log, run_incast
from fedrdma_fate.bench.incast.settings import IncastSetting, parse_incast_settings
from fedrdma_fate.bench.report import terminal_table, write_report
from fedrdma_fate.bench.wan.checkpoint import KeptMeasurements
from fedrdma_fate.bench.wan.settings import parse_peculiarities
from fedrdma_fate.bench.wan.testbed import Testbed, find_checkout
from fedrdma_fate.cli.bench_shared import (
    INTERRUPTED_STATUS,
    checkout_option,
    console,
    end_with,
    ended_in_order,
    json_option,
    kernel_option,
    limit_option,
    open_log,
    progress,
    resumed_output_option,
)
from fedrdma_fate.cli.failure import told_plainly

LOG_NAME = "bench-incast.measured.jsonl"


@click.command()
@click.option("--silos", default="8", show_default=True, help="That send at once, 1 to 64.")
@click.option(
    "--rate", default="1gbit", show_default=True, help="Of the link in front of the arbiter, and of each silo."
)
@click.option("--rtt", default="20ms", show_default=True, help="Round-trip time.")
@click.option(
    "--buffer", default="0.5MB", show_default=True, help="What a link's buffer holds before it drops, or bdp."
)
@click.option("--loss", default="0", show_default=True, help="Packets lost each way, such as 0.1%.")
@click.option("--size", default="4MiB", show_default=True, help="Of the payload of a silo.")
@click.option("--down", is_flag=True, help="The arbiter then sends a payload of this size to all silos.")
@click.option("--mtu", type=click.IntRange(576, 65535), help="Bytes of an IP packet; RDMA's largest fits 4200.")
@click.option("--nic-rate", help="At which the hosts' cards send; ten times --rate by default.")
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(1, 1000), help="One after the other.")
@click.option("--rows", default="all", show_default=True, help="Names of rows, with commas between.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**32), help="Of the losses.")
@kernel_option
@limit_option(1800.0)
@checkout_option
@json_option
@resumed_output_option("a plot and a report")
def incast(
    silos: str,
    rate: str,
    rtt: str,
    buffer: str,
    loss: str,
    size: str,
    down: bool,
    mtu: int | None,
    nic_rate: str | None,
    rounds: int,
    rows: str,
    seed: int,
    kernel: str,
    limit: float,
    checkout: Path | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Time rounds in which many silos send to one arbiter at once, in virtual time: by mode fedrdma-x over RDMA and
    UDP, by TCP and by gRPC. Silos, rate, RTT, buffer, loss and size may be lists with commas: all combinations are
    measured."""
    with told_plainly(), ended_in_order():
        common = parse_peculiarities(mtu=mtu, nic_rate=nic_rate)
        settings = parse_incast_settings(silos, rate, rtt, buffer, loss, size, down, common)
        chosen = all_incast_rows() if rows == "all" else select_incast_rows([name.strip() for name in rows.split(",")])
        repository = find_checkout(checkout)

        def make_hosts(setting: IncastSetting) -> Testbed:
            hosts = ("--hosts", str(setting.silos + 1))
            return Testbed(repository, setting.link, seed, kernel, limit, more=hosts)

        make_hosts(settings[0]).check()
        log = _open_log(output, {"rounds": rounds, "seed": seed, "kernel": kernel})
        with progress() as tell:
            sweep = run_incast(settings, chosen, make_hosts, rounds, log, tell)
        _show(sweep, as_json)
        if output is not None and any(run.measurements for run in sweep.runs):
            _write(sweep, output)
    if sweep.interrupted:
        click.echo(
            f"fedrdma: interrupted; {len(sweep.failures)} of {_asked(settings, chosen)} are not measured", err=True
        )
        sys.exit(INTERRUPTED_STATUS)
    end_with(sweep.failures)


def _asked(settings: list[IncastSetting], rows: list[IncastRow]) -> int:
    return len(settings) * len(rows)


def _open_log(output: Path | None, conditions: dict[str, object]) -> Log:
    return open_log(output, LOG_NAME, lambda path: KeptMeasurements(path, conditions, _describe, read_measurement))


def _describe(setting: IncastSetting, row: str) -> dict[str, object]:
    told = {"silos": setting.silos, "payload_bytes": setting.payload_bytes, "down": setting.down, "row": row}
    return {**dataclasses.asdict(setting.link), **told}


def _show(sweep: IncastSweep, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(sweep.to_document(), indent=2))
        return
    for run in sweep.runs:
        if run.measurements:
            console().print(terminal_table(to_table(run.setting, run.measurements)))


def _write(sweep: IncastSweep, output: Path) -> None:
    path = output / "bench-incast.json"
    path.write_text(json.dumps(sweep.to_document(), indent=2) + "\n", encoding="utf-8")
    paragraphs = ["Times of rounds in virtual time; the least possible is all payloads and headers at the link's rate."]
    paragraphs += [f"{name} was not measured: {reason}" for name, reason in sweep.failures.items()]
    measured = [run for run in sweep.runs if run.measurements]
    tables = [to_table(run.setting, run.measurements) for run in measured]
    plots = [
        to_plot(f"bench-incast-{number}", run.setting, run.measurements) for number, run in enumerate(measured, start=1)
    ]
    page = output / "bench-incast.html"
    for written in [path, *write_report(page, "fedrdma bench incast", paragraphs, tables, plots)]:
        click.echo(f"wrote {written}", err=True)
