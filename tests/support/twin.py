"""Two gateways' peers without threads, sockets or waiting: the test decides what happens next, and time is virtual."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import random
import selectors
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedrdma_fate.engine.events import Emit
from fedrdma_fate.engine.link_thread import LinkHandle
from fedrdma_fate.engine.payload import Payload
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.gateway.assembly import limits_of, on_rejoined
from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.budget import Budget
from fedrdma_fate.gateway.messages.mailbox import Mailbox
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.peers.control_stream import ControlStream
from fedrdma_fate.gateway.peers.peer import Peer
from fedrdma_fate.gateway.peers.receiving import pool_owner
from fedrdma_fate.gateway.routing import Routes
from fedrdma_fate.gateway.trace_events import TraceEvents
from fedrdma_fate.gateway.transports import TransportSet
from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.memory.spill import SpillStore
from fedrdma_fate.obs.metrics import GatewayMetrics
from fedrdma_fate.obs.trace import Trace
from fedrdma_fate.ports import Region
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, MessageKey, Mode, Party
from tests.support.endpoints import HeapRegion, MemoryTransport, MemoryWire
from tests.support.engine import StrictLink

Result = TypeVar("Result")

PARTIES = {"a": Party("guest", "1"), "b": Party("host", "2")}


_THREAD_SECONDS = 0.01
"""Of virtual time, until it is told what a thread has done: what a disk takes for a message."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        # ahead of the real clock, which nothing here may mistake for ours
        self.now = time.monotonic() + 1e4
        super().__init__(_ImpatientSelector(self))

    def time(self) -> float:
        return self.now

    def is_busy(self) -> bool:
        """Whether anything is due now, besides what runs."""
        timers: Any = self._scheduled  # type: ignore[attr-defined]
        due = bool(timers) and timers[0].when() <= self.now
        return due or bool(self._ready) or len(self._selector.get_map()) > 1  # type: ignore[attr-defined]

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """What would take a thread is done at once, and is told as long after as a disk takes: so a run repeats."""
        del executor
        future = self.create_future()
        try:
            tell: Callable[[], None] = functools.partial(future.set_result, func(*args))
        except Exception as error:  # whatever it is, whoever waits for the thread gets it
            tell = functools.partial(future.set_exception, error)
        self.call_later(_THREAD_SECONDS, lambda: None if future.done() else tell())
        return future


class _ImpatientSelector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and len(self.get_map()) <= 1:
            # nothing but the loop's own descriptor, by which threads wake it, and here there are none: no system call
            ready: list[tuple[selectors.SelectorKey, int]] = []
        else:
            # without a timer, nobody wakes us but the keyboard
            ready = super().select(None if timeout is None else 0)
        if ready or timeout is None or timeout <= 0:
            return ready
        # beyond the resolution of a float, whatever the time is
        self._loop.now += max(timeout, 1e-6)
        return []


