"""`fedrdma probe`: measures the path to a peer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedrdma_fate.cli.failure import tell, told_plainly
from fedrdma_fate.cli.status import size
from fedrdma_fate.cli.terminal import Terminal
from fedrdma_fate.client.probe import ask_probe
from fedrdma_fate.gateway.config.edit import set_peer_settings
from fedrdma_fate.gateway.config.schema import load_config
from fedrdma_fate.gateway.config.sizes import parse_byte_count
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

LONGEST_SECONDS = 600.0
"""A probe sends as fast as the path lets it, beside the jobs: ten minutes at most."""


@click.command()
@click.argument("peer")
@click.option(
    "--socket",
    "address",
    default="unix:///run/fedrdma/gateway.sock",
    show_default=True,
    help="The own gateway's `listen.socket`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the document for programs.")
@click.option(
    "--write",
    "path",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Write what was found to the peer's settings in this configuration.",
)
@click.option("--bytes", "most", default="512MiB", show_default=True, help="Most to send, such as 64MiB.")
@click.option(
    "--seconds", default=10.0, show_default=True, type=click.FloatRange(0.1, LONGEST_SECONDS), help="Most time to take."
)
def probe(peer: str, address: str, as_json: bool, path: Path | None, most: str, seconds: float) -> None:
    """Measure the path to PEER, a site: round trip, goodput by chunk size, and whether large first chunks survive."""
    with told_plainly():
        total_bytes = parse_bytes(most)
        if path is not None:
            _check_names(path, peer)
        report: dict[str, Any] = ask_probe(address, peer, total_bytes, seconds)
        if as_json:
            click.echo(json.dumps({**report, "settings": settings(report)}, indent=2))
        else:
            Terminal().print(render(report))
        if path is not None:
            _write(path, report)


def settings(report: Mapping[str, Any]) -> dict[str, str | float]:
    """The keys of the peer's configuration that follow from a report; none for what was not measured."""
    found: dict[str, str | float] = {}
    if report["best_chunk_bytes"] is not None:
        found["chunk"] = _exact_size(report["best_chunk_bytes"])
    if report["link_enable"] is not None:
        found["link_enable"] = report["link_enable"]
    if report["rate_bits_per_second"] is not None:
        found["rate"] = _rounded_rate(report["rate_bits_per_second"])
    return found


def render(report: Mapping[str, Any]) -> RenderableType:
    """The report as tables."""
    head = Text.assemble(
        (f"{report['site']} to {report['peer']}", "bold"),
        f"  by {report['transport']} ({report['reason']}), mode {report['mode']}: {size(report['sent_bytes'])} in "
        f"{report['seconds']:.1f} s\nround trip of the control channel: {report['rtt_median_seconds'] * 1000:.2f} ms "
        f"(least {report['rtt_least_seconds'] * 1000:.2f} ms of {report['pings']})",
    )
    parts: list[RenderableType] = [head, _chunks(report)]
    if report["lends"]:
        parts.append(Text("messages are lent between these sites, not moved: what was measured is their other way"))
    if report["not_measured"]:
        sizes = ", ".join(map(size, report["not_measured"]))
        parts.append(Text(f"not measured, within the bounds of this probe: chunks of {sizes}"))
    parts.append(Text(f"Link-Enable: {report['link_enable'] or 'undecided'} ({report['link_enable_reason']})"))
    found = ", ".join(f"{key}: {value}" for key, value in _as_yaml(settings(report)).items()) or "none"
    parts.append(Text.assemble("settings of this peer that follow: ", (found, "bold")))
    return Group(*parts)


def _chunks(report: Mapping[str, Any]) -> Table:
    table = Table("chunk", "payload", "seconds", "goodput", "", title="Goodput")
    for trial in report["chunks"]:
        best = trial["chunk_bytes"] == report["best_chunk_bytes"]
        table.add_row(
            size(trial["chunk_bytes"]),
            size(trial["payload_bytes"]),
            f"{trial['seconds']:.3f}",
            f"{trial['bits_per_second'] / 1e6:,.0f} Mbit/s",
            "chosen" if best else "" if trial["survived"] else "lost",
        )
    return table


def parse_bytes(text: str) -> int:
    """Of the option `--bytes`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: it is none.
    """
    try:
        return int(parse_byte_count(int(text) if text.isdigit() else text))
    except ValueError as error:
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--bytes: {error}.") from error


def _check_names(path: Path, peer: str) -> None:
    """Find out before the measurements whether the file has this peer."""
    known = [other.site for other in load_config(path).peers]
    if peer not in known:
        remedy = f"Peers there: {', '.join(known) or 'none'}."
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"{path} has no peer {peer!r}.", remedy)


def _write(path: Path, report: Mapping[str, Any]) -> None:
    own = load_config(path).site
    if own != report["site"]:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"{path} is the configuration of {own!r}, the gateway that measured is {report['site']!r}.",
            "Name its own configuration.",
        )
    found = settings(report)
    if not found:
        tell(f"{path} is as it was: nothing was found to write.", err=True)
        return
    set_peer_settings(path, report["peer"], _as_yaml(found))
    tell(f"wrote {', '.join(found)} of {report['peer']} to {path}; restart the gateway to use it.", err=True)


def _as_yaml(found: Mapping[str, str | float]) -> dict[str, str]:
    return {key: f"{value:.1e}" if isinstance(value, float) else value for key, value in found.items()}


def _exact_size(count: int) -> str:
    for unit, length in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count % length == 0:
            return f"{count // length}{unit}"
    return str(count)


def _rounded_rate(bits_per_second: float) -> float:
    """Two digits say all that a measurement of some seconds does."""
    return round(bits_per_second, 1 - math.floor(math.log10(bits_per_second)))
