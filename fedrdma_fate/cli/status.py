"""`fedrdma status`: what a gateway is doing."""

from __future__ import annotations

import datetime
import json
import time
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.cli.terminal import Terminal
from fedrdma_fate.client.client import ask_status
from fedrdma_fate.obs.complaints import cut
from fedrdma_fate.quantities import counted
from fedrdma_fate.wire.errors import ErrorCode, GatewayError

_OTHER_SHAPE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError)
"""What is raised where a document has not what is looked for, or another type: the last two by dates and sizes."""


_MOST_ADDERS = 8
"""Of the sites that add for a sum: as many as of parties that are missing."""


@click.command()
@click.option(
    "--socket",
    "address",
    default="unix:///run/fedrdma/gateway.sock",
    show_default=True,
    help="The gateway's `listen.socket`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the document for programs.")
@click.option("--watch", type=click.FloatRange(min=0.1), help="Show it anew every so many seconds, until Ctrl-C.")
def status(address: str, as_json: bool, watch: float | None) -> None:
    """Show peers, their certificates and transports and why these were chosen, pools, and transfers in progress."""
    console = Terminal()
    with told_plainly():
        document: dict[str, Any] = ask_status(address)
        if as_json:
            click.echo(json.dumps(document, indent=2))
        elif watch is None:
            console.print(render(document))
        else:
            _watch(console, address, document, watch)


