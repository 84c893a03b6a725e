"""`fedrdma sessions`: what is at a gateway, session by session, and ends one."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from fedrdma_fate.cli.failure import tell, told_plainly
from fedrdma_fate.cli.status import size
from fedrdma_fate.cli.terminal import Terminal
from fedrdma_fate.client.sessions import ask_sessions, drop_session
from fedrdma_fate.obs.complaints import cut
from fedrdma_fate.quantities import counted


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
@click.option("--socket", "own_address", help="As before `drop`.")
@click.option("--json", "own_json", is_flag=True, help="As before `drop`.")
@click.pass_context
def drop(context: click.Context, session: str, own_address: str | None, own_json: bool) -> None:
    """End SESSION at all sites: its messages go, and tasks that still use it get an error."""
    address, as_json = context.obj
    address, as_json = own_address or address, own_json or as_json
    with told_plainly():
        document: dict[str, Any] = drop_session(address, session)
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    told = f"told {', '.join(document['told'])}" if document["told"] else "no other site was to be told"
    later = f"; {', '.join(document['untold'])} will be when connected again" if document["untold"] else ""
    dropped = f"{counted(document['messages'], 'message')} ({size(document['total_bytes'])}) dropped here"
    tell(f"{cut(session)} has ended: {dropped}; {told}{later}")


def render(document: dict[str, Any]) -> Group:
    """Each session by a line with its whole id, which `drop` takes, and a table of the parties of this site."""
    if not document["sessions"]:
        return Group(Text("no sessions"))
    return Group(*(part for session in document["sessions"] for part in _one(session)))


def _one(session: dict[str, Any]) -> tuple[Text, Table]:
    """What is said of one session; in 80 columns nothing of it is left out."""
    if session["ended"] is not None:
        state = "ended"
    elif session["idle_seconds"]:
        state = f"without a task for {_time(session['idle_seconds'])}"
    else:
        state = "has tasks"
    with_whom = f"; with {', '.join(session['sites'])}" if session["sites"] else ""
    # ids are what tasks have chosen: neither markup nor for the terminal
    heading = Text(cut(session["session"]), style="bold", overflow="fold")
    heading.append(f"\n{_time(session['age_seconds'])} old; {state}{cut(with_whom)}", style="not bold")
    table = Table(Column("party", overflow="fold"), "tasks", "waits", "spilled", "to be sent", "tasks hold")
    for party in session["parties"]:
        sizes = (party[of] for of in ("waiting_bytes", "spilled_bytes", "outgoing_bytes", "task_bytes"))
        table.add_row(Text(cut(party["party"])), str(party["tasks"]), *map(size, sizes))
    return heading, table


def _time(seconds: float) -> str:
    """Seconds for people."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
