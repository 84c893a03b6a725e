"""`fedrdma bench`: measurements."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fedrdma_fate.bench.baselines import select_baselines, usual_baselines
from fedrdma_fate.bench.payload import PayloadSpec, named_payload, plain_bytes
from fedrdma_fate.bench.report import terminal_table, write_report
from fedrdma_fate.bench.results import Measurement, to_document, to_plots, to_rows, to_table
from fedrdma_fate.bench.runner import run_rows
from fedrdma_fate.bench.table3 import print_table3
from fedrdma_fate.cli.bench_aggregate import aggregate
from fedrdma_fate.cli.bench_cpu import cpu
from fedrdma_fate.cli.bench_incast import incast
from fedrdma_fate.cli.bench_lifl import lifl
from fedrdma_fate.cli.bench_notices import notices
from fedrdma_fate.cli.bench_paper import paper
from fedrdma_fate.cli.bench_paper_fedcomm import fedcomm
from fedrdma_fate.cli.bench_protocols import protocols
from fedrdma_fate.cli.bench_shared import console, end_with, ended_in_order, json_option, make_directory, progress
from fedrdma_fate.cli.bench_unifl import unifl
from fedrdma_fate.cli.bench_wan import wan
from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.gateway.config.sizes import parse_byte_count
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

DEFAULT_PAYLOAD = "gpt2-full"


@click.group()
def bench() -> None:
    """Measure transfers against what else there is."""


bench.add_command(wan)
bench.add_command(incast)
bench.add_command(protocols)
paper.add_command(fedcomm)
bench.add_command(paper)
bench.add_command(cpu)
bench.add_command(aggregate)
bench.add_command(notices)
bench.add_command(unifl)
bench.add_command(lifl)


@bench.command()
@click.option("--payload", help=f"gpt2-full, or lora-RANK.  [default: {DEFAULT_PAYLOAD}]")
@click.option("--bytes", "size", help="Instead of --payload: so many bytes, such as 64MiB.")
@click.option("--rows", default="all", show_default=True, help="Names of rows, with commas between.")
@click.option("--repeat", default=3, show_default=True, type=click.IntRange(1, 1000), help="Timed iterations.")
@json_option
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="Directory for plots and a report.")
def fate(payload: str | None, size: str | None, rows: str, repeat: int, as_json: bool, output: Path | None) -> None:
    """Time ctx.put to ctx.get between two FATE parties: by every mode and transport, by FATE's standalone federation,
    by one memcpy and by one raw TCP socket."""
    with told_plainly(), ended_in_order():
        spec = _payload(payload, size)
        named = [] if rows == "all" else [name.strip() for name in rows.split(",")]
        baselines = select_baselines(named) if named else usual_baselines()
        if output is not None:
            make_directory(output)
        with progress() as tell:
            measurements, failures = run_rows(baselines, spec, repeat, tell)
        _show(spec, measurements, as_json)
        if output is not None and measurements:
            _write(spec, measurements, output)
    end_with(failures)


@bench.command()
@json_option
def table3(as_json: bool) -> None:
    """Show what travels for each LoRA rank, and in how many chunks, beside the paper's Table 3."""
    with told_plainly():
        print_table3(console(), as_json=as_json)


def _payload(name: str | None, size: str | None) -> PayloadSpec:
    if size is None:
        return named_payload(name or DEFAULT_PAYLOAD)
    if name is not None:
        raise click.UsageError("Give --payload or --bytes, not both.")
    try:
        return plain_bytes(parse_byte_count(int(size) if size.isdigit() else size))
    except ValueError as error:
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--bytes: {error}.") from error


def _show(spec: PayloadSpec, measurements: list[Measurement], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(to_document(spec.total_bytes, to_rows(measurements)), indent=2))
    elif measurements:
        console().print(terminal_table(to_table(spec.name, spec.total_bytes, measurements)))


def _write(spec: PayloadSpec, measurements: list[Measurement], output: Path) -> None:
    rows = to_rows(measurements)
    table = to_table(spec.name, spec.total_bytes, measurements)
    document = output / "bench-fate.json"
    document.write_text(json.dumps(to_document(spec.total_bytes, rows), indent=2) + "\n", encoding="utf-8")
    paragraphs = ["Medians; a ratio is this row's seconds over the reference's in the same run."]
    page = output / "bench-fate.html"
    for path in [document, *write_report(page, "fedrdma bench fate", paragraphs, [table], to_plots(spec.name, rows))]:
        click.echo(f"wrote {path}", err=True)