def _watch(console: Console, address: str, document: dict[str, Any], seconds: float) -> None:
    try:
        with Live(render(document), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(seconds)
                live.update(render(ask_status(address)), refresh=True)
    except KeyboardInterrupt:
        return


def render(document: dict[str, Any]) -> RenderableType:
    """The status document as tables.

    Raises:
        GatewayError: CLIENT_PROTOCOL where it has another shape.
    """
    try:
        return _rendered(document)
    except _OTHER_SHAPE as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise GatewayError(
            ErrorCode.CLIENT_PROTOCOL,
            f"the gateway's status has another shape than this version shows: {cut(what)}.",
            "Run the same fedrdma-fate version here and in the gateway; `--json` prints it as it is.",
        ) from error


def _rendered(document: dict[str, Any]) -> RenderableType:
    head = Text.assemble(
        (f"gateway of {document['site']}", "bold"),
        f"  fedrdma-fate {document['version']}, up {document['uptime_seconds']:.0f} s, mode {document['mode']}, "
        f"security {document['security']}, {counted(document['tasks'], 'task')}, "
        f"parties {', '.join(document['parties'])}",
    )
    parts: list[RenderableType] = [head, _peers(document), _pools(document)]
    if document["security"] == "mtls":
        parts.insert(1, _certificates(document))
    if document["receive"]["sending"]:
        parts.append(_shares(document["receive"], "Receiving", "send"))
    if document["send"]["sending"] > 1:
        parts.append(_shares(document["send"], "Sending", "are sent to"))
    if document["transfers"]:
        parts.append(_transfers(document))
    if document["sums"]:
        parts += [_sums(document), *_who_adds(document), _adding(document["sum_workers"])]
    if document["site_sums"]:
        parts.append(_site_sums(document))
    parts += [Text(line) for line in _tree(document)]
    if document["tasks_port"] is not None:
        parts.append(_tasks_port(document["tasks_port"]))
    if document["flow"]:
        parts.append(_calls(document))
    if document["brokers"]:
        parts.append(_brokers(document))
    parts += [_held(holding) for holding in document["held"]]
    parts += [_held_there(peer) for peer in document["peers"] if peer["held_there"]]
    mailbox = document["mailbox"]
    parts.append(
        Text(
            f"Not pulled yet: {counted(mailbox['messages'], 'message')} ({size(mailbox['message_bytes'])}), "
            f"{mailbox['spilled_messages']} of them spilled to disk; waiting for a message: "
            f"{counted(mailbox['waiting_pulls'], 'pull')}"
        )
    )
    return Group(*parts)


def _tasks_port(port: dict[str, Any]) -> Text:
    return Text(
        f"Tasks on other hosts, at {port['address']}: {counted(port['connections'], 'connection')}; "
        f"{port['refused']} refused"
    )


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def _add(table: Table, *cells: str) -> None:
    """A row of text as it is: much of it peers and tasks have chosen, and it is neither markup nor for the terminal."""
    table.add_row(*(Text(cut(cell)) for cell in cells))


def _peers(document: dict[str, Any]) -> Table:
    table = Table("peer", "connected", "transport", "why", "round trip", "pending", "trouble", title="Peers")
    for peer in document["peers"]:
        paths = peer["paths"] or [{"transport": "-", "up": False, "reason": "", "last_error": ""}]
        for path in paths:
            rtt = "-" if peer["rtt_seconds"] is None else f"{peer['rtt_seconds'] * 1000:.2f} ms"
            _add(
                table,
                peer["site"],
                "yes" if peer["connected"] else "no",
                f"{path['transport']}{'' if path['up'] else ' (down)'}",
                path["reason"],
                rtt,
                str(peer["pending_messages"]),
                peer["last_error"] or path["last_error"] or _other_parties(peer),
            )
        for unused in peer["unused_paths"]:
            _add(table, peer["site"], "", unused["transport"], "not used", "", "", _unused(unused))
    return table


def _other_parties(peer: dict[str, Any]) -> str:
    """What it says of itself, where that is not as it is configured here."""
    said = peer["parties_by_itself"]
    return "" if said is None or set(said) == set(peer["parties"]) else f"it serves {', '.join(said)}"


def _unused(unused: dict[str, Any]) -> str:
    """Why a better path is not used, and what becomes of it."""
    seconds = unused["next_trial_seconds"]
    trial = "it is being tried" if seconds is None else f"tried again in {seconds:.0f} s"
    return f"{unused['reason']}; {trial}"


def _certificates(document: dict[str, Any]) -> Table:
    """The gateway's own first, then of each peer the one that it has shown on its channel."""
    # a serial number of which a part is missing cannot be compared
    serial = Column("serial number", overflow="fold")
    table = Table("site", "certificate", serial, "ends (UTC)", title="Certificates")
    for site in (document, *document["peers"]):
        certificate = site["certificate"]
        if certificate is None:
            _add(table, site["site"], "none: not connected", "-", "-")
        else:
            end = datetime.datetime.fromtimestamp(certificate["end"], datetime.timezone.utc)
            _add(table, site["site"], certificate["name"], certificate["serial"], f"{end:%Y-%m-%d %H:%M}")
    return table


def _pools(document: dict[str, Any]) -> Table:
    table = Table("pool", "size", "leased", "largest free", "slots", "waiting", "most ever", title="Pools")
    for pool in document["pools"]:
        _add(
            table,
            pool["name"],
            size(pool["length"]),
            size(pool["leased_bytes"]),
            size(pool["largest_free_bytes"]),
            str(pool["slots"]),
            str(pool["waiting"]),
            size(pool["high_water_bytes"]),
        )
    return table


def _calls(document: dict[str, Any]) -> Table:
    """FATE Flow's scheduling calls since the gateway was started."""
    table = Table("site", "direction", "answered", "refused", "under way", "slowest", title="Scheduling calls")
    for calls in document["flow"]:
        counts = (str(calls[name]) for name in ("answered", "refused", "under_way"))
        _add(table, calls["site"], calls["direction"], *counts, f"{calls['slowest_seconds']:.2f} s")
    return table


def _brokers(document: dict[str, Any]) -> Table:
    """Peers that have an OSX broker."""
    table = Table("site", "address", "parties", "took", "failed", "trouble", title="OSX brokers")
    for each in document["brokers"]:
        counts = (str(each[name]) for name in ("pushed", "failed"))
        _add(table, each["site"], each["address"], ", ".join(each["parties"]), *counts, each["last_error"])
    return table


def _held(holding: dict[str, Any]) -> Text:
    """Why nobody gets room in a pool."""
    held = ", ".join(
        f"{cut(each['party'])} in {cut(each['session'])} {size(each['bytes'])}" for each in holding["parties"]
    )
    return Text(
        f"{holding['waiting']} wait for {holding['pool']} memory and get none; tasks hold {size(holding['bytes'])} in "
        f"what they got before: {held}",
        style="bold red",
    )


def _held_there(peer: dict[str, Any]) -> Text:
    """Why a peer takes no more."""
    held = ", ".join(f"{cut(each['party'])} {size(each['bytes'])}" for each in peer["held_there"])
    return Text(f"{peer['site']} takes no more; tasks there hold what they got before: {held}", style="bold red")


def _shares(receive: dict[str, Any], direction: str, how: str) -> Table:
    """Who sends, or is sent to, and what each has of the link."""
    total = "not known" if receive["bits_per_second"] is None else _rate(receive["bits_per_second"])
    title = f"{direction}: {receive['sending']} {how}; the link: {total} ({receive['found_by']})"
    table = Table("peer", "share", "arriving", "", title=title)
    for sender in receive["senders"]:
        if sender["sending"]:
            share = sender["share_bits_per_second"]
            _add(
                table,
                sender["site"],
                "no bound" if share is None else _rate(share),
                _rate(sender["arriving_bits_per_second"]),
                _remark(sender),
            )
    return table


def _sums(document: dict[str, Any]) -> Table:
    """Sums of updates that are under way, and who is missing."""
    restarts = document["sum_workers"]["restarts"]
    title = "Sums" if not restarts else f"Sums; their worker was started again {restarts} times"
    table = Table("session", "message", "for", "in", "waiting", "missing", "asked for", "adding", title=title)
    for each in document["sums"]:
        sums = f", {each['site_sums']} sums of sites among them" if each["site_sums"] else ""
        missing = f"{each['missing']}{sums}: {', '.join(each['first_missing'])}" if each["missing"] else "0"
        _add(
            table,
            each["session"],
            f"{each['name']}/{each['tag']}",
            each["party"],
            f"{each['added']} of {each['parties']}, {each['order']}",
            str(each["waiting"]),
            missing + (", …" if each["missing"] > len(each["first_missing"]) else ""),
            f"{each['seconds']:.0f} s ago",
            _being_added(each),
        )
    return table


def _who_adds(document: dict[str, Any]) -> list[Text]:
    """The plan of each sum for which others add as well: what comes from whom, and what is added here in all."""
    lines = []
    for each in document["sums"]:
        if adders := each["adders"]:
            shown = [f"{cut(adder['site'])} ({_of_what(adder)})" for adder in adders[:_MOST_ADDERS]]
            more = ", …" if len(adders) > _MOST_ADDERS else ""
            what = f"{cut(each['name'])}/{cut(each['tag'])}"
            lines.append(Text(f"{what}: fan-in {each['fan_in']}, sums asked of {', '.join(shown)}{more}"))
    return lines


def _of_what(adder: dict[str, Any]) -> str:
    sites = f" of {adder['sites']} sites" if adder["sites"] > 1 else ""
    return f"{counted(adder['updates'], 'update')}{sites}"


def _being_added(each: dict[str, Any]) -> str:
    """Who is being added, or how much of the last one that comes; or what the sum waits for before anybody is."""
    if each["awaited_bytes"]:
        return f"waits for {size(each['awaited_bytes'])} of receive memory, to add up in"
    if (coming := each["coming"]) is None:
        return str(each["adding"] or "")
    return f"{coming['party']}, while it comes: {size(coming['added_bytes'])} of {size(coming['bytes'])}"


def _site_sums(document: dict[str, Any]) -> Table:
    """What this site adds for others."""
    table = Table("session", "message", "for", "asked by", "in", "missing", "", title="Sums of this site")
    for each in document["site_sums"]:
        missing = [*each["missing"], *(f"the sum of {site}" for site in each["missing_sites"])]
        _add(
            table,
            each["session"],
            f"{each['name']}/{each['tag']}",
            each["party"],
            each["asked_by"],
            str(each["added"]),
            ", ".join(missing) or "0",
            "sent" if each["sent"] else "",
        )
    return table


def _tree(document: dict[str, Any]) -> list[str]:
    """Where the sums of sites go first, as this site and its peers say."""
    lines = []
    if document["sum_parent"]:
        lines.append(f"Sums of this site go to {cut(document['sum_parent'])} first, where the site that asks allows it")
    if (slow := document["sum_parent_slow"]) is not None:
        faster = ", ".join(f"{cut(each['site'])} ({_rate(each['bits_per_second'])})" for each in slow["faster"])
        lines.append(
            f"The path to {cut(document['sum_parent'])} ({_rate(slow['bits_per_second'])}) is no faster than that to "
            f"{faster}: sums come there no sooner for it"
        )
    below: dict[str, list[str]] = {}
    for peer in document["peers"]:
        if peer["sum_parent"]:
            below.setdefault(peer["sum_parent"], []).append(peer["site"])
    for parent, sites in below.items():
        whose = "this site" if parent == document["site"] else cut(parent)
        lines.append(f"Sums of {', '.join(map(cut, sites))} go to {whose} first")
    return lines


def _adding(plan: dict[str, Any]) -> Text:
    """How many workers are wanted, and why."""
    each = plan["seconds_per_update"]
    why = (
        f"{plan['arrivals_per_second']:.2f} updates a second come, {1000 * each:.1f} ms each"
        if each
        else "nothing was added yet"
    )
    return Text(
        f"Workers that add: {len(plan['processes'])}, wanted {'' if plan['by_estimate'] else 'as configured '}"
        f"{plan['wanted']} of {plan['most']}; {why}, {plan['queue']:.2f} at a time{_told(plan['notices'])}"
    )


def _told(notices: dict[str, Any]) -> str:
    """By what they are told of updates, where somebody has asked for another way than the usual one."""
    if notices["reason"]:
        return f"; told over their sockets, not as configured: {notices['reason']}"
    return "" if notices["way"] == "socket" else f"; told by {notices['way']}, {notices['passed']} notices"


def _remark(sender: dict[str, Any]) -> str:
    if sender["waits_for_turn"]:
        return "waits for its turn"
    return "does not keep to it" if sender["ignores_share"] else ""


def _rate(bits_per_second: float) -> str:
    return f"{bits_per_second / 1e6:.1f} Mbit/s"


def _transfers(document: dict[str, Any]) -> Table:
    table = Table("transfer", "peer", "message", "mode", "state", "done", "rate", "time left", title="Transfers")
    for transfer in document["transfers"]:
        arrow = "→" if transfer["direction"] == "send" else "←"
        left = transfer["seconds_left"]
        _add(
            table,
            str(transfer["transfer"]),
            f"{arrow} {transfer['peer']}",
            transfer["message"],
            transfer["mode"],
            transfer["state"],
            f"{size(transfer['done_bytes'])} of {size(transfer['total_bytes'])}",
            f"{size(transfer['bytes_per_second'])}/s",
            "-" if left is None else f"{left:.1f} s",
        )
    return table
