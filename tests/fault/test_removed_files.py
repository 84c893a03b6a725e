"""Somebody removes files of spilled messages under a gateway: both ends are told, and other messages come."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, MemoryPoolError
from tests.support.files import spilled_below
from tests.support.sites import InThread, Sites, eventually, party, start_gateways

A, B = party("guest:1"), party("host:2")
LENGTH = 1 << 20
_open = os.open
NAMES = [f"m{number}" for number in range(6)]


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    memory = {"send_bytes": "16MiB", "receive_bytes": "3MiB", "ring_slots": 0}
    with start_gateways({"a": ["guest:1"], "b": ["host:2"]}, tmp_path, runner=InThread(), memory=memory) as running:
        yield running


def push(a: GatewayClient, name: str) -> None:
    lease = a.lease(LENGTH)
    lease.buffer[:] = os.urandom(LENGTH)
    lease.commit(name, "t", [B], "object")


def spilled(sites: Sites) -> int:
    return int(sites["b"].status()["mailbox"]["spilled_messages"])


def test_of_a_spilled_message_whose_file_somebody_has_removed_both_ends_are_told(sites: Sites) -> None:
    with sites["a"].client() as a, sites["b"].client() as b:
        for name in NAMES:
            push(a, name)
        eventually(lambda: spilled(sites) >= 2 and not sites["a"].status()["peers"][0]["pending_messages"])
        files = spilled_below(sites["b"].home / "spill")
        assert len(files) == spilled(sites)
        for path in files:
            path.unlink()
        gone, left = NAMES[: len(files)], NAMES[len(files) :]
        # asked again, it is the same
        for name in [*gone, *gone]:
            with pytest.raises(FedRDMAError, match="was removed") as caught:
                b.get(name, "t", A, timeout=10)
            assert caught.value.code is ErrorCode.MESSAGE_LOST
        for name in left:
            assert len(b.get(name, "t", A, timeout=10).buffer) == LENGTH
        # the task that pushed them, at its next calls
        for name in gone:
            with pytest.raises(FedRDMAError, match=f"s/{name}/t") as told:
                push(a, "next")
            assert told.value.code is ErrorCode.MESSAGE_LOST
        push(a, "next")
        assert len(b.get("next", "t", A, timeout=10).buffer) == LENGTH


def test_a_spilled_message_that_cannot_be_opened_just_now_is_there_for_another_get(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sites["a"].client() as a, sites["b"].client() as b:
        for name in NAMES:
            push(a, name)
        eventually(lambda: spilled(sites) >= 2 and not sites["a"].status()["peers"][0]["pending_messages"])
        with monkeypatch.context() as broken:
            broken.setattr(os, "open", _broken)
            with pytest.raises(MemoryPoolError, match="See to that disk") as caught:
                b.get(NAMES[0], "t", A, timeout=10)
        assert caught.value.code is ErrorCode.SPILL_FAILED
        assert len(b.get(NAMES[0], "t", A, timeout=10).buffer) == LENGTH


def _broken(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """As of a disk that fails: nothing that lies in a directory of ours can be opened for reading."""
    if dir_fd is not None and flags & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return _open(path, flags, mode, dir_fd=dir_fd)
