"""What the commands of `fedrdma bench` have in common."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console

from fedrdma_fate.wire.errors import ConfigError, ErrorCode

INTERRUPTED_STATUS = 130
"""As of a program that Ctrl-C has ended in a shell: 128 and the number of SIGINT."""
_WIDTH_OF_A_FILE = 160
"""Columns, where the output is no terminal and has no width of its own: room for the tables of the benchmarks."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print the document for programs.")
kernel_option = click.option("--kernel", default="nic", show_default=True, help="nic, stock, or the path of a kernel.")
checkout_option = click.option(
    "--checkout", type=click.Path(path_type=Path), help="The repository, where this is not a part of it."
)


def console() -> Console:
    """For tables: as wide as the terminal, or as a file may be."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE)


def is_given(option: str) -> bool:
    """Whether the user gave an option of the running command, by its parameter's name, and did not leave it out."""
    return click.get_current_context().get_parameter_source(option) is not ParameterSource.DEFAULT


def make_directory(output: Path) -> None:
    """Find out before the measurements, which take minutes, whether their results can be written.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: they cannot.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        remedy = "Name a directory that you may write to."
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--output: {error}.", remedy) from error


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM ends what was started as Ctrl-C does."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line on standard error that says what is going on, where somebody looks."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield status.update


def end_with(failures: Mapping[str, str]) -> None:
    """Name the rows that were not measured, and end with status 1 if there are any, else 0."""
    for name, reason in failures.items():
        click.echo(f"fedrdma: {name} was not measured: {reason}", err=True)
    sys.exit(1 if failures else 0)
