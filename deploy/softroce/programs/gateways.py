"""A gateway for each host of the testbed, on an event loop in a thread of the program that uses it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedrdma_fate.engine.link import Wait
from fedrdma_fate.engine.link_thread import LinkThread
from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.gateway.daemon import Gateway
from fedrdma_fate.security.trial_files import make_certificates, tls_settings
from fedrdma_fate.wire.frames import Party

CONTROL_PORT = 9370
START_SECONDS = 60.0
PAUSE_SECONDS = 0.002
_CERTIFICATES_HOLD = datetime.timedelta(days=1)


def gateway_document(
    home: Path, parties: Sequence[Party], *, port: int = CONTROL_PORT, **settings: Any
) -> dict[str, Any]:
    """The configuration of this host's gateway: site and party by the host's number, all other hosts as peers.

    Args:
        home: directory for its socket, trace and spilled messages.
        parties: one for each host.
        port: of the control channel, the same on all hosts.
        **settings: other keys of the configuration; those of `memory` are merged.
    """
    me = int(os.environ["TESTBED_HOST"])
    addresses = os.environ["TESTBED_HOSTS"].split(",")
    memory = {"spill_directory": str(home / "spill"), **settings.pop("memory", {})}
    return {
        "site": f"site{me}",
        "parties": [str(parties[me])],
        # hosts of a testbed of its own, which nobody else reaches
        "security": "off",
        "security_off_beyond_loopback": True,
        "listen": {
            "control": f"{addresses[me]}:{port}",
            "data": f"{addresses[me]}:0",
            "grpc": f"{addresses[me]}:0",
            "socket": f"unix://{home}/g.sock",
        },
        "memory": memory,
        "peers": [
            {"site": f"site{other}", "parties": [str(party)], "address": _dialled(me, other, addresses, port)}
            for other, party in enumerate(parties)
            if other != me
        ],
        "trace": str(home / "trace.jsonl"),
        **settings,
    }


def secured(document: dict[str, Any], seal: str | None = None) -> dict[str, Any]:
    """With certificates of one authority, which host 0 makes for all.

    Args:
        document: from `gateway_document`.
        seal: what is done to chunks; None: what gateways with certificates do by default.
    """
    directory, sites = Path(os.environ["TESTBED_OUT"]) / "tls", [f"site{me}" for me in range(_hosts())]
    ready = directory / "ready"
    if document["site"] == sites[0]:
        make_certificates(directory, sites, datetime.datetime.now(datetime.timezone.utc), _CERTIFICATES_HOLD)
        ready.touch()
    while not ready.exists():
        time.sleep(PAUSE_SECONDS)
    open_keys = ("security", "security_off_beyond_loopback")
    kept = {key: value for key, value in document.items() if key not in open_keys}
    return {**kept, "tls": tls_settings(directory, document["site"]), **({} if seal is None else {"seal": seal})}


def _hosts() -> int:
    return len(os.environ["TESTBED_HOSTS"].split(","))


@contextlib.contextmanager
def running_gateway(
    document: dict[str, Any], beside: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> Iterator[str]:
    """A gateway that runs meanwhile, and is stopped in order; the address of its socket.

    Args:
        document: its configuration.
        beside: what runs on its event loop as well, until it is stopped.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def start() -> Gateway:
        gateway = Gateway(parse_config(document), link_thread())
        await gateway.start()
        return gateway

    gateway = asyncio.run_coroutine_threadsafe(start(), loop).result(START_SECONDS)
    watching = None if beside is None else asyncio.run_coroutine_threadsafe(beside(), loop)
    try:
        yield document["listen"]["socket"]
    finally:
        if watching is not None:
            watching.cancel()
        asyncio.run_coroutine_threadsafe(gateway.stop(), loop).result(START_SECONDS)


class YieldingLinkThread(LinkThread):
    """Lets the other programs of the guest have its one CPU before each turn.

    In virtual time only reading the clock takes any, so a receiver that finds more to read at each look, as at 10
    Gbit/s, is never idle, and the guest's kernel takes the CPU from nobody: a sender whose timer has gone off would
    stand still until the link is empty.
    """

    def turn(self, *, ready: bool = True) -> Wait:
        """One turn, after those who are ready have had theirs."""
        os.sched_yield()
        return super().turn(ready=ready)


def link_thread() -> type[LinkThread]:
    """What drives a link in the testbed."""
    return YieldingLinkThread if os.environ.get("TESTBED_VIRTUAL_TIME") == "1" else LinkThread


def wait_for_path(trace: Path) -> None:
    """Wait until a data path is up."""
    while '"event": "link"' not in text_of(trace) and '"event":"link"' not in text_of(trace):
        time.sleep(PAUSE_SECONDS)
    # and for the ring of credits
    time.sleep(0.2)


def wait_for_event(trace: Path, name: str) -> dict[str, Any]:
    """The trace event of a message that was sent."""
    while True:
        for line in text_of(trace).splitlines():
            event = json.loads(line)
            if event.get("name") == name and event["event"] in ("sent", "undeliverable"):
                return dict(event)
        time.sleep(PAUSE_SECONDS)


def text_of(trace: Path) -> str:
    """The trace so far, whole lines only."""
    text = trace.read_text() if trace.exists() else ""
    return text[: text.rfind("\n") + 1]


def _dialled(me: int, other: int, addresses: Sequence[str], port: int) -> str | None:
    """Of two hosts the first dials; of more, each dials all, as in a site's own configuration."""
    if len(addresses) == 2 and me > other:
        return None
    return f"{addresses[other]}:{port}"
