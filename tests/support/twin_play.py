"""Scenarios for two gateways' peers, played step by step."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from fedrdma_fate.wire.frames import MessageKey, Party, decode_frame
from tests.support.twin import Twin, run_virtually

BODY = random.Random(3).randbytes(200_000)
Scenario = Callable[[Twin], Coroutine[Any, Any, None]]
Play = Callable[..., None]
"""Plays a Scenario with a new twin; takes the twin's settings besides."""


def player(directory: Path) -> Play:
    """What plays scenarios with twins whose files lie there."""

    async def run(scenario: Scenario, settings: dict[str, Any]) -> None:
        twin = Twin(directory, **settings)
        try:
            await scenario(twin)
        finally:
            twin.close()

    def play(scenario: Scenario, **settings: Any) -> None:
        run_virtually(run(scenario, settings))

    return play


async def work(twin: Twin, rounds: int = 30, *, carry: bool = True) -> None:
    """Both sides do what they can, for a while; unless it carries, the control channel is stuck."""
    for _ in range(rounds):
        for site in twin.halves:
            await twin.turn(site)
            if carry:
                await twin.carry(site)


def pull(twin: Twin, key: MessageKey | None) -> asyncio.Task[bytes]:
    """A task that waits for the message."""
    assert key is not None
    return asyncio.create_task(twin.get(key))


def peer_of(twin: Twin, site: str) -> Any:
    """What a site keeps about the other."""
    return twin.halves[site].peer


def key_to(twin: Twin, destination: Party, source: Party | None = None) -> MessageKey:
    """A message's key, from the first site's party where no other is named."""
    return MessageKey("s", "m", "t", source or twin.halves["a"].party, destination)


def sent_by(twin: Twin, site: str, kind: type[Any] = object) -> list[Any]:
    """Frames of a kind that a site has sent and that have not been carried."""
    stream = twin.halves[site].stream
    assert stream is not None
    queued = [decode_frame(raw) for raw in list(stream._outgoing._queue) if raw is not None]  # type: ignore[attr-defined]
    return [frame for frame in queued if isinstance(frame, kind)]
