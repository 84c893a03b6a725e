"""`fedrdma bench unifl`: UniFL's evaluation, asked of this project."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fedrdma_fate.bench.report import terminal_table, write_report
from fedrdma_fate.bench.unifl.accuracy import AccuracySetting, measure_accuracy, to_document, to_table
from fedrdma_fate.bench.unifl.rounds import FIGURES, ROW_NAMES, Measured, play
from fedrdma_fate.bench.unifl.rounds import to_document as rounds_to_document
from fedrdma_fate.bench.unifl.rounds import to_table as rounds_to_table
from fedrdma_fate.bench.wan.testbed import find_checkout
from fedrdma_fate.cli.bench_shared import checkout_option, console, json_option, make_directory, progress
from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.quantities import parse_loss, parse_size
from fedrdma_fate.wire.errors import ConfigError, ErrorCode


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


def _command(name: str) -> click.Command:
    figure = FIGURES[name]

    @click.command(name, help=f"The paper's {name}, in virtual time: {figure.title}. TCP and LTP are models.")
    @click.option("--loss", help="Of the packets, such as 1%, or a list; by default the figure's.")
    @click.option("--rounds", default=2, show_default=True, type=click.IntRange(1, 1000), help="One after the other.")
    @click.option("--rows", default=",".join(figure.rows), show_default=True, help="With commas between.")
    @click.option("--size", help="Of a silo's payload; by default the figure's.")
    @click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**32), help="Of links and losses.")
    @click.option("--limit", default=1800.0, show_default=True, type=click.FloatRange(1), help="Real seconds of a row.")
    @checkout_option
    @json_option
    @click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="Directory for a report.")
    def command(
        loss: str | None,
        rounds: int,
        rows: str,
        size: str | None,
        seed: int,
        limit: float,
        checkout: Path | None,
        as_json: bool,
        output: Path | None,
    ) -> None:
        with told_plainly():
            losses = figure.losses if loss is None else [parse_loss(each) for each in loss.split(",")]
            payload_bytes = figure.payload_bytes if size is None else parse_size(size)
            names = _rows(rows)
            repository = find_checkout(checkout)
            if output is not None:
                make_directory(output)
            measured: list[Measured] = []
            with progress() as tell:
                for each in losses:
                    for row in names:
                        tell(f"{row}, {100 * each:g} % lost")
                        measured.append(play(repository, figure, row, each, rounds, seed, payload_bytes, limit))
            _show(name, seed, measured, as_json=as_json, output=output)

    return command


def _rows(text: str) -> list[str]:
    names = [each.strip() for each in text.split(",")]
    unknown = [each for each in names if each not in ROW_NAMES]
    if unknown:
        told = f"--rows: there is no {unknown[0]!r}."
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, told, f"Choose among {', '.join(ROW_NAMES)}.")
    return names


def _show(name: str, seed: int, measured: list[Measured], *, as_json: bool, output: Path | None) -> None:
    document = json.dumps(rounds_to_document(name, seed, measured), indent=2)
    if as_json:
        click.echo(document)
    else:
        console().print(terminal_table(rounds_to_table(name, measured)))
    if output is None:
        return
    path = output / f"bench-unifl-{name}.json"
    path.write_text(document + "\n", encoding="utf-8")
    told = ["Rounds in virtual time; TCP and LTP are models. The least is all payloads at the links' rates."]
    page = output / f"bench-unifl-{name}.html"
    for written in [path, *write_report(page, f"UniFL, {name}", told, [rounds_to_table(name, measured)], [])]:
        click.echo(f"wrote {written}", err=True)


for _name in FIGURES:
    unifl.add_command(_command(_name))
