"""A party leaves its session and joins it again, gateways are killed: each message comes once, or both ends hear.

What happens, and in which order, comes from a seed, which repeats its run.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import MessageKey, Mode
from tests.support.kept_twin import KeptTwin
from tests.support.twin import PARTIES, run_virtually
from tests.support.twin_play import BODY

SEEDS = 40
SIZES = (10, 1000, 66_000, 150_000)
MODES: tuple[Mode, ...] = ("grpc", "fedrdma", "fedrdma-e", "fedrdma-x")
WHAT = ("push",) * 3 + ("pull",) * 2 + ("kill", "kill behind", "lose memory", "cut", "leave or join", "work")


class Job:
    """A task of a pushes, and one of b pulls, where it has not left."""

    def __init__(self, twin: KeptTwin, seed: int) -> None:
        self.twin = twin
        self.random = random.Random(seed)
        self.done: list[str] = []
        self.pushed: dict[MessageKey, bytes] = {}
        self.came: dict[MessageKey, bytes] = {}
        self.told: dict[MessageKey, ErrorCode] = {}
        self.told_sender: list[str] = []
        self._pulls: dict[MessageKey, asyncio.Task[None]] = {}

    @property
    def is_in(self) -> bool:
        return self.twin.halves["b"].context.mailbox.sessions.has_joined("s", PARTIES["b"])

    def join(self, site: str) -> None:
        self.twin.halves[site].context.mailbox.join("s", PARTIES[site], PARTIES.values())

    async def work(self, most: int) -> None:
        for _ in range(most):
            for site in PARTIES:
                await self.twin.turn(site)
                await self.twin.carry(site)
            # for the disk
            await asyncio.sleep(0.003)

    def push(self) -> None:
        body = BODY[: self.random.choice(SIZES)]
        try:
            key = self.twin.push("a", f"m{len(self.done)}", body, mode=self.random.choice(MODES))
        except FedRDMAError as error:
            # of an earlier one
            self.told_sender.append(error.message)
        else:
            self.pushed[key] = body

    def pull(self, key: MessageKey) -> None:
        if key not in self.came and key not in self.told and key not in self._pulls:
            self._pulls[key] = asyncio.create_task(self._pull(key))

    async def _pull(self, key: MessageKey) -> None:
        try:
            body = await self.twin.get(key)
        except FedRDMAError as error:
            if error.code is not ErrorCode.SESSION_CLOSED:
                self.told[key] = error.code
            return
        assert key not in self.came, "doubled"
        self.came[key] = body

    async def end_pulls(self) -> None:
        """Whoever waits is gone with its gateway."""
        for pull in self._pulls.values():
            pull.cancel()
        await asyncio.gather(*self._pulls.values(), return_exceptions=True)
        self._pulls.clear()

    def reap(self) -> None:
        for key in [key for key, pull in self._pulls.items() if pull.done()]:
            self._pulls.pop(key).result()

    def listen(self) -> None:
        """The task of a makes calls until all was told."""
        sessions = self.twin.halves["a"].context.mailbox.sessions
        while (failure := sessions.note_told("s", PARTIES["a"])) is not None:
            self.told_sender.append(failure.message)

    async def kill(self, how: str) -> None:
        site = self.random.choice(tuple(PARTIES))
        if how == "kill behind":
            self.twin.kill_behind(site, self.random.randrange(1, 6))
            await self.work(5)
        if not self.twin.is_dead(site):
            self.twin.kill(site)
        if site == "b":
            if how == "lose memory":
                self.twin.lose_memory("b")
            await self.end_pulls()
        await self.twin.restart(site)
        await self.connect(0.7)

    async def connect(self, likely: float) -> None:
        await self.twin.lose_control("a")
        await self.twin.lose_control("b")
        if self.random.random() < likely:
            await self.twin.connect()
            await self.work(3)

    async def step(self) -> None:
        what = self.random.choice(WHAT)
        self.done.append(what)
        if what == "push":
            self.push()
            await self.work(self.random.randrange(6))
        elif what == "pull":
            if self.is_in and self.pushed:
                self.pull(self.random.choice(list(self.pushed)))
            await self.work(self.random.randrange(5))
        elif what == "cut":
            await self.connect(0.7)
        elif what == "leave or join":
            if self.is_in:
                self.twin.halves["b"].context.mailbox.leave("s", PARTIES["b"])
            else:
                self.join("b")
            await self.work(self.random.randrange(5))
        elif what == "work":
            await self.work(self.random.randrange(1, 12))
        else:
            await self.kill(what)
        self.reap()

    async def heal(self) -> None:
        """All is well from now on, and everything is pulled."""
        if not self.is_in:
            self.join("b")
        if not self.twin.halves["a"].peer.connected or not self.twin.halves["b"].peer.connected:
            await self.connect(1.0)
        for _ in range(60):
            for key in self.pushed:
                self.pull(key)
            await self.work(10)
            await asyncio.sleep(1)
            self.reap()
            if self.came.keys() | self.told.keys() == self.pushed.keys():
                break
        self.listen()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_message_comes_once_and_whole_or_both_ends_are_told(tmp_path: Path, seed: int) -> None:
    async def scenario(job: Job) -> None:
        await job.twin.connect()
        for site in PARTIES:
            job.join(site)
        await job.work(10)
        for _ in range(job.random.randrange(6, 22)):
            await job.step()
        await job.heal()
        hung = [key.name for key in job.pushed if key not in job.came and key not in job.told]
        assert not hung, job.done
        assert job.came == {key: job.pushed[key] for key in job.came}, job.done
        silent = [key.name for key in job.told if not any(f"/{key.name}/" in told for told in job.told_sender)]
        assert not silent, job.done
        await job.end_pulls()

    async def run() -> None:
        twin = KeptTwin(tmp_path, seed)
        try:
            await scenario(Job(twin, seed))
        finally:
            twin.close()

    run_virtually(run())
