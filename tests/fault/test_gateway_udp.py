"""Between two gateways over UDP that loses, damages or stops: messages come whole, by another path if need be."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.core.plan import HEADER_SPACE_BYTES
from fedrdma_fate.gateway.peers import path_retries
from fedrdma_fate.transport.udp.meeting import Meeting
from fedrdma_fate.transport.udp.outbound import Buffers, DatagramOutbound
from fedrdma_fate.transport.udp.packets import CHUNK
from fedrdma_fate.transport.udp.socket_options import prepare
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError
from tests.support.certificates import TestAuthority
from tests.support.sites import Site, Sites, eventually, party, start_gateways

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
BODY = os.urandom(2_000_000)


@pytest.fixture(params=["unsealed", "sealed"])
def authority(request: pytest.FixtureRequest, tmp_path: Path) -> TestAuthority | None:
    return TestAuthority(tmp_path / "tls") if request.param == "sealed" else None


def start(tmp_path: Path, authority: TestAuthority | None = None, **settings: Any) -> Any:
    return start_gateways(LAYOUT, tmp_path, authority=authority, transport="udp", mode="fedrdma-x", **settings)


def exchange(sites: Sites, name: str = "m") -> dict[str, Any]:
    """A message from a to b, which must come whole; what a's trace says of it."""
    with sites["a"].client() as a, sites["b"].client() as b:
        lease = a.lease(len(BODY))
        lease.buffer[:] = BODY
        lease.commit(name, "t", [party("host:2")], "object")
        assert b.get(name, "t", party("guest:1"), timeout=60).buffer == BODY
    (told,) = eventually(lambda: [event for event in sites["a"].events("sent") if event["name"] == name])
    return told


def main_path(site: Site) -> dict[str, Any]:
    """The one that messages take, once it is up."""

    def found() -> list[dict[str, Any]]:
        return [path for path in site.status()["peers"][0]["paths"] if path["main"] and path["up"]]

    (path,) = eventually(found)
    return path


def test_messages_go_by_udp_and_the_status_says_so(tmp_path: Path, authority: TestAuthority | None) -> None:
    with start(tmp_path, authority) as sites:
        assert (main_path(sites["a"])["transport"], main_path(sites["b"])["transport"]) == ("udp", "udp")
        exchange(sites)
        exchange(sites, "again")


