"""One peer sends any valid frames in any order, with a data path up: nothing of an honest one changes by any step."""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.adversary import FRAMES, Besieged
from tests.support.twin import VirtualLoop, run_virtually


class Adversary(RuleBasedStateMachine):
    """Steps of the adversary and of the honest pair, in any order."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.files = tempfile.TemporaryDirectory()
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.world = self.loop.run_until_complete(_besieged(Path(self.files.name), seed))

    @rule(count=st.integers(1, 60))
    def any_frames(self, count: int) -> None:
        self.loop.run_until_complete(hostile(self.world, count))

    @rule()
    def write(self) -> None:
        self.loop.run_until_complete(self.world.write_somewhere())

    @rule(size=st.sampled_from([10, 5000, 70_000, 150_000]))
    def honest_message(self, size: int) -> None:
        if len(self.world.waiting) < 3:
            self.loop.run_until_complete(self.world.honest_message(size))

    @rule()
    def honest_pull(self) -> None:
        self.loop.run_until_complete(self.world.honest_pull())

    @rule()
    def reconnect(self) -> None:
        self.loop.run_until_complete(self.world.reconnect())

    @invariant()
    def nothing_of_the_honest_peer_has_changed(self) -> None:
        if hasattr(self, "world"):
            self.world.check()
            self.world.check_bodies()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.loop.run_until_complete(_close(self.world))
            self.loop.close()
            asyncio.set_event_loop(None)
            self.files.cleanup()


async def _besieged(directory: Path, seed: int) -> Besieged:
    world = Besieged(directory, seed)
    await world.begin()
    return world


async def _close(world: Besieged) -> None:
    world.close()
    await world.settle()


async def hostile(world: Besieged, count: int, at_once: int = 1) -> None:
    """So many frames of the adversary, with a look after each few of them; it comes back where it is cut off."""
    for _ in range(0, count, at_once):
        if not world.evil.connected:
            await world.reconnect()
        await world.say(*(world.any_frame() for _ in range(at_once)))
        await world.turn_evil()
        world.check()


async def siege(world: Besieged, frames: int) -> None:
    """So many frames, and every now and then an honest message."""
    chance = random.Random(frames)
    await world.begin()
    while world.sent < frames:
        await hostile(world, 500, at_once=chance.choice((1, 20, 100)))
        await world.write_somewhere()
        if len(world.waiting) < 3:
            await world.honest_message(chance.choice((10, 5000, 70_000, 150_000)))
        else:
            await world.honest_pull()
        world.check_bodies()


async def flood(world: Besieged, kind: type, frames: int) -> None:
    """So many frames of one kind, as fast as they are read."""
    await world.begin()
    sent = 0
    while sent < frames:
        if not world.evil.connected:
            await world.reconnect()
        await world.say(*(world.frame_of(kind) for _ in range(100)))
        sent += 100


TestAdversary = Adversary.TestCase
TestAdversary.settings = settings(max_examples=8, stateful_step_count=15)


@pytest.mark.parametrize("seed", [1, 2])
def test_thousands_of_frames_change_nothing_of_the_honest_peer(
    tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    frames = request.config.getoption("--adversary-frames")
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    world: Besieged | None = None

    async def run() -> None:
        nonlocal world
        world = Besieged(tmp_path, seed)
        await siege(world, frames)

    try:
        loop.run_until_complete(run())
    finally:
        if world is not None:
            loop.run_until_complete(_close(world))
        loop.close()
        asyncio.set_event_loop(None)


@pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: str(kind.__name__))
def test_no_kind_of_frame_fills_the_log(tmp_path: Path, kind: type, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fedrdma_fate")

    async def run() -> None:
        world = Besieged(tmp_path, 1)
        try:
            # a line of 50 characters for each would be too many
            await flood(world, kind, 1_000)
        finally:
            await _close(world)

    run_virtually(run())

    lines = [record.getMessage() for record in caplog.records]
    assert sum(map(len, lines)) < 50_000, lines[-3:]
