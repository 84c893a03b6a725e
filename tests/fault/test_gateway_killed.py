"""Processes that are stopped or killed: tasks in a put or a get, gateways in the middle of a transfer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from tests.support.shared_memory import room_for_regions
from tests.support.sites import (
    InProcesses,
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
BODY = os.urandom(3 << 20)

# a credit holds the payload, so a transfer starts without the peer; one chunk at a time, so it does not end without it
MEMORY = {"send_bytes": "16MiB", "receive_bytes": "16MiB", "ring_slots": 2, "ring_slot_bytes": "4MiB"}


@pytest.fixture(scope="module")
def shared_memory() -> Iterator[Path]:
    """A directory in shared memory of the tests' own."""
    with tempfile.TemporaryDirectory(dir=room_for_regions(), prefix="test-of-fedrdma-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, shared_memory: Path) -> Iterator[Sites]:
    """Two gateways as processes; each test makes use of them in a session of its own."""
    with start_gateways(
        LAYOUT,
        tmp_path_factory.mktemp("killed"),
        runner=InProcesses(),
        connected=False,
        memory={**MEMORY, "directory": str(shared_memory)},
        timeouts={"drain": 1.0, "connect": 3.0},
        chunk="256KiB",
        link_enable="never",
    ) as running:
        yield running


def push(client: GatewayClient, name: str, to: str = "host:2") -> None:
    lease = client.lease(len(BODY))
    lease.buffer[:] = BODY
    lease.commit(name, "t", [party(to)], "object")


@contextlib.contextmanager
def frozen(sites: Sites, name: str) -> Iterator[None]:
    """The gateway of a site stands still meanwhile."""
    runner_of(sites).signal(sites[name], signal.SIGSTOP)
    try:
        yield
    finally:
        if name in runner_of(sites).processes:
            runner_of(sites).signal(sites[name], signal.SIGCONT)


def in_the_middle(site: Site) -> bool:
    """Whether a transfer has begun and is not over."""
    transfers = site.status()["transfers"]
    return any(transfer["state"] == "sending" for transfer in transfers)


class Waiting:
    """A get that waits in a thread."""

    def __init__(self, client: GatewayClient, name: str) -> None:
        self.body = b""
        self.error: FedRDMAError | None = None
        self._thread = threading.Thread(target=self._get, args=(client, name))
        self._thread.start()

    def _get(self, client: GatewayClient, name: str) -> None:
        try:
            self.body = bytes(client.get(name, "t", A, timeout=60).buffer)
        except FedRDMAError as error:
            self.error = error

    def body_that_came(self) -> bytes:
        self._thread.join(30)
        assert self.error is None
        return self.body

    def ended_with(self) -> FedRDMAError:
        self._thread.join(30)
        assert self.error is not None, f"{len(self.body)} bytes came"
        return self.error


# --- tasks ---

TASK = """
import sys, time
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.frames import Party
client = GatewayClient(sys.argv[1], sys.argv[2], Party("{role}", "{party}"))
{work}
print("ready", flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def task(site: Site, session: str, work: str) -> Iterator[subprocess.Popen[str]]:
    """A task process of the site's party that does this work, and then sleeps; killed in the end."""
    role, _, party_id = site.config["parties"][0].partition(":")
    code = TASK.format(role=role, party=party_id, work=work)
    command = [sys.executable, "-c", code, site.address, session]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def test_the_lease_of_a_task_that_is_killed_in_the_middle_of_a_put_comes_back(sites: Sites, session: str) -> None:
    with task(sites["a"], session, "lease = client.lease(5 << 20); lease.buffer[:5] = b'hello'") as process:
        ready(process)
        assert sites["a"].pool("send")["slots"] == 1
        process.kill()
        eventually(lambda: sites["a"].pool("send")["slots"] == 0)
    assert "1 leases came back" in log_of(sites["a"])


def test_a_task_that_is_killed_while_it_waits_for_room_waits_no_longer(sites: Sites, session: str) -> None:
    with task(
        sites["a"], session, "print('ready', flush=True); client.lease(12 << 20); client.lease(12 << 20)"
    ) as process:
        ready(process)
        eventually(lambda: sites["a"].pool("send")["waiting"] == 1)
        process.kill()
        eventually(lambda: (sites["a"].pool("send")["waiting"], sites["a"].pool("send")["slots"]) == (0, 0))


def test_a_task_that_is_killed_in_the_middle_of_a_get_leaves_its_message_to_the_next(
    sites: Sites, session: str
) -> None:
    work = "print('ready', flush=True); client.get('m', 't', Party('guest', '1'))"
    with task(sites["b"], session, work) as process:
        ready(process)
        eventually(lambda: sites["b"].status()["mailbox"]["waiting_pulls"] == 1)
        process.kill()
        eventually(lambda: sites["b"].status()["mailbox"]["waiting_pulls"] == 0)
    with sites["a"].client(session) as a, sites["b"].client(session) as b:
        push(a, "m")
        assert bytes(b.get("m", "t", A, timeout=20).buffer) == BODY


def test_the_received_slots_of_a_task_that_is_killed_come_back(sites: Sites, session: str) -> None:
    work = "held = [client.get(name, 't', Party('guest', '1')).buffer for name in ('m', 'n')]"
    with sites["a"].client(session) as a, task(sites["b"], session, work) as process:
        push(a, "m")
        push(a, "n")
        ready(process)
        held = sites["b"].pool("receive")["slots"]
        process.kill()
        eventually(lambda: sites["b"].pool("receive")["slots"] == held - 2)


# --- gateways ---


def test_a_receiving_gateway_that_is_killed_and_restarted_gets_the_message_anew(sites: Sites, session: str) -> None:
    with sites["a"].client(session) as a:
        with sites["b"].client(session) as b:
            waiting = Waiting(b, "m")
            with frozen(sites, "b"):
                push(a, "m")
                eventually(lambda: in_the_middle(sites["a"]))
                runner_of(sites).kill(sites["b"])
            runner_of(sites).start(sites["b"])
            assert waiting.body_that_came() == BODY
        eventually(lambda: sites["a"].pool("send")["slots"] == 0)
    assert [event["name"] for event in sites["b"].events("delivered") if event["session"] == session] == ["m"]
    assert "b was restarted: what was on its way to it is sent anew" in log_of(sites["a"])


def test_when_a_sending_gateway_is_killed_who_waits_gets_its_message_when_it_is_back(
    sites: Sites, session: str
) -> None:
    with sites["b"].client(session) as b:
        waiting = Waiting(b, "m")
        with sites["a"].client(session) as a:
            with frozen(sites, "b"):
                push(a, "m")
                eventually(lambda: in_the_middle(sites["a"]))
                runner_of(sites).kill(sites["a"])
            with pytest.raises(GatewayError) as caught:
                a.get("never", "t", B, timeout=0.5)
            assert caught.value.code is ErrorCode.GATEWAY_UNREACHABLE
            assert "fedrdma gateway --config" in caught.value.remedy
            runner_of(sites).start(sites["a"])
        assert waiting.body_that_came() == BODY
        with sites["a"].client(session + "2") as a, sites["b"].client(session + "2") as fresh:
            push(a, "m")
            assert bytes(fresh.get("m", "t", A, timeout=20).buffer) == BODY
    eventually(lambda: sites["b"].pool("receive")["slots"] == 2)
    assert "a was restarted" in log_of(sites["b"])


def test_a_gateway_that_is_stopped_in_the_middle_of_a_transfer_finishes_it_first(sites: Sites, session: str) -> None:
    timeouts = sites["a"].config["timeouts"]
    runner_of(sites).stop(sites["a"])
    # one that is short on a busy machine would be over before the other one goes on
    sites["a"].config["timeouts"] = {**timeouts, "drain": 30.0}
    runner_of(sites).start(sites["a"])
    sites["a"].config["timeouts"] = timeouts
    sites.wait_until_connected()
    with sites["a"].client(session) as a, sites["b"].client(session) as b:
        with frozen(sites, "b"):
            push(a, "m")
            eventually(lambda: in_the_middle(sites["a"]))
            runner_of(sites).signal(sites["a"], signal.SIGTERM)
        assert bytes(b.get("m", "t", A, timeout=20).buffer) == BODY
    assert runner_of(sites).processes.pop("a").wait(60) == 0


def test_a_gateway_that_cannot_finish_a_transfer_before_it_ends_for_good_says_so_and_leaves_nothing_behind(
    sites: Sites, session: str, shared_memory: Path
) -> None:
    with sites["a"].client(session) as a, sites["b"].client(session) as b:
        waiting = Waiting(b, "m")
        with frozen(sites, "b"):
            push(a, "m")
            a.put_inline("small", "t", [B], "bytes", b"hi")
            eventually(lambda: in_the_middle(sites["a"]))
            runner_of(sites).stop(sites["a"], signal.SIGINT)
        assert not list(shared_memory.glob("fedrdma-a-*"))
        # b may have stood still for so long that it missed the farewell; it knows when a is back
        runner_of(sites).start(sites["a"])
        assert waiting.ended_with().code in (ErrorCode.GATEWAY_STOPPING, ErrorCode.TRANSFER_ABORTED)
        # the small message, what is granted ahead to the new a, and nothing else
        eventually(lambda: sites["b"].pool("receive")["slots"] == 3)
        assert sites["b"].status()["mailbox"]["messages"] == 1
    assert f"{session}/m/t guest:1->host:2 was not delivered to b: [FR607] the gateway of a stops" in log_of(sites["a"])
    assert f"{session}/m/t guest:1->host:2 " in log_of(sites["b"])


def test_who_waits_when_a_gateway_ends_for_good_is_told(sites: Sites, session: str) -> None:
    with sites["a"].client(session) as a, sites["b"].client(session) as b:
        waiting = Waiting(b, "never")
        held = a.lease(12 << 20)
        outcome: list[ErrorCode] = []

        def lease() -> None:
            try:
                a.lease(12 << 20, timeout=60)
            except FedRDMAError as error:
                outcome.append(error.code)

        thread = threading.Thread(target=lease)
        thread.start()
        eventually(lambda: sites["a"].pool("send")["waiting"] == 1)
        eventually(lambda: sites["b"].status()["mailbox"]["waiting_pulls"] == 1)
        for site in sites.values():
            runner_of(sites).stop(site, signal.SIGINT)
        assert waiting.ended_with().code is ErrorCode.GATEWAY_STOPPING
        thread.join(10)
        assert outcome == [ErrorCode.GATEWAY_STOPPING]
        held.release()


def test_what_a_killed_gateway_leaves_in_memory_and_on_disk_is_removed_by_the_next(
    sites: Sites, shared_memory: Path
) -> None:
    runner_of(sites).kill(sites["a"])
    (left,) = shared_memory.glob("fedrdma-a-*")
    runner_of(sites).start(sites["a"])
    eventually(sites["a"].connected)
    (now,) = shared_memory.glob("fedrdma-a-*")
    assert now != left
    assert len(list((sites["a"].home / "spill").glob("fedrdma-*"))) == 1
    for site in sites.values():
        runner_of(sites).stop(site)
    assert list(shared_memory.iterdir()) == []
    assert list((sites["a"].home / "spill").iterdir()) == []


def test_a_peer_that_stands_still_is_given_up_and_found_again(sites: Sites, session: str) -> None:
    for site in sites.values():
        runner_of(sites).stop(site)
        site.config["timeouts"]["peer_silence"] = 0.8
        runner_of(sites).start(site)
    sites.wait_until_connected()
    with sites["a"].client(session) as a, sites["b"].client(session) as b:
        with frozen(sites, "b"):
            push(a, "m")
            eventually(lambda: "silent for 0.8 s" in log_of(sites["a"]))
        assert bytes(b.get("m", "t", A, timeout=20).buffer) == BODY
