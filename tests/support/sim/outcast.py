"""One sender to many receivers, at the same moment: the aggregate that goes down to all silos."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Sequence
from typing import Literal

from fedrdma_fate.core.actions import Finished
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.shares.joint_probe import ANSWERED_SECONDS, SETTLED_SECONDS, Arrived, datagrams_each, joint_rate
from fedrdma_fate.core.shares.receive_shares import ReceiveShares
from fedrdma_fate.core.x.chunking import FIRST_CHUNK_BYTES
from fedrdma_fate.engine.link import Link
from tests.support.sim.bottleneck import PACKET_OVERHEAD_BYTES, Bottleneck, BottleneckProfile, Nic
from tests.support.sim.clock import VirtualClock
from tests.support.sim.incast import GIVEN_UP_SECONDS, LOOK_SECONDS, PAUSE_SECONDS, PROBE_SECONDS, Round
from tests.support.sim.shares_timer import SharesTimer
from tests.support.sim.x_flow import XFlow

Order = Literal["even", "off", "one by one"]


@dataclasses.dataclass(frozen=True)
class Case:
    """Silos that are all alike, and the link by which all that goes to them leaves.

    Attributes:
        silos: how many.
        rate_bps: of the link, bits a second.
        rtt: seconds.
        buffer_bytes: of the link.
        loss: share of the packets lost at random.
        total: bytes that each gets in a round.
        nic: of the sender's card, as a multiple of the link's rate; at 1 the link's buffer stays empty.
        access: of each silo's own link, as a multiple of the link's; None: it is no bottleneck.
        mtu_bytes: payload of a packet.
        early: by which packets and answers are earlier or later, seconds.
    """

    silos: int
    rate_bps: float
    rtt: float = 0.02
    buffer_bytes: float = 0.5e6
    loss: float = 0.0
    total: int = 4 << 20
    nic: float = 10.0
    access: float | None = None
    mtu_bytes: int = 4096
    early: float = 0.0

    def rounds(self, order: Order, count: int, seed: int = 1) -> list[Round]:
        """Rounds after each other, half a second apart; times as multiples of the least possible."""
        clock = VirtualClock()
        outcast = Outcast(self, clock, order, seed)
        played = []
        for _ in range(count):
            one = outcast.play()
            least = outcast.least_seconds
            ended = [seconds / least for seconds in one.ended]
            played.append(dataclasses.replace(one, seconds=one.seconds / least, ended=ended))
            clock.run(clock.now + PAUSE_SECONDS)
        return played


class Outcast:
    """One gateway's links to many, each with an engine's link at both ends, and what shares its own link among them.

    Attributes:
        flows: to each silo.
        shares: the sender's.
    """

    def __init__(self, case: Case, clock: VirtualClock, order: Order, seed: int = 1, *, probes: bool = True) -> None:
        self.shares = ReceiveShares(gathers=False)
        self.flows: list[XFlow] = []
        self._case = case
        self._clock = clock
        self._order = order
        self._began = 0.0
        self._ended: dict[int, float] = {}
        self._timer = SharesTimer(clock, self.shares, self._wake)
        self._waiting: list[int] = []
        nic = Nic(case.nic * case.rate_bps)
        shared = None if case.access is not None else self._link(case.rate_bps, seed)
        for number in range(case.silos):
            # where the silos' own links are the slower ones, the sender's card is what they share
            link = shared or self._link((case.access or 1.0) * case.rate_bps, seed + number)
            plan = ChunkPlan(case.total, FIRST_CHUNK_BYTES)
            flow = XFlow(clock, link, plan, recut=True, probed=True, nic=nic)
            flow.on_received = functools.partial(self._on_received, number)
            flow.on_end = functools.partial(self._on_end, number)
            self.flows.append(flow)
            if order == "even":
                self.shares.join(str(number), clock.now, case.rtt)
            self._look()
            clock.run(clock.now + PROBE_SECONDS)
        clock.run(clock.now + SETTLED_SECONDS)
        self._look()
        if order == "even" and probes:
            self.probe_jointly()

    def _link(self, rate_bps: float, seed: int) -> Bottleneck:
        case = self._case
        profile = BottleneckProfile(
            rate_bps,
            case.rtt,
            buffer_bytes=case.buffer_bytes,
            loss=case.loss,
            nic_bps=case.nic * case.rate_bps,
            mtu_bytes=case.mtu_bytes,
            jitter=case.early,
        )
        return Bottleneck(self._clock, profile, random.Random(seed))

    def probe_jointly(self) -> float | None:
        """As the gateway does when it has nothing to send; bytes a second."""
        clock, rate = self._clock, None
        for more in (False, True):
            began, count = clock.now, datagrams_each(len(self.flows), more=more)
            for flow in self.flows:
                flow.sender.do(functools.partial(Link.probe_jointly, began=began, count=count))
            clock.run(clock.now + ANSWERED_SECONDS)
            arrived = []
            for flow in self.flows:
                known, joint = flow.sender.link.known_path, flow.sender.link.joint
                if known is None or joint is None or joint.began != began:
                    return rate
                # trains that met make the round trip look longer; the control channel knows it, too
                round_trip = min(known.state.min_rtt, self._case.rtt)
                arrived.append(
                    Arrived(joint.seconds, round_trip, known.state.rate, joint.came, joint.spread, joint.sent)
                )
            rate = joint_rate(arrived)
            if not self.shares.wants_more(rate) or any(train.sent < count for train in arrived):
                break
        if rate is not None:
            self.shares.on_joint_train(rate, clock.now)
        return rate

    def play(self, silos: Sequence[int] | None = None) -> Round:
        """One round: the gateway is told of all at once, or of these."""
        self._look()
        self._clock.run(self._clock.now + PROBE_SECONDS)
        began = self._began = self._clock.now
        self._ended.clear()
        sent_to = list(range(len(self.flows)) if silos is None else silos)
        self._waiting = list(sent_to)
        if self._order == "one by one":
            self._start(self._waiting.pop(0))
        else:
            # the gateway is told of all by one commit
            for number in sent_to:
                self.shares.on_begin(str(number), 1, self._clock.now)
            for number in sent_to:
                self._start(number)
        self._clock.run_until(lambda: len(self._ended) == len(sent_to), began + GIVEN_UP_SECONDS, LOOK_SECONDS)
        seconds = max(self._ended.values()) if len(self._ended) == len(sent_to) else float("inf")
        self._clock.run(self._clock.now + 2 * self._case.rtt)
        done = [flow.stats for flow in self.flows if flow.outcome == Finished() and flow.stats is not None]
        return Round(seconds, sum(stats.resent_bytes for stats in done), list(self._ended.values()))

    @property
    def least_seconds(self) -> float:
        """Of a round: all payloads and their headers at the link's rate, and half a round trip."""
        case = self._case
        heads = (case.mtu_bytes + PACKET_OVERHEAD_BYTES) / case.mtu_bytes
        shared = case.silos / min(1.0, case.nic) if case.access is None else 0.0
        own = 0.0 if case.access is None else max(1 / case.access, case.silos / case.nic)
        return case.rtt / 2 + max(shared, own) * case.total * heads * 8 / case.rate_bps

    def _start(self, number: int) -> None:
        flow = self.flows[number]
        self.shares.on_begin(str(number), 1, self._clock.now)
        self.shares.settle(self._clock.now)
        self._look()
        flow.start()

    def _on_received(self, number: int, transfer: int) -> None:
        del transfer
        self._ended[number] = self._clock.now - self._began
        if self._order == "one by one" and self._waiting:
            # heard of half a round trip later by the sender
            self._clock.after(self._case.rtt / 2, functools.partial(self._start, self._waiting.pop(0)))

    def _on_end(self, number: int) -> None:
        self.shares.on_end(str(number), 1, self._clock.now)
        self._look()

    def _look(self) -> None:
        """Limit what has changed, and come again when the shares want it."""
        for number, flow in enumerate(self.flows):
            known = flow.sender.link.known_path
            rate = None if known is None else max(known.state.rate, known.state.capacity)
            self.shares.on_path(str(number), self._clock.now, rate, self._case.rtt)
        for name, share in self.shares.take_told().items():
            place = self.shares.senders[name].place
            self.flows[int(name)].sender.do(functools.partial(Link.limit, rate=share, place=place))
        self._timer.set()

    def _wake(self) -> None:
        for number, flow in enumerate(self.flows):
            self.shares.on_arrivals(str(number), flow.sender.link.deliveries)
        self.shares.on_timer(self._clock.now)
        self._look()


def print_outcast(case: Case, orders: Sequence[Order], rounds: int) -> None:
    """The table of rounds: each over the least possible time, what was sent again, and the mean time of a silo."""
    print("| silos, link | order | " + " | ".join(f"round {number + 1}" for number in range(rounds)) + " |")
    print("|---" * (rounds + 2) + "|")
    for order in orders:
        cells = []
        for one in case.rounds(order, rounds):
            resent = one.resent_bytes / case.total / case.silos
            cells.append(f"{one.seconds:.3f} ({resent:.2%}, mean {one.mean:.2f})")
        print(f"| {case.silos}, {case.rate_bps / 1e9:g} Gbit/s | {order} | " + " | ".join(cells) + " |", flush=True)
