"""A gateway for each host of the testbed, on an event loop in a thread of the program that uses it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedrdma_fate.gateway.config import parse_config
from fedrdma_fate.gateway.daemon import Gateway
from fedrdma_fate.wire.frames import Party

CONTROL_PORT = 9370
START_SECONDS = 60.0


def gateway_document(home: Path, parties: Sequence[Party], **settings: Any) -> dict[str, Any]:
    """The configuration of this host's gateway: site and party by the host's number, all other hosts as peers.

    Args:
        home: directory for its socket, trace and spilled messages.
        parties: one for each host.
        **settings: other keys of the configuration; those of `memory` are merged.
    """
    me = int(os.environ["TESTBED_HOST"])
    addresses = os.environ["TESTBED_HOSTS"].split(",")
    memory = {"spill_directory": str(home / "spill"), **settings.pop("memory", {})}
    return {
        "site": f"site{me}",
        "parties": [str(parties[me])],
        "security": "off",
        "listen": {
            "control": f"{addresses[me]}:{CONTROL_PORT}",
            "data": f"{addresses[me]}:0",
            "grpc": f"{addresses[me]}:0",
            "socket": f"unix://{home}/g.sock",
        },
        "memory": memory,
        "peers": [
            {"site": f"site{other}", "parties": [str(party)], "address": _dialled(me, other, addresses)}
            for other, party in enumerate(parties)
            if other != me
        ],
        "trace": str(home / "trace.jsonl"),
        **settings,
    }


@contextlib.contextmanager
def running_gateway(document: dict[str, Any]) -> Iterator[str]:
    """A gateway that runs meanwhile, and is stopped in order; the address of its socket."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def start() -> Gateway:
        gateway = Gateway(parse_config(document))
        await gateway.start()
        return gateway

    gateway = asyncio.run_coroutine_threadsafe(start(), loop).result(START_SECONDS)
    try:
        yield document["listen"]["socket"]
    finally:
        asyncio.run_coroutine_threadsafe(gateway.stop(), loop).result(START_SECONDS)


def _dialled(me: int, other: int, addresses: Sequence[str]) -> str | None:
    """Of two hosts the first dials; of more, each dials all, as in a site's own configuration."""
    if len(addresses) == 2 and me > other:
        return None
    return f"{addresses[other]}:{CONTROL_PORT}"
