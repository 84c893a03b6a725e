"""Starting, stopping and failing to start: nothing is left behind; the metrics endpoint counts what happened."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.core.path import PathState
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.gateway import daemon
from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.gateway.daemon import Gateway
from fedrdma_fate.gateway.path_store import PathStore
from fedrdma_fate.gateway.tasks.socket import TaskSocket
from fedrdma_fate.memory import heap
from fedrdma_fate.transport.grpc import GrpcSettings, GrpcTransport
from fedrdma_fate.unix_sockets import address_of
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from tests.support.ports import ports_of_this_process
from tests.support.shared_memory import room_for_regions
from tests.support.sites import (
    InThread,
    Site,
    Sites,
    eventually,
    gateway_site,
    linked_sites,
    party,
    start_gateways,
)

A, B = party("guest:1"), party("host:2")
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
BODY = os.urandom(700_000)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in shared memory of the test's own."""
    with tempfile.TemporaryDirectory(dir=room_for_regions(), prefix="test-of-fedrdma-") as name:
        yield Path(name)


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fr") as name:
        yield Path(name)


@pytest.fixture
def site(tmp_path: Path, sockets: Path, memory: Path) -> Site:
    """A site that does not run."""
    return gateway_site(
        "a",
        ["guest:1"],
        home=tmp_path / "a",
        sockets=sockets,
        port=0,
        memory={"directory": str(memory)},
        listen={"metrics": "127.0.0.1:0"},
        peers=[{"site": "b", "parties": ["host:2"], "address": "127.0.0.1:1"}],
    )


@pytest.fixture(scope="module", autouse=True)
def _libraries_have_opened_what_they_keep(tmp_path_factory: pytest.TempPathFactory) -> None:
    """grpcio opens descriptors once and keeps them: before anybody counts."""
    with start_gateways(LAYOUT, tmp_path_factory.mktemp("first")):
        pass


def own_threads() -> set[str]:
    """Threads of ours; grpcio and asyncio keep some of their own for later."""
    return {
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(("link-", "grpc-data", "proxy", "gateways")) or "serve_forever" in thread.name
    }


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def start_in_vain(site: Site) -> FedRDMAError:
    """What a gateway says that cannot start."""

    async def scenario() -> None:
        gateway = Gateway(parse_config(site.config))
        try:
            await gateway.start()
        finally:
            await gateway.stop()

    with pytest.raises(FedRDMAError) as caught:
        asyncio.run(scenario())
    error = caught.value
    # their frames hold what the gateway had opened
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def take(key: str) -> Callable[[Site, contextlib.ExitStack], None]:
    """Somebody else has the port of `listen.<key>`."""

    def spoil(site: Site, stack: contextlib.ExitStack) -> None:
        site.config["listen"][key] = f"127.0.0.1:{stack.enter_context(taken_port())}"

    return spoil


def put(section: str, key: str, value: Any) -> Callable[[Site, contextlib.ExitStack], None]:
    def spoil(site: Site, stack: contextlib.ExitStack) -> None:
        del stack
        if section:
            site.config[section][key] = value
        else:
            site.config[key] = value

    return spoil


def serve_the_socket(site: Site, stack: contextlib.ExitStack) -> None:
    listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    with address_of(Path(site.address.removeprefix("unix://"))) as address:
        listener.bind(address)
    listener.listen()


