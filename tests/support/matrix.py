"""Every fault, in every mode, on every kind of data path: a run of two whole gateways in virtual time, by its seed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import os
import random
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedrdma_fate.ports import ChunkService
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from fedrdma_fate.wire.frames import Frame, MessageKey, Mode
from tests.support.endpoints import MemoryWire
from tests.support.faulty import FaultPlan, FaultyTransport
from tests.support.kept_twin import KeptTwin
from tests.support.twin import PARTIES, Half, VirtualLoop, run_virtually

MODES: tuple[Mode, ...] = ("grpc", "fedrdma", "fedrdma-e", "fedrdma-x")
PATHS = ("shm", "tcp", "verbs", "udp")
SIZES = (10, 3000, 70_000, 150_000, 300_000)
"""Bytes: small messages, and from one to a few chunks and slots of the twin."""
MESSAGES = 8
STEPS = 60
"""In which the messages are pushed and the fault happens; then everything heals."""
ACTS = {"push": 2.0, "pull": 1.5, "turn": 8.0, "carry": 8.0, "wait": 0.7}
HUNG_SECONDS = 3000.0
"""Of virtual time, in which all that heals has healed: each time-out of these gateways is shorter."""

HARMLESS = frozenset(
    {
        *("none", "reordered", "late", "completed twice"),
        *("control held up", "control frame doubled", "gateway stopped"),
        *("sender killed", "receiver killed", "either killed", "both killed"),
    }
)
"""They cost time, and no message. What gateways had lies in journals, files and memory that outlive them."""

Happening = Callable[["Run"], Coroutine[Any, Any, None]]


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong in a run.

    Attributes:
        plan: what happens to the first data paths of one site.
        happens: what happens to the gateways or the control channel, as often as a run draws it.
        plans: how many data paths in a row have the plan.
    """

    plan: Callable[[random.Random], FaultPlan] | None = None
    happens: Happening | None = None
    plans: int = 1


def _early(chance: random.Random) -> int:
    """A number of posts that most runs get to."""
    return chance.randint(1, 8)


def _some(chance: random.Random) -> frozenset[int]:
    return frozenset(chance.sample(range(1, 10), 2))


# -- what happens to the control channel ------------------------------------------------------------------------------


def _frames(run: Run, site: str) -> Any:
    """Frames that a site has sent and that have not been carried."""
    stream = run.twin.halves[site].stream
    return None if stream is None else stream._outgoing._queue  # type: ignore[attr-defined]


async def _cut(run: Run) -> None:
    await run.twin.lose_control(run.chance.choice("ab"))


async def _dropped(run: Run) -> None:
    """A frame is lost on its way: a stream that has a hole carries nothing more."""
    site = run.chance.choice("ab")
    frames = _frames(run, site)
    if frames:
        await run.twin.carry(site, run.chance.randrange(len(frames)))
        await run.twin.lose_control("a")
        await run.twin.lose_control("b")


async def _doubled(run: Run) -> None:
    site = run.chance.choice("ab")
    frames, stream = _frames(run, site), run.twin.halves[site].stream
    if frames and stream is not None:
        at = run.chance.randrange(len(frames))
        if frames[at] is not None:
            run.note("doubled")
            frames.insert(at, frames[at])
            stream.unsent_bytes += len(frames[at])


async def _held_up(run: Run) -> None:
    """Nothing comes through for a while, and the data paths go on."""
    for _ in range(run.chance.randint(5, 15)):
        await run.twin.turn(run.chance.choice("ab"))
        await asyncio.sleep(run.chance.choice((0.01, 1.0)))


async def _one_way(run: Run) -> None:
    """What one site says comes through, and the other's waits."""
    site = run.chance.choice("ab")
    for _ in range(run.chance.randint(5, 15)):
        await run.twin.turn(run.chance.choice("ab"))
        await run.twin.carry(site)


async def _replayed(run: Run) -> None:
    """On a new channel come frames of the one before it."""
    twin, site = run.twin, run.chance.choice("ab")
    frames = _frames(run, site)
    if not frames:
        return
    old = [frame for frame in frames if frame is not None]
    await twin.carry(site)
    await twin.lose_control("a")
    await twin.lose_control("b")
    await twin.connect(run.chance.choice("ab"))
    target = twin.halves["b" if site == "a" else "a"].stream
    if target is not None:
        for frame in old[: run.chance.randint(1, 5)]:
            run.note("replayed")
            target.take_in(frame)
    await twin.settle()


# -- what happens to gateways and tasks -------------------------------------------------------------------------------


async def _killed(run: Run, site: str = "") -> None:
    await run.kill(site or run.chance.choice("ab"))


