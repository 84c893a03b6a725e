"""How the command line tells of an error: one line, a code, and exit status 1."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import click

from fedrdma_fate.wire.errors import FedRDMAError


@contextlib.contextmanager
def told_plainly() -> Iterator[None]:
    """Turn a FedRDMAError into its text on standard error; other exceptions are bugs and keep their traceback."""
    try:
        yield
    except FedRDMAError as error:
        click.echo(f"fedrdma: {error}", err=True)
        click.echo(error.code.explanation, err=True)
        sys.exit(1)
