"""Messages lent between gateways of one host: used where they lie, and whole whatever happens to either side."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedrdma_fate.client.client import GatewayClient, Received
from fedrdma_fate.gateway.assembly import Assembly
from fedrdma_fate.gateway.peers import borrowing, ended_transfers, lending
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import Connect, Lend, MessageKey
from tests.support.shared_memory import room_for_regions
from tests.support.sites import InProcesses, InThread, Runner, Site, Sites, eventually, party, start_gateways

A, B, C = party("guest:1"), party("host:2"), party("host:3")
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
MEBIBYTE = 1 << 20


@contextlib.contextmanager
def lenders(directory: Path, *, layout: dict[str, list[str]] = LAYOUT, **settings: Any) -> Iterator[Sites]:
    """Two gateways that share memory and lend."""
    settings = {"transport": "shm", "shm": {"lend": True}, **settings}
    with start_gateways(layout, directory, **settings) as sites:
        yield sites


def push(client: GatewayClient, body: bytes, *destinations: Any, name: str = "m") -> None:
    lease = client.lease(len(body))
    lease.buffer[:] = body
    lease.commit(name, "t", destinations or [B], "object")


def pull(client: GatewayClient, *, name: str = "m") -> Received:
    return client.get(name, "t", A, timeout=20)


def how(site: Site) -> list[str]:
    return [event["mode"] for event in site.events("sent")]


def send_slots(site: Site) -> int:
    return int(site.pool("send")["slots"])


def lent(site: Site) -> int:
    return sum(peer["lent_messages"] for peer in site.status()["peers"])


def test_a_lent_message_is_mapped_where_it_lies_and_returned_when_its_last_view_dies(tmp_path: Path) -> None:
    body = os.urandom(2 * MEBIBYTE)
    with lenders(tmp_path) as sites, sites["a"].client() as a, sites["b"].client() as b:
        push(a, body)
        received = pull(b)
        assert received.buffer == body
        assert sites["b"].pool("receive")["total_leases"] == 2, "only the ring is leased"
        eventually(lambda: how(sites["a"]) == ["lent"])
        assert (send_slots(sites["a"]), lent(sites["a"])) == (1, 1)
        view = received.buffer[7:9]
        del received
        assert send_slots(sites["a"]) == 1
        del view
        eventually(lambda: (send_slots(sites["a"]), lent(sites["a"])) == (0, 0))
        (delivered,) = sites["b"].events("delivered")
        assert (delivered["bytes"], delivered["mode"], delivered["transport"]) == (len(body), "lent", "shm")


def test_what_a_task_writes_into_a_lent_message_nobody_else_sees(tmp_path: Path) -> None:
    body = os.urandom(MEBIBYTE)
    layout = {"a": ["guest:1"], "b": ["host:2", "host:3"]}
    with (
        lenders(tmp_path, layout=layout) as sites,
        sites["a"].client() as a,
        sites["b"].client() as b,
        sites["b"].client(of="host:3") as c,
    ):
        push(a, body, B, C)
        first, second = pull(b), pull(c)
        assert send_slots(sites["a"]) == 1, "one slot for both"
        first.buffer[:] = bytes(len(body))
        assert second.buffer == body
        del first
        eventually(lambda: lent(sites["a"]) == 1)
        assert send_slots(sites["a"]) == 1
        del second
        eventually(lambda: send_slots(sites["a"]) == 0)


@pytest.mark.parametrize(
    ("settings", "mode"),
    [({"mode": "fedrdma"}, "fedrdma"), ({"mode": "grpc"}, "grpc"), ({"shm": {"lend": False}}, "fedrdma-e")],
)
def test_other_modes_and_gateways_that_are_told_not_to_lend_send(
    tmp_path: Path, settings: dict[str, Any], mode: str
) -> None:
    body = os.urandom(MEBIBYTE)
    with lenders(tmp_path, **settings) as sites, sites["a"].client() as a, sites["b"].client() as b:
        push(a, body)
        assert pull(b).buffer == body
        eventually(lambda: how(sites["a"]) == [mode])


def test_a_message_is_sent_where_lending_it_would_leave_no_room_for_another(tmp_path: Path) -> None:
    body = os.urandom(5 * MEBIBYTE)
    with lenders(tmp_path) as sites, sites["a"].client() as a, sites["b"].client() as b:
        push(a, body)
        assert pull(b).buffer == body
        eventually(lambda: how(sites["a"]) == ["fedrdma-e"])


@pytest.mark.parametrize(("receive", "on_disk"), [("16MiB", False), ("3MiB", True)])
def test_lent_messages_that_nobody_has_pulled_make_room_for_a_larger_one(
    tmp_path: Path, receive: str, on_disk: bool
) -> None:
    bodies = [os.urandom(2 * MEBIBYTE) for _ in range(3)]
    larger = os.urandom(7 * MEBIBYTE)
    memory = {"receive_bytes": receive}
    with lenders(tmp_path, memory=memory) as sites, sites["a"].client() as a, sites["b"].client() as b:
        for number, body in enumerate(bodies):
            push(a, body, name=f"m{number}")
        eventually(lambda: len(how(sites["a"])) == 3)
        assert how(sites["a"]) == ["lent"] * 3
        lease = a.lease(len(larger), timeout=20)
        assert lent(sites["a"]) == 0
        assert bool(sites["b"].events("spilled")) == on_disk
        lease.release()
        for number, body in enumerate(bodies):
            assert pull(b, name=f"m{number}").buffer == body


def test_a_pulled_message_stays_whole_while_its_sender_waits_for_the_room(tmp_path: Path) -> None:
    body = os.urandom(2 * MEBIBYTE)
    with lenders(tmp_path) as sites, sites["a"].client() as a, sites["b"].client() as b:
        push(a, body)
        received = pull(b)
        with pytest.raises(MemoryPoolError) as caught:
            a.lease(8 * MEBIBYTE, timeout=0.3)
        assert caught.value.code is ErrorCode.POOL_TIMEOUT
        assert received.buffer == body
        del received
        a.lease(8 * MEBIBYTE, timeout=20).release()


def test_a_lent_message_is_told_again_after_a_reconnection_and_comes_once(tmp_path: Path) -> None:
    runner = InThread()
    body = os.urandom(MEBIBYTE)
    with lenders(tmp_path, runner=runner) as sites, sites["a"].client() as a, sites["b"].client() as b:
        push(a, body)
        eventually(lambda: lent(sites["a"]) == 1)
        received = pull(b)
        break_channel(runner, sites)
        del received
        eventually(lambda: lent(sites["a"]) == 0)
        assert send_slots(sites["a"]) == 0
        assert len(sites["b"].events("delivered")) == 1
        push(a, body, name="next")
        assert pull(b, name="next").buffer == body


def break_channel(runner: InThread, sites: Sites) -> None:
    """Cut the control channel; returns when it is there again."""

    async def cut() -> None:
        assembly = runner.gateways["a"]._assembly
        assert assembly is not None
        assembly.peers["b"]._lose("cut by the test")

    before = len(sites["a"].events("peer_lost"))
    runner.run(cut())
    assert len(sites["a"].events("peer_lost")) == before + 1
    sites.wait_until_connected()


def test_a_waiting_message_is_copied_when_its_lender_is_lost(tmp_path: Path) -> None:
    runner = InThread()
    body = os.urandom(MEBIBYTE)
    with lenders(tmp_path, runner=runner) as sites, sites["a"].client() as a, sites["b"].client() as b:
        push(a, body)
        eventually(lambda: how(sites["a"]) == ["lent"])
        break_channel(runner, sites)
        eventually(lambda: send_slots(sites["a"]) == 0)
        assert pull(b).buffer == body


def test_a_message_that_cannot_be_borrowed_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryPoolError(ErrorCode.REGION_UNAVAILABLE, "another user's file.")

    monkeypatch.setattr(borrowing, "BorrowedSlot", refuse)
    body = os.urandom(MEBIBYTE)
    with lenders(tmp_path) as sites, sites["a"].client() as a, sites["b"].client() as b:
        for name in ("first", "second"):
            push(a, body, name=name)
            assert pull(b, name=name).buffer == body
        eventually(lambda: how(sites["a"]) == ["fedrdma-e"] * 2)
    assert caplog.text.count("does not borrow: another user's file") == 1


def test_a_task_keeps_its_lent_message_when_the_lender_stops(tmp_path: Path) -> None:
    body, waiting = os.urandom(MEBIBYTE), os.urandom(MEBIBYTE)
    # where pages of free slots are taken away, it would show
    with (
        lenders(tmp_path, memory={"warm": False}) as sites,
        sites["a"].client() as a,
        sites["b"].client() as b,
    ):
        push(a, body)
        push(a, waiting, name="waiting")
        received = pull(b)
        eventually(lambda: lent(sites["a"]) == 2)
        sites.runner.stop(sites["a"])
        assert received.buffer == body
        assert pull(b, name="waiting").buffer == waiting


def test_what_tasks_of_a_gateway_that_is_gone_still_use_is_not_used_for_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(lending, "GRACE_SECONDS", 0.1)
    body = os.urandom(MEBIBYTE)
    with lenders(tmp_path, memory={"warm": False}) as sites, sites["a"].client() as a:
        b = sites["b"].client()
        push(a, body)
        received = pull(b)
        sites.runner.stop(sites["b"])
        b.close()
        eventually(lambda: not sites["a"].status()["peers"][0]["connected"])
        with pytest.raises(MemoryPoolError):
            a.lease(8 * MEBIBYTE, timeout=0.5)
        assert received.buffer == body
        del received
        eventually(lambda: (send_slots(sites["a"]), lent(sites["a"])) == (0, 0))


# --- what is not a peer's to lend ---

THREE = {"a": ["guest:1"], "b": ["host:2"], "c": ["host:3"]}


def of_c(transfer: int, offset: int = 0) -> Lend:
    """A frame by which c says that its message for a lies there in its send region."""
    return Lend(transfer, MessageKey("s", "forged", "t", C, A), "bytes", MEBIBYTE, offset)


def assembly_of(runner: InThread, site: str) -> Assembly:
    assembly = runner.gateways[site]._assembly
    assert assembly is not None
    return assembly


def assert_declined(sites: Sites, caplog: pytest.LogCaptureFixture, why: str, count: int = 1) -> None:
    """Nothing of what c said it lends came to a; why that is, is in the log of both."""
    eventually(lambda: caplog.text.count("declined s/forged/t host:3->guest:1, which c lends") == count)
    eventually(lambda: caplog.text.count("a does not borrow") == count)
    assert why in caplog.text
    with sites["a"].client() as a, pytest.raises(GatewayError) as caught:
        a.get("forged", "t", C, timeout=0.2)
    assert caught.value.code is ErrorCode.PULL_TIMEOUT
    assert [event for event in sites["a"].events("delivered") if event["source"] == "host:3"] == []


@pytest.mark.parametrize("offset", [1, -4096, 8 * MEBIBYTE, 8 * MEBIBYTE - 4096, 2**62])
def test_a_peer_can_lend_slots_of_its_send_region_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, offset: int
) -> None:
    runner = InThread()
    with lenders(tmp_path, layout=THREE, runner=runner) as sites:
        runner.tell("c", "a", of_c(1, offset))
        assert_declined(sites, caplog, "it is no slot of a region of")


@pytest.mark.parametrize("whose", ["send", "receive"])
def test_a_peer_that_presents_our_own_region_as_its_own_gets_no_link_over_shm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, whose: str
) -> None:
    secret = os.urandom(MEBIBYTE)
    runner = InThread()
    # by the paper's mode, b's message is copied into our receive region
    with lenders(tmp_path, layout=THREE, runner=runner, mode="fedrdma") as sites, sites["b"].client() as b:
        push(b, secret, A, name="secret")
        eventually(lambda: sites["a"].status()["mailbox"]["messages"] == 1)
        ours, theirs = assembly_of(runner, "a").context, assembly_of(runner, "c")
        pool = ours.send_pool if whose == "send" else ours.receive_pool
        theirs.context.transports["shm"]._regions.lends = pool.region  # type: ignore[attr-defined]

        async def renew() -> None:
            theirs.peers["a"]._lose("renewed by the test")

        runner.run(renew())
        eventually(lambda: "it is a region of our own" in caplog.text)
        runner.tell("c", "a", of_c(1))
        with sites["a"].client() as a:
            with pytest.raises(GatewayError) as caught:
                a.get("forged", "t", C, timeout=0.2)
            assert caught.value.code is ErrorCode.PULL_TIMEOUT
            assert a.get("secret", "t", B, timeout=20).buffer == secret


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"transport": "tcp"}, "messages of c come over tcp, not shm"),
        ({"shm": {"lend": False}}, "`shm.lend` is off"),
    ],
)
def test_a_peer_cannot_lend_where_nothing_is_borrowed_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], why: str
) -> None:
    runner = InThread()
    with lenders(tmp_path, layout=THREE, runner=runner, **settings) as sites:
        runner.tell("c", "a", of_c(1))
        assert_declined(sites, caplog, why)


def test_a_peer_that_has_presented_no_send_region_cannot_lend(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runner = InThread()
    with lenders(tmp_path, layout=THREE, runner=runner) as sites:
        main = assembly_of(runner, "a").peers["c"].paths.main
        assert main is not None
        main.lent_region = None
        runner.tell("c", "a", of_c(1))
        assert_declined(sites, caplog, "c has not presented its send region")


def test_the_same_frame_is_taken_where_it_names_a_slot_of_the_peers_send_region(tmp_path: Path) -> None:
    runner = InThread()
    with lenders(tmp_path, layout=THREE, runner=runner) as sites, sites["a"].client() as a:
        runner.tell("c", "a", of_c(1))
        received = a.get("forged", "t", C, timeout=20)
        assert len(received.buffer) == MEBIBYTE


def test_a_loan_that_is_told_again_long_after_takes_no_further_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended_transfers, "REMEMBERED_TRANSFERS", 0)
    runner = InThread()
    with lenders(tmp_path, layout=THREE, runner=runner) as sites, sites["a"].client() as a:
        for number in range(5):
            key = MessageKey("s", f"forged{number}" if number else "forged", "t", C, A)
            runner.tell("c", "a", Lend(1, key, "bytes", MEBIBYTE, 0))
        runner.tell("c", "a", Lend(2, MessageKey("s", "last", "t", C, A), "bytes", MEBIBYTE, 0))
        eventually(lambda: len(sites["a"].events("delivered")) == 2)
        assert len(a.get("forged", "t", C, timeout=20).buffer) == MEBIBYTE
        assert sites["a"].status()["mailbox"]["messages"] == 1


def test_what_is_lent_before_the_data_path_is_there_waits_for_it(tmp_path: Path) -> None:
    runner = InThread()
    with lenders(tmp_path, layout=THREE, runner=runner) as sites, sites["a"].client() as a:
        peer = assembly_of(runner, "a").peers["c"]

        async def lend_early() -> None:
            main = peer.paths.main
            assert main is not None
            up, region = main.up, main.lent_region
            main.up, main.lent_region = False, None
            peer.receiving.on_lend(of_c(1))
            assert not peer.receiving.borrowing.holds(1)
            # neither lost nor given back by a lender that wants its slot
            peer.receiving.borrowing.on_recall(1, final=False)
            main.up, main.lent_region = up, region
            peer.receiving.retry_early_lends()

        runner.run(lend_early())
        assert len(a.get("forged", "t", C, timeout=20).buffer) == MEBIBYTE


# --- what a peer may make us open ---


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_peer_cannot_make_us_open_a_file_by_naming_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, transport: str
) -> None:
    private = tmp_path / "private"
    private.write_bytes(b"mine" * 4096)
    private.chmod(0o600)
    offer = {"region": str(private), "keys": str(private), "socket": str(private), "token": "00" * 16}
    runner = InThread()
    with lenders(tmp_path, layout=THREE, runner=runner, transport=transport) as sites:
        for site, attempt in (("a", 1000), ("c", 1000)):
            other = "c" if site == "a" else "a"
            runner.tell(site, other, Connect("shm", "because", attempt, True, offer, os.urandom(32)))
        if transport == "tcp":
            eventually(lambda: "'shm', which is not offered" in caplog.text)
        eventually(sites["a"].connected, 30)
        body = os.urandom(MEBIBYTE)
        with sites["c"].client() as c, sites["a"].client() as a:
            push(c, body, A)
            assert a.get("m", "t", C, timeout=30).buffer == body
    assert private.read_bytes() == b"mine" * 4096


def test_a_peer_of_another_host_or_one_that_shm_is_not_allowed_with_gets_no_answer_about_shm(tmp_path: Path) -> None:
    runner = InThread()
    with lenders(tmp_path, layout=THREE, runner=runner):
        peer = assembly_of(runner, "a").peers["c"]
        hello, config = peer.hello, peer.config
        assert hello is not None
        assert peer._allows("shm")
        peer.hello = msgspec.structs.replace(hello, host="elsewhere")
        assert not peer._allows("shm")
        assert peer._allows("grpc")
        peer.hello, peer.config = hello, msgspec.structs.replace(config, transport="tcp")
        assert not peer._allows("shm")
        assert peer._allows("tcp")


def test_messages_are_lent_where_the_directory_is_reached_by_a_link(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=room_for_regions(), prefix="fedrdma-test-") as name:
        link = tmp_path / "link"
        link.symlink_to(name)
        body = os.urandom(MEBIBYTE)
        memory = {"directory": str(link)}
        with lenders(tmp_path, memory=memory) as sites, sites["a"].client() as a, sites["b"].client() as b:
            push(a, body)
            assert pull(b).buffer == body
            eventually(lambda: how(sites["a"]) == ["lent"])


@pytest.fixture
def processes() -> Runner:
    return InProcesses()


def test_a_waiting_message_survives_the_death_of_its_lender(tmp_path: Path, processes: InProcesses) -> None:
    body, waiting = os.urandom(MEBIBYTE), os.urandom(MEBIBYTE)
    with (
        lenders(tmp_path, runner=processes) as sites,
        sites["a"].client() as a,
        sites["b"].client() as b,
    ):
        push(a, body)
        push(a, waiting, name="waiting")
        received = pull(b)
        eventually(lambda: len(how(sites["a"])) == 2)
        processes.kill(sites["a"])
        processes.start(sites["a"])
        sites.wait_until_connected()
        assert received.buffer == body
        assert pull(b, name="waiting").buffer == waiting


def test_a_gateway_that_is_killed_and_restarted_does_not_spoil_what_its_task_has_mapped(
    tmp_path: Path, processes: InProcesses
) -> None:
    body = os.urandom(3 * MEBIBYTE)
    with lenders(tmp_path, runner=processes) as sites, sites["a"].client() as a:
        b = sites["b"].client()
        push(a, body)
        received = pull(b)
        processes.kill(sites["b"])
        processes.start(sites["b"])
        sites.wait_until_connected()
        b.close()
        # everything that is free is written to
        rest = a.lease(5 * MEBIBYTE - 4096)
        rest.buffer[:] = bytes(len(rest.buffer))
        with pytest.raises(MemoryPoolError):
            a.lease(3 * MEBIBYTE, timeout=0.3)
        assert received.buffer == body
        rest.release()
        with sites["b"].client() as again:
            push(a, body, name="next")
            assert pull(again, name="next").buffer == body
