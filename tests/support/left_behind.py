"""What a job can leave behind in gateways."""

from __future__ import annotations

from typing import Any

from fedrdma_fate.client.sessions import ask_sessions
from tests.support.files import spilled_below
from tests.support.sites import Site, Sites


def held_by(site: Site) -> dict[str, Any]:
    """What a gateway holds of everything that a job can leave behind."""
    status = site.status()
    spilled = [path for path in spilled_below(site.home / "spill") if "." not in path.name]
    sessions: Any = ask_sessions(site.address)["sessions"]
    return {
        "pools": {pool["name"]: (pool["slots"], pool["leased_bytes"], pool["waiting"]) for pool in status["pools"]},
        "mailbox": status["mailbox"],
        "transfers": len(status["transfers"]),
        "tasks": status["tasks"],
        "sessions": [shown["session"] for shown in sessions],
        "pending": [peer["pending_messages"] for peer in status["peers"]],
        "lent and borrowed": [(peer["lent_messages"], peer["borrowed_messages"]) for peer in status["peers"]],
        "spilled files": len(spilled),
    }


def all_held(sites: Sites) -> list[dict[str, Any]]:
    """The same of all of them."""
    return [held_by(site) for site in sites.values()]
