"""One transfer from end to end on a virtual link."""

from __future__ import annotations

import dataclasses
import functools
import random

from fedrdma_fate.core.actions import Failed, Finished
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.receiver import Receiver, ReceiveSettings
from fedrdma_fate.core.sender import Sender, SendSettings
from fedrdma_fate.wire.frames import Mode
from fedrdma_fate.wire.header import HEADER_BYTES
from tests.support.sim.clock import VirtualClock
from tests.support.sim.ends import DigestWorkers, Hosts, ReceivingEnd, SendingEnd
from tests.support.sim.link import Break, ControlChannel, DataPath, Faults, LinkProfile, Write
from tests.support.sim.memory import ByteMemory, Memory, PhantomMemory

_TRANSFER = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """What is sent, how, and over what.

    Attributes:
        plan: how the payload is cut.
        mode: transfer mode.
        payload: the bytes; None: as many as the plan says, without any memory for them, where only time matters.
        link: the link.
        faults: what goes wrong.
        hosts: how the ends behave.
        seed: of everything that is left to chance.
        idle_timeout: of the sender, seconds.
        max_resends: of the receiver.
        peer_silence: seconds after which both ends give up a path that never comes back.
    """

    plan: ChunkPlan
    mode: Mode
    payload: bytes | None = None
    link: LinkProfile = dataclasses.field(default_factory=LinkProfile)
    faults: Faults = dataclasses.field(default_factory=Faults)
    hosts: Hosts = dataclasses.field(default_factory=Hosts)
    seed: int = 0
    idle_timeout: float = 60.0
    max_resends: int = 3
    peer_silence: float = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How it went.

    Attributes:
        delivered: the payload as it lay in the slot, once per delivery.
        sent: how the sender ended; empty when it never did.
        received: how the receiver ended.
        seconds: virtual time until the sender ended, or the receiver where that is later.
        writes: RDMA writes posted, those of headers included.
        resent_bytes: payload bytes sent again.
    """

    delivered: tuple[bytes, ...]
    sent: tuple[Finished | Failed, ...]
    received: tuple[Finished | Failed, ...]
    seconds: float
    writes: int
    resent_bytes: int


def simulate(scenario: Scenario, limit: float = 86_400.0) -> Outcome:
    """Run the transfer until nothing happens any more, `limit` virtual seconds at most."""
    world = _World(scenario)
    return world.run(limit)


class _World:
    """Joins the ends by paths and channels, and breaks and renews the paths."""

    def __init__(self, scenario: Scenario) -> None:
        plan, mode = scenario.plan, scenario.mode
        if scenario.payload is not None and len(scenario.payload) != plan.total_bytes:
            raise ValueError(f"a payload of {len(scenario.payload)} bytes for a plan of {plan.total_bytes}")
        self._scenario = scenario
        self._clock = VirtualClock()
        self._chance = random.Random(scenario.seed)
        digests = DigestWorkers(self._clock, self._chance, scenario.hosts.digest_seconds)
        payload: Memory = PhantomMemory() if scenario.payload is None else ByteMemory(scenario.payload)
        sender = Sender(_TRANSFER, plan, SendSettings(mode, scenario.idle_timeout))
        receiver = Receiver(_TRANSFER, plan, ReceiveSettings(mode, scenario.max_resends))
        self._sending = SendingEnd(self._clock, sender, payload, digests)
        self._receiving = ReceivingEnd(self._clock, receiver, scenario.hosts, digests)
        self._to_sender = ControlChannel(self._clock, scenario.link, self._sending.on_frame)
        self._receiving.control = self._to_sender
        self._sending.control = ControlChannel(self._clock, scenario.link, self._receiving.on_frame)
        self._slot = self._fresh_slot()
        self._path = self._open_path()

    def run(self, limit: float) -> Outcome:
        for planned in self._scenario.faults.breaks:
            self._clock.at(planned.at, functools.partial(self._break, planned))
        self._receiving.start(self._path, self._slot)
        self._sending.start(self._path)
        self._clock.run(limit)
        return Outcome(
            delivered=tuple(self._receiving.delivered),
            sent=tuple(self._sending.ended),
            received=tuple(self._receiving.ended),
            seconds=max(self._sending.ended_at or 0.0, self._receiving.ended_at or 0.0),
            writes=self._sending.writes,
            resent_bytes=self._sending.sender.resent_bytes,
        )

    def write_done(self, path: DataPath, work_request: int) -> None:
        self._sending.on_write_done(path, work_request)

    def landed(self, path: DataPath, write: Write) -> None:
        self._receiving.on_landed(path, write)

    def lost(self, path: DataPath) -> None:
        if path is self._path:
            self._break(Break(at=self._clock.now))

    def _fresh_slot(self) -> Memory:
        """A slot as an earlier transfer left it: full of its bytes, its header cleared."""
        if self._scenario.payload is None:
            return PhantomMemory()
        layout = self._receiving.receiver.layout
        slot = ByteMemory(self._chance.randbytes(layout.slot_bytes))
        slot.write(layout.header_at, bytes(HEADER_BYTES))
        return slot

    def _open_path(self) -> DataPath:
        return DataPath(self._clock, self._scenario.link, self._scenario.faults, self._chance, self._slot, self)

    def _break(self, planned: Break) -> None:
        path = self._path
        if path.closed:
            return
        path.close()
        # each end notices by itself
        self._clock.after(self._chance.uniform(0, self._scenario.link.rtt), lambda: self._sending.on_path_lost(path))
        if planned.downtime is None:
            self._clock.after(self._scenario.peer_silence, self._sending.peer_silent)
            self._clock.after(self._scenario.peer_silence, self._receiving.peer_silent)
        else:
            self._clock.after(planned.downtime, lambda: self._renew(planned.same_slot))

    def _renew(self, same_slot: bool) -> None:
        if not same_slot:
            self._slot = self._fresh_slot()
        self._path = self._open_path()
        self._receiving.restart(self._path, self._slot, same_slot=same_slot)
        self._to_sender.signal(functools.partial(self._sending.on_path_renewed, self._path, same_slot=same_slot))
