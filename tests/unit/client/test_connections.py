"""What a task opens on its way to another run of its gateway, and cannot use, does not stay open."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fedrdma_fate.client import connections
from fedrdma_fate.client.connections import Connections, Membership
from fedrdma_fate.client.protocol import Attached, Done, LeaseSlot
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError
from fedrdma_fate.wire.frames import Party


def test_a_task_that_cannot_map_the_memory_of_the_next_run_leaves_no_connection_to_it_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[socket.socket] = []
    runs = iter(["first", "next", "next"])

    def connect(_path: Path, _timeout: float) -> socket.socket:
        ours, its = socket.socketpair()
        its.close()
        opened.append(ours)
        return ours

    def attach(*_: object) -> tuple[Attached, list[int]]:
        return Attached(next(runs), 0.0), [os.memfd_create("region")]

    def map_region(_: int) -> object:
        if len(opened) > 1:
            raise MemoryPoolError(ErrorCode.REGION_UNAVAILABLE, "no memory to map it.")
        return object()

    monkeypatch.setattr(connections, "connect", connect)
    monkeypatch.setattr(connections, "call_for_descriptors", attach)
    monkeypatch.setattr(connections, "call", lambda *_: Done())
    monkeypatch.setattr(connections, "map_for_writing", map_region)
    task = Connections(Membership(tmp_path, "session", Party("guest", "1"), None, 1.0))
    with pytest.raises(MemoryPoolError):
        task.call(LeaseSlot(1))
    first, *later = opened
    assert len(later) == 2
    assert [each.fileno() for each in later] == [-1, -1]
    first.close()