async def _both_killed(run: Run) -> None:
    await run.kill("a")
    await run.kill("b")


async def _stopped(run: Run) -> None:
    """SIGSTOP: one gateway does nothing, for up to half a minute, and the other goes on."""
    site = run.chance.choice("ab")
    other = "b" if site == "a" else "a"
    for _ in range(run.chance.randint(5, 15)):
        await run.twin.turn(other)
        await asyncio.sleep(run.chance.choice((0.01, 2.0)))


async def _task_killed(run: Run) -> None:
    """A task that waits for a message dies, and another one of its party begins anew."""
    waiting = [key for key, pull in run.pulls.items() if not pull.done()]
    if waiting:
        run.pulls.pop(run.chance.choice(waiting)).cancel()
    await run.twin.settle()


async def _path_cut(run: Run) -> None:
    run.twin.break_paths()


FAULTS: dict[str, Fault] = {
    "none": Fault(),
    "link broken": Fault(happens=_path_cut),
    "reset": Fault(lambda chance: FaultPlan(break_at=("progress", chance.randint(2, 20))), plans=2),
    "half open": Fault(lambda chance: FaultPlan(half_open_after_writes=_early(chance))),
    "silent": Fault(lambda chance: FaultPlan(silent_after_writes=_early(chance))),
    "deaf": Fault(lambda chance: FaultPlan(deaf_after_writes=_early(chance))),
    "mute": Fault(lambda chance: FaultPlan(mute_after_writes=_early(chance))),
    "truncated": Fault(lambda chance: FaultPlan(truncate_at=_early(chance)), plans=2),
    "reordered": Fault(lambda chance: FaultPlan(chance.randrange(1 << 30), reorder_share=0.5, delay_completions=2)),
    "late": Fault(lambda chance: FaultPlan(chance.randrange(1 << 30), delay_completions=6), plans=3),
    "completed twice": Fault(lambda chance: FaultPlan(chance.randrange(1 << 30), duplicate_share=0.4), plans=3),
    "payload damaged": Fault(lambda chance: FaultPlan(corrupt_landed=_some(chance)), plans=2),
    "header damaged": Fault(lambda chance: FaultPlan(corrupt_posted_bytes=_some(chance)), plans=2),
    "chunks lost": Fault(lambda chance: FaultPlan(chance.randrange(1 << 30), chunk_loss=0.2), plans=3),
    "queue pair error": Fault(
        lambda chance: FaultPlan(break_at=(chance.choice(("post_write", "post_chunk", "post_bytes")), _early(chance))),
        plans=2,
    ),
    "device gone": Fault(lambda _: FaultPlan(refuse_connect=True), _path_cut, plans=3),
    "key withdrawn": Fault(lambda chance: FaultPlan(withdrawn_key_at=_early(chance)), plans=2),
    "control cut": Fault(happens=_cut),
    "control frame dropped": Fault(happens=_dropped),
    "control frame doubled": Fault(happens=_doubled),
    "control held up": Fault(happens=_held_up),
    "control one way": Fault(happens=_one_way),
    "control replayed": Fault(happens=_replayed),
    "sender killed": Fault(happens=functools.partial(_killed, site="a")),
    "receiver killed": Fault(happens=functools.partial(_killed, site="b")),
    "either killed": Fault(happens=_killed),
    "both killed": Fault(happens=_both_killed),
    "gateway stopped": Fault(happens=_stopped),
    "task killed": Fault(happens=_task_killed),
}


def cells() -> list[tuple[str, Mode, str]]:
    """Fault, mode and data path of every cell."""
    return [(fault, mode, path) for fault in FAULTS for mode in MODES for path in PATHS]


class MatrixTwin(KeptTwin):
    """A kept twin that has a data path of every kind, in memory."""

    data_paths = (*PATHS, "grpc")
    quiet_rounds = 4

    def _make(self, site: str) -> Half:
        half = super()._make(site)
        # they are the same for all peers, and found by reading annotations, which takes longer than most of a run
        half.peer._entitlement._fields = _fields_with_messages()
        return half

    async def settle(self) -> None:
        """As the twin does, but no longer than anything is due: half of a run would be waiting."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        for _ in range(6):
            await asyncio.sleep(0)
            if not loop.is_busy():
                return


@functools.cache
def _fields_with_messages() -> dict[type[Frame], tuple[str, ...]]:
    """For all runs of this process."""
    return {}


@functools.cache
def _random_bytes() -> bytes:
    """What bodies are cut from: no two places of it look alike, and to draw each body anew takes a tenth of a run."""
    return random.Random(0).randbytes(2 * max(SIZES))


@functools.cache
def _quick_directory() -> str | None:
    """A file system in memory, where there is one: to sync what a run writes would take a disk longer than the run."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _wire_of(path: str) -> MemoryWire:
    """One that carries chunks as data paths of that kind do; what it does not do itself is the business of a fault."""
    wire = MemoryWire()
    if path in ("verbs", "udp"):
        # as queue pairs of type UC, and as packets
        wire.chunk_service = ChunkService(reliable=False, self_paced=False, queue_pairs=2 if path == "verbs" else 1)
        wire.has_datagrams = True
    return wire


