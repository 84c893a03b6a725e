"""`fedrdma bench wan`: transfers over a WAN link of the testbed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from fedrdma_fate.bench.report import terminal_table, write_report
from fedrdma_fate.bench.wan.link import WanLink, parse_link, parse_payload_size
from fedrdma_fate.bench.wan.results import WanMeasurement, to_document, to_plots, to_table
from fedrdma_fate.bench.wan.rows import all_wan_rows, select_wan_rows
from fedrdma_fate.bench.wan.runner import run_wan_rows
from fedrdma_fate.bench.wan.testbed import Testbed, find_checkout
from fedrdma_fate.cli.bench_shared import console, end_with, ended_in_order, make_directory, progress
from fedrdma_fate.cli.failure import told_plainly


@click.command()
@click.option("--rate", default="10gbit", show_default=True, help="Of the link's bottleneck.")
@click.option("--rtt", default="20ms", show_default=True, help="Round-trip time.")
@click.option("--buffer", default="4MB", show_default=True, help="What the bottleneck holds before it drops.")
@click.option("--loss", default="0", show_default=True, help="Packets lost each way, such as 0.1%.")
@click.option("--size", default="256MiB", show_default=True, help="Of the payload.")
@click.option("--rows", default="all", show_default=True, help="Names of rows, with commas between.")
@click.option("--repeat", default=3, show_default=True, type=click.IntRange(1, 1000), help="Transfers after the first.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**32), help="Of the losses.")
@click.option("--kernel", default="nic", show_default=True, help="nic, stock, or the path of a kernel.")
@click.option("--limit", default=600.0, show_default=True, type=click.FloatRange(1), help="Wall seconds for one row.")
@click.option("--checkout", type=click.Path(path_type=Path), help="The repository, where this is not a part of it.")
@click.option("--json", "as_json", is_flag=True, help="Print the document for programs.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="Directory for plots and a report.")
def wan(
    rate: str,
    rtt: str,
    buffer: str,
    loss: str,
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
    """Time payloads over one WAN link, in virtual time: by each mode between two gateways over RDMA, by one RDMA write,
    by TCP and by gRPC."""
    with told_plainly(), ended_in_order():
        link, payload_bytes = parse_link(rate, rtt, buffer, loss), parse_payload_size(size)
        names = [row.name for row in all_wan_rows()] if rows == "all" else [name.strip() for name in rows.split(",")]
        chosen = select_wan_rows(names)
        testbed = Testbed(find_checkout(checkout), link, seed, kernel, limit)
        testbed.check()
        if output is not None:
            make_directory(output)
        with progress() as tell:
            measurements, failures = run_wan_rows(chosen, testbed, payload_bytes, repeat, tell)
        document = json.dumps(to_document(link, payload_bytes, measurements, failures), indent=2)
        if as_json:
            click.echo(document)
        elif measurements:
            console().print(terminal_table(to_table(link, payload_bytes, measurements)))
        if output is not None and measurements:
            _write(link, payload_bytes, measurements, failures, document, output)
    end_with(failures)


def _write(
    link: WanLink,
    payload_bytes: int,
    measurements: Sequence[WanMeasurement],
    failures: Mapping[str, str],
    document: str,
    output: Path,
) -> None:
    path = output / "bench-wan.json"
    path.write_text(f"{document}\n", encoding="utf-8")
    paragraphs = ["Shares of the link's rate; the first transfer on fresh connections, and the median of those after."]
    paragraphs += [f"{name} was not measured: {reason}" for name, reason in failures.items()]
    table, plots = to_table(link, payload_bytes, measurements), to_plots(link, payload_bytes, measurements)
    page = output / "bench-wan.html"
    for written in [path, *write_report(page, "fedrdma bench wan", paragraphs, [table], plots)]:
        click.echo(f"wrote {written}", err=True)