@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [
        (take("control"), ErrorCode.TRANSPORT_UNAVAILABLE, "listen.control"),
        (take("data"), ErrorCode.TRANSPORT_UNAVAILABLE, "listen.data"),
        (take("grpc"), ErrorCode.TRANSPORT_UNAVAILABLE, "listen.grpc"),
        (take("metrics"), ErrorCode.CONFIG_BAD_VALUE, "listen.metrics"),
        (serve_the_socket, ErrorCode.GATEWAY_UNREACHABLE, "another gateway serves"),
        (put("listen", "socket", "unix:///proc/nothing/x.sock"), ErrorCode.GATEWAY_UNREACHABLE, "listen.socket"),
        (put("memory", "directory", "/nonexistent"), ErrorCode.REGION_UNAVAILABLE, "memory.directory"),
        (put("memory", "receive_bytes", "999999GiB"), ErrorCode.REGION_UNAVAILABLE, "memory.receive_bytes"),
        (put("memory", "spill_directory", "/proc/nothing"), ErrorCode.SPILL_FAILED, "memory.spill_directory"),
        (put("", "trace", "/nonexistent/trace.jsonl"), ErrorCode.CONFIG_BAD_VALUE, "trace"),
    ],
    ids=["control", "data", "grpc", "metrics", "served", "socket", "memory", "too-much", "spill", "trace"],
)
def test_a_gateway_that_cannot_start_says_why_and_leaves_nothing_behind(
    site: Site, memory: Path, spoil: Callable[[Site, contextlib.ExitStack], None], code: ErrorCode, words: str
) -> None:
    # grpcio has descriptors of its own as long as anybody uses it, and a little longer
    with contextlib.closing(GrpcTransport(GrpcSettings())):
        threads, files = own_threads(), descriptors()
        with contextlib.ExitStack() as stack:
            spoil(site, stack)
            error = start_in_vain(site)
        eventually(lambda: descriptors() <= files)
        assert own_threads() == threads
    assert error.code is code
    assert words in f"{error.message} {error.remedy}"
    assert list(memory.iterdir()) == []
    assert list((site.home / "spill").glob("*")) == []


def test_a_gateway_that_could_not_start_can_be_started_when_the_trouble_is_over(site: Site) -> None:
    with contextlib.ExitStack() as stack:
        serve_the_socket(site, stack)
        start_in_vain(site)
    # the dead owner's socket file is still there
    assert Path(site.address.removeprefix("unix://")).is_socket()
    runner = InThread()
    try:
        runner.start(site)
        assert site.status()["site"] == "a"
    finally:
        runner.stop_all()


def test_a_stopped_gateway_leaves_nothing_behind(tmp_path: Path, memory: Path) -> None:
    threads = own_threads()
    settings: dict[str, Any] = {"memory": {"directory": str(memory)}, "listen": {"metrics": "127.0.0.1:0"}}
    for turn in range(2):
        files = descriptors()
        with start_gateways(LAYOUT, tmp_path / str(turn), transport="shm", **settings) as sites:
            assert len(list(memory.iterdir())) == 2
            with sites["a"].client() as a, sites["b"].client() as b:
                for mode in ("fedrdma-e", "grpc"):
                    with sites["a"].client(mode=mode) as client:
                        lease = client.lease(len(BODY))
                        lease.buffer[:] = BODY
                        lease.commit(mode, "t", [B], "object")
                    assert bytes(b.get(mode, "t", A, timeout=20).buffer) == BODY
                # and something that nobody pulls
                a.put_inline("left", "t", [B], "bytes", b"hi")
                lease = a.lease(len(BODY))
                lease.commit("left-large", "t", [B], "object")
            address = sites["a"].address.removeprefix("unix://")
        assert list(memory.iterdir()) == []
        assert list((tmp_path / str(turn) / "b" / "spill").iterdir()) == []
        assert not Path(address).exists()
        eventually(lambda: own_threads() == threads)
    eventually(lambda: descriptors() <= files)


