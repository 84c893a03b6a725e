"""`fedrdma sessions`: what is at a gateway, session by session, and ends one."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from fedrdma_fate.cli.failure import tell, told_plainly
from fedrdma_fate.cli.status import size
from fedrdma_fate.cli.terminal import Terminal
from fedrdma_fate.client.sessions import ask_sessions, drop_session
from fedrdma_fate.obs.complaints import cut


@click.group(invoke_without_command=True)
@click.option(
    "--socket",
    "address",
    default="unix:///run/fedrdma/gateway.sock",
    show_default=True,
    help="The own gateway's `listen.socket`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the document for programs.")
@click.pass_context
def sessions(context: click.Context, address: str, as_json: bool) -> None:
    """List sessions with their parties, living tasks, age and bytes; `drop` ends one."""
    context.obj = address, as_json
    if context.invoked_subcommand is not None:
        return
    with told_plainly():
        document: dict[str, Any] = ask_sessions(address)
        if as_json:
            click.echo(json.dumps(document, indent=2))
        else:
            Terminal().print(render(document))


@sessions.command()
@click.argument("session")
@click.pass_context
def drop(context: click.Context, session: str) -> None:
    """End SESSION at all sites: its messages go, and tasks that still use it get an error."""
    address, as_json = context.obj
    with told_plainly():
        document: dict[str, Any] = drop_session(address, session)
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    told = f"told {', '.join(document['told'])}" if document["told"] else "no other site was to be told"
    later = f"; {', '.join(document['untold'])} will be when connected again" if document["untold"] else ""
    dropped = f"{document['messages']} messages ({size(document['total_bytes'])}) dropped here"
    tell(f"{cut(session)} has ended: {dropped}; {told}{later}")


def render(document: dict[str, Any]) -> Table:
    """The sessions as a table, a row for each party of this site."""
    table = Table("session", "party", "tasks", "age", "idle", "waits", "on disk", "to be sent", "tasks hold", "with")
    for session in document["sessions"]:
        state = "ended" if session["ended"] is not None else _time(session["idle_seconds"])
        for party in session["parties"]:
            cells = (
                session["session"],
                party["party"],
                str(party["tasks"]),
                _time(session["age_seconds"]),
                state,
                size(party["waiting_bytes"]),
                size(party["spilled_bytes"]),
                size(party["outgoing_bytes"]),
                size(party["task_bytes"]),
                ", ".join(session["sites"]),
            )
            # ids are what tasks have chosen: neither markup nor for the terminal
            table.add_row(*(Text(cut(cell)) for cell in cells))
    return table


def _time(seconds: float) -> str:
    """Seconds for people; a dash for none."""
    if seconds < 1:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
