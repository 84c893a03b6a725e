"""`fedrdma explain`: the page of an error code."""

from __future__ import annotations

import importlib.resources

import click

from fedrdma_fate.wire.errors import ErrorCode

_CODES = {code.value for code in ErrorCode}


def _code(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """A code in either case; what is none is not answered by a list of all of them."""
    if value.upper() not in _CODES:
        raise click.BadParameter(f"{value!r} is no code of an error; they look like {min(_CODES)} or {max(_CODES)}.")
    return value.upper()


@click.command()
@click.argument("code", callback=_code)
def explain(code: str) -> None:
    """Say what an error's CODE means, why it happens and what to do; FR303, for example."""
    page = importlib.resources.files("fedrdma_fate") / "error_pages" / f"{code}.md"
    click.echo(page.read_text(encoding="utf-8"), nl=False)
