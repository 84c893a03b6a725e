"""`fedrdma bench unifl`: UniFL's evaluation, asked of this project."""

from __future__ import annotations

import json

import click

from fedrdma_fate.bench.report import terminal_table
from fedrdma_fate.bench.unifl.accuracy import AccuracySetting, measure_accuracy, to_document, to_table
from fedrdma_fate.cli.bench_shared import console, json_option, progress
from fedrdma_fate.cli.failure import told_plainly


@click.group()
def unifl() -> None:
    """What UniFL's evaluation asks, asked of this project."""


@unifl.command()
@click.option("--silos", default=64, show_default=True, type=click.IntRange(2, 1000), help="In all.")
@click.option("--chosen", default=8, show_default=True, type=click.IntRange(2, 64), help="By chance, in each round.")
@click.option("--rounds", default=80, show_default=True, type=click.IntRange(3, 10_000))
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1, 100))
@json_option
def accuracy(silos: int, chosen: int, rounds: int, seeds: int, as_json: bool) -> None:
    """Train on scikit-learn's digits by federated averaging whose updates lose chunks: the mean of those that came,
    masked updates where the last aggregate stays, and, as a warning, zeros in place of what is missing."""
    if chosen > silos:
        raise click.UsageError(f"--chosen {chosen} is more than --silos {silos}.")
    setting = AccuracySetting(silos, chosen, rounds, seeds)
    with told_plainly():
        with progress() as tell:
            outcomes = measure_accuracy(setting, tell=tell)
        if as_json:
            click.echo(json.dumps(to_document(setting, outcomes), indent=2))
        else:
            console().print(terminal_table(to_table(setting, outcomes)))
