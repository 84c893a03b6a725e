"""`durable: true`: a gateway that is killed with its keeper, so that its memory is gone, has what it had confirmed."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from fedrdma_fate.memory.owned_directory import sweep
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.fault.test_gateway_restarted import LAYOUT, MEMORY, A, B, keeper_of, kill_keeper, push, state_of, waiting
from tests.support.gateway_matrix import InNamespace
from tests.support.private_disks import private_disks
from tests.support.sites import InProcesses, eventually, runner_of, start_gateways

LARGE = {f"large{number}": os.urandom(4 << 20) for number in range(5)}
SMALL = {"small": b"hello", "longer": os.urandom(30_000)}


def test_all_that_was_confirmed_is_found_whole_and_once_by_the_next_gateway(tmp_path: Path) -> None:
    memory = {**MEMORY, "directory": str(tmp_path / "meet")}
    (tmp_path / "meet").mkdir()
    with (
        start_gateways(LAYOUT, tmp_path, runner=InProcesses(), memory=memory, transport="shm", durable=True) as sites,
        sites["a"].client(mode="fedrdma-e") as a,
    ):
        # those first, which the others then drive out of memory
        for name, body in SMALL.items():
            a.put_inline(name, "t", [B], "bytes", body)
        eventually(lambda: waiting(sites["b"]) == len(SMALL), 60)
        for name, body in LARGE.items():
            push(a, name, body)
        eventually(lambda: waiting(sites["b"]) == len(LARGE) + len(SMALL), 60)
        eventually(lambda: sites["a"].pool("send")["slots"] == 0, 60)
        assert sites["b"].status()["mailbox"]["spilled_messages"] >= len(SMALL)
        runner_of(sites).kill(sites["b"])
        kill_keeper(sites["b"])
        # as does any gateway that starts with the same directory for spilled messages
        eventually(lambda: len(sweep(sites["b"].home / "spill")) == 1)
        runner_of(sites).start(sites["b"])
        with sites["b"].client() as b:
            for name, body in {**LARGE, **SMALL}.items():
                assert bytes(b.get(name, "t", A, timeout=30).buffer) == body
            with pytest.raises(GatewayError) as caught:
                b.get("small", "t", A, timeout=1)
            assert caught.value.code is ErrorCode.DUPLICATE_PULL
        # nobody was told otherwise
        a.put_inline("last", "t", [B], "bytes", b"")
        # what was pulled is on disk no more
        eventually(lambda: os.listdir(state_of(sites["b"]) / "payloads") == [], 30)


def test_a_long_message_whose_copy_was_begun_when_its_gateway_was_killed_comes_whole_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    memory = {**MEMORY, "send_bytes": "128MiB", "receive_bytes": "128MiB", "directory": str(tmp_path / "meet")}
    (tmp_path / "meet").mkdir()
    body = os.urandom(96 << 20)
    with (
        start_gateways(LAYOUT, tmp_path, runner=InProcesses(), memory=memory, transport="tcp", durable=True) as sites,
        sites["a"].client(mode="fedrdma-e") as a,
    ):
        push(a, "long", body)
        copies = state_of(sites["b"]) / "payloads"
        # the first 32 MiB are there; whatever of it is so far, the next gateway has to sort it out
        eventually(lambda: os.listdir(copies) != [], 60)
        runner_of(sites).kill(sites["b"])
        kill_keeper(sites["b"])
        runner_of(sites).start(sites["b"])
        with sites["b"].client() as b:
            received = b.get("long", "t", A, timeout=60)
            assert bytes(received.buffer) == body
            del received
            eventually(lambda: os.listdir(copies) == [], 30)


def test_a_start_that_finds_its_disk_full_leaves_all_that_was_confirmed_to_the_next(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "meet").mkdir()
    memory = {**MEMORY, "directory": str(tmp_path / "meet"), "spill_directory": str(disk)}
    with private_disks({disk: "16m"}) as disks, contextlib.ExitStack() as stack:
        if disks is None:
            pytest.skip("no file system can be mounted in a user namespace here")
        sites = stack.enter_context(
            start_gateways(
                LAYOUT, tmp_path, runner=InNamespace(disks.enter), memory=memory, transport="shm", durable=True
            )
        )
        with sites["a"].client(mode="fedrdma-e") as a:
            push(a, "large", LARGE["large0"])
            a.put_inline("small", "t", [B], "bytes", b"hello")
            eventually(lambda: waiting(sites["b"]) == 2, 60)
            eventually(lambda: sites["a"].pool("send")["slots"] == 0, 60)
            keeper = keeper_of(sites, "b")
            runner_of(sites).kill(sites["b"])
            os.kill(keeper, signal.SIGKILL)
            disks.fill(disk)
            with pytest.raises(AssertionError, match=r"\[FR406\].*there has to be a journal"):
                runner_of(sites).start(sites["b"])
            runner_of(sites).kill(sites["b"])
            disks.clear(disk)
            runner_of(sites).start(sites["b"])
            with sites["b"].client() as b:
                assert bytes(b.get("large", "t", A, timeout=30).buffer) == LARGE["large0"]
                assert bytes(b.get("small", "t", A, timeout=30).buffer) == b"hello"