@dataclasses.dataclass(slots=True)
class Outcome:
    """What came of one run.

    Attributes:
        delivered: messages that came whole, once.
        told: those that did not come, of which both ends were told.
        why: of each of those.
        struck: whether the fault happened at all: some runs have ended before.
        wrong: what must not be, one sentence each; the first word is corrupt, lost, doubled, hung, slots or error.
        history: a digest of all that the run did, to compare with a second run of the same seed.
    """

    delivered: int = 0
    told: int = 0
    struck: bool = False
    why: list[str] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    history: str = ""


class Run:
    """One random history with one fault."""

    def __init__(self, twin: MatrixTwin, fault: Fault, mode: Mode, chance: random.Random) -> None:
        self.twin = twin
        self.chance = chance
        self.mode = mode
        self.fault = fault
        self.sent: dict[MessageKey, bytes] = {}
        self.pulls: dict[MessageKey, asyncio.Task[bytes]] = {}
        self.outcome = Outcome()
        self._history: list[str] = []
        self._happenings = 0 if fault.happens is None else self.chance.randint(1, 3)

    def _strikes(self) -> Iterator[int]:
        """Of what wraps each transport: connections that were made before all healed are faulty to their end."""
        for transports in self.twin.transports.values():
            for transport in transports.values():
                assert isinstance(transport, FaultyTransport)
                yield transport.strikes

    def note(self, what: str) -> None:
        """Something that the run did."""
        self._history.append(what)

    async def play(self) -> Outcome:
        """All of it, and the verdict."""
        await self.twin.connect(self.chance.choice("ab"))
        happens_at = set(self.chance.sample(range(2, STEPS), self._happenings))
        for step in range(STEPS):
            await self._act()
            if step in happens_at and self.fault.happens is not None:
                self.note("fault")
                self.outcome.struck = True
                await self.fault.happens(self)
        while len(self.sent) < MESSAGES:
            if not self._push():
                await self._act(("turn", "carry", "pull", "wait"))
        for transports in self.twin.transports.values():
            for transport in transports.values():
                assert isinstance(transport, FaultyTransport)
                transport.heal()
        await self._finish()
        self._judge_memory()
        self.outcome.struck |= any(self._strikes())
        self.outcome.history = hashlib.sha256("\n".join(self._history).encode()).hexdigest()
        return self.outcome

    async def kill(self, site: str) -> None:
        """A gateway is killed between two things that it does, and the next one goes on; its tasks begin anew."""
        for key, pull in list(self.pulls.items()):
            if key.destination == PARTIES[site] and not pull.done():
                self.pulls.pop(key).cancel()
        await self.twin.settle()
        self.note(f"kill {site}")
        self.twin.kill(site)
        await self.twin.restart(site)

    async def _act(self, acts: tuple[str, ...] = tuple(ACTS)) -> None:
        twin, chance = self.twin, self.chance
        act = chance.choices(acts, [ACTS[each] for each in acts])[0]
        self.note(act)
        match act:
            case "push":
                self._push()
            case "pull":
                self._pull()
            case "turn":
                await twin.turn(chance.choice("ab"))
            case "carry":
                self.note(str(await twin.carry(chance.choice("ab"), chance.choice((1, 3, 100)))))
            case _:
                await asyncio.sleep(chance.choice((0.01, 0.1, 1.0)))
        if any(half.stream is None or half.stream._closed for half in twin.halves.values()) and chance.random() < 0.3:
            for site in PARTIES:
                await twin.lose_control(site)
            await twin.connect(chance.choice("ab"))

    def _push(self) -> bool:
        if len(self.sent) == MESSAGES:
            return True
        start, length = self.chance.randrange(max(SIZES)), self.chance.choice(SIZES)
        body = _random_bytes()[start : start + length]
        site = self.chance.choice("aab")
        try:
            key = self.twin.push(site, f"m{len(self.sent)}", body, mode=self.mode)
        except AssertionError:
            # no room in the send region now
            return False
        self.sent[key] = body
        return True

    def _pull(self) -> None:
        left = [key for key in self.sent if key not in self.pulls]
        if left:
            key = self.chance.choice(left)
            self.pulls[key] = asyncio.create_task(self.twin.get(key))

    async def _finish(self) -> None:
        """Everything heals: all comes, or both ends are told."""
        twin, loop = self.twin, asyncio.get_running_loop()
        while any(key not in self.pulls for key in self.sent):
            self._pull()
        await twin.quiesce()
        ends = loop.time() + HUNG_SECONDS
        while not all(pull.done() for pull in self.pulls.values()) and loop.time() < ends:
            for site in twin.halves:
                await twin.turn(site)
                self.note(str(await twin.carry(site)))
            # quick at first, then as long as time-outs are
            await asyncio.sleep(0.01 if loop.time() < ends - HUNG_SECONDS + 5 else 5.0)
        await twin.quiesce()
        told = self._told_senders()
        for key, body in self.sent.items():
            await self._judge(key, body, told)

    def _told_senders(self) -> str:
        """All that tasks are told of pushes that failed."""
        told = []
        for half in self.twin.halves.values():
            for _ in range(MESSAGES + 1):
                try:
                    half.context.mailbox.sessions.raise_push_failure("s", half.party)
                except FedRDMAError as error:
                    told.append(str(error))
        return "\n".join(told)

    async def _judge(self, key: MessageKey, body: bytes, told: str) -> None:
        pull, wrong = self.pulls[key], self.outcome.wrong
        if not pull.done():
            pull.cancel()
            wrong.append(f"hung: {key.name} of {len(body)} bytes neither came nor failed")
            return
        if (error := pull.exception()) is not None:
            if not isinstance(error, FedRDMAError):
                wrong.append(f"error: {key.name}: {error!r}")
            elif str(key) not in told:
                wrong.append(f"lost: of {key.name} its sender was not told; its receiver: {error}")
            else:
                self.outcome.told += 1
                self.outcome.why.append(str(error))
            return
        if pull.result() != body:
            wrong.append(f"corrupt: {key.name} came with other bytes")
            return
        if str(key) in told:
            wrong.append(f"error: {key.name} came, and its sender was told that it did not")
            return
        try:
            await asyncio.wait_for(self.twin.get(key), 1)
            wrong.append(f"doubled: {key.name} came twice")
        except GatewayError as again:
            if again.code is not ErrorCode.DUPLICATE_PULL:
                wrong.append(f"error: {key.name}, asked for again: {again}")
        except asyncio.TimeoutError:
            wrong.append(f"doubled: {key.name}, asked for again, is waited for")
        self.outcome.delivered += 1

    def _judge_memory(self) -> None:
        for site, half in self.twin.halves.items():
            context, peer = half.context, half.peer
            left = {
                "messages to send": peer.sending.pending,
                "messages kept": context.mailbox.summary()["messages"],
                "send slots": context.send_pool.stats().slots,
                "receive slots": context.receive_pool.stats().slots - half.credits_held(),
                "waiting": context.receive_pool.stats().waiting,
                "requests": len(peer.receiving._requests),
                # the ring, and one more where fedrdma-x was used
                "credits": max(0, half.credits_held() - 3 * len(peer.paths.paths)),
            }
            if left := {what: count for what, count in left.items() if count}:
                self.outcome.wrong.append(f"slots: {site} has left {left}")


