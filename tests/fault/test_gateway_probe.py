"""Probes between real gateways: what they leave behind (nothing), and what they do when something goes wrong."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.client.address import socket_path
from fedrdma_fate.client.probe import ask_probe
from fedrdma_fate.client.protocol import AskProbe, encode_message
from fedrdma_fate.gateway import assembly as assembly_module
from fedrdma_fate.gateway.peers import entitlement, probing
from fedrdma_fate.gateway.peers import receiving as receiving_module
from fedrdma_fate.gateway.transports import TransportSet, make_transports
from fedrdma_fate.unix_sockets import address_of
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, MemoryPoolError
from tests.support.faulty import FaultPlan, FaultyTransport
from tests.support.sites import InProcesses, InThread, Site, Sites, eventually, party, start_gateways

MIB = 1 << 20
B = party("host:2")
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
MEMORY = {"send_bytes": "32MiB", "receive_bytes": "32MiB"}
HANG = FaultPlan(silent_after_writes=5)
"""The first large chunk and the look behind it go through, with a header each; the next large one hangs."""

StartFaulty = Callable[..., Any]


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartFaulty:
    """Starts gateways of which a has data paths with these faults, in turn."""

    def start(*plans: FaultPlan, **settings: Any) -> Any:
        def make(config: Any, *arguments: Any) -> TransportSet:
            made = make_transports(config, *arguments)
            for name, transport in made.items():
                made[name] = FaultyTransport(transport, plans if config.site == "a" else ())
            return made

        monkeypatch.setattr(assembly_module, "make_transports", make)
        return start_gateways(LAYOUT, tmp_path, **{"memory": MEMORY, **settings})

    return start


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is never cold."""
    monkeypatch.setattr(probing, "COLD_SECONDS", 0.01)


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    with start_gateways(LAYOUT, tmp_path, memory=MEMORY) as running:
        yield running


def probe(site: Site, peer: str = "b", total_bytes: int = 48 * MIB, seconds: float = 10.0) -> dict[str, Any]:
    return ask_probe(site.address, peer, total_bytes, seconds)


def refused(site: Site, **bounds: Any) -> FedRDMAError:
    with pytest.raises(FedRDMAError) as caught:
        probe(site, **bounds)
    return caught.value


