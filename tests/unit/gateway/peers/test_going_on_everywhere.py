"""What of a transfer comes again, for each kind of data path, sealed and not: the table of docs/resuming.md.

Between two whole gateways, in virtual time. Each cell is a transfer of which some has come when one thing happens.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from fedrdma_fate.wire.frames import Mode
from tests.support.endpoints import MemoryTransport, MemoryWire
from tests.support.kept_twin import KeptTwin
from tests.support.repository import ROOT
from tests.support.twin import run_virtually
from tests.unit.gateway.peers.test_going_on import (
    BODY,
    CHUNK_BYTES,
    HAPPENINGS,
    HEADERS_BYTES,
    SEALED,
    TABLE_BYTES,
    Play,
)

MODES: tuple[Mode, ...] = ("fedrdma", "fedrdma-e", "fedrdma-x")
COLUMNS = ("path lost", "sender killed", "receiver killed")
MOST_AGAIN = HEADERS_BYTES + CHUNK_BYTES + TABLE_BYTES
"""Of a transfer that goes on: headers, what was under way when it happened, and tags."""


def documented() -> list[tuple[str, str, Mode, str, bool]]:
    """Transport, whether it is sealed, mode, what happens, and whether the page says that the transfer goes on."""
    table = (ROOT / "docs" / "resuming.md").read_text().partition("## What holds where")[2].partition("\n\n###")[0]
    cells = []
    for names, how, mode, *marks in re.findall(
        r"^\| ([`\w, ]+) \| (\w+) \| `([\w-]+)` \| (\w+) \| (\w+) \| (\w+) \|$", table, re.M
    ):
        for name in re.findall(r"`(\w+)`", names):
            cells += [(name, how, mode, what, mark == "on") for what, mark in zip(COLUMNS, marks, strict=True)]
    return cells


def wire_of(transport: str, sealed: bool) -> MemoryWire:
    """A data path that behaves as far as it matters here like the one of that name."""
    wire = MemoryWire()
    wire.lands_at_once = 2
    wire.sealed_by_poster = sealed and transport in ("verbs", "udp")
    wire.seals = sealed and transport in ("tcp", "grpc")
    wire.sees_writes = transport != "verbs"
    return wire


class OverOne(Play):
    """A transfer whose progress is seen at its sender: where writes are one-sided, at its receiver it is not."""

    def done_bytes(self) -> int:
        progress = [
            each for half in self.twin.halves.values() for link in half.links() for each in link._link.progress()
        ]
        return max((each.done_bytes for each in progress), default=0)


def again(directory: Path, transport: str, mode: Mode, sealed: bool, what: str) -> int:
    """Bytes that came again of a transfer of which a third or more had come over this transport."""

    class OneWay(KeptTwin):
        data_paths = (transport, "grpc")

    async def play() -> int:
        twin = OneWay(directory, transport=transport, chunk=CHUNK_BYTES, **(SEALED if sealed else {}))
        try:
            this = OverOne(twin)
            for transports in twin.transports.values():
                for name, each in transports.items():
                    assert isinstance(each, MemoryTransport)
                    each.make_wire = functools.partial(wire_of, name, sealed)
            await twin.connect("a")
            key = twin.push("a", "model", BODY, mode=mode)
            await this.until(len(BODY) // 3)
            await HAPPENINGS[what](this)
            assert await this.finish(key) == BODY
            return this.landed_bytes - len(BODY)
        finally:
            twin.close()

    return run_virtually(play())


@pytest.mark.parametrize(("transport", "how", "mode", "what", "goes_on"), documented())
def test_what_the_page_says_of_each_data_path_is_so(
    tmp_path: Path, transport: str, how: str, mode: Mode, what: str, goes_on: bool
) -> None:
    assert (again(tmp_path, transport, mode, how == "sealed", what) <= MOST_AGAIN) == goes_on


def test_the_page_has_every_data_path_and_mode() -> None:
    cells = {cell[:3] for cell in documented()}
    both = {
        (transport, how, mode) for transport in ("verbs", "udp", "tcp") for how in ("plain", "sealed") for mode in MODES
    }
    assert cells == both | {("shm", "plain", mode) for mode in MODES}
