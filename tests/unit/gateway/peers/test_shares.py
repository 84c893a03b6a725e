"""Shares between two gateways: who is told one, when, and what becomes of it."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.shares.share_sender import Arrivals
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.ports import ChunkService
from fedrdma_fate.wire.frames import Hello
from tests.support.endpoints import MemoryTransport, MemoryWire
from tests.support.twin import Twin
from tests.support.twin_play import BODY, Play, peer_of, player, pull, work

LINK = 1e8


class OtherLink:
    """Of a third site, which sends all the time."""

    probed_rate = LINK
    known_path = None
    arrivals = Arrivals()

    deliveries = Arrivals()

    def share(self, rate: float, place: float) -> None:
        """It keeps to it."""

    def limit(self, rate: float, place: float) -> None:
        """It keeps to that as well."""

    def probe_jointly(self, began: float, count: int) -> None:
        """Its trains are not answered."""


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return player(tmp_path)


def over_udp(twin: Twin) -> None:
    """Both have a data path that is paced, and are on hosts of their own."""
    wires: dict[int, MemoryWire] = {}
    for site, transports in twin.transports.items():
        transports["udp"] = transport = MemoryTransport("udp", wires)
        transport.make_wire = _paced_wire
        twin.halves[site].context.host = site


def _paced_wire() -> MemoryWire:
    wire = MemoryWire()
    wire.chunk_service = ChunkService(reliable=False, self_paced=False, queue_pairs=2, mtu_bytes=4096)
    wire.has_datagrams = True
    return wire


async def connect(twin: Twin, host: str = "192.0.2.7") -> None:
    """As seen from addresses of other hosts."""
    connecting = asyncio.ensure_future(twin.connect())
    await asyncio.sleep(0)
    for half in twin.halves.values():
        if half.stream is not None:
            half.stream.remote_host = host
    await connecting
    for half in twin.halves.values():
        assert half.stream is not None
        half.stream.remote_host = host
    await work(twin)


def bound(twin: Twin, site: str) -> float:
    """What a site may send at."""
    told: float = peer_of(twin, site).paths.main.link.bound
    return told


def sites_that_share(twin: Twin) -> list[str]:
    """As the receiving site shows them."""
    status: Any = twin.halves["b"].context.sharing.status()
    return [sender["site"] for sender in status["senders"]]


def share_with_another(twin: Twin, site: str = "b") -> Any:
    sharing = twin.halves[site].context.sharing
    sharing.join("c", "udp", OtherLink(), 0.02)
    return sharing


def test_a_peer_is_told_its_share_when_its_data_path_is_up_and_shows_it(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        over_udp(twin)
        share_with_another(twin)
        await connect(twin)
        await work(twin)
        assert bound(twin, "a") == pytest.approx(0.98 * LINK / 2)
        assert bound(twin, "b") == math.inf, "a has no other peer"

    play(scenario, transport="udp", mode="fedrdma-x")


def test_a_message_is_counted_while_it_comes_and_no_longer(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        over_udp(twin)
        sharing = share_with_another(twin)
        await connect(twin)
        arrived = pull(twin, twin.put("a", "m", BODY))
        most = 0
        for _ in range(200):
            await work(twin, 1)
            await asyncio.sleep(0.001)
            most = max(most, sharing.status()["sending"])
        assert await arrived == BODY
        assert most == 1
        assert sharing.status()["sending"] == 0

    play(scenario, transport="udp", mode="fedrdma-x")


def test_a_data_path_that_is_renewed_is_told_its_share_anew(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        over_udp(twin)
        share_with_another(twin)
        await connect(twin)
        for site in twin.halves:
            await twin.lose_control(site)
        await work(twin, 3, carry=False)
        assert bound(twin, "a") == math.inf
        assert sites_that_share(twin) == ["c"]
        await connect(twin)
        assert sites_that_share(twin) == ["c", "a"]
        assert bound(twin, "a") == pytest.approx(0.98 * LINK / 2)

    play(scenario, transport="udp", mode="fedrdma-x")


def test_what_stays_on_this_host_takes_no_part(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        over_udp(twin)
        share_with_another(twin)
        await connect(twin, "127.0.0.1")
        assert bound(twin, "a") == math.inf

    play(scenario, transport="udp", mode="fedrdma-x")


def test_a_peer_that_does_not_know_shares_is_told_none(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(twin: Twin) -> None:
        over_udp(twin)
        share_with_another(twin)
        half = twin.halves["a"]
        known = half.peer.own_hello()
        fields = {name: getattr(known, name) for name in known.__struct_fields__}
        older = Hello(**{**fields, "obeys_shares": False})
        monkeypatch.setattr(half.peer, "own_hello", lambda: older)
        await connect(twin)
        assert bound(twin, "a") == math.inf
        assert sites_that_share(twin) == ["c"]

    play(scenario, transport="udp", mode="fedrdma-x")


# --- what goes to several ---


def limit(twin: Twin, site: str) -> float:
    """What a site lets its own link to the other have."""
    limited: float = peer_of(twin, site).paths.main.link._link._outgoing.memory.limit
    return limited


class OtherWay(OtherLink):
    """Whose way is known, and as fast as the link."""

    known_path = KnownPath(PathState(LINK, 0.02, None), "probed")  # type: ignore[assignment]


def send_to_another(twin: Twin, site: str = "a") -> Any:
    """The site has another peer, that it sends to all the time."""
    sharing = twin.halves[site].context.send_sharing
    sharing.join("c", "udp", OtherWay(), 0.02)
    return sharing


def sending(sharing: Any) -> dict[str, bool]:
    return {sender["site"]: sender["sending"] for sender in sharing.status()["senders"]}


def test_a_message_has_its_part_of_the_own_link_while_another_is_sent_to_and_all_of_it_when_it_goes_alone(
    play: Play,
) -> None:
    async def scenario(twin: Twin) -> None:
        over_udp(twin)
        sharing = send_to_another(twin)
        await connect(twin)
        assert sending(sharing) == {"c": False, "b": False}
        arrived = pull(twin, twin.put("a", "m", BODY))
        # handed to its link with nothing in between
        await work(twin, 1)
        assert sending(sharing)["b"]
        assert limit(twin, "a") == math.inf
        sharing.begun("c", another_message(), 0.02)
        await work(twin, 1)
        assert limit(twin, "a") == pytest.approx(0.98 * LINK / 2)
        await work(twin)
        assert await arrived == BODY
        assert sending(sharing) == {"c": True, "b": False}

    play(scenario, transport="udp", mode="fedrdma-x")


def another_message() -> Any:
    """As much of a message as its share asks for."""
    return SimpleNamespace(transfer=99, mode="fedrdma-x")


def test_a_peer_that_does_not_know_shares_has_its_part_of_the_own_link_all_the_same(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(twin: Twin) -> None:
        over_udp(twin)
        sharing = send_to_another(twin)
        half = twin.halves["b"]
        known = half.peer.own_hello()
        fields = {name: getattr(known, name) for name in known.__struct_fields__}
        older = Hello(**{**fields, "obeys_shares": False})
        monkeypatch.setattr(half.peer, "own_hello", lambda: older)
        await connect(twin)
        assert "b" in sending(sharing)

    play(scenario, transport="udp", mode="fedrdma-x")


def test_a_data_path_that_is_gone_gives_its_part_of_the_own_link_back(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        over_udp(twin)
        sharing = send_to_another(twin)
        await connect(twin)
        for site in twin.halves:
            await twin.lose_control(site)
        await work(twin, 3, carry=False)
        assert sending(sharing) == {"c": False}
        assert limit(twin, "a") == math.inf

    play(scenario, transport="udp", mode="fedrdma-x")


def test_what_goes_to_this_host_takes_nothing_of_the_own_link(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        over_udp(twin)
        sharing = send_to_another(twin)
        await connect(twin, "127.0.0.1")
        assert sending(sharing) == {"c": False}

    play(scenario, transport="udp", mode="fedrdma-x")
