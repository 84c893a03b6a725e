"""The command line of one silo, for three silos on three hosts."""

from __future__ import annotations

import sys
import typing
from pathlib import Path

import click
import msgspec
from rich.console import Console

from examples.gpt2_advertisegen.cli_options import CONTEXT, failures_told, job_options, make_console
from examples.gpt2_advertisegen.one_silo import Place, SiloRun, SiloSummary
from examples.gpt2_advertisegen.options import JobOptions
from examples.gpt2_advertisegen.plan import PARTIES, RunFiles
from examples.gpt2_advertisegen.progress import Lines, Silent
from fedrdma_fate.bench.report import format_bytes, format_seconds
from fedrdma_fate.gateway.config.schema import split_address
from fedrdma_fate.wire.errors import ConfigError
from fedrdma_fate.wire.frames import Party

_SILOS = {party.role: party for party in PARTIES}


def _parse_at(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[Party, str]:
    """Where every gateway listens, from `SILO=HOST:PORT` for each of the three."""
    found: dict[Party, str] = {}
    for value in values:
        silo, _, address = value.partition("=")
        if silo not in _SILOS or _SILOS[silo] in found or not _is_address(address):
            raise click.BadParameter(f"{value!r}: write SILO=HOST:PORT, once for each of {', '.join(_SILOS)}")
        found[_SILOS[silo]] = address
    if missing := [silo for silo, party in _SILOS.items() if party not in found]:
        raise click.BadParameter(f"the address of {' and '.join(missing)} is missing")
    return found


def _is_address(text: str) -> bool:
    try:
        split_address("--at", text)
    except ConfigError:
        return False
    return True


@click.command(context_settings=CONTEXT)
@click.option("--silo", type=click.Choice(list(_SILOS)), required=True, help="The silo to run on this host.")
@click.option(
    "--at",
    "controls",
    multiple=True,
    required=True,
    callback=_parse_at,
    metavar="SILO=HOST:PORT",
    help="Where a silo's gateway listens, its own too. Give it three times, the same on every host.",
)
@click.option("--session", default="gpt2-advertisegen", help="Name of the job, the same on every host.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    help="Seconds to wait for the other silos, before the job and after it.",
)
@click.option(
    "--certificates",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Directory made by: fedrdma certs DIRECTORY guest host arbiter. The key of this silo alone will do.",
)
@click.option("--insecure", is_flag=True, help="Do without certificates; in a network that nobody else reaches.")
@job_options
def main(
    *,
    silo: str,
    controls: dict[Party, str],
    session: str,
    patience: float,
    certificates: Path | None,
    insecure: bool,
    as_json: bool,
    output: Path | None,
    **chosen: typing.Any,
) -> None:
    """Run one silo of the job on this host: its gateway, and its FATE party beside it.

    Start it on three hosts with the same options but --silo, in any order: guest 9999, host 10000, arbiter 10000. Every
    host prepares the same model from --seed (or --model), and takes its own share of --data.
    """
    if (certificates is None) != insecure:
        raise click.UsageError("give --certificates DIRECTORY; or --insecure, where nobody else reaches the network")
    place = Place(_SILOS[silo], controls, session, patience, certificates)
    options = JobOptions(output=output or Path("runs") / f"{session}-{silo}", **chosen)
    console = make_console(stderr=as_json)
    with failures_told(console, RunFiles(options.output).logs):
        summary = SiloRun(options, place, Silent() if as_json else Lines(console)).run()
    if as_json:
        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
    else:
        _show(console, summary, options)


def _show(console: Console, summary: SiloSummary, options: JobOptions) -> None:
    for link in summary.links:
        console.print(f"to {link.peer}: {link.transport} ({link.reason})", highlight=False)
    for path, size in summary.bytes_by_path.items():
        console.print(f"{format_bytes(size)} delivered by {path}", highlight=False)
    if summary.model_sha256:
        console.print(f"model {summary.model_sha256}", highlight=False)
    console.print(f"\nDone in {format_seconds(summary.seconds)}.", style="bold", highlight=False)
    console.print(f"Summary: {RunFiles(options.output).summary}", soft_wrap=True, highlight=False)
