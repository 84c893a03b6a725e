"""Gateway b with an honest peer a and an adversary m, which sends any valid frame and writes wherever it can."""

from __future__ import annotations

import asyncio
import itertools
import random
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from fedrdma_fate.aggregate.worker_pool import WorkerPool
from fedrdma_fate.core.credits import MOST_CREDITS
from fedrdma_fate.core.recent_numbers import PAGE_NUMBERS
from fedrdma_fate.gateway.flow.call import Answer, SchedulingCall
from fedrdma_fate.gateway.flow.calls import FlowCalls
from fedrdma_fate.gateway.flow.serving import MOST_KEPT_ANSWERS, MOST_KEPT_BYTES, MOST_SERVED
from fedrdma_fate.gateway.journal.state import REMEMBERED_TRANSFERS
from fedrdma_fate.gateway.messages.late_messages import LateMessage
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.peers.borrowing import MOST_BORROWED, MOST_EARLY
from fedrdma_fate.gateway.peers.control_stream import ControlStream
from fedrdma_fate.gateway.peers.peer import Peer
from fedrdma_fate.gateway.peers.receiving import (
    MOST_ANNOUNCED,
    MOST_REQUESTS_KEPT,
    pool_owner,
)
from fedrdma_fate.gateway.tasks.session_ends import SessionEnds
from fedrdma_fate.gateway.tasks.site_sums import SiteSums
from fedrdma_fate.ports import RemoteSlot
from fedrdma_fate.security.key_schedule import PATH_NONCE_BYTES, KeyExchange
from fedrdma_fate.wire.errors import FedRDMAError
from fedrdma_fate.wire.frames import (
    MOST_FAN_IN,
    PROBE_TRANSFERS_FROM,
    Connect,
    ControlFrame,
    FlowCall,
    Goodbye,
    Grant,
    Hello,
    Inline,
    MessageKey,
    Party,
    SumOrder,
    decode_frame,
    encode_frame,
)
from fedrdma_fate.wire.header import PROTOCOL_VERSION
from fedrdma_fate.wire.sealed import INTRODUCTION_BYTES
from tests.support.endpoints import HeapRegion, MemoryEndpoint
from tests.support.twin import PARTIES, Half, Twin

EVIL = Party("arbiter", "3")
NOBODY = Party("host", "77")
SESSIONS = ("s", "e", "u")
"""Of the honest pair alone; of b and the adversary; of nobody at b yet."""

FRAMES = sorted(typing.get_args(ControlFrame), key=lambda kind: str(kind.__name__))
ENDS_THE_CHANNEL = (Goodbye, Hello)
SIZES = (0, 1, 100, 5000, 70_000, 400_000, 2**20, 2**40)
SLOTS = (0, 1, 4096, 8192, 100_000, 2**20, 2**33, 2**64 - 1)
HELD = ((), ((0, 64),), ((0, 1), (4096, 100_000)), ((100, 50), (0, 0), (-1, 2**62)))
"""Of a payload: nothing, a part of it, two, and what is none."""
IDS = (0, 1, 2, 3, 5, 8, 2**32 - 1, 2**32, 2**40, PROBE_TRANSFERS_FROM, PROBE_TRANSFERS_FROM + 1, 2**63, -1)

DEFAULTS: Mapping[str, Any] = {
    "limits": {"messages": 30, "session_messages": 20},
    "aggregate": {"site_sums": True},
}
"""Of both sites."""


