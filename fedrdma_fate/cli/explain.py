"""`fedrdma explain`: the page of an error code."""

from __future__ import annotations

import importlib.resources

import click

from fedrdma_fate.wire.errors import ErrorCode

_CODES = {code.value: code for code in ErrorCode}


@click.command()
@click.argument("code", type=click.Choice(sorted(_CODES), case_sensitive=False), metavar="CODE")
def explain(code: str) -> None:
    """Say what an error's CODE means, why it happens and what to do; FR303, for example."""
    page = importlib.resources.files("fedrdma_fate") / "error_pages" / f"{_CODES[code].value}.md"
    click.echo(page.read_text(encoding="utf-8"), nl=False)