async def _play(
    directory: Path, fault: Fault, mode: Mode, path: str, chance: random.Random, settings: Mapping[str, Any]
) -> Outcome:
    timeouts = {"idle": 60.0, "peer_silence": 500_000.0}
    twin = MatrixTwin(directory, chance.randrange(1 << 30), transport=path, timeouts=timeouts, **settings)
    run = Run(twin, fault, mode, chance)
    spoilt = chance.choice(("a", "b", "ab", "ab"))
    for site, transports in twin.transports.items():
        for name, inner in list(transports.items()):
            inner.make_wire = functools.partial(_wire_of, name)  # type: ignore[attr-defined]
            plans = []
            if fault.plan is not None and site in spoilt:
                plans = [fault.plan(chance) for _ in range(fault.plans)]
            transports[name] = FaultyTransport(inner, plans)
    try:
        return await run.play()
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            for pull in run.pulls.values():
                pull.cancel()
            await twin.settle()
        twin.close()


def run_once(fault: str, mode: Mode, path: str, seed: int, **settings: Any) -> Outcome:
    """One run of one cell; both gateways have these settings besides."""
    # cells of one number share nothing
    chance = random.Random(f"{fault}/{mode}/{path}/{seed}")
    with tempfile.TemporaryDirectory(dir=_quick_directory()) as directory:
        return run_virtually(_play(Path(directory), FAULTS[fault], mode, path, chance, settings))
