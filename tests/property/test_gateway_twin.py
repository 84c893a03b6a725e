"""Whatever breaks, and in whatever order things happen: every message arrives once, and all memory comes back."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedrdma_fate.ports import ChunkService
from fedrdma_fate.wire.frames import MessageKey, Mode
from tests.support.endpoints import MemoryTransport, MemoryWire
from tests.support.twin import Twin, run_virtually

STEPS = 120
MODES: tuple[Mode, ...] = ("fedrdma-e", "fedrdma", "grpc", "fedrdma-x")
TROUBLE = {"put": 3, "pull": 2, "turn": 9, "carry": 9, "break": 1, "lose": 1, "connect": 2, "refuse": 0.5, "wait": 1}
RESTARTS = {**TROUBLE, "restart": 0.5}
SEVERAL = {**TROUBLE, "put to several": 3}


class _Run:
    """One random history."""

    def __init__(self, twin: Twin, chance: random.Random) -> None:
        self.twin = twin
        self.chance = chance
        self.puts = 0
        self.sent: dict[MessageKey, bytes] = {}
        self.pulls: dict[MessageKey, asyncio.Task[bytes]] = {}

    async def step(self, weights: dict[str, float]) -> None:
        twin, chance = self.twin, self.chance
        match chance.choices(list(weights), list(weights.values()))[0]:
            case "put":
                self.put()
            case "put to several":
                self.put_to_several()
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
            case "refuse":
                twin.transports[chance.choice("ab")]["tcp"].refusing = chance.random() < 0.5
            case "restart":
                await self.restart(chance.choice("ab"))
            case _:
                await asyncio.sleep(chance.choice((0.1, 1.0, 30.0)))

    def put(self) -> None:
        body = self.chance.randbytes(self.chance.choice((10, 3000, 70_000, 200_000, 500_000)))
        self.puts += 1
        key = self.twin.put(self.chance.choice("ab"), f"m{self.puts}", body, self.chance.choice(MODES))
        if key is not None:
            self.sent[key] = body

    def put_to_several(self) -> None:
        body = self.chance.randbytes(self.chance.choice((70_000, 200_000)))
        self.puts += 1
        names = [f"m{self.puts}-{number}" for number in range(self.chance.choice((2, 4)))]
        for key in self.twin.put_to_several(self.chance.choice("ab"), names, body, self.chance.choice(MODES)):
            self.sent[key] = body

    def pull(self) -> None:
        waiting = [key for key in self.sent if key not in self.pulls]
        if waiting:
            key = self.chance.choice(waiting)
            self.pulls[key] = asyncio.create_task(self.twin.get(key))

    async def restart(self, site: str) -> None:
        """What has to do with the restarted gateway may be lost, or come late."""
        await self.twin.restart(site)
        for pull in self.pulls.values():
            pull.cancel()
        self.sent.clear()
        self.pulls.clear()

    async def finish(self) -> None:
        """Everything heals; all that was sent comes."""
        twin = self.twin
        for transports in twin.transports.values():
            transports["tcp"].refusing = False
        await twin.quiesce()
        while set(self.sent) - set(self.pulls):
            self.pull()
        await asyncio.wait_for(self._until_all_came(), 300)
        await twin.quiesce()

    async def _until_all_came(self) -> None:
        halves = self.twin.halves
        # of what a restart has made nobody wait for, some may still be on its way, and have a chunk to be sent again
        while not all(pull.done() for pull in self.pulls.values()) or any(
            half.peer.sending.pending for half in halves.values()
        ):
            for site in halves:
                await self.twin.turn(site)
                await self.twin.carry(site)
            await asyncio.sleep(0.01)


def _wire(chance: random.Random) -> MemoryWire:
    """One that loses chunks and datagrams of `fedrdma-x`, or does not, as the next one may."""
    wire = MemoryWire()
    if chance.random() < 0.7:
        wire.chunk_service = ChunkService(reliable=False, self_paced=False, queue_pairs=2)
        wire.lost_chunks = frozenset(number for number in range(1, 2000) if chance.random() < 0.15)
        wire.has_datagrams = chance.random() < 0.7
        wire.trouble = random.Random(chance.random())
    return wire


async def _history(directory: Path, seed: int, notify: str, weights: dict[str, float], *, lossy: bool) -> None:
    twin = Twin(directory, seed, notify=notify)
    run = _Run(twin, random.Random(seed))
    if lossy:
        for transports in twin.transports.values():
            tcp = transports["tcp"]
            assert isinstance(tcp, MemoryTransport)
            tcp.make_wire = lambda: _wire(run.chance)
    try:
        await twin.connect()
        for _ in range(STEPS):
            await run.step(weights)
        await run.finish()
        for key, body in run.sent.items():
            assert run.pulls[key].result() == body, f"{key} came with other bytes"
        for half in twin.halves.values():
            # of messages from before a restart nobody is left to pull
            kept = half.context.mailbox.summary()
            assert half.peer.sending.pending == 0
            assert half.context.send_pool.stats().slots == 0
            assert half.context.receive_pool.stats().slots - half.credits_held() <= kept["messages"]
            # the ring, and one more where fedrdma-x was used
            assert half.credits_held() <= 3 * len(half.peer.paths.paths)
            assert half.context.receive_pool.stats().waiting == 0
            assert half.peer.receiving._requests == {}
            assert len(half.peer.receiving.same) == 0
            assert "restart" in weights or kept["messages"] == 0
    finally:
        twin.close()


@pytest.mark.parametrize(
    "weights",
    [TROUBLE, RESTARTS, SEVERAL, {**SEVERAL, "restart": 0.5}],
    ids=["trouble", "restarts", "several", "several-restarts"],
)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), notify=st.sampled_from(("event", "poll")), lossy=st.booleans())
# the other side dials while a link has yet to report attempts of its peer, which had the numbers that ours get now
@example(seed=67108865, notify="poll", lossy=True)
def test_every_message_arrives_once_and_whole_and_all_memory_comes_back(
    weights: dict[str, float], seed: int, notify: str, lossy: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run_virtually(_history(Path(directory), seed, notify, weights, lossy=lossy))
