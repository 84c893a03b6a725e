"""`fedrdma bench cpu`: what chunks cost the processor."""

from __future__ import annotations

import json

import click

from fedrdma_fate.bench.cpu.control import control_document, control_table, measure_control
from fedrdma_fate.bench.cpu.results import CHUNK_SIZES, measure, to_document, to_table
from fedrdma_fate.bench.cpu.sealing import measure_sealing, sealing_document, sealing_table
from fedrdma_fate.bench.report import terminal_table
from fedrdma_fate.cli.bench_shared import console, ended_in_order, json_option, progress
from fedrdma_fate.cli.failure import told_plainly


@click.command()
@click.option("--repeat", default=3, show_default=True, type=click.IntRange(1, 100), help="Transfers of each size.")
@json_option
def cpu(repeat: int, as_json: bool) -> None:
    """Measure what a chunk of mode fedrdma-x costs the link threads of both ends, apart from network and device, and
    the rate at which that fills a core; the rate at which a core seals and opens chunks; and what TLS adds to a small
    message's round trip."""
    with told_plainly(), ended_in_order():
        with progress() as tell:
            rows = measure(CHUNK_SIZES, repeat, tell)
            sealing = measure_sealing(repeat, tell)
            control = measure_control(repeat, tell)
        if as_json:
            document = {**to_document(rows), **sealing_document(sealing), **control_document(control)}
            click.echo(json.dumps(document, indent=2))
        else:
            console().print(terminal_table(to_table(rows)))
            console().print(terminal_table(sealing_table(sealing)))
            console().print(terminal_table(control_table(control)))
