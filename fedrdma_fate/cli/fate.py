"""`fedrdma fate`: whether a FATE Flow fits the gateway, and the lines that make it fit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from fedrdma_fate.cli.doctor import render, to_document
from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.cli.terminal import Terminal
from fedrdma_fate.client.client import ask_status
from fedrdma_fate.doctor.fate_flow import check_flow, connects, lines_to_add, read_home
from fedrdma_fate.doctor.findings import worst
from fedrdma_fate.gateway.config.schema import load_config, split_address
from fedrdma_fate.gateway.config.sizes import parse_byte_count

_HOME = click.option(
    "--home", required=True, type=click.Path(path_type=Path), help="FATE Flow's home, or its folder `conf`."
)


def _size(_context: click.Context, _option: click.Parameter, given: str | None) -> int | None:
    """As in the gateway's file."""
    try:
        return None if given is None else int(parse_byte_count(given))
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


@click.group()
def fate() -> None:
    """Check a FATE Flow against its gateway, and print what to add to its configuration."""


@fate.command()
@_HOME
@click.option("--socket", "address", help="The gateway's `listen.socket`.  [default: as FATE Flow's files say]")
@click.option("--model-bytes", callback=_size, help="Whether there is room for a model of so many, such as 1GB.")
@click.option("--json", "as_json", is_flag=True, help="Print the document for programs.")
def check(home: Path, address: str | None, model_bytes: int | None, as_json: bool) -> None:
    """Check engine, proxy and ports of a FATE Flow home, and that the gateways of the parties answer.

    Ends with status 1 when there is an error.
    """
    read, flow = read_home(home)
    findings = [read, *([] if flow is None else check_flow(flow, address, ask_status, connects, model_bytes))]
    if as_json:
        click.echo(json.dumps(to_document(findings), indent=2))
    else:
        Terminal().print(render(findings))
    sys.exit(1 if worst(findings) == "error" else 0)


@fate.command("config")
@_HOME
@click.option("--gateway", "path", required=True, type=click.Path(path_type=Path), help="The gateway's YAML file.")
@click.option("--engine", type=click.Choice(["fedrdma", "osx"]), default="fedrdma", show_default=True)
def print_config(home: Path, path: Path, engine: str) -> None:
    """Print what local.service_conf.yaml has to say for jobs to go through the gateway. Nothing is written."""
    read, flow = read_home(home)
    if flow is None:
        raise click.ClickException(f"{read.found}. {read.remedy}")
    with told_plainly():
        config = load_config(path)
    listen = config.listen
    key, front = ("listen.osx", listen.osx) if engine == "osx" else ("listen.flow", listen.flow)
    if front is None:
        raise click.ClickException(f"`{key}` is not set in {path}. Set it: docs/configuration.md.")
    front_at, to_brokers = split_address(key, front), bool(config.brokers)
    click.echo(lines_to_add(flow, engine, listen.socket, front_at, to_brokers=to_brokers), nl=False)
