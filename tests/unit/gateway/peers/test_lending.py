"""What becomes of messages that were lent to a gateway that does not come back, as its lender decides it."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.gateway.peers import lending
from fedrdma_fate.wire.frames import Lend, MessageKey
from tests.support.kept_twin import KeptTwin
from tests.support.twin import PARTIES, run_virtually

BODY = bytes(range(256)) * 400
KEY = MessageKey("s", "m", "t", PARTIES["a"], PARTIES["b"])


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Lender:
    """Gateway a, which has lent a message to a gateway that is lost at once."""

    def __init__(self, twin: KeptTwin) -> None:
        self.twin = twin
        self.half = twin.halves["a"]
        self.sending = self.half.peer.sending
        frames = list[Any]()
        through = self.sending.lending._send
        self.sending.lending._send = lambda frame: frames.append(frame) is None  # type: ignore[method-assign]
        self.sending._shares_memory = lambda: True
        twin.push("a", "m", BODY)
        (frame,) = frames
        assert isinstance(frame, Lend)
        assert self.sending.on_delivered(frame.transfer)
        self.sending.lending.peer_lost()
        self.sending._shares_memory = lambda: False
        self.sending.lending._send = through  # type: ignore[method-assign]

    def look(self) -> None:
        """Look at it, as it does now and then."""
        self.sending.lending._look()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lending, "time", types.SimpleNamespace(monotonic=clock.monotonic))
    return clock


def run_with_lender(tmp_path: Path, scenario: Any) -> None:
    async def whole() -> None:
        twin = KeptTwin(tmp_path)
        try:
            await twin.connect()
            await scenario(Lender(twin))
        finally:
            twin.close()

    run_virtually(whole())


def test_what_no_task_was_seen_to_use_waits_for_its_gateway_and_comes(tmp_path: Path, clock: Clock) -> None:
    async def scenario(lender: Lender) -> None:
        clock.now = lender.half.context.config.timeouts.restart - 1
        lender.look()
        assert (lender.sending.lending.count, lender.sending.pending) == (1, 0)
        clock.now += 2
        lender.look()
        assert (lender.sending.lending.count, lender.sending.pending) == (0, 1)
        lender.sending.hand_over()
        await lender.twin.quiesce()
        assert await lender.twin.get(KEY) == BODY
        assert lender.half.context.send_pool.stats().slots == 0

    run_with_lender(tmp_path, scenario)


def test_what_a_task_was_seen_to_use_is_over_when_it_lets_go(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(lender: Lender) -> None:
        monkeypatch.setattr(lending, "range_is_held", lambda _slot: True)
        clock.now = 1000
        lender.look()
        assert lender.sending.lending.count == 1
        monkeypatch.setattr(lending, "range_is_held", lambda _slot: False)
        lender.look()
        assert (lender.sending.lending.count, lender.sending.pending) == (0, 0)
        assert lender.half.context.send_pool.stats().slots == 0

    run_with_lender(tmp_path, scenario)


def test_what_nobody_will_take_any_more_is_not_sent(tmp_path: Path, clock: Clock) -> None:
    async def scenario(lender: Lender) -> None:
        lender.half.context.mailbox.end("s", "a test ends it")
        lender.sending.end_session("s")
        clock.now = 1000
        lender.look()
        assert (lender.sending.lending.count, lender.sending.pending) == (0, 0)
        assert lender.half.context.send_pool.stats().slots == 0

    run_with_lender(tmp_path, scenario)
