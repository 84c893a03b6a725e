"""`fedrdma bench notices`: how soon a worker begins to add an update."""

from __future__ import annotations

import json

import click

from fedrdma_fate.aggregate.skmsg import try_skmsg
from fedrdma_fate.bench.notices import WAYS, measure_notices, to_document, to_table
from fedrdma_fate.bench.report import terminal_table
from fedrdma_fate.cli.bench_shared import console, end_with, ended_in_order, json_option, progress
from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.quantities import QuantityError, parse_size
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

_LEAST_UPDATE_BYTES = 256 * 1024
"""Smaller ones are added by FATE."""

_SIZES = "47MB,87MB,241MB"
"""Of ResNet-18, -34 and -152 as float32: the models of the LIFL paper."""


@click.command()
@click.option("--sizes", default=_SIZES, show_default=True, help="Of updates, such as 64MiB, with commas between.")
@click.option("--count", default=30, show_default=True, type=click.IntRange(2, 1000), help="Notices of each row.")
@click.option("--ways", default="all", show_default=True, help=f"Of {', '.join(WAYS)}, with commas between.")
@json_option
def notices(sizes: str, count: int, ways: str, as_json: bool) -> None:
    """Time how soon a worker begins to add an update that it is told of: over its socket (socket), by a program in the
    kernel, where it takes one (skmsg), through a process that passes notices on (broker); and from an update lying
    whole at the arbiter's gateway (gateway)."""
    with told_plainly(), ended_in_order():
        chosen, lengths = _chosen(ways), [_length(each) for each in sizes.split(",")]
        with progress() as tell:
            rows, failures = measure_notices(chosen, lengths, count, tell)
        if as_json:
            click.echo(json.dumps(to_document(rows), indent=2))
        else:
            console().print(terminal_table(to_table(rows)))
    end_with(failures)


def _chosen(ways: str) -> list[str]:
    if ways == "all":
        if reason := try_skmsg():
            click.echo(f"fedrdma: the way skmsg is left out: {reason}", err=True)
        return [way for way in WAYS if way != "skmsg" or not reason]
    names = [name.strip() for name in ways.split(",")]
    for name in names:
        if name not in WAYS:
            raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"there is no way {name!r}.", f"Ways: {', '.join(WAYS)}.")
    return names


def _length(text: str) -> int:
    try:
        length = parse_size(text)
    except QuantityError as error:
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--sizes: {error}.") from error
    if length < _LEAST_UPDATE_BYTES:
        told = f"--sizes: {text.strip()} is less than 256KiB."
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, told, "Smaller updates are not summed.")
    return length
