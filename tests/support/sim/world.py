"""One transfer from end to end on a virtual link: two links of the engine, and what their gateways would do."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections import Counter
from typing import Literal

from fedrdma_fate.core.actions import Failed, Finished
from fedrdma_fate.core.plan import ChunkPlan, SlotLayout
from fedrdma_fate.engine.events import (
    FrameToSend,
    GrantRequested,
    LinkEvent,
    PayloadReceived,
    PayloadSent,
    ReceiveFailed,
    SendFailed,
    SlotsReturned,
)
from fedrdma_fate.engine.link import Link
from fedrdma_fate.engine.payload import Outgoing, Payload
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode, error_from_code
from fedrdma_fate.wire.frames import (
    Abort,
    ControlFrame,
    Delivered,
    GrantRequest,
    MessageKey,
    Mode,
    Offer,
    Party,
    Reconcile,
    Refused,
)
from fedrdma_fate.wire.header import HEADER_BYTES
from tests.support.endpoints import HeapRegion
from tests.support.engine import DATAGRAM_KEYS
from tests.support.sim.clock import VirtualClock
from tests.support.sim.endpoint import PayloadOfZeros, ReliablePath, SparseRegion
from tests.support.sim.host import SimHost
from tests.support.sim.link import Break, ControlChannel, Faults, LinkProfile

_TRANSFER = 1
_KEY = MessageKey("s", "payload", "0", Party("guest", "1"), Party("host", "2"))


@dataclasses.dataclass(frozen=True, slots=True)
class Hosts:
    """How the ends behave.

    Attributes:
        notify: whether headers are announced, or looked for.
        poll_interval: seconds between two looks.
        hints: whether the receiving transport sees each chunk land.
    """

    notify: Literal["event", "poll"] = "event"
    poll_interval: float = 0.001
    hints: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """What is sent, how, and over what.

    Attributes:
        plan: how the payload is cut.
        mode: transfer mode.
        payload: the bytes; None: as many zeros as the plan says, where only time matters.
        link: the link.
        faults: what goes wrong.
        hosts: how the ends behave.
        seed: of everything that is left to chance.
        idle_timeout: of both links, seconds.
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
    """Run the transfer until nothing happens any more, `limit` virtual seconds at most.

    Raises:
        ValueError: the payload is not as long as the plan.
    """
    return _World(scenario).run(limit)


