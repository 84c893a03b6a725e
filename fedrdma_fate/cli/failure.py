"""How the command line tells of an error: one line, a code, and exit status 1."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import click

from fedrdma_fate.obs.log import escaped
from fedrdma_fate.wire.errors import FedRDMAError


def tell(text: str, *, err: bool = False) -> None:
    """Lines of text, some of which may be somebody else's: none acts on the terminal."""
    click.echo(escaped(text), err=err)


@contextlib.contextmanager
def told_plainly() -> Iterator[None]:
    """Turn a FedRDMAError into its text on standard error; other exceptions are bugs and keep their traceback."""
    try:
        yield
    except FedRDMAError as error:
        tell(f"fedrdma: {error}", err=True)
        tell(error.code.explanation, err=True)
        sys.exit(1)
