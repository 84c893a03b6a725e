"""Gateways that are killed and started again: what they had confirmed is there, once, or both ends are told."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.memory.journal_file import HEADER_BYTES, MAGIC
from fedrdma_fate.memory.keeper import NEW_SOCKET_NAME, Keeper
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from tests.support.sites import (
    InProcesses,
    InThread,
    Site,
    Sites,
    eventually,
    log_of,
    party,
    runner_of,
    start_gateways,
)

A, B = party("guest:1"), party("host:2")
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
MEMORY = {"send_bytes": "16MiB", "receive_bytes": "16MiB", "ring_slots": 2, "ring_slot_bytes": "1MiB"}
BODY = os.urandom(3 << 20)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Two gateways as processes; each test makes use of them in a session of its own."""
    with start_gateways(
        LAYOUT,
        tmp_path_factory.mktemp("restarted"),
        runner=InProcesses(),
        connected=False,
        memory=MEMORY,
        timeouts={"drain": 1.0, "connect": 3.0},
    ) as running:
        yield running


def push(client: GatewayClient, name: str, body: bytes = BODY) -> None:
    lease = client.lease(len(body))
    lease.buffer[:] = body
    lease.commit(name, "t", [B], "object")


def waiting(site: Site) -> int:
    return int(site.status()["mailbox"]["messages"])


def state_of(site: Site) -> Path:
    """The directory of its journal."""
    (path,) = (site.home / "spill").glob("journal-*")
    return path


def restart(sites: Sites, name: str) -> None:
    runner_of(sites).kill(sites[name])
    runner_of(sites).start(sites[name])


def kill_keeper(site: Site) -> None:
    """Take its keeper away, as the end of a container does."""
    taken = Keeper.take_over(state_of(site))
    assert taken is not None
    for descriptor in taken[1].values():
        os.close(descriptor)
    taken[0].end()