class Besieged(Twin):
    """A twin whose site b has a second peer: the adversary. The honest pair talks on; `check` says what has changed."""

    more_peers: ClassVar[Mapping[str, Sequence[dict[str, Any]]]] = {"b": [{"site": "m", "parties": [str(EVIL)]}]}

    def __init__(self, directory: Path, seed: int = 0, **settings: Any) -> None:
        super().__init__(directory, seed, **{**DEFAULTS, **settings})
        b = self.halves["b"]
        self.evil = Peer(b.context.config.peers[1], b.context)
        b.context.mailbox.on_turned_away = self._turned_away
        b.context.mailbox.on_back = self._party_is_back
        self.chance = random.Random(seed)
        self.stream: ControlStream | None = None
        self.grants: list[Grant] = []
        self.end: MemoryEndpoint | None = None
        self.ends = SessionEnds(b.context, {"a": b.peer, "m": self.evil})
        self.calls = FlowCalls(b.context, {"a": b.peer, "m": self.evil}, self)
        sending = {"a": b.peer.sending, "m": self.evil.sending}
        self.site_sums = SiteSums(b.context, WorkerPool(1), sending)
        for peer in (b.peer, self.evil):
            peer.site_sums = peer.sending.site_sums = self.site_sums
        self.carried_out = 0
        self._answering = 0
        self.waiting: dict[MessageKey, bytes] = {}
        self.sent = 0
        self._numbers = itertools.count()
        self._attempt = 0
        self._serving: asyncio.Task[None] | None = None

    def _turned_away(self, message: Message) -> None:
        peer = self.evil if message.origin == "m" else self.halves["b"].peer
        peer.receiving.turned_away(message)

    def _party_is_back(self, late: LateMessage) -> None:
        peer = self.evil if late.origin == "m" else self.halves["b"].peer
        peer.receiving.party_is_back(late)

    async def carry_out(self, call: SchedulingCall) -> Answer:
        """What b's FATE Flow does: it answers after a while, and notes how much it has to do at once."""
        assert call.header("dest-party-id") == PARTIES["b"].party_id
        assert call.path.startswith(("/v2/partner/", "/v2/scheduler/"))
        self.carried_out += 1
        self._answering += 1
        assert self._answering <= MOST_SERVED
        await asyncio.sleep(0.05)
        self._answering -= 1
        return Answer(200, bytes(self.chance.choice((2, 2, 70_000))))

    async def begin(self) -> None:
        """The honest pair is connected, and its tasks are there."""
        for site, half in self.halves.items():
            half.context.mailbox.join("s", PARTIES[site], PARTIES.values())
        self.halves["b"].context.mailbox.join("e", PARTIES["b"], [PARTIES["b"], EVIL])
        for session in ("s", "e"):
            self.ends.arrive(session, PARTIES["b"])
        await self.connect()
        await self.work(20)
        await self.reconnect()

    # -- the adversary --------------------------------------------------------------------------------------------

    async def reconnect(self) -> None:
        """The adversary's channel is new, with a data path, where it is let in."""
        if self.evil.shut_out:
            await asyncio.sleep(max(0.0, self.evil.shut_out_until - asyncio.get_running_loop().time()) + 1)
        hello = Hello("m", f"m{self.chance.random()}", PROTOCOL_VERSION, "1", "else", (str(EVIL),), ("tcp",), 2**20)
        hello = msgspec.structs.replace(hello, exchange_key=KeyExchange().public)
        self.stream = ControlStream()
        self.grants.clear()
        self._serving = asyncio.create_task(self.evil.run(self.stream, hello, "m"))
        await self.settle()
        if self.end is not None:
            self.end.peer.close()
            self.end.close()
            self.end = None
        self._attempt += 1
        before = len(self._wires["tcp"])
        await self.say(Connect("tcp", "why", self._attempt, True, {}, bytes(PATH_NONCE_BYTES)))
        if len(self._wires["tcp"]) > before:
            end = self._wires["tcp"][len(self._wires["tcp"])].ends[1]
            assert isinstance(end, MemoryEndpoint)
            self.end = end
        await self.turn_evil()

    async def say(self, *frames: ControlFrame) -> None:
        """Send frames, valid ones, and let them be read."""
        if self.stream is None or not self.evil.connected:
            return
        for frame in frames:
            raw = encode_frame(frame)
            decode_frame(raw)
            self.sent += 1
            self.stream.take_in(raw)
        while self.evil.connected and not self.stream._incoming.empty():
            await asyncio.sleep(0.001)
        await self.settle()

    def any_frame(self) -> ControlFrame:
        """A valid frame."""
        kind = self.chance.choice(FRAMES)
        if kind in ENDS_THE_CHANNEL and self.chance.random() < 0.95:
            # else there would be little else
            kind = Inline
        return self.frame_of(kind)

    def frame_of(self, kind: type) -> ControlFrame:
        """A valid frame of a kind."""
        fields = msgspec.structs.fields(kind)
        frame = kind(**{field.name: self._value(kind, field.name, field.type) for field in fields})
        return typing.cast(ControlFrame, frame)

    def _value(self, frame: type, name: str, kind: object) -> Any:
        chance = self.chance
        known = {
            "key": (lambda: chance.choice(IDS)) if kind is int else self._key,
            "transport": lambda: chance.choice(("tcp", "tcp", "tcp", "grpc")),
            "transfer": self._transfer,
            "grant": lambda: chance.choice((*IDS, *[grant.grant for grant in self.grants[-3:]])),
            "slot_bytes": lambda: chance.choice(SLOTS),
            "total_bytes": lambda: chance.choice(SIZES),
            "wished_bytes": lambda: chance.choice(SIZES),
            "chunk_bytes": lambda: chance.choice((1, 4096, 40_000, 2**31)),
            "body": self._call_body
            if frame is FlowCall
            else lambda: bytes(chance.choice((0, 10, 4000, 60_000, 70_000))),
            "received_bytes": lambda: chance.choice((0, 1, 10**6, 1 << 62)),
            "arrived_at": lambda: chance.choice((0.0, 1e-300, chance.random(), 1e12, -1e12)),
            "held": lambda: chance.choice(HELD if frame is Grant else (0.0, chance.random(), 1e12, -1e12)),
            "digests": lambda: chance.randbytes(chance.choice((0, 1, 8, 16, 512))),
            "first": lambda: chance.choice((0, 1, 64, 1 << 32)),
            "introduction": lambda: chance.choice((bytes(INTRODUCTION_BYTES), chance.randbytes(INTRODUCTION_BYTES))),
            "tags": lambda: chance.randbytes(chance.choice((0, 1, 24, 240, 24 * 4096))),
            "call": lambda: chance.choice((0, 1, 2, 3, chance.randrange(1 << 62), 1 << 62)),
            "status": lambda: chance.choice((200, 404, 599)),
            "path": lambda: chance.choice(("/v2/partner/job/create", "/v2/scheduler/task/report", "/v2/job/submit")),
            "headers": self._headers,
            "loss_share": lambda: chance.choice((0.0, 1e-300, 0.01, 0.2)),
            "whole_bytes": lambda: chance.choice(SIZES),
            "tail_from": lambda: chance.choice((0, 1, 4096, 1 << 32)),
            "beyond": lambda: chance.randbytes(chance.choice((0, 1, 64))),
            "nonce": lambda: bytes(chance.choice((0, 1, PATH_NONCE_BYTES))),
            "exchange_key": lambda: bytes(chance.choice((0, 32))),
            "seal": lambda: chance.choice(("on", "integrity", "off")),
            "ciphers": tuple,
            "kind": lambda: chance.choice(("object", "bytes", "partition")),
            "mode": lambda: chance.choice(("grpc", "fedrdma", "fedrdma-e", "fedrdma-x")),
            "code": lambda: chance.choice(("FR303", "FR602", "none")),
            "offer": dict,
            "chunks": lambda: tuple(chance.choice(IDS) for _ in range(chance.randrange(5))),
            "transfers": lambda: tuple((chance.choice(IDS), chance.choice(IDS)) for _ in range(chance.randrange(5))),
            "parties": lambda: (str(EVIL), str(PARTIES["a"])),
            # rarely one of its own, of which nothing more would be taken
            "session": lambda: chance.choices((*SESSIONS, "none"), (10, 0.1, 0.1, 10))[0],
            "party": lambda: chance.choice((EVIL, NOBODY, *PARTIES.values())),
            "holders": lambda: tuple((EVIL, chance.choice((0, 1 << 62))) for _ in range(chance.randrange(9))),
            "orders": self._orders,
            "seconds": lambda: chance.choice((0.0, 1.0, 1e12, -1e12)),
            "number": lambda: chance.choice((0, 1, 10**6)),
            "rate": lambda: chance.choice((0.0, 1e-300, 1.0, 1e13)),
            "place": lambda: chance.choice((0.0, 0.5, 1.0)),
            "transports": lambda: ("tcp",),
            "frames_per_second": lambda: chance.choice((100.0, 20000.0, float("inf"))),
            "sum_parent": lambda: chance.choice(("", "a", "b", "m", "nobody")),
            "sum_fan_in": lambda: chance.choice((0, 1, MOST_FAN_IN)),
        }
        if name in known:
            return known[name]()
        return {bool: chance.random() < 0.5, float: chance.random(), int: chance.choice((0, 1, 2, 7, 10**6))}.get(
            typing.cast(type, kind), "y" * chance.choice((1, 900)) if name == "reason" else "some"
        )

    def _orders(self) -> tuple[SumOrder, ...]:
        chance, parties = self.chance, (EVIL, *PARTIES.values())
        return tuple(
            SumOrder(
                chance.choice((0, 1, 2, 1 << 62)),
                chance.choice(SESSIONS),
                "m",
                "t",
                chance.choice(parties),
                tuple(chance.choices(parties, k=2)) if chance.random() < 0.9 else (PARTIES["b"],) * 4096,
                chance.choice((2, 3, 4096)),
            )
            for _ in range(chance.choice((0, 1, 2, 64)))
        )

    def _headers(self) -> tuple[tuple[str, str], ...]:
        chance = self.chance
        names = ("dest-party-id", "Dest-Party-Id", "initiator-party-id", "Host", "Nonce", "n" * 256)
        values = ("1", "2", "3", "77", "", "x\r\ny: z", "v" * 1024)
        good = (("dest-party-id", PARTIES["b"].party_id),)
        more = tuple((chance.choice(names), chance.choice(values)) for _ in range(chance.choice((0, 0, 1, 5, 32))))
        return (*good, *more)[:32]

    def _call_body(self) -> bytes:
        chance = self.chance
        party = chance.choice((PARTIES["b"], PARTIES["b"], PARTIES["a"], EVIL, NOBODY))
        good = msgspec.json.encode({"role": party.role, "party_id": party.party_id})
        return chance.choice((good, good, good, b"", b"[" * 5000, b"{" * 60_000, bytes(1000)))

    def _key(self) -> MessageKey:
        chance = self.chance
        name = chance.choice((f"m{chance.randrange(500)}", "n" * 1000, *(key.name for key in list(self.waiting)[:2])))
        source = chance.choice((EVIL, EVIL, EVIL, PARTIES["a"], PARTIES["b"], NOBODY))
        return MessageKey(
            chance.choice(SESSIONS), name, "t", source, chance.choice((PARTIES["b"], PARTIES["b"], NOBODY))
        )

    def _transfer(self) -> int:
        if self.chance.random() < 0.5:
            return 10**6 + next(self._numbers)
        return self.chance.choice((*IDS, 10**6 + self.chance.randrange(2000), *self._honest_transfers()))

    def _honest_transfers(self) -> list[int]:
        b = self.halves["b"].peer
        return [*b.receiving._announced, *b.sending._transfers, *b.sending._inline]

    async def write_somewhere(self) -> None:
        """Write into what was granted, or beside it."""
        self._hear()
        if self.end is None or not self.grants:
            return
        grant = self.chance.choice(self.grants[-5:])
        target = RemoteSlot(grant.key + self.chance.choice((0, 0, 1)), grant.address, grant.length)
        data = self.chance.randbytes(self.chance.choice((1, 64, 4096)))
        try:
            if self.chance.random() < 0.5:
                self.end.post_bytes(1, data, target, self.chance.choice((0, 64, grant.length, 2**40)), grant.grant)
            else:
                source = HeapRegion(4096).slot()
                self.end.post_write(2, source, target, self.chance.choice((0, 4096, grant.length)))
        except (FedRDMAError, ValueError, OverflowError):
            # refused by the wire, as a device would
            return
        await self.turn_evil()

    def _hear(self) -> None:
        while self.stream is not None and not self.stream._outgoing.empty():
            raw = self.stream._outgoing.get_nowait()
            if raw is not None:
                self.stream.unsent_bytes -= len(raw)
                frame = decode_frame(raw)
                if isinstance(frame, Grant):
                    self.grants = [*self.grants[-100:], frame]

    async def turn_evil(self) -> None:
        """The links to the adversary do what they can."""
        for link in [*(path.link for path in self.evil.paths.paths.values()), *self.evil.paths._retired]:
            if link.alive:
                link.turn()
        self._hear()
        await self.settle()

    # -- the honest pair ------------------------------------------------------------------------------------------

    async def work(self, rounds: int) -> None:
        """The honest pair does what it can."""
        for _ in range(rounds):
            for site in self.halves:
                await self.turn(site)
                await self.carry(site)

    async def honest_message(self, size: int) -> None:
        """A message from a arrives at b within some rounds, whatever the adversary has done, and waits there."""
        name = f"honest{next(self._numbers)}"
        body = random.Random(name).randbytes(size)
        key = self.put("a", name, body)
        assert key is not None, "the sender has room"
        rounds = 0
        while key not in self.halves["b"].context.mailbox._messages:
            await self.work(1)
            await asyncio.sleep(0.01)
            rounds += 1
            assert rounds < 500, "an honest message does not arrive"
        self.waiting[key] = body

    async def honest_pull(self) -> None:
        """The task at b gets the oldest message that waits, as it was sent."""
        if self.waiting:
            key = next(iter(self.waiting))
            body = self.waiting.pop(key)
            assert await self.get(key) == body

    # -- what must hold -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Nothing of the honest peer has changed, and the adversary has no more than it may."""
        b: Half = self.halves["b"]
        mailbox = b.context.mailbox
        assert b.peer.connected, "the honest peer was cut off"
        assert mailbox.sessions.has_joined("s", PARTIES["b"])
        assert not mailbox.sessions.is_closed("s", PARTIES["b"])
        honest = {key for key in mailbox._messages if key.session == "s"}
        assert honest == set(self.waiting), "messages of the honest session came or went"
        assert not [key for key in mailbox._failed if key.session == "s"], "an honest message was said to fail"
        assert not [key for key in mailbox._messages if key.source != EVIL and key not in self.waiting]
        assert b.peer.sending.pending == 0
        messages, _ = mailbox.budget.used("m")
        assert messages <= 30
        kept = self.evil.receiving
        assert len(kept._requests) + len(kept._asked_by) <= MOST_REQUESTS_KEPT
        standing = sum(bool(grant.credit_of) for grant in kept._granted.values())
        assert len(kept._granted) - standing <= MOST_REQUESTS_KEPT
        assert len(kept._announced) <= MOST_ANNOUNCED
        assert len(kept._ended) <= 2 * REMEMBERED_TRANSFERS + PAGE_NUMBERS
        assert kept.borrowing.count <= MOST_BORROWED
        assert len(kept.borrowing._early) <= MOST_EARLY
        served = self.calls.peers["m"].served
        assert served.kept <= MOST_KEPT_ANSWERS
        assert served._kept_bytes <= MOST_KEPT_BYTES
        pool = b.context.receive_pool
        assert pool._held[pool_owner("m")] <= pool.most_bytes
        for path in self.evil.paths.paths.values():
            link = path.link._link
            assert len(link._outgoing._credits) <= MOST_CREDITS
            assert len(path.link._commands) <= 10_000
        assert b.context.small_bytes <= 64 * 2**20

    def check_bodies(self) -> None:
        """What waits is what was sent."""
        mailbox = self.halves["b"].context.mailbox
        for key, body in self.waiting.items():
            message = mailbox._messages[key]
            if message.lease is not None:
                lies = message.lease.slot.part(message.payload_at, message.total_bytes).view
                assert bytes(lies) == body, "an honest message was changed"

    def close(self) -> None:
        """As `Twin.close`, and the adversary with it."""
        if self._serving is not None:
            self._serving.cancel()
        for task in self.halves["b"].context.tasks:
            task.cancel()
        self.ends.close()
        self.evil.close("the test is over")
        for link in [*(path.link for path in self.evil.paths.paths.values()), *self.evil.paths._retired]:
            if link.alive:
                link.turn()
        super().close()