class _VirtualLoops(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> VirtualLoop:
        return VirtualLoop()


def run_virtually(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on a virtual loop."""
    # Python 3.10 has no asyncio.Runner, which would take the loop as an argument
    asyncio.set_event_loop_policy(_VirtualLoops())
    try:
        return asyncio.run(work)
    finally:
        asyncio.set_event_loop_policy(None)


def threadless_link(peer: str, settings: LinkSettings, emit: Emit) -> LinkHandle:
    """A link without a thread, with the clock of the running loop: the test gives it its turns."""
    handle = LinkHandle(peer, settings, emit, asyncio.get_running_loop().time)
    handle._link = StrictLink(peer, settings, emit, asyncio.get_running_loop().time)
    return handle


@dataclasses.dataclass
class Half:
    """One gateway, as far as it deals with its peer."""

    site: str
    context: GatewayContext
    peer: Peer
    stream: ControlStream | None = None

    @property
    def party(self) -> Party:
        return PARTIES[self.site]

    def links(self) -> list[LinkHandle]:
        """All links that still have something to do."""
        retired = [link for link in self.peer.paths._retired if link.alive]
        return [*(path.link for path in self.peer.paths.paths.values()), *retired]

    def credits_held(self) -> int:
        """Receive slots granted to the peer ahead of time."""
        return sum(bool(grant.credit_of) for grant in self.peer.receiving._granted.values())


class Twin:
    """Gateways a and b."""

    more_peers: Mapping[str, Sequence[dict[str, Any]]] = {}
    """Of each site, besides the other one, as its configuration says; what they do is the business of a subclass."""
    data_paths: Sequence[str] = ("tcp", "grpc")
    """Names of the transports that there are, all of them in memory."""
    quiet_rounds = 20
    """In which nothing may happen in the second that ends `quiesce`; each is a turn of all links."""

    def __init__(self, directory: Path, seed: int = 0, **settings: Any) -> None:
        self._directory = directory
        self._settings = settings
        self._tasks: set[asyncio.Task[None]] = set()
        self._dead: list[Half] = []
        self._wires: dict[str, dict[int, MemoryWire]] = {name: {} for name in self.data_paths}
        self.random = random.Random(seed)
        self.transports = {site: TransportSet() for site in PARTIES}
        for transports in self.transports.values():
            transports.update((name, MemoryTransport(name, wires)) for name, wires in self._wires.items())
        self.halves = {site: self._make(site) for site in PARTIES}

    def _make(self, site: str) -> Half:
        context = self._context(site)
        peer = Peer(context.config.peers[0], context)
        context.mailbox.on_turned_away = peer.receiving.turned_away
        context.mailbox.on_rejoined = functools.partial(on_rejoined, context, {peer.config.site: peer})
        context.mailbox.on_back = peer.receiving.party_is_back
        return Half(site, context, peer)

    def _context(self, site: str) -> GatewayContext:
        other = "b" if site == "a" else "a"
        document = {
            "site": site,
            "parties": [str(PARTIES[site])],
            "security": "off",
            "transport": "tcp",
            "chunk": 40_000,
            "memory": {"send_bytes": "2MiB", "receive_bytes": "1MiB", "ring_slots": 2, "ring_slot_bytes": "128KiB"},
            # time flies here, and what nobody turns makes no progress
            "timeouts": {"idle": 500_000.0, "peer_silence": 500_000.0},
            "peers": [
                {"site": other, "parties": [str(PARTIES[other])], "address": "127.0.0.1:1"},
                *self.more_peers.get(site, ()),
            ],
            **self._settings,
        }
        config = parse_config(document)
        return GatewayContext(
            config=config,
            incarnation=f"{site}-{self.random.random()}" if hasattr(self, "random") else site,
            host="here",
            send_pool=SlotPool(self._region(site, "send", int(config.memory.send_bytes)), "send"),
            receive_pool=SlotPool(
                self._region(site, "receive", int(config.memory.receive_bytes)),
                "receive",
                sharers=[pool_owner(peer.site) for peer in config.peers],
            ),
            spill=SpillStore(self._directory, site),
            mailbox=Mailbox(Budget(limits_of(config))),
            routes=Routes(config),
            transports=self.transports[site],
            make_region=lambda _, length: HeapRegion(length),
            trace=TraceEvents(Trace(None)),
            metrics=GatewayMetrics(),
            make_link=threadless_link,
        )

    def _region(self, site: str, name: str, length: int) -> Region:
        """The memory of a pool."""
        del site
        return HeapRegion(length, name)

    # -- what may happen ------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Let the event loop do what is due now."""
        for _ in range(6):
            await asyncio.sleep(0)

    async def connect(self, dialled_by: str = "a") -> None:
        """A new control channel; an old one is forgotten by both."""
        a, b = self.halves["a"], self.halves["b"]
        hellos = {"a": a.peer.own_hello(), "b": b.peer.own_hello()}
        for half, other in ((a, "b"), (b, "a")):
            half.stream = ControlStream()
            task = asyncio.create_task(half.peer.run(half.stream, hellos[other], dialled_by))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await self.settle()

    async def carry(self, site: str, most: int = 1000) -> int:
        """Carry control frames from a site to the other; how many."""
        source, target = self.halves[site].stream, self.halves["b" if site == "a" else "a"].stream
        carried = 0
        while source is not None and target is not None and carried < most and not source._outgoing.empty():
            frame = source._outgoing.get_nowait()
            if frame is None:
                target.close()
                break
            target._incoming.put_nowait(frame)
            carried += 1
        await self.settle()
        return carried

    async def lose_control(self, site: str) -> None:
        """A site notices that its control channel is gone."""
        half = self.halves[site]
        if half.stream is not None:
            half.stream.close()
            half.stream = None
        await self.settle()

    async def turn(self, site: str) -> None:
        """Each link of a site does what it can."""
        half = self.halves[site]
        for link in half.links():
            link.turn()
        await self.settle()

    def break_paths(self) -> None:
        """Every data path breaks."""
        for wires in self._wires.values():
            for wire in wires.values():
                wire.break_down("the test cut it")

    async def restart(self, site: str) -> None:
        """A gateway dies and comes back without any memory; whoever it was connected to notices."""
        old = self.halves[site]
        await self.lose_control("a")
        await self.lose_control("b")
        self.break_paths()
        self._dead.append(old)
        self.halves[site] = self._make(site)

    async def quiesce(self) -> None:
        """Connect, and let everything happen until nothing more does."""
        await self.lose_control("a")
        await self.lose_control("b")
        await self.connect()
        quiet = 0
        while quiet < self.quiet_rounds:
            carried = 0
            for site in self.halves:
                await self.turn(site)
                carried += await self.carry(site)
            quiet = 0 if carried else quiet + 1
            await asyncio.sleep(1 / self.quiet_rounds)
            if any(half.context.making_room for half in self.halves.values()):
                quiet = 0

    def close(self) -> None:
        """Give back what tests would leave behind."""
        for task in self._tasks:
            task.cancel()
        for half in [*self.halves.values(), *self._dead]:
            half.context.spill.close()
            half.peer.close("the test is over")
            for link in half.links():
                link.turn()
        for wires in self._wires.values():
            for wire in wires.values():
                for end in wire.ends:
                    end.close()

    # -- traffic --------------------------------------------------------------------------------------------------

    def put(self, site: str, name: str, body: bytes, mode: Mode | None = None, session: str = "s") -> MessageKey | None:
        """Push a message to the other site; None when there is no room for it."""
        half, other = self.halves[site], self.halves["b" if site == "a" else "a"]
        key = MessageKey(session, name, "t", half.party, other.party)
        if len(body) <= INLINE_LIMIT_BYTES:
            half.peer.sending.put_inline(key, "bytes", body)
            return key
        lease = half.context.send_pool.lease(len(body), "task")
        if lease is None:
            return None
        lease.slot.view[:] = body
        half.peer.sending.put_payload(key, "object", Payload(lease.slot, len(body)), lease, mode)
        return key

    def put_to_several(
        self, site: str, names: Sequence[str], body: bytes, mode: Mode | None = None
    ) -> list[MessageKey]:
        """Push one large payload under several names, as a task pushes it to several parties; none where no room is."""
        half, other = self.halves[site], self.halves["b" if site == "a" else "a"]
        lease = half.context.send_pool.lease(len(body), "task")
        if lease is None:
            return []
        lease.slot.view[:] = body
        payload = Payload(lease.slot, len(body))
        keys = [MessageKey("s", name, "t", half.party, other.party) for name in names]
        for key in keys:
            half.peer.sending.put_payload(key, "object", payload, lease.share(), mode)
        lease.release()
        return keys

    async def get(self, key: MessageKey) -> bytes:
        """Pull a message at the site of its destination; its memory goes back."""
        site = next(site for site, party in PARTIES.items() if party == key.destination)
        message: Message = await self.halves[site].context.mailbox.take(key, None)
        try:
            if message.body is not None:
                return message.body
            if message.spilled is not None:
                return message.spilled.path.read_bytes()
            assert message.lease is not None
            return bytes(message.lease.slot.part(message.payload_at, message.total_bytes).view)
        finally:
            message.discard()