def test_what_is_lost_is_sent_again(
    tmp_path: Path, authority: TestAuthority | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gave, chance = DatagramOutbound._gave, random.Random(5)

    def lossy(self: DatagramOutbound, buffers: Buffers, datagrams: int) -> bool:
        return chance.random() < 0.1 or gave(self, buffers, datagrams)

    with start(tmp_path, authority) as sites:
        main_path(sites["a"])
        monkeypatch.setattr(DatagramOutbound, "_gave", lossy)
        assert exchange(sites)["resent_bytes"] > 0
        assert main_path(sites["a"])["transport"] == "udp"


def test_what_is_damaged_on_the_way_is_found_and_sent_again(
    tmp_path: Path, authority: TestAuthority | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gave, damaged = DatagramOutbound._gave, []

    def damaging(self: DatagramOutbound, buffers: Buffers, datagrams: int) -> bool:
        if not damaged and bytes(buffers[0])[0] == CHUNK:
            damaged.append(True)
            buffers[1] = bytes(len(buffers[1]))
        return gave(self, buffers, datagrams)

    with start(tmp_path, authority) as sites:
        main_path(sites["a"])
        monkeypatch.setattr(DatagramOutbound, "_gave", damaging)
        exchange(sites)
        assert damaged


def test_a_payload_that_fits_but_for_the_table_of_its_tags_is_refused_at_the_push(
    tmp_path: Path, authority: TestAuthority | None
) -> None:
    longest = (2 << 20) - HEADER_SPACE_BYTES
    with start(tmp_path, authority, memory={"receive_bytes": "2MiB", "ring_slots": 0}) as sites:
        assert main_path(sites["a"])["transport"] == "udp"
        with sites["a"].client() as a, sites["b"].client() as b:
            lease = a.lease(longest)
            lease.buffer[:] = BODY[:1] * longest
            if authority is None:
                lease.commit("m", "t", [party("host:2")], "object")
                assert b.get("m", "t", party("guest:1"), timeout=60).buffer == BODY[:1] * longest
                return
            with pytest.raises(MemoryPoolError) as caught:
                lease.commit("m", "t", [party("host:2")], "object")
            assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
            assert "tags" in caught.value.message
            # in mode grpc, whose data path is a stream, the same payload needs no table
        with sites["a"].client(mode="grpc") as a, sites["b"].client() as b:
            lease = a.lease(longest)
            lease.buffer[:] = BODY[:1] * longest
            lease.commit("m", "t", [party("host:2")], "object")
            assert b.get("m", "t", party("guest:1"), timeout=60).buffer == BODY[:1] * longest


def test_where_udp_does_not_pass_tcp_carries_the_messages_and_the_status_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Meeting, "_send_round", lambda *_: None)
    with start(tmp_path) as sites:
        path = eventually(lambda: [found for found in [main_path(sites["a"])] if found["transport"] == "tcp"])[0]
        assert "udp: could not be connected" in path["reason"]
        assert "UDP does not pass" in path["reason"]
        exchange(sites)
        (unused,) = sites["a"].status()["peers"][0]["unused_paths"]
        assert unused["transport"] == "udp"
        assert "UDP does not pass" in unused["reason"]
        assert 0 < unused["next_trial_seconds"] <= path_retries.FIRST_WAIT_SECONDS


def test_a_path_that_carries_datagrams_no_more_is_left_for_tcp_in_the_middle_of_a_job(
    tmp_path: Path, authority: TestAuthority | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(tmp_path, authority) as sites:
        assert main_path(sites["a"])["transport"] == "udp"
        exchange(sites, "before")
        monkeypatch.setattr(Meeting, "_send_round", lambda *_: None)
        monkeypatch.setattr(DatagramOutbound, "_gave", lambda *_: True)
        exchange(sites, "meanwhile")
        assert main_path(sites["a"])["transport"] == "tcp"
        exchange(sites, "after")


def test_a_path_that_becomes_shorter_in_the_middle_of_a_message_costs_neither_the_link_nor_the_message(
    tmp_path: Path, authority: TestAuthority | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gave, seen = DatagramOutbound._gave, []

    def shorter(self: DatagramOutbound, buffers: Buffers, datagrams: int) -> bool:
        """From the second train of pieces on, nothing passes but datagrams of at most 1400 bytes."""
        first = len(buffers[0]) + (len(buffers[1]) if datagrams > 1 else sum(map(len, buffers[1:])))
        if first > 1400 and bytes(buffers[0])[0] == CHUNK:
            seen.append(first)
        return (first > 1400 and len(seen) > 1) or gave(self, buffers, datagrams)

    with start(tmp_path, authority) as sites:
        main_path(sites["a"])
        monkeypatch.setattr(DatagramOutbound, "_gave", shorter)
        exchange(sites)
        exchange(sites, "again")
        assert len(seen) > 1
        assert main_path(sites["a"])["transport"] == "udp"
        assert sites["a"].events("link_lost") == sites["b"].events("link_lost") == []
        assert len(sites["a"].events("link")) == 1


def test_where_udp_passes_again_it_is_taken_again_and_what_is_under_way_comes_whole(
    tmp_path: Path, authority: TestAuthority | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_retries, "FIRST_WAIT_SECONDS", 0.3)
    send_round = Meeting._send_round
    monkeypatch.setattr(Meeting, "_send_round", lambda *_: None)
    with start(tmp_path, authority) as sites:
        eventually(lambda: main_path(sites["a"])["transport"] == "tcp")
        monkeypatch.setattr(Meeting, "_send_round", send_round)
        # as long as it takes, and then some
        names = iter(f"m{number}" for number in range(1000))
        eventually(lambda: exchange(sites, next(names)) and main_path(sites["a"])["transport"] == "udp", 30)
        eventually(lambda: main_path(sites["b"])["transport"] == "udp")
        assert exchange(sites, "after")["transport"] == "udp"
        # nothing is left of the other one, nor of its memory
        eventually(lambda: {path["transport"] for path in sites["b"].status()["peers"][0]["paths"]} == {"udp"}, 20)
        assert sites["a"].status()["peers"][0]["unused_paths"] == []


def test_a_nat_that_gives_a_new_port_in_the_middle_of_a_message_costs_neither_the_link_nor_the_message(
    tmp_path: Path, authority: TestAuthority | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gave, chunks, forgotten = DatagramOutbound._gave, [], []

    def through_nat(self: DatagramOutbound, buffers: Buffers, datagrams: int) -> bool:
        chunks.append(bytes(buffers[0])[0] == CHUNK)
        dials = not self._udp.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
        if any(chunks) and dials and not forgotten:
            # what comes out of this side's socket comes from another port from now on, and the old one is deaf
            forgotten.append(self._udp.getsockname())
            with socket.socket(self._udp.family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as new:
                prepare(new)
                new.connect(self._udp.getpeername())
                os.dup2(new.fileno(), self._udp.fileno())
        return gave(self, buffers, datagrams)

    with start(tmp_path, authority) as sites:
        main_path(sites["a"])
        monkeypatch.setattr(DatagramOutbound, "_gave", through_nat)
        exchange(sites)
        assert forgotten
        exchange(sites, "again")
        assert main_path(sites["a"])["transport"] == "udp"
        assert sites["a"].events("link_lost") == sites["b"].events("link_lost") == []
