"""What a task opens on its way to another run of its gateway, and cannot use, does not stay open."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate.client import connections
from fedrdma_fate.client.connections import Connections, Membership
from fedrdma_fate.client.protocol import Attach, Attached, Done, Leased, LeaseSlot, PutInline, ReleaseLeases
from fedrdma_fate.client.rpc import encode_message
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, MemoryPoolError
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


class Gateway:
    """Answers what a task asks; the task's ends of connections, and what was asked on each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[socket.socket] = []
        self.its: list[socket.socket] = []
        self.asked: list[tuple[int, str]] = []
        self.run = "first"
        self.breaks = False
        monkeypatch.setattr(connections, "connect", self._connect)
        monkeypatch.setattr(connections, "call_for_descriptors", self._answer)
        monkeypatch.setattr(connections, "call", lambda *_: Done())
        monkeypatch.setattr(connections, "map_for_writing", lambda _: io.BytesIO())
        monkeypatch.setattr(connections, "is_gone_for_good", lambda _: False)

    def _connect(self, _path: Path, _timeout: float) -> socket.socket:
        ours, its = socket.socketpair()
        self.opened.append(ours)
        self.its.append(its)
        return ours

    def _answer(self, connection: socket.socket, request: object, *_: object) -> tuple[object, list[int]]:
        self.asked.append((self.opened.index(connection), type(request).__name__))
        if isinstance(request, Attach):
            return Attached(self.run, 5.0), [os.memfd_create("region")]
        if self.breaks:
            self.breaks = False
            raise GatewayError(ErrorCode.GATEWAY_UNREACHABLE, "it was killed.")
        return (Leased(7, 0) if isinstance(request, LeaseSlot) else Done()), []

    def close(self) -> None:
        for end in (*self.opened, *self.its):
            end.close()


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    made = Gateway(monkeypatch)
    yield made
    made.close()


BRIEF = Membership(Path("none"), "session", Party("guest", "1"), None, 1.0, brief=True)
PUT = PutInline("name", "tag", (Party("host", "2"),), "partition", b"")


def test_a_brief_task_that_has_nothing_to_release_attaches_once(gateway: Gateway) -> None:
    task = Connections(BRIEF)
    task.call(PUT)
    task.call(PUT)
    task.close()

    assert gateway.asked == [(0, "Attach"), (0, "PutInline"), (0, "PutInline")]
    assert gateway.opened[0].fileno() == -1


def test_a_brief_task_releases_what_it_has_by_a_connection_of_its_own(gateway: Gateway) -> None:
    task = Connections(BRIEF)
    task.call(LeaseSlot(1))
    task.release(7)

    assert gateway.asked == [(0, "Attach"), (0, "LeaseSlot"), (1, "Attach")]
    assert gateway.its[1].recv(1024) == encode_message(ReleaseLeases((7,)))


def test_a_brief_task_goes_on_with_the_next_run_of_its_gateway(gateway: Gateway) -> None:
    task = Connections(BRIEF)
    gateway.breaks, gateway.run = True, "next"

    assert task.call(PUT) == Done()

    assert task.incarnation == "next"
    task.release(7)
    releases = [end for end in gateway.its if end.fileno() >= 0][2]
    assert releases.recv(1024) == encode_message(ReleaseLeases((7,)))