class _World:
    """Joins the hosts by paths and channels, and breaks and renews the paths."""

    def __init__(self, scenario: Scenario) -> None:
        if scenario.payload is not None and len(scenario.payload) != scenario.plan.total_bytes:
            raise ValueError(f"a payload of {len(scenario.payload)} bytes for a plan of {scenario.plan.total_bytes}")
        self._scenario = scenario
        self._clock = VirtualClock()
        self._chance = random.Random(scenario.seed)
        self._settings = LinkSettings(
            "sim",
            poll_headers=scenario.hosts.notify == "poll",
            poll_interval=scenario.hosts.poll_interval,
            idle_timeout=scenario.idle_timeout,
        )
        self._sender = SimHost(self._clock, "receiver", self._settings, self._on_sender_event)
        self._receiver = self._new_receiver()
        self._to_sender = ControlChannel(self._clock, scenario.link, self._take_to_sender)
        self._to_receiver = ControlChannel(self._clock, scenario.link, self._take_to_receiver)
        self._next_grant = 0
        self._granted: Counter[int] = Counter()
        # kept, so that no two have one address
        self._slots: list[Slot] = []
        self._ended: Delivered | Refused | None = None
        self._paths: list[ReliablePath] = []
        self._started = 0.0
        self._ended_at = 0.0
        self._sent: list[Finished | Failed] = []
        self._received: list[Finished | Failed] = []
        self._delivered: list[bytes] = []

    def run(self, limit: float) -> Outcome:
        scenario = self._scenario
        self._connect()
        # ahead of time, so that the transfer starts without asking
        slot_bytes = SlotLayout(scenario.plan, scenario.mode).slot_bytes
        self._give(self._new_slot(slot_bytes), 0)
        self._clock.run(scenario.link.rtt + (scenario.link.control_rtt or 0.0))
        self._started = self._clock.now
        for planned in scenario.faults.breaks:
            self._clock.after(planned.at, functools.partial(self._break, planned))
        outgoing = Outgoing(_TRANSFER, _KEY, "bytes", self._payload(), scenario.plan, scenario.mode)
        self._sender.do(lambda link: link.send(outgoing))
        self._clock.run(self._started + limit)
        self._receiver.end()
        assert not any(self._granted.values()), f"slots that came back so often less than once: {self._granted}"
        chunk_bytes = sum(path.sender.chunk_bytes for path in self._paths)
        assert not self._delivered or chunk_bytes >= scenario.plan.total_bytes, "delivered, and never sent"
        return Outcome(
            delivered=tuple(self._delivered),
            sent=tuple(self._sent),
            received=tuple(self._received),
            seconds=max(0.0, self._ended_at - self._started),
            writes=sum(path.sender.writes for path in self._paths),
            resent_bytes=max(0, chunk_bytes - scenario.plan.total_bytes),
        )

    # -- the data path --------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        path = ReliablePath(
            self._clock,
            self._scenario.link,
            self._scenario.faults,
            self._chance,
            hints=self._scenario.hosts.hints or self._scenario.payload is None,
            on_lost=lambda lost: self._break_path(lost, Break(at=self._clock.now)),
        )
        self._paths.append(path)
        self._receiver.connect(path.receiver, DATAGRAM_KEYS.reversed)
        self._sender.connect(path.sender, DATAGRAM_KEYS)

    def _break(self, planned: Break) -> None:
        self._break_path(self._paths[-1], planned)

    def _break_path(self, path: ReliablePath, planned: Break) -> None:
        if path.data.closed:
            return
        path.data.close()
        for end in (path.sender, path.receiver):
            # each end notices by itself
            self._clock.after(
                self._chance.uniform(0, self._scenario.link.rtt), functools.partial(end.break_down, "it broke")
            )
        if planned.downtime is None:
            self._clock.after(self._scenario.peer_silence, self._give_up)
        else:
            self._clock.after(planned.downtime, lambda: self._renew(same_slot=planned.same_slot))

    def _renew(self, *, same_slot: bool) -> None:
        if not same_slot:
            # the receiving link was replaced by one that knows of nothing
            self._receiver.end()
            self._receiver = self._new_receiver()
        self._connect()

    def _give_up(self) -> None:
        reason = "the peer is silent"
        self._sender.do(lambda link: link.cancel(_TRANSFER, ErrorCode.PEER_UNREACHABLE, reason))
        self._abort(Abort(_TRANSFER, ErrorCode.PEER_UNREACHABLE.value, reason))

    # -- what the sender's gateway does ---------------------------------------------------------------------------

    def _payload(self) -> Payload:
        body = self._scenario.payload
        if body is None:
            return PayloadOfZeros(self._scenario.plan.total_bytes)
        region = HeapRegion(max(len(body), 1))
        region.view[: len(body)] = body
        return Payload(region.slot(0, len(body)), len(body))

    def _take_to_sender(self, frame: ControlFrame) -> None:
        self._sender.do(lambda link: link.frame(frame))

    def _on_sender_event(self, event: LinkEvent) -> None:
        match event:
            case FrameToSend(frame):
                self._to_receiver.send(frame)
            case PayloadSent():
                self._end(self._sent, Finished())
            case SendFailed(_, code, reason):
                self._end(self._sent, Failed(code, reason))
            case _:
                pass

    # -- what the receiver's gateway does -------------------------------------------------------------------------

    def _new_receiver(self) -> SimHost:
        return SimHost(self._clock, "sender", self._settings, self._on_receiver_event)

    def _new_slot(self, length: int) -> Slot:
        """One as an earlier transfer left it: full of its bytes, its header cleared."""
        if self._scenario.payload is None:
            return SparseRegion(length).slot()
        slot = HeapRegion(length).slot()
        slot.view[HEADER_BYTES:] = self._chance.randbytes(length - HEADER_BYTES)
        return slot

    def _take_to_receiver(self, frame: ControlFrame) -> None:
        ended = self._ended
        match frame:
            case Offer() if ended is not None:
                self._receiver.do(lambda link: link.decline(frame, ended))
            case Reconcile() if ended is not None:
                self._to_sender.send(ended)
            case Abort():
                self._abort(frame)
            case _:
                self._receiver.do(lambda link: link.frame(frame))

    def _abort(self, frame: Abort) -> None:
        """The link may have forgotten the transfer, or never have known it; then the sender's word is the end."""
        failed = Failed(error_from_code(frame.code, frame.reason).code, frame.reason)

        def abort(link: Link) -> None:
            known = any(transfer.direction == "receive" for transfer in link.progress())
            link.frame(frame)
            if not known and self._ended is None:
                self._end_receiving(failed)

        self._receiver.do(abort)

    def _on_receiver_event(self, event: LinkEvent) -> None:
        match event:
            case FrameToSend(frame):
                self._to_sender.send(frame)
            case GrantRequested(request):
                self._grant(request)
            case SlotsReturned(slots):
                self._granted.subtract(slot.region.address for slot in slots)
            case PayloadReceived(offer, slot, payload_at):
                self._granted.subtract([slot.region.address])
                zeros = self._scenario.payload is None
                self._delivered.append(b"" if zeros else bytes(slot.part(payload_at, offer.total_bytes).view))
                self._ended = Delivered(_TRANSFER)
                self._end(self._received, Finished())
            case ReceiveFailed(_, slot, code, reason):
                self._granted.subtract([slot.region.address])
                self._end_receiving(Failed(code, reason))
            case _:
                pass

    def _grant(self, request: GrantRequest) -> None:
        if self._ended is not None:
            self._to_sender.send(self._ended)
            return
        slot = self._new_slot(request.slot_bytes)
        self._give(slot, request.transfer)

    def _give(self, slot: Slot, transfer: int) -> None:
        """Grant a slot; it must come back, once."""
        self._next_grant += 1
        grant = self._next_grant
        self._granted[slot.region.address] += 1
        self._slots.append(slot)
        self._receiver.do(lambda link: link.grant(grant, slot, transfer))

    def _end_receiving(self, failed: Failed) -> None:
        self._ended = self._ended or Refused(_TRANSFER, failed.code.value, failed.reason)
        self._end(self._received, failed)

    def _end(self, ends: list[Finished | Failed], end: Finished | Failed) -> None:
        ends.append(end)
        self._ended_at = self._clock.now
