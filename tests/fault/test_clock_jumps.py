"""The clock of a host is set back and forward by hours while gateways work: no time-out and no message knows of it."""

from __future__ import annotations

import ast
import contextlib
import datetime
import itertools
import sys
import threading
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fedrdma_fate.gateway.peers import channel_security
from fedrdma_fate.security import reloading
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from tests.support.certificates import TestAuthority
from tests.support.repository import ROOT
from tests.support.sites import party, start_gateways

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
MODES = ("grpc", "fedrdma", "fedrdma-e", "fedrdma-x")

JUMPS_HOURS = {"off": (-20.0, 20.0, 0.0, -0.01, 7.0), "mtls": (-0.9, 20.0, 0.0, -0.01, 7.0)}
"""By `security`: with certificates, such as they hold for. Whether one does is for the clock to say, right or wrong."""

JUMP_SECONDS = 0.02
"""Between two, so that there are several in each exchange."""

READERS = {
    "fedrdma_fate/aggregate/checkpoint.py": "the name of a directory, for people",
    "fedrdma_fate/cli/certs.py": "from when certificates are valid",
    "fedrdma_fate/fate/journal.py": "when a message went, for people",
    "fedrdma_fate/gateway/path_store.py": "how old what is known of a path is, after a restart",
    "fedrdma_fate/memory/owned_directory.py": "how old a file is, whose time the kernel gives by that clock",
    "fedrdma_fate/obs/trace.py": "when an event was, for people",
    "fedrdma_fate/security/reloading.py": "whether certificates are valid",
}
"""Modules that read the clock which can be set, but for benchmarks, and what for: never for how long to wait."""


class SetClock:
    """The time of day, as a host has it whose clock is set all the time."""

    def __init__(self) -> None:
        self.offset = 0.0
        self._time = time.time
        self._over = threading.Event()

    def time(self) -> float:
        """Unix seconds."""
        return self._time() + self.offset

    def now(self, zone: datetime.tzinfo | None = None) -> datetime.datetime:
        """The same as a date."""
        return datetime.datetime.fromtimestamp(self.time(), zone)

    @contextlib.contextmanager
    def jumping(self, jumps_hours: Sequence[float]) -> Iterator[None]:
        """It is set every now and then meanwhile, so many hours from the right time."""
        thread = threading.Thread(target=self._jump, args=[jumps_hours])
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _jump(self, jumps_hours: Sequence[float]) -> None:
        for hours in itertools.cycle(jumps_hours):
            if self._over.wait(JUMP_SECONDS):
                return
            self.offset = 3600 * hours


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """What this package takes for the time; what gRPC waits for is told to the kernel, which knows the right one."""
    clock = SetClock()
    known = types.SimpleNamespace(**{**vars(time), "time": clock.time})
    for name, module in list(sys.modules.items()):
        if name.startswith("fedrdma_fate.") and getattr(module, "time", None) is time:
            monkeypatch.setattr(module, "time", known)
    date = types.SimpleNamespace(now=clock.now)
    monkeypatch.setattr(reloading, "datetime", types.SimpleNamespace(datetime=date, timezone=datetime.timezone))
    monkeypatch.setattr(channel_security, "CHECK_SECONDS", JUMP_SECONDS)
    return clock


@pytest.mark.parametrize("security", JUMPS_HOURS)
def test_nothing_is_lost_and_nobody_is_given_up_while_the_clock_is_set_back_and_forward(
    security: str, tmp_path: Path, clock: SetClock
) -> None:
    authority = TestAuthority(tmp_path / "tls") if security == "mtls" else None
    # every time-out is shorter than a jump
    timeouts = {"session": 30.0, "peer_silence": 20.0}
    with (
        start_gateways(LAYOUT, tmp_path, authority=authority, timeouts=timeouts) as sites,
        sites["b"].client() as b,
        clock.jumping(JUMPS_HOURS[security]),
    ):
        for mode, length in itertools.product(MODES, (100, 200_000, 3_000_000)):
            name, body = f"{mode} {length}", bytes(length - 1) + b"x"
            with sites["a"].client(mode=mode) as a:  # type: ignore[arg-type]
                if length < 1000:
                    a.put_inline(name, "t", [party("host:2")], "bytes", body)
                else:
                    lease = a.lease(length, timeout=20.0)
                    lease.buffer[:] = body
                    lease.commit(name, "t", [party("host:2")], "object")
                assert b.get(name, "t", party("guest:1"), timeout=20.0).buffer == body
        with pytest.raises(FedRDMAError) as caught:
            b.get("never", "t", party("guest:1"), timeout=10 * JUMP_SECONDS)
        assert caught.value.code is ErrorCode.PULL_TIMEOUT
        for site in sites.values():
            assert [*site.events("peer_lost"), *site.events("link_lost"), *site.events("session_ended")] == []


def reads_a_clock_that_can_be_set(text: str) -> bool:
    """Whether a module names one."""
    named = {ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    return bool(
        named
        & {
            "time.time",
            "time.time_ns",
            "time.CLOCK_REALTIME",
            "time.localtime",
            "time.gmtime",
            "datetime.datetime.now",
            "datetime.datetime.utcnow",
            "datetime.date.today",
        }
    )


def test_only_what_is_for_people_or_of_files_and_certificates_reads_a_clock_that_can_be_set() -> None:
    paths = {str(path.relative_to(ROOT)): path for path in (ROOT / "fedrdma_fate").rglob("*.py")}
    found = {name for name, path in paths.items() if reads_a_clock_that_can_be_set(path.read_text())}
    assert {name for name in found if not name.startswith("fedrdma_fate/bench/")} == READERS.keys()


def test_a_module_that_reads_such_a_clock_is_found() -> None:
    assert reads_a_clock_that_can_be_set("import time\nended = lambda began: time.time() - began > 1\n")
    assert not reads_a_clock_that_can_be_set("import time\nended = lambda began: time.monotonic() - began > 1\n")
