"""What the commands of `fedrdma bench` have in common."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from rich.console import Console

from fedrdma_fate.wire.errors import ConfigError, ErrorCode

if TYPE_CHECKING:
    from fedrdma_fate.bench.wan.checkpoint import KeptMeasurements

Command = TypeVar("Command", bound=Callable[..., object])
"""What options are put to."""
Log = TypeVar("Log", bound="KeptMeasurements[Any, Any]")

INTERRUPTED_STATUS = 130
"""As of a program that Ctrl-C has ended in a shell: 128 and the number of SIGINT."""
_WIDTH_OF_A_FILE = 160
"""Columns, where the output is no terminal and has no width of its own: room for the tables of the benchmarks."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print the document for programs.")
kernel_option = click.option("--kernel", default="nic", show_default=True, help="nic, stock, or the path of a kernel.")
checkout_option = click.option(
    "--checkout", type=click.Path(path_type=Path), help="The repository, where this is not a part of it."
)


def limit_option(seconds: float) -> Callable[[Command], Command]:
    """How long one row may take, by default."""
    return click.option(
        "--limit", default=seconds, show_default=True, type=click.FloatRange(1), help="Wall seconds for one row."
    )


def resumed_output_option(what: str) -> Callable[[Command], Command]:
    """Where a sweep puts its results, and goes on from: a directory for `what`."""
    return click.option(
        "--output",
        type=click.Path(path_type=Path, file_okay=False),
        help=f"Directory for {what}; what it holds of an earlier run is not measured again.",
    )


def open_log(output: Path | None, name: str, read: Callable[[Path | None], Log]) -> Log:
    """What a directory holds of earlier runs, and what is measured from now on; without one only the latter.

    Args:
        output: the directory.
        name: of the file in it.
        read: makes the log of that file; of None one that is kept nowhere.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: it cannot be written, or holds something else.
    """
    if output is None:
        return read(None)
    make_directory(output)
    path = output / name
    log = read(path)
    if not log.is_empty:
        click.echo(f"fedrdma: {path} holds measurements, which are not made again; remove it to make them", err=True)
    return log


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
