"""python -m examples.cifar10_vgg: makes a stand-in for CIFAR-10, or looks whether pictures can be used."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from examples.cifar10_vgg.pictures import read_dataset
from examples.cifar10_vgg.stand_in import TEST_PICTURES, TRAIN_PICTURES, write_stand_in
from fedrdma_fate.wire.errors import FedRDMAError

USAGE_STATUS = 2
"""For what the user has to mend: the first line on standard error says it."""


@click.group()
def main() -> None:
    """Pictures for FedComm's job."""


@main.command()
@click.argument("directory", type=click.Path(path_type=Path))
def check(directory: Path) -> None:
    """Read CIFAR-10, binary or Python version, or a stand-in; say how many pictures there are."""
    try:
        found = read_dataset(directory)
    except FedRDMAError as error:
        click.echo(error.message, err=True)
        sys.exit(USAGE_STATUS)
    click.echo(f"{len(found.train):,} pictures to train with, {len(found.test):,} to test with")


@main.command("stand-in")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Of the pictures.")
@click.option("--train", default=TRAIN_PICTURES, show_default=True, help="Pictures to train with, a multiple of 5.")
@click.option("--test", default=TEST_PICTURES, show_default=True, help="Pictures to test with.")
def make_stand_in(directory: Path, seed: int, train: int, test: int) -> None:
    """Write a stand-in: six files in the binary version's format."""
    try:
        write_stand_in(directory, seed, train, test)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error


if __name__ == "__main__":
    main()