def keeper_of(sites: Sites, name: str) -> int:
    """The process id of the keeper that a gateway has started; 0 where there is none."""
    gateway = runner_of(sites).processes[name].pid
    # each thread has children of its own
    for children in Path(f"/proc/{gateway}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                if b"keeper_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    return 0


def test_what_was_delivered_before_a_gateway_was_killed_is_found_by_the_next_once(sites: Sites, session: str) -> None:
    before = waiting(sites["b"])
    with sites["a"].client(session) as a:
        push(a, "large")
        a.put_inline("small", "t", [B], "bytes", b"hello")
        eventually(lambda: waiting(sites["b"]) == before + 2)
        restart(sites, "b")
        restart(sites, "b")
        with sites["b"].client(session) as b:
            assert bytes(b.get("large", "t", A, timeout=10).buffer) == BODY
            assert bytes(b.get("small", "t", A, timeout=10).buffer) == b"hello"
            restart(sites, "b")
        with sites["b"].client(session) as b:
            for name in ("large", "small"):
                with pytest.raises(GatewayError) as caught:
                    b.get(name, "t", A, timeout=1)
                assert caught.value.code is ErrorCode.DUPLICATE_PULL
        # the same bytes are the same push
        a.put_inline("small", "t", [B], "bytes", b"hello")
        with pytest.raises(GatewayError) as again:
            a.put_inline("small", "t", [B], "bytes", b"other")
        assert again.value.code is ErrorCode.DUPLICATE_PUSH
    delivered = [event["name"] for event in sites["b"].events("delivered") if event["session"] == session]
    assert sorted(delivered) == ["large", "small"]


def test_messages_that_were_spilled_are_found_by_the_next_gateway(sites: Sites, session: str) -> None:
    before = waiting(sites["b"])
    bodies = {f"m{number}": os.urandom(4 << 20) for number in range(6)}
    with sites["a"].client(session) as a:
        for name, body in bodies.items():
            push(a, name, body)
        eventually(lambda: waiting(sites["b"]) == before + 6)
        assert sites["b"].status()["mailbox"]["spilled_messages"] > 0
        restart(sites, "b")
        with sites["b"].client(session) as b:
            for name, body in bodies.items():
                assert bytes(b.get(name, "t", A, timeout=10).buffer) == body


def test_what_a_task_has_mapped_keeps_its_bytes_until_it_lets_go(sites: Sites, session: str) -> None:
    with sites["a"].client(session) as a, sites["b"].client(session) as old:
        push(a, "m")
        held = old.get("m", "t", A, timeout=10).buffer
        restart(sites, "b")
        sites.wait_until_connected()
        slots = sites["b"].pool("receive")["slots"]
        with sites["b"].client(session) as b:
            for number in range(6):
                push(a, f"n{number}")
                assert bytes(b.get(f"n{number}", "t", A, timeout=10).buffer) == BODY
        assert bytes(held) == BODY
        del held
        eventually(lambda: sites["b"].pool("receive")["slots"] == slots - 1)


def test_where_the_memory_is_gone_both_ends_are_told_without_asking(sites: Sites, session: str) -> None:
    with sites["a"].client(session) as a:
        push(a, "m")
        # confirmed at both: of one that is not, the sender is told in other words
        eventually(lambda: [event for event in sites["a"].events("sent") if event["session"] == session])
        runner_of(sites).kill(sites["b"])
        kill_keeper(sites["b"])
        runner_of(sites).start(sites["b"])
        with sites["b"].client(session) as b:
            asked = time.monotonic()
            with pytest.raises(GatewayError) as caught:
                b.get("m", "t", A)
            assert time.monotonic() - asked < 15
        assert caught.value.code is ErrorCode.MESSAGE_LOST
        eventually(lambda: f"{session}/m/t guest:1->host:2 is dropped at b: [FR612]" in log_of(sites["a"]))
        with pytest.raises(FedRDMAError) as told:
            a.put_inline("next", "t", [B], "bytes", b"")
        assert told.value.code is ErrorCode.MESSAGE_LOST
        # they are told anew by each run, until the session ends
        restart(sites, "b")
        with sites["b"].client(session) as b:
            with pytest.raises(GatewayError, match="FR612"):
                b.get("m", "t", A)
            b.leave()


def test_a_gateway_that_is_stopped_in_order_leaves_what_nobody_has_pulled_to_the_next(
    sites: Sites, session: str
) -> None:
    before = waiting(sites["b"])
    with sites["a"].client(session) as a, sites["b"].client(session) as old:
        for name in ("mapped", "waits"):
            push(a, name)
        a.put_inline("small", "t", [B], "bytes", b"hello")
        held = old.get("mapped", "t", A, timeout=10).buffer
        eventually(lambda: waiting(sites["b"]) == before + 2)
        runner_of(sites).stop(sites["b"])
        push(a, "later")
        runner_of(sites).stop(sites["a"])
        for name in ("a", "b"):
            runner_of(sites).start(sites[name])
        with sites["b"].client(session) as b:
            for name in ("waits", "later"):
                assert bytes(b.get(name, "t", A, timeout=20).buffer) == BODY
            assert bytes(b.get("small", "t", A, timeout=20).buffer) == b"hello"
            assert bytes(held) == BODY


def test_a_gateway_that_is_ended_for_good_leaves_nothing_and_tells_whose_messages_nobody_has_pulled(
    sites: Sites, session: str
) -> None:
    before = waiting(sites["b"])
    with sites["a"].client(session) as a:
        push(a, "m")
        eventually(lambda: waiting(sites["b"]) == before + 1)
        # confirmed at both: of one that is not, the sender is told in other words
        eventually(lambda: any(event["session"] == session for event in sites["a"].events("sent")))
        runner_of(sites).stop(sites["b"], signal.SIGINT)
        assert list((sites["b"].home / "spill").iterdir()) == []
        eventually(lambda: f"{session}/m/t guest:1->host:2 is dropped at b: [FR607]" in log_of(sites["a"]), 30)
        with pytest.raises(GatewayError, match=f"{session}/m/t.*was not delivered") as told:
            a.put_inline("next", "t", [B], "bytes", b"")
        assert told.value.code is ErrorCode.GATEWAY_STOPPING


def test_where_the_keeper_is_killed_before_its_gateway_another_one_keeps_its_memory(sites: Sites, session: str) -> None:
    before = waiting(sites["b"])
    with sites["a"].client(session) as a:
        push(a, "m")
        eventually(lambda: waiting(sites["b"]) == before + 1)
        first = keeper_of(sites, "b")
        os.kill(first, signal.SIGKILL)
        eventually(lambda: keeper_of(sites, "b") not in (first, 0), 30)
        # it is found by the next run when its socket has its name, which is after its start
        eventually(lambda: not (state_of(sites["b"]) / NEW_SOCKET_NAME).exists())
        restart(sites, "b")
        with sites["b"].client(session) as b:
            assert bytes(b.get("m", "t", A, timeout=10).buffer) == BODY


def test_a_second_gateway_with_the_same_directory_is_refused_and_costs_the_first_nothing(
    sites: Sites, session: str
) -> None:
    rival = Site(
        "b", sites["b"].home, {**sites["b"].config, "listen": {"socket": "unix:///tmp/never", "control": "127.0.0.1:0"}}
    )
    runner = InThread()
    try:
        with pytest.raises(GatewayError) as caught:
            runner.start(rival)
    finally:
        runner.stop_all()
    assert caught.value.code is ErrorCode.STATE_IN_USE
    with sites["a"].client(session) as a, sites["b"].client(session) as b:
        push(a, "m")
        assert bytes(b.get("m", "t", A, timeout=10).buffer) == BODY


def test_a_start_that_fails_leaves_what_the_earlier_run_had_to_the_next(sites: Sites, session: str) -> None:
    before = waiting(sites["b"])
    with sites["a"].client(session) as a:
        push(a, "m")
        eventually(lambda: waiting(sites["b"]) == before + 1)
    runner_of(sites).kill(sites["b"])
    # a port that somebody has
    broken = Site("b", sites["b"].home, {**sites["b"].config, "listen": {**sites["b"].config["listen"]}})
    broken.config["listen"]["control"] = sites["a"].config["listen"]["control"]
    runner = InThread()
    try:
        with pytest.raises(FedRDMAError):
            runner.start(broken)
    finally:
        runner.stop_all()
    runner_of(sites).start(sites["b"])
    with sites["b"].client(session) as b:
        assert bytes(b.get("m", "t", A, timeout=10).buffer) == BODY


def _torn(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\x40\x00\x00\x00half a rec")


def _shortened(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)


def _damaged(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    # behind what says whose it is
    raw[HEADER_BYTES + 8 + int.from_bytes(raw[HEADER_BYTES : HEADER_BYTES + 4], "little") + 9] ^= 1
    path.write_bytes(raw)


def _doubled(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw + raw[HEADER_BYTES:])


@pytest.mark.parametrize(
    ("spoil", "line", "found"),
    [
        (_torn, "[FR406] ignored the last 14 bytes of the journal", True),
        (_shortened, "an earlier run lacks records: it was cut short", False),
        (_doubled, "of an earlier run", True),
        (_damaged, "its journal lacks records: it is damaged", False),
    ],
)
def test_a_journal_that_is_cut_short_doubled_or_damaged_keeps_no_gateway_from_starting(
    sites: Sites, session: str, spoil: object, line: str, found: bool
) -> None:
    before = waiting(sites["b"])
    with sites["a"].client(session) as a:
        push(a, "m")
        eventually(lambda: waiting(sites["b"]) == before + 1)
        # what has not been confirmed yet is not lost with the journal: it is sent again
        eventually(lambda: any(event["session"] == session for event in sites["a"].events("sent")))
    runner_of(sites).kill(sites["b"])
    spoil(state_of(sites["b"]) / "journal")  # type: ignore[operator]
    seen = len(log_of(sites["b"]))
    runner_of(sites).start(sites["b"])
    assert line in log_of(sites["b"])[seen:]
    assert (waiting(sites["b"]) == before + 1) is found
    if found:
        with sites["b"].client(session) as b:
            b.leave()
    else:
        # nobody knows what the records said that are not there, so nobody is to wait for it
        eventually(lambda: _has_ended(sites["b"], session))


def _has_ended(site: Site, session: str) -> bool:
    try:
        with site.client(session):
            return False
    except GatewayError as error:
        return error.code is ErrorCode.SESSION_ENDED


def test_a_gateway_does_not_start_with_a_journal_of_another_version_and_loses_nothing(
    sites: Sites, session: str
) -> None:
    before = waiting(sites["b"])
    with sites["a"].client(session) as a:
        push(a, "m")
        eventually(lambda: waiting(sites["b"]) == before + 1)
    runner_of(sites).kill(sites["b"])
    path = state_of(sites["b"]) / "journal"
    was = path.read_bytes()
    path.write_bytes(MAGIC[:-2] + b"9\n" + was[len(MAGIC) :])
    runner = InThread()
    try:
        with pytest.raises(FedRDMAError) as caught:
            runner.start(sites["b"])
    finally:
        runner.stop_all()
    assert caught.value.code is ErrorCode.JOURNAL_UNUSABLE
    path.write_bytes(was)
    runner_of(sites).start(sites["b"])
    with sites["b"].client(session) as b:
        assert bytes(b.get("m", "t", A, timeout=20).buffer) == BODY


def test_a_gateway_whose_receive_memory_is_to_have_another_size_does_not_lose_what_waits_in_it(
    sites: Sites, session: str
) -> None:
    before, was = waiting(sites["b"]), sites["b"].config["memory"]["receive_bytes"]
    with sites["a"].client(session) as a:
        push(a, "m")
        eventually(lambda: waiting(sites["b"]) == before + 1)
        runner_of(sites).kill(sites["b"])
        sites["b"].config["memory"]["receive_bytes"] = "12MiB"
        runner = InThread()
        try:
            with pytest.raises(FedRDMAError, match="receive_bytes is 12582912, and was 16777216") as caught:
                runner.start(sites["b"])
        finally:
            runner.stop_all()
        assert caught.value.code is ErrorCode.JOURNAL_UNUSABLE
        sites["b"].config["memory"]["receive_bytes"] = was
        runner_of(sites).start(sites["b"])
        with sites["b"].client(session) as b:
            assert bytes(b.get("m", "t", A, timeout=20).buffer) == BODY


def test_what_a_task_has_committed_goes_on_when_its_gateway_was_killed_and_comes_once(
    sites: Sites, session: str
) -> None:
    with sites["a"].client(session) as a:
        runner_of(sites).kill(sites["b"])
        push(a, "large")
        a.put_inline("small", "t", [B], "bytes", b"hello")
        runner_of(sites).kill(sites["a"])
    for name in ("a", "b"):
        runner_of(sites).start(sites[name])
    with sites["b"].client(session) as b:
        assert bytes(b.get("large", "t", A, timeout=20).buffer) == BODY
        assert bytes(b.get("small", "t", A, timeout=20).buffer) == b"hello"
    eventually(lambda: sites["a"].pool("send")["slots"] == 0)
    # nothing of it is left to be sent by the next run
    restart(sites, "a")
    sites.wait_until_connected()
    delivered = [event["name"] for event in sites["b"].events("delivered") if event["session"] == session]
    assert sorted(delivered) == ["large", "small"]


def test_where_memory_with_committed_messages_is_gone_both_ends_are_told(sites: Sites, session: str) -> None:
    with sites["a"].client(session) as a, sites["b"].client(session) as b:
        runner_of(sites).signal(sites["b"], signal.SIGSTOP)
        try:
            push(a, "m")
            runner_of(sites).kill(sites["a"])
        finally:
            runner_of(sites).signal(sites["b"], signal.SIGCONT)
        kill_keeper(sites["a"])
        runner_of(sites).start(sites["a"])
        with pytest.raises(GatewayError) as caught:
            b.get("m", "t", A, timeout=30)
        assert caught.value.code is ErrorCode.MESSAGE_LOST
    with sites["a"].client(session) as a:
        with pytest.raises(GatewayError) as told:
            a.put_inline("next", "t", [B], "bytes", b"")
        assert told.value.code is ErrorCode.MESSAGE_LOST
        # so it may be pushed again
        before = waiting(sites["b"])
        push(a, "m")
        eventually(lambda: waiting(sites["b"]) == before + 1)
        with sites["b"].client(session) as b:
            assert bytes(b.get("m", "t", A, timeout=20).buffer) == BODY


def test_what_a_task_had_not_written_whole_when_its_gateway_was_killed_is_told_of(sites: Sites, session: str) -> None:
    with sites["a"].client(session, mode="fedrdma-e") as a, sites["b"].client(session) as b:
        lease = a.lease(len(BODY))
        assert lease.commit_unfinished("m", "t", [B], "object") == "committed"
        restart(sites, "a")
        # its task may write on there as long as it lives
        assert sites["a"].pool("send")["slots"] == 1
        a.close()
        # which holds a view of it until now
        del lease
        with pytest.raises(GatewayError, match="had written all of it") as caught:
            b.get("m", "t", A, timeout=30)
        assert caught.value.code is ErrorCode.MESSAGE_LOST
    eventually(lambda: sites["a"].pool("send")["slots"] == 0)


def test_a_large_message_between_parties_of_one_site_outlives_their_gateway(tmp_path: Path) -> None:
    layout = {"a": ["guest:1", "host:2"]}
    with start_gateways(layout, tmp_path, runner=InProcesses(), memory=MEMORY) as sites:
        with sites["a"].client() as a, sites["a"].client(of="host:2") as old:
            for name in ("pulled", "waits"):
                push(a, name)
            held = old.get("pulled", "t", A, timeout=10).buffer
            restart(sites, "a")
            with sites["a"].client(of="host:2") as b, sites["a"].client("other") as other:
                assert bytes(b.get("waits", "t", A, timeout=10).buffer) == BODY
                for number in range(5):
                    lease = other.lease(3 << 20)
                    lease.buffer[:] = bytes([number]) * (3 << 20)
                    lease.release()
            assert bytes(held) == BODY
            del held
        eventually(lambda: sites["a"].pool("send")["slots"] == 0)


def test_a_lent_message_that_nobody_has_pulled_is_lent_again_to_the_next_gateway(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as shared,
        start_gateways(
            LAYOUT,
            tmp_path,
            runner=InProcesses(),
            memory={**MEMORY, "directory": shared},
            transport="auto",
            shm={"lend": True},
        ) as sites,
        sites["a"].client(mode="fedrdma-e") as a,
        sites["b"].client(mode="fedrdma-e") as old,
    ):
        for name in ("pulled", "waits"):
            push(a, name)
        held = old.get("pulled", "t", A, timeout=10).buffer
        eventually(lambda: waiting(sites["b"]) == 1)
        assert {event["mode"] for event in sites["b"].events("delivered")} == {"lent"}
        restart(sites, "b")
        with sites["b"].client(mode="fedrdma-e") as b:
            assert bytes(b.get("waits", "t", A, timeout=20).buffer) == BODY
            assert bytes(held) == BODY
            with pytest.raises(GatewayError) as caught:
                b.get("pulled", "t", A, timeout=1)
            assert caught.value.code is ErrorCode.DUPLICATE_PULL
