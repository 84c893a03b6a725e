"""Notices by SKMSG: with a kernel that refuses at each step, and, where this one lets us, with it and a real worker."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate.aggregate import skmsg
from fedrdma_fate.aggregate.bpf import BpfError, Kernel
from fedrdma_fate.aggregate.jobs import Add
from fedrdma_fate.aggregate.notices import NOTICE_BYTES, RecordLine, SocketLine, SocketNotices
from fedrdma_fate.aggregate.skmsg import ROUTES, SkMsgNotices, make_notices, try_skmsg, why_not
from fedrdma_fate.aggregate.worker import WorkerHandle
from tests.unit.aggregate.test_notices import UPDATES, Place

needs_bpf = pytest.mark.skipif(bool(why := try_skmsg()), reason=f"no SKMSG here: {why}")
JOB = Add(1, 1, 0, keep_mapped=True)


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


class RefusingKernel(Kernel):
    """Refuses one of the calls; the others do nothing. Maps and programs are descriptors of nothing."""

    def __init__(self, call: str, number: int, after: int = 0) -> None:
        super().__init__()
        self.call, self.number, self.left = call, number, after
        self.made: list[int] = []

    def _ask(self, call: str) -> None:
        if call != self.call:
            return
        if not self.left:
            raise BpfError(self.number, f"calling {call}")
        self.left -= 1

    def _new(self) -> int:
        self.made.append(os.open(os.devnull, os.O_RDONLY))
        return self.made[-1]

    def make_map(self, *_: object, **__: object) -> int:
        self._ask("make_map")
        return self._new()

    def load(self, *_: object, **__: object) -> int:
        self._ask("load")
        return self._new()

    def attach(self, *_: object, **__: object) -> None:
        self._ask("attach")

    def put(self, *_: object, **__: object) -> None:
        self._ask("put")

    def get(self, *_: object, **__: object) -> bytes:
        self._ask("get")
        return struct.pack("=Q", 2)

    def drop(self, *_: object, **__: object) -> None:
        self._ask("drop")


def is_open(descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        os.fstat(descriptor)
        return True
    return False


ERRORS = [errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.ENOMEM, errno.E2BIG, errno.EBUSY, errno.EMFILE]


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize(("call", "after"), [("make_map", 0), ("make_map", 1), ("load", 0), ("attach", 0)])
def test_whatever_the_kernel_refuses_it_is_the_socket_and_nothing_stays_open(
    call: str, after: int, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = RefusingKernel(call, number, after)
    monkeypatch.setattr(skmsg, "Kernel", lambda: kernel)

    notices = make_notices("skmsg")

    assert isinstance(notices, SocketNotices)
    assert notices.way == "socket"
    assert os.strerror(number) in notices.reason
    assert "not by SKMSG" in caplog.text
    assert not any(map(is_open, kernel.made))
    assert try_skmsg() == notices.reason


@pytest.mark.parametrize("wish", ["auto", "socket"])
def test_the_kernel_is_not_asked_where_nobody_wants_it(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skmsg, "Kernel", None)

    notices = make_notices(wish)

    assert (notices.way, notices.reason, notices.passed()) == ("socket", "", 0)


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.EPERM, "CAP_BPF and CAP_NET_ADMIN"),
        (errno.ENOSYS, "no bpf"),
        (errno.EINVAL, "too old"),
        (errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_people_are_told_what_is_missing(number: int, told: str) -> None:
    assert told in why_not(BpfError(number, "making a map"))
    assert told in why_not(OSError(number, os.strerror(number)))


@pytest.mark.parametrize("after", [0, 1])
def test_a_worker_whose_sockets_the_kernel_refuses_is_told_over_its_own(
    after: int, caplog: pytest.LogCaptureFixture
) -> None:
    notices = SkMsgNotices(kernel=RefusingKernel("put", errno.EOPNOTSUPP, after))

    assert isinstance(notices.open(), SocketLine)
    assert "over its socket" in caplog.text
    # the route is not lost
    assert len(notices._free) == ROUTES
    notices.close()


def test_with_all_routes_taken_the_next_worker_is_told_over_its_socket() -> None:
    notices = SkMsgNotices(kernel=RefusingKernel("", 0))
    lines = [notices.open() for _ in range(ROUTES)]

    assert all(isinstance(line, RecordLine) for line in lines)
    assert isinstance(notices.open(), SocketLine)
    lines[3].close()
    lines[3].close()
    again = notices.open()
    assert isinstance(again, RecordLine)
    for line in (*lines, again):
        line.close()
    assert sorted(notices._free) == list(range(ROUTES))
    notices.close()


def test_counters_that_cannot_be_read_are_none() -> None:
    notices = SkMsgNotices(kernel=RefusingKernel("get", errno.EBADF))
    assert notices.passed() == 0
    notices.close()

    working = SkMsgNotices(kernel=RefusingKernel("", 0))
    assert working.passed() == 2 * ROUTES
    working.close()
    working.close()
    assert working.passed() == 0


def test_who_connects_from_outside_is_not_taken_for_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    strangers: list[socket.socket] = []
    connect = socket.create_connection

    def late(address: tuple[str, int], timeout: float) -> socket.socket:
        strangers.append(connect(address, timeout))
        return connect(address, timeout)

    monkeypatch.setattr(socket, "create_connection", late)
    ours, its = skmsg._connection()

    assert its.getpeername() == ours.getsockname()
    ours.sendall(b"x")
    assert its.recv(8) == b"x"
    # the stranger has nobody at the other end
    assert strangers[0].recv(1) == b""
    for each in (ours, its, *strangers):
        each.close()


def test_where_strangers_take_all_the_time_it_is_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skmsg, "_CONNECT_SECONDS", 0.0)
    monkeypatch.setattr(socket.socket, "accept", lambda *_: (_ for _ in ()).throw(TimeoutError("timed out")))
    monkeypatch.setattr(socket, "create_connection", lambda *_: socket.socket())
    notices = SkMsgNotices(kernel=RefusingKernel("", 0))

    assert isinstance(notices.open(), SocketLine)
    notices.close()


def test_strangers_that_connect_on_and_on_hold_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted: list[socket.socket] = []

    def accept(_: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
        assert len(accepted) < 10_000, "it accepts for ever"
        accepted.append(socket.socket())
        return accepted[-1], ("127.0.0.1", 1)

    now = itertools.count()
    monkeypatch.setattr(skmsg.time, "monotonic", lambda: next(now) / 1024)
    monkeypatch.setattr(socket.socket, "accept", accept)
    notices = SkMsgNotices(kernel=RefusingKernel("", 0))

    assert isinstance(notices.open(), SocketLine)
    assert accepted
    assert all(each.fileno() == -1 for each in accepted)
    notices.close()


# -- with this kernel -------------------------------------------------------------------------------------------------


@needs_bpf
def test_a_worker_is_told_by_the_kernel_which_counts(place: Place) -> None:
    ways: list[str] = []
    notices = SkMsgNotices(lambda way, _seconds: ways.append(way))

    async def scenario() -> None:
        handle = WorkerHandle(notices=notices)
        try:
            for number in range(1, len(UPDATES) + 1):
                await place.add(handle, number)
            await place.finish(handle)
            assert notices.passed() == len(UPDATES) - 1
        finally:
            handle.close()
            notices.close()

    asyncio.run(scenario())

    assert place.holds_the_sum()
    assert ways == ["socket"] + ["skmsg"] * (len(UPDATES) - 1)


@needs_bpf
def test_where_the_worker_is_killed_its_route_leads_to_the_next_one(place: Place) -> None:
    ways: list[str] = []
    notices = SkMsgNotices(lambda way, _seconds: ways.append(way))

    async def scenario() -> None:
        handle = WorkerHandle(notices=notices)
        try:
            await place.add(handle, 1)
            await place.add(handle, 2)
            assert handle.process_id is not None
            os.kill(handle.process_id, signal.SIGKILL)
            await place.add(handle, 3)
            await place.add(handle, 4)
            await place.finish(handle)
        finally:
            handle.close()
        assert len(notices._free) == ROUTES
        notices.close()

    asyncio.run(scenario())

    assert place.holds_the_sum()
    assert ways == ["socket", "skmsg", "socket", "skmsg"]


@needs_bpf
def test_to_a_worker_that_is_gone_the_kernel_says_no_and_the_line_is_given_up(place: Place) -> None:
    notices = SkMsgNotices()
    line = notices.open()
    assert isinstance(line, RecordLine)
    line.has_mapped(JOB, place.region)
    # nobody has it any more: it leaves the map
    line.handed_over()

    assert not line.tell(JOB, place.region)
    assert line.descriptor is None
    assert len(notices._free) == ROUTES
    assert not line.tell(JOB, place.region)
    notices.close()


@needs_bpf
def test_of_a_route_that_was_taken_away_nothing_reaches_another(place: Place) -> None:
    notices = SkMsgNotices()
    first, second = notices.open(), notices.open()
    assert isinstance(first, RecordLine)
    assert isinstance(second, RecordLine)
    first.has_mapped(JOB, place.region)
    second.has_mapped(JOB, place.region)
    notices._kernel.drop(notices._sockets, first._route)

    assert not first.tell(JOB, place.region)
    assert second.tell(JOB, place.region)
    assert len(second._its.recv(2 * NOTICE_BYTES)) == NOTICE_BYTES
    second.close()
    notices.close()


@needs_bpf
def test_a_user_without_the_capabilities_has_the_socket() -> None:
    script = (
        "import os; from fedrdma_fate.aggregate.skmsg import make_notices; os.setresuid(65534, 65534, 65534); "
        "print(make_notices('skmsg').reason)"
    )
    if os.geteuid():
        pytest.skip("only root can be somebody else")
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path.cwd(), timeout=60
    )

    assert "CAP_BPF and CAP_NET_ADMIN" in found.stdout


AS_NOBODY = """
import subprocess
from fedrdma_fate.aggregate.skmsg import make_notices
notices = make_notices("skmsg")
line = notices.open()
status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
sets = [each.split()[1] for each in status.splitlines() if each.startswith(("CapEff", "CapAmb"))]
print(notices.way, line.way, *sets)
"""
NONE = "0" * 16


@needs_bpf
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
@pytest.mark.parametrize(
    ("capabilities", "told"),
    [
        (("bpf", "net_admin"), f"skmsg skmsg {NONE} {NONE}"),
        (("bpf",), f"socket socket {NONE} {NONE}"),
        (("net_admin",), f"socket socket {NONE} {NONE}"),
    ],
)
def test_the_two_capabilities_are_enough_and_what_is_started_does_not_get_them(
    capabilities: tuple[str, ...], told: str
) -> None:
    given = ",".join(("-all", *(f"+{each}" for each in capabilities)))
    sets = [f"--{each}={given}" for each in ("inh-caps", "ambient-caps", "bounding-set")]
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *sets, sys.executable, "-c"]
    if subprocess.run([*command, "import fedrdma_fate.aggregate.skmsg"], capture_output=True, timeout=60).returncode:
        pytest.skip("nobody else may read this checkout")
    found = subprocess.run([*command, AS_NOBODY], capture_output=True, text=True, check=True, timeout=60)

    assert found.stdout.startswith(told)


@needs_bpf
def test_any_thread_may_ask_how_many_have_passed() -> None:
    notices = SkMsgNotices()
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(notices.passed()))
    thread.start()
    thread.join()
    assert found == [0]
    notices.close()
