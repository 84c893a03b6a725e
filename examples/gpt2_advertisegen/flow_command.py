"""The command line of the job by FATE Flow."""

from __future__ import annotations

import contextlib
import sys
import time
import typing
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from examples.gpt2_advertisegen.cli_options import CONTEXT, training_options
from examples.gpt2_advertisegen.flow_job import FlowAddress, PartyIds, bind, fit
from examples.gpt2_advertisegen.options import JobOptions
from examples.gpt2_advertisegen.plan import ARBITER, CLIENTS, GUEST, HOST, ModelFacts, RunFiles, prepare_request
from examples.gpt2_advertisegen.prepare import prepare
from fedrdma_fate.bench.report import format_seconds
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, FedRDMAError

_directory = click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Of data and model, under the same path at each site.",
)
_flow = click.option("--flow", default="127.0.0.1:9380", help="HOST:PORT of a site's FATE Flow, its HTTP port.")

_USAGE = 2


@click.group(context_settings=CONTEXT)
def main() -> None:
    """Fine-tune GPT-2 with FATE-LLM as a job of FATE Flow: HomoNN with the Seq2Seq runner, between two sites or at one.

    Each site prepares and binds, with the same options; one submits. FATE Flow's processes find the model by
    `examples/gpt2_advertisegen/at_sites` on their PYTHONPATH.
    """


@main.command("prepare")
@training_options
@_directory
def _prepare(directory: Path, **chosen: typing.Any) -> None:
    """Write data, tokenizer and model of all clients: the same seed gives the same at each site."""
    with _told():
        options = JobOptions(output=directory.absolute(), **chosen)
        files = RunFiles(options.output)
        if files.model_facts.exists():
            raise ConfigError(
                ErrorCode.CONFIG_BAD_VALUE, f"{files.output} is prepared already.", "Name a new --directory."
            )
        files.output.mkdir(parents=True, exist_ok=True)
        facts = prepare(prepare_request(options, options.hyper_parameters(), files.output))
        files.model_facts.write_bytes(msgspec.json.encode(facts))
    click.echo(f"{facts.parameters} parameters, {facts.train_rows} rows for each client, in {files.output}")


@main.command("bind")
@_directory
@_flow
@click.option("--role", type=click.Choice([client.role for client in CLIENTS]), required=True, help="Of this site.")
@click.option(
    "--rows",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="JSON lines in AdvertiseGen's format, of this site's own.  [default: the prepared share]",
)
def _bind(directory: Path, flow: str, role: str, rows: Path | None) -> None:
    """Tell this site's FATE Flow where its rows lie."""
    with _told():
        _facts(directory)
        client = next(client for client in CLIENTS if client.role == role)
        bind(_address(flow), directory.absolute(), client, rows and rows.absolute())


@main.command("fit")
@training_options
@_directory
@_flow
@click.option("--guest", default=GUEST.party_id, help="Party id.")
@click.option("--host", default=HOST.party_id, help="Party id.")
@click.option("--arbiter", default=ARBITER.party_id, help="Party id.")
def _fit(directory: Path, flow: str, guest: str, host: str, arbiter: str, **chosen: typing.Any) -> None:
    """Submit the job at the guest's FATE Flow, follow it, and print its id."""
    with _told():
        options = JobOptions(output=directory.absolute(), **chosen)
        options.hyper_parameters()
        facts = _facts(directory)
        address = _address(flow)
    began = time.monotonic()
    try:
        job = fit(address, options, facts, PartyIds(guest, host, arbiter))
    except ValueError as error:
        # what FATE's client raises for whatever becomes of a job
        sys.exit(f"The job has failed: {error}")
    click.echo(job)
    click.echo(f"Done in {format_seconds(time.monotonic() - began)}.", err=True)


def _facts(directory: Path) -> ModelFacts:
    try:
        return msgspec.json.decode(RunFiles(directory).model_facts.read_bytes(), type=ModelFacts)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(
            ErrorCode.CONFIG_UNREADABLE, f"{directory} is not prepared: {error}.", "Run `prepare` first."
        ) from error


def _address(text: str) -> FlowAddress:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--flow {text} is no HOST:PORT.", "Such as 127.0.0.1:9380.")
    return FlowAddress(host, int(port))


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Ends the command with one line where the user has to mend something."""
    try:
        yield
    except FedRDMAError as error:
        click.echo(str(error), err=True)
        sys.exit(_USAGE)
