"""`fedrdma doctor`: what is right and wrong with this machine."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedrdma_fate import __version__
from fedrdma_fate.cli.terminal import Terminal
from fedrdma_fate.doctor.examination import Machine, examine
from fedrdma_fate.doctor.findings import Finding, Level, worst

_STYLES: dict[Level, str] = {"ok": "green", "warning": "yellow", "error": "bold red"}


@click.command()
@click.option("--config", "path", type=click.Path(path_type=Path), help="The gateway's YAML file; else the defaults.")
@click.option("--socket", "address", help="The gateway's `listen.socket`.  [default: the configured one]")
@click.option("--json", "as_json", is_flag=True, help="Print the document for programs.")
def doctor(path: Path | None, address: str | None, as_json: bool) -> None:
    """Check this machine, its RDMA devices, the gateway and FATE; what is wrong comes with what to do.

    Ends with status 1 when there is an error.
    """
    findings = examine(Machine.this(), path, address)
    if as_json:
        click.echo(json.dumps(to_document(findings), indent=2))
    else:
        Terminal().print(render(findings))
    sys.exit(1 if worst(findings) == "error" else 0)


def to_document(findings: Sequence[Finding]) -> dict[str, object]:
    """The findings for programs."""
    return {
        "version": __version__,
        "worst": worst(findings),
        "checks": [dataclasses.asdict(finding) for finding in findings],
    }


def render(findings: Sequence[Finding]) -> RenderableType:
    """The findings as a table."""
    table = Table("check", "", "found", title=f"fedrdma-fate {__version__}")
    for finding in findings:
        text = Text(finding.found)
        if finding.remedy:
            text.append(f"\n{finding.remedy}", style="italic")
        table.add_row(finding.check, Text(finding.level, style=_STYLES[finding.level]), text)
    counts = Counter(finding.level for finding in findings)
    return Group(table, Text(f"{counts['ok']} ok, {counts['warning']} warnings, {counts['error']} errors"))
