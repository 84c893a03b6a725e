"""Whatever breaks, and in whatever order things happen: every message arrives once, and all memory comes back."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedrdma_fate.wire.frames import MessageKey, Mode
from tests.support.twin import Twin, run_virtually, threadless_links

STEPS = 120
MODES: tuple[Mode, ...] = ("fedrdma-e", "fedrdma", "grpc")


class _Run:
    """One random history."""

    def __init__(self, twin: Twin, chance: random.Random) -> None:
        self.twin = twin
        self.chance = chance
        self.sent: dict[MessageKey, bytes] = {}
        self.pulls: dict[MessageKey, asyncio.Task[bytes]] = {}

    def put(self) -> None:
        size = self.chance.choice((10, 3000, 70_000, 200_000, 500_000))
        body = self.chance.randbytes(size)
        site = self.chance.choice("ab")
        key = self.twin.put(site, f"m{len(self.sent)}", body, self.chance.choice(MODES))
        if key is not None:
            self.sent[key] = body

    def pull(self) -> None:
        waiting = [key for key in self.sent if key not in self.pulls]
        if waiting:
            key = self.chance.choice(waiting)
            self.pulls[key] = asyncio.create_task(self.twin.get(key))

    async def step(self) -> None:
        twin, chance = self.twin, self.chance
        match chance.choices(("put", "pull", "turn", "carry", "break", "lose", "connect", "wait"), (3, 2, 9, 9, 1, 1, 2, 1))[0]:
            case "put":
                self.put()
            case "pull":
                self.pull()
            case "turn":
                await twin.turn(chance.choice("ab"))
            case "carry":
                await twin.carry(chance.choice("ab"), chance.choice((1, 3, 100)))
            case "break":
                twin.break_paths()
            case "lose":
                await twin.lose_control(chance.choice("ab"))
            case "connect":
                if all(half.stream is None for half in twin.halves.values()):
                    await twin.connect(chance.choice("ab"))
            case _:
                await asyncio.sleep(chance.choice((0.1, 1.0, 30.0)))


async def _history(directory: Path, seed: int, notify: str) -> None:
    twin = Twin(directory, seed, notify=notify)
    run = _Run(twin, random.Random(seed))
    try:
        await twin.connect()
        for _ in range(STEPS):
            await run.step()
        await twin.quiesce()
        while set(run.sent) - set(run.pulls):
            run.pull()
        async with asyncio.timeout(300):
            while not all(pull.done() for pull in run.pulls.values()):
                await twin.turn("a")
                await twin.turn("b")
                await twin.carry("a")
                await twin.carry("b")
                await asyncio.sleep(0.01)
        for key, body in run.sent.items():
            assert run.pulls[key].result() == body, f"{key} came with other bytes"
        await twin.quiesce()
        for half in twin.halves.values():
            assert half.peer.sending.pending == 0
            assert half.hub.send_pool.stats().slots == 0
            assert half.hub.receive_pool.stats().slots == half.credits_held() <= 2 * 2
            assert half.hub.receive_pool.stats().waiting == 0
            assert half.peer.receiving._requests == {}
            assert half.hub.mailbox.summary()["messages"] == 0
    finally:
        twin.close()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), notify=st.sampled_from(("event", "poll")))
def test_every_message_arrives_once_and_whole_and_all_memory_comes_back(seed: int, notify: str) -> None:
    with tempfile.TemporaryDirectory() as directory, threadless_links():
        run_virtually(_history(Path(directory), seed, notify))
