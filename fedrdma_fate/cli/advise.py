"""`fedrdma advise`: what a round would take on the path to a peer, by federation and transport."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import click
from rich.table import Table

from fedrdma_fate.bench.incast.settings import MOST_SILOS
from fedrdma_fate.bench.protocols.advice import HIGHEST_LOSS, Estimate, Path, estimate_ways, rate_with_headers
from fedrdma_fate.bench.protocols.models import parse_model
from fedrdma_fate.bench.report import format_seconds
from fedrdma_fate.cli.failure import tell, told_plainly
from fedrdma_fate.cli.probe import LONGEST_SECONDS, parse_bytes
from fedrdma_fate.cli.terminal import Terminal
from fedrdma_fate.client.client import ask_status
from fedrdma_fate.client.probe import ask_probe
from fedrdma_fate.quantities import QuantityError, parse_loss, parse_rate, parse_time
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

_GIVEN = "given"


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """A figure of the path, and where it comes from."""

    value: float
    source: str


@click.command()
@click.argument("peer", required=False)
@click.option("--model", default="vgg5", show_default=True, help="vgg5, vgg8, lora-RANK, or a size; each way.")
@click.option("--silos", default=1, show_default=True, type=click.IntRange(1, MOST_SILOS), help="Of the federation.")
@click.option("--rate", help="Of the path to a silo, such as 20mbit, instead of what the probe finds.")
@click.option("--server-rate", help="Of the server's own link, which all silos share.  [default: as --rate]")
@click.option("--rtt", help="Round trip, such as 20ms, instead of what the probe finds.")
@click.option("--loss", help="Packets lost each way, such as 5%, instead of what transfers have found.")
@click.option("--mtu", default=1500, show_default=True, type=click.IntRange(576, 65535), help="Bytes of an IP packet.")
@click.option(
    "--socket",
    "address",
    default="unix:///run/fedrdma/gateway.sock",
    show_default=True,
    help="The own gateway's `listen.socket`.",
)
@click.option("--bytes", "most", default="64MiB", show_default=True, help="Most that the probe sends.")
@click.option(
    "--seconds",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0.1, LONGEST_SECONDS),
    help="Most time that the probe takes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the document for programs.")
def advise(
    peer: str | None,
    model: str,
    silos: int,
    rate: str | None,
    server_rate: str | None,
    rtt: str | None,
    loss: str | None,
    mtu: int,
    address: str,
    most: str,
    seconds: float,
    as_json: bool,
) -> None:
    """Say what a round of a federation would take by each federation and transport, fastest first, on the path to PEER,
    a site that is probed; or on one that --rate and --rtt describe."""
    with told_plainly():
        payload = parse_model(model)
        known: dict[str, Known] = {
            name: Known(value, _GIVEN)
            for name, value in (
                ("rate", _given("rate", rate, parse_rate)),
                ("rtt", _given("rtt", rtt, lambda text: parse_time(text) / 1e9)),
                ("loss", _given("loss", loss, parse_loss)),
            )
            if value is not None
        }
        server = _given("server-rate", server_rate, parse_rate)
        notes: list[str] = []
        if peer is not None:
            total_bytes = parse_bytes(most)
            report, state = ask_probe(address, peer, total_bytes, seconds), ask_status(address)
            found, notes = findings(report, state, mtu)
            known = {**found, **known}
        if missing := [name for name in ("rate", "rtt") if name not in known]:
            raise ConfigError(
                ErrorCode.CONFIG_BAD_VALUE,
                f"nothing is known of the path's {' and '.join(missing)}.",
                "Name a peer that can be probed for longer, or give --rate and --rtt.",
            )
        known.setdefault("loss", Known(0.0, "assumed: no transfer has found any"))
        if known["loss"].value > HIGHEST_LOSS:
            problem = f"--loss: beyond {HIGHEST_LOSS:.0%} no formula says anything."
            raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, problem)
        path = Path(known["rate"].value, known["rtt"].value, known["loss"].value, mtu, server, server)
        estimates = estimate_ways(path, silos, payload.size)
        if as_json:
            click.echo(json.dumps(to_document(known, path, silos, payload.size, estimates, notes), indent=2))
            return
        for line in heading(known, path, silos, payload.name):
            tell(line)
        Terminal().print(to_table(estimates))
        for note in notes:
            tell(note)


def findings(report: Mapping[str, Any], state: Mapping[str, Any], mtu: int) -> tuple[dict[str, Known], list[str]]:
    """What a probe of a peer and the gateway's status say of the path, and what else is to be told."""
    found: dict[str, Known] = {"rtt": Known(report["rtt_least_seconds"], "probe")}
    paths = [path for peer in state["peers"] if peer["site"] == report["peer"] for path in peer["paths"]]
    # goodput of payload: what carries it has headers
    rates = [(report["rate_bits_per_second"], "probe")]
    rates += [(path["found_bits_per_second"], f"transfers by {path['transport']}") for path in paths]
    fastest = max(((value, source) for value, source in rates if value), default=None)
    if fastest is not None:
        found["rate"] = Known(rate_with_headers(fastest[0], mtu), f"{fastest[1]}, with headers")
    losses = [(path["found_packet_loss"], path["transport"]) for path in paths]
    seen = max(((value, transport) for value, transport in losses if value is not None), default=None)
    if seen is not None:
        found["loss"] = Known(seen[0], f"transfers by {seen[1]}")
    notes = []
    if report["lends"]:
        notes.append("Both sites are on one host: `fedrdma` lends messages there, and moves nothing; take it.")
    if any(path["transport"] == "verbs" and path["up"] for path in paths):
        notes.append("RDMA is there (verbs) and not estimated: `fedrdma bench wan` measures it.")
    return found, notes


def heading(known: Mapping[str, Known], path: Path, silos: int, model: str) -> list[str]:
    """What the estimates are made of, and where that comes from."""
    server = path.server_sends_bps
    return [
        f"{silos} silos with {model}, down to each and up from each; what is known of the path:",
        f"  rate        {path.rate_bps / 1e6:,.1f} Mbit/s ({known['rate'].source})",
        f"  server      {(server or path.rate_bps) / 1e6:,.1f} Mbit/s ({_GIVEN if server else 'assumed: as the rate'})",
        f"  round trip  {path.rtt_seconds * 1000:.2f} ms ({known['rtt'].source})",
        f"  loss        {path.loss:.2%} ({known['loss'].source})",
        f"  MTU         {path.mtu_bytes}",
    ]


def to_table(estimates: list[Estimate]) -> Table:
    """For people."""
    table = Table()
    for column in ("", "a round", "why", "where the number comes from", "set"):
        # what is to be typed or opened must be whole, on a narrow terminal too
        table.add_column(column, overflow="fold")
    for one in estimates:
        table.add_row(one.name, format_seconds(one.seconds), one.reason, one.source, one.setting or "not in FATE")
    return table


def to_document(
    known: Mapping[str, Known], path: Path, silos: int, model_bytes: int, estimates: list[Estimate], notes: list[str]
) -> dict[str, object]:
    """For programs."""
    return {
        "path": dataclasses.asdict(path),
        "sources": {name: one.source for name, one in known.items()},
        "silos": silos,
        "model_bytes": model_bytes,
        "ways": [dataclasses.asdict(one) for one in estimates],
        "notes": notes,
    }


def _given(option: str, text: str | None, parse: Callable[[str], float]) -> float | None:
    try:
        return None if text is None else parse(text)
    except QuantityError as error:
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--{option}: {error}.") from error