def test_a_gateway_stops_while_it_connects_to_somebody_who_does_not_answer(tmp_path: Path, sockets: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        peer = {"site": "b", "parties": ["host:2"], "address": f"127.0.0.1:{silent.getsockname()[1]}"}
        site = gateway_site("a", ["guest:1"], home=tmp_path, sockets=sockets, port=0, peers=[peer])
        runner = InThread()
        try:
            runner.start(site)
            silent.settimeout(10)
            silent.accept()[0].close()
            runner.stop(site)
        finally:
            runner.stop_all()


def test_a_gateway_may_be_stopped_before_it_was_started_and_twice(site: Site) -> None:
    async def scenario() -> None:
        gateway = Gateway(parse_config(site.config))
        await gateway.stop()
        await gateway.start()
        gateway.stop_soon()
        await gateway.wait()
        await gateway.stop()
        await gateway.stop()
        with pytest.raises(RuntimeError, match="does not run"):
            gateway.status()

    asyncio.run(scenario())


def test_whoever_asks_for_the_status_while_a_gateway_ends_is_told_that_it_stops(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ErrorCode] = []

    async def scenario() -> None:
        gateway = Gateway(parse_config(site.config))
        real = TaskSocket.stop

        async def stop(socket: TaskSocket, *, keep: bool = False) -> None:
            with pytest.raises(GatewayError) as caught:
                gateway.status()
            asked.append(caught.value.code)
            await real(socket, keep=keep)

        monkeypatch.setattr(TaskSocket, "stop", stop)
        await gateway.start()
        monkeypatch.setattr(daemon, "_has_something_to_keep", lambda _assembly: True)
        await gateway.stop(keep=True)

    asyncio.run(scenario())
    assert asked == [ErrorCode.GATEWAY_STOPPING]


def test_a_running_gateway_gives_free_memory_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    given_back = threading.Event()
    monkeypatch.setattr(heap, "GIVE_BACK_SECONDS", 0.01)
    monkeypatch.setattr(heap, "give_back_free_pages", given_back.set)

    async def scenario() -> None:
        gateway = Gateway(parse_config(site.config))
        await gateway.start()
        try:
            assert await asyncio.to_thread(given_back.wait, 60)
        finally:
            await gateway.stop()

    asyncio.run(scenario())


def test_what_was_found_of_a_path_is_there_again_after_a_restart(site: Site, tmp_path: Path) -> None:
    found = PathState(1.2e9, 0.02, 0.001)
    site.config["state_directory"] = str(tmp_path / "state")

    async def run(then: Callable[[PathStore], None]) -> None:
        gateway = Gateway(parse_config(site.config))
        await gateway.start()
        assert gateway._assembly is not None
        then(gateway._assembly.context.path_store)
        await gateway.stop()

    asyncio.run(run(lambda store: store.note("b", "verbs", KnownPath(found, "measured"))))
    recalled: list[KnownPath | None] = []
    asyncio.run(run(lambda store: recalled.append(store.recall("b", "verbs"))))
    assert recalled == [KnownPath(found, "remembered")]


def test_addresses_that_others_can_reach_are_warned_about_while_security_is_off(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.config["listen"]["control"] = "0.0.0.0:0"
    site.config["security_off_beyond_loopback"] = True
    runner = InThread()
    try:
        runner.start(site)
    finally:
        runner.stop_all()
    assert "security is off and listen.control is 0.0.0.0" in caplog.text
    assert "listen.data" not in caplog.text


# --- metrics ---


@contextlib.contextmanager
def measured_gateways(layout: Mapping[str, Sequence[str]], directory: Path, sockets: Path) -> Iterator[Sites]:
    """Gateways of these sites, each with a metrics endpoint."""
    sites = linked_sites(layout, directory, sockets)
    for site, port in zip(sites.values(), ports_of_this_process(len(sites)), strict=True):
        site.config["listen"]["metrics"] = f"127.0.0.1:{port}"
    with Sites.running(sites, InThread()) as running:
        yield running


def scraped(site: Site) -> dict[str, float]:
    """The metrics of a site, by name with labels."""
    with urllib.request.urlopen(f"http://{site.config['listen']['metrics']}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def test_the_metrics_endpoint_counts_what_happened(tmp_path: Path, sockets: Path) -> None:
    with measured_gateways(LAYOUT, tmp_path, sockets) as sites:
        sites.wait_until_connected()
        with sites["a"].client() as a, sites["b"].client() as b:
            for number in range(3):
                lease = a.lease(len(BODY))
                lease.buffer[:] = BODY
                lease.commit(f"m{number}", "t", [B], "object")
            a.put_inline("small", "t", [B], "bytes", b"hi")
            held = [b.get(f"m{number}", "t", A, timeout=20) for number in range(3)]
            b.get("small", "t", A, timeout=20)
            eventually(lambda: sites["a"].status()["peers"][0]["pending_messages"] == 0)
            of_a, of_b = scraped(sites["a"]), scraped(sites["b"])
            del held
        way = 'peer="b",transport="tcp"'
        assert of_a[f'fedrdma_payload_bytes_total{{direction="sent",mode="fedrdma-e",{way}}}'] == 3 * len(BODY)
        assert of_a['fedrdma_transfers_total{mode="fedrdma-e",outcome="delivered",peer="b"}'] == 3
        assert of_a['fedrdma_inline_messages_total{direction="sent",peer="b"}'] == 1
        assert of_a[f"fedrdma_links_up{{{way}}}"] == 1
        assert of_a['fedrdma_leases{pool="send"}'] == 0
        assert of_a['fedrdma_waiting_requests{request="put"}'] == 0
        back = 'peer="a",transport="tcp"'
        assert of_b[f'fedrdma_payload_bytes_total{{direction="received",mode="fedrdma-e",{back}}}'] == 3 * len(BODY)
        assert of_b['fedrdma_transfers_total{mode="fedrdma-e",outcome="received",peer="a"}'] == 3
        assert of_b['fedrdma_transfer_seconds_count{mode="fedrdma-e",outcome="received",peer="a"}'] == 3
        assert of_b['fedrdma_inline_messages_total{direction="received",peer="a"}'] == 1
        # three held by the task, and the ring
        assert of_b['fedrdma_leases{pool="receive"}'] == 3 + 2
        sites.runner.stop(sites["b"])
        eventually(lambda: scraped(sites["a"])[f"fedrdma_links_up{{{way}}}"] == 0)


def test_the_metrics_show_who_waits(tmp_path: Path, sockets: Path) -> None:
    with measured_gateways({"a": ["guest:1", "host:1"]}, tmp_path, sockets) as sites:
        site = sites["a"]
        with site.client() as guest, site.client(of="host:1") as host:
            held = guest.lease(7 << 20)
            threads = [
                threading.Thread(target=lambda: guest.lease(6 << 20, timeout=20).release()),
                threading.Thread(target=lambda: host.get("m", "t", A, timeout=20)),
            ]
            for thread in threads:
                thread.start()

            def waiting() -> tuple[float, float]:
                metrics = scraped(site)
                return tuple(metrics[f'fedrdma_waiting_requests{{request="{kind}"}}'] for kind in ("put", "get"))  # type: ignore[return-value]

            eventually(lambda: waiting() == (1, 1))
            held.release()
            guest.put_inline("m", "t", [party("host:1")], "bytes", b"hi")
            for thread in threads:
                thread.join(20)
            eventually(lambda: waiting() == (0, 0))


def test_who_sends_while_a_gateway_stops_for_good_is_told_that_what_it_took_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It still takes messages when it has told of all that it had."""
    runner = InThread()
    save = daemon._save_paths
    with (
        start_gateways(LAYOUT, tmp_path, runner=runner) as sites,
        sites["a"].client("early") as early,
        sites["a"].client("late") as late,
    ):
        early.put_inline("m", "t", [B], "bytes", b"x")
        eventually(lambda: sites["b"].status()["mailbox"]["messages"] == 1)
        mailbox = runner.gateways["b"]._assembly.context.mailbox  # type: ignore[union-attr]

        async def busy(assembly: Any) -> None:
            if assembly.context.mailbox is mailbox:
                await asyncio.to_thread(late.put_inline, "m", "t", [B], "bytes", b"x")
                while mailbox.summary()["messages"] != 2 or sites_sending(runner, "a"):
                    await asyncio.sleep(0.01)
            await save(assembly)

        monkeypatch.setattr(daemon, "_save_paths", busy)
        runner.stop(sites["b"])
        # the tasks hear of it with their next call
        for session in ("early", "late"):
            eventually(lambda each=session: f"{each}/m/t guest:1->host:2 is dropped at b: [FR607]" in caplog.text)


def sites_sending(runner: InThread, name: str) -> bool:
    """Whether a gateway has anything that its peers have not confirmed."""
    assembly = runner.gateways[name]._assembly
    assert assembly is not None
    return any(peer.sending.pending for peer in assembly.peers.values())