class Asking:
    """A probe that is asked for in a thread."""

    def __init__(self, site: Site, **bounds: Any) -> None:
        self.error: FedRDMAError | None = None
        self.report: dict[str, Any] | None = None
        self._thread = threading.Thread(target=self._ask, args=(site, bounds))
        self._thread.start()

    def _ask(self, site: Site, bounds: dict[str, Any]) -> None:
        try:
            self.report = probe(site, **bounds)
        except FedRDMAError as error:
            self.error = error

    def wait(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


def all_memory_is_back(*sites: Site) -> bool:
    """Nothing is leased but the ring."""
    return all(site.pool("send")["slots"] == 0 and site.pool("receive")["slots"] <= 2 for site in sites)


def probe_is_under_way(site: Site) -> bool:
    """The first look is over, large first chunks go out, with pauses between them."""
    return bool(site.pool("send")["total_leases"] >= 2)


def large_chunk_is_under_way(site: Site) -> bool:
    return any(transfer["total_bytes"] >= 2 * MIB for transfer in site.status()["transfers"])


# --- what a probe does ---


@pytest.mark.parametrize("mode", ["fedrdma-e", "fedrdma", "grpc"])
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_over_every_path_and_in_every_mode_it_measures_and_leaves_nothing_behind(
    tmp_path: Path, transport: str, mode: str
) -> None:
    with start_gateways(LAYOUT, tmp_path, transport=transport, mode=mode, memory=MEMORY) as sites:
        report = probe(sites["a"])
        assert report["transport"] == transport
        assert report["mode"] == ("fedrdma" if mode == "fedrdma" else "fedrdma-e")
        assert report["chunks"]
        assert all(trial["survived"] for trial in report["chunks"])
        assert report["sent_bytes"] <= 48 * MIB
        eventually(lambda: all_memory_is_back(*sites.values()))
        assert all(not any(site.status()["mailbox"].values()) for site in sites.values())
        # a job sees nothing of it
        assert not sites["b"].events("delivered")
        assert not sites["a"].events("sent")
        assert len(sites["a"].events("probed")) == 1


def test_where_messages_are_lent_the_path_itself_is_measured(tmp_path: Path) -> None:
    with start_gateways(LAYOUT, tmp_path, transport="shm", shm={"lend": True}, memory=MEMORY) as sites:
        report = probe(sites["a"])
        assert report["lends"]
        assert report["sent_bytes"] > 0
        assert sites["b"].status()["peers"][0]["borrowed_messages"] == 0


def test_a_probe_takes_no_more_than_a_fair_part_of_both_sides_memory(tmp_path: Path) -> None:
    with start_gateways(LAYOUT, tmp_path, memory={"send_bytes": "64MiB", "receive_bytes": "64MiB"}) as sites:
        sites.runner.stop(sites["b"])
        sites["b"].config["memory"]["receive_bytes"] = "16MiB"
        sites.runner.start(sites["b"])
        sites.wait_until_connected()
        report = probe(sites["a"])
        assert max(trial["payload_bytes"] for trial in report["chunks"]) <= 4 * MIB
        ring = 2 * 256 * 1024
        assert sites["b"].pool("receive")["high_water_bytes"] <= 4 * MIB + ring
        assert sites["a"].pool("send")["high_water_bytes"] <= 4 * MIB


def test_messages_get_through_while_a_probe_runs(sites: Sites) -> None:
    asking = Asking(sites["a"], total_bytes=400 * MIB)
    body = os.urandom(MIB)
    with sites["a"].client() as a, sites["b"].client() as b:
        for number in range(10):
            lease = a.lease(len(body))
            lease.buffer[:] = body
            lease.commit(f"m{number}", "t", [B], "object")
            assert bytes(b.get(f"m{number}", "t", party("guest:1"), timeout=20).buffer) == body
    asking.wait()
    assert asking.error is None


# --- large first chunks ---


def test_a_large_first_chunk_that_breaks_the_path_asks_for_link_enable(faulty: StartFaulty) -> None:
    with faulty(FaultPlan(break_after_bytes=MIB)) as sites:
        report = probe(sites["a"])
        assert report["link_enable"] == "always"
        assert "1 of 2 large first chunks did not survive" in report["link_enable_reason"]
        assert all(trial["link_enable"] for trial in report["chunks"])
        eventually(lambda: all_memory_is_back(*sites.values()))


def test_a_large_first_chunk_that_is_never_answered_leaves_time_for_the_others(faulty: StartFaulty) -> None:
    with faulty(HANG) as sites:
        report = probe(sites["a"], seconds=1.0)
        assert report["link_enable"] is None
        assert report["chunks"] == []
        assert report["seconds"] < 1.5


def test_where_large_chunks_get_through_link_enable_is_not_asked_for(sites: Sites) -> None:
    report = probe(sites["a"])
    assert report["link_enable"] == "never"
    assert [trial["link_enable"] for trial in report["first_chunks"]] == [False, False, True, True]


# --- when something goes wrong ---


def test_a_path_that_carries_nothing_is_told_in_time(faulty: StartFaulty) -> None:
    with faulty(FaultPlan(silent_after_writes=0)) as sites:
        error = refused(sites["a"], seconds=0.5)
        assert error.code is ErrorCode.IDLE_TIMEOUT
        assert "within the bounds" in error.message


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_peer_that_goes_away_in_the_middle_is_told_and_the_memory_comes_back(tmp_path: Path, how: str) -> None:
    runner = InProcesses()
    with start_gateways(LAYOUT, tmp_path, runner=runner, memory=MEMORY) as sites:
        asking = Asking(sites["a"], seconds=20.0)
        eventually(lambda: probe_is_under_way(sites["a"]))
        getattr(runner, how)(sites["b"])
        asking.wait()
        assert asking.error is not None
        assert asking.error.code is ErrorCode.PEER_UNREACHABLE
        assert "b went away during the probe" in asking.error.message
        eventually(lambda: all_memory_is_back(sites["a"]))
        # and the next one, when it is back, is as good as ever
        runner.start(sites["b"])
        sites.wait_until_connected()
        assert probe(sites["a"])["chunks"]


@pytest.mark.parametrize("how", ["stop", "restart"])
def test_a_peer_that_goes_away_with_a_chunk_half_way_is_told_and_the_memory_comes_back(
    faulty: StartFaulty, how: str
) -> None:
    with faulty(HANG) as sites:
        asking = Asking(sites["a"], seconds=20.0)
        eventually(lambda: large_chunk_is_under_way(sites["a"]))
        sites.runner.stop(sites["b"])
        asking.wait()
        assert asking.error is not None
        assert asking.error.code is ErrorCode.PEER_UNREACHABLE
        eventually(lambda: all_memory_is_back(sites["a"]))
        if how == "restart":
            sites.runner.start(sites["b"])
            sites.wait_until_connected()
            assert probe(sites["a"])["chunks"]


def test_a_receiver_gets_its_memory_back_from_a_prober_that_went_away_half_way(faulty: StartFaulty) -> None:
    with faulty(HANG, timeouts={"idle": 1.0}) as sites:
        asking = Asking(sites["a"], seconds=20.0)
        eventually(lambda: large_chunk_is_under_way(sites["b"]))
        sites.runner.stop(sites["a"])
        asking.wait()
        assert asking.error is not None
        assert asking.error.code in (ErrorCode.GATEWAY_STOPPING, ErrorCode.GATEWAY_UNREACHABLE)
        eventually(lambda: all_memory_is_back(sites["b"]))
        assert not any(sites["b"].status()["mailbox"].values())


def test_a_peer_that_is_not_connected_is_told(sites: Sites) -> None:
    sites.runner.stop(sites["b"])
    eventually(lambda: not sites["a"].status()["peers"][0]["connected"])
    error = refused(sites["a"])
    assert error.code is ErrorCode.PEER_UNREACHABLE
    assert "b is not connected: " in error.message


def test_a_path_that_does_not_come_up_again_is_told(sites: Sites) -> None:
    assert isinstance(sites.runner, InThread)
    assembly = sites.runner.gateways["a"]._assembly
    assert assembly is not None
    path = assembly.peers["b"].paths.main
    assert path is not None
    path.up, path.last_error = False, "the cable is out"
    error = refused(sites["a"], seconds=0.3)
    assert error.code is ErrorCode.LINK_LOST
    assert "the cable is out" in error.message


def test_a_gateway_of_another_version_that_knows_no_probes_is_told(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (entitlement, receiving_module):
        monkeypatch.setattr(module, "PROBE_TRANSFERS_FROM", 1 << 60)
    error = refused(sites["a"])
    assert error.code is ErrorCode.PROTOCOL_VERSION
    assert "knows no probes" in error.message
    assert error.remedy
    eventually(lambda: all_memory_is_back(*sites.values()))
    eventually(sites["a"].connected)


def test_a_second_probe_at_once_is_refused(faulty: StartFaulty) -> None:
    with faulty(HANG) as sites:
        asking = Asking(sites["a"], seconds=1.5)
        eventually(lambda: large_chunk_is_under_way(sites["a"]))
        error = refused(sites["a"])
        assert error.code is ErrorCode.POOL_TIMEOUT
        assert "a probe of b is under way" in error.message
        asking.wait()


def test_a_probe_gives_way_where_its_own_memory_is_short(sites: Sites) -> None:
    with sites["a"].client() as a:
        held = a.lease(28 * MIB)
        error = refused(sites["a"])
        assert error.code is ErrorCode.POOL_TIMEOUT
        assert "messages go first" in error.message
        held.release()
        assert eventually(lambda: sites["a"].pool("send")["slots"] == 0)
        assert probe(sites["a"])["chunks"]


def test_a_probe_gives_way_where_the_peers_memory_is_short(sites: Sites) -> None:
    with sites["a"].client() as a, sites["b"].client() as b:
        a.lease(28 * MIB).commit("m", "t", [B], "object")
        held = b.get("m", "t", party("guest:1"), timeout=20)
        eventually(lambda: sites["a"].pool("send")["slots"] == 0)
        error = refused(sites["a"])
        assert error.code is ErrorCode.POOL_TIMEOUT
        assert error.message.startswith("b: no room for a probe of")
        # nothing was spilled to make room for it
        assert sites["b"].status()["mailbox"]["spilled_messages"] == 0
        del held


def test_bounds_that_allow_nothing_are_told(sites: Sites) -> None:
    error = refused(sites["a"], total_bytes=0)
    assert error.code is ErrorCode.IDLE_TIMEOUT
    assert "--seconds --bytes" in error.remedy


def test_who_asks_and_goes_away_ends_the_probe_and_disturbs_no_path(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as asker:
        with address_of(socket_path(sites["a"].address)) as address:
            asker.connect(address)
        # left alone, the probe would last for a minute: longer than anything here is waited for
        monkeypatch.setattr(probing, "COLD_SECONDS", 60.0)
        asker.sendall(encode_message(AskProbe("b", 48 * MIB, 60.0)))
        eventually(lambda: probe_is_under_way(sites["a"]))
    monkeypatch.setattr(probing, "COLD_SECONDS", 0.01)
    eventually(lambda: all_memory_is_back(*sites.values()))
    assert eventually(lambda: _probed_again(sites["a"]))["chunks"]
    assert sites["a"].status()["peers"][0]["paths"][0]["attempts"] == 1


def _probed_again(site: Site) -> dict[str, Any]:
    """A report, as soon as the earlier probe has ended."""
    try:
        return probe(site)
    except MemoryPoolError:
        return {}
