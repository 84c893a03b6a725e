"""`fedrdma bench`: measurements."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.console import Console

from fedrdma_fate.bench.payload import PayloadSpec, named_payload, plain_bytes
from fedrdma_fate.bench.report import terminal_table, write_report
from fedrdma_fate.bench.results import Measurement, to_document, to_plots, to_rows, to_table
from fedrdma_fate.bench.rivals import all_rivals, select_rivals
from fedrdma_fate.bench.runner import run_rows
from fedrdma_fate.bench.table3 import print_table3
from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.gateway.config_sizes import parse_size
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

DEFAULT_PAYLOAD = "gpt2-full"

_WIDTH_OF_A_FILE = 160


@click.group()
def bench() -> None:
    """Measure transfers against what else there is."""


@bench.command()
@click.option("--payload", help=f"gpt2-full, or lora-RANK.  [default: {DEFAULT_PAYLOAD}]")
@click.option("--bytes", "size", help="Instead of --payload: so many bytes, such as 64MiB.")
@click.option("--rows", default="all", show_default=True, help="Names of rows, with commas between.")
@click.option("--repeat", default=3, show_default=True, type=click.IntRange(1, 1000), help="Timed iterations.")
@click.option("--json", "as_json", is_flag=True, help="Print the document for programs.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="Directory for plots and a report.")
def fate(payload: str | None, size: str | None, rows: str, repeat: int, as_json: bool, output: Path | None) -> None:
    """Time ctx.put to ctx.get between two FATE parties: by every mode and transport, by FATE's standalone federation,
    by one memcpy and by one raw TCP socket."""
    with told_plainly(), _ended_in_order():
        spec = _payload(payload, size)
        names = [rival.name for rival in all_rivals()] if rows == "all" else [name.strip() for name in rows.split(",")]
        rivals = select_rivals(names)
        if output is not None:
            _make_directory(output)
        with _progress() as tell:
            measurements, failures = run_rows(rivals, spec, repeat, tell)
        _show(spec, measurements, as_json)
        if output is not None and measurements:
            _write(spec, measurements, output)
    for name, reason in failures.items():
        click.echo(f"fedrdma: {name} was not measured: {reason}", err=True)
    sys.exit(1 if failures else 0)


@bench.command()
@click.option("--json", "as_json", is_flag=True, help="Print the document for programs.")
def table3(as_json: bool) -> None:
    """Show what travels for each LoRA rank, and in how many chunks, beside the paper's Table 3."""
    with told_plainly():
        print_table3(_console(), as_json=as_json)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE)


def _payload(name: str | None, size: str | None) -> PayloadSpec:
    if size is None:
        return named_payload(name or DEFAULT_PAYLOAD)
    if name is not None:
        raise click.UsageError("Give --payload or --bytes, not both.")
    try:
        return plain_bytes(parse_size(int(size) if size.isdigit() else size))
    except ValueError as error:
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--bytes: {error}.") from error


def _make_directory(output: Path) -> None:
    """Find out before the measurements, which take minutes, whether their results can be written."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        remedy = "Name a directory that you may write to."
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--output: {error}.", remedy) from error


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM ends gateways and parties as Ctrl-C does."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A line on standard error that says what is going on, where somebody looks."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield status.update


def _show(spec: PayloadSpec, measurements: list[Measurement], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(to_document(spec.total_bytes, to_rows(measurements)), indent=2))
    elif measurements:
        _console().print(terminal_table(to_table(spec.name, spec.total_bytes, measurements)))


def _write(spec: PayloadSpec, measurements: list[Measurement], output: Path) -> None:
    rows = to_rows(measurements)
    table = to_table(spec.name, spec.total_bytes, measurements)
    document = output / "bench-fate.json"
    document.write_text(json.dumps(to_document(spec.total_bytes, rows), indent=2) + "\n", encoding="utf-8")
    paragraphs = ["Medians; a ratio is this row's seconds over the reference's in the same run."]
    page = output / "bench-fate.html"
    for path in [document, *write_report(page, "fedrdma bench fate", paragraphs, [table], to_plots(spec.name, rows))]:
        click.echo(f"wrote {path}", err=True)
