"""Many senders into one receiver, at the same moment, again and again: the round of training that ends."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import statistics
from collections.abc import Sequence
from typing import Literal

from fedrdma_fate.core.actions import Finished
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.shares.joint_probe import (
    ANSWERED_SECONDS,
    WANTED_SECONDS,
    Arrived,
    believed_rate,
    datagrams_each,
    held_bytes,
    wanted_delays,
    wanted_rate,
)
from fedrdma_fate.core.shares.receive_shares import ReceiveShares
from fedrdma_fate.core.x.chunking import FIRST_CHUNK_BYTES
from fedrdma_fate.engine.link import Link
from tests.support.sim.bottleneck import PACKET_OVERHEAD_BYTES, Bottleneck, BottleneckProfile
from tests.support.sim.clock import VirtualClock
from tests.support.sim.shares_timer import SharesTimer
from tests.support.sim.x_flow import XFlow

ShareMode = Literal["even", "turns", "off"]

PROBE_SECONDS = 0.1
"""Between two data paths that come up: their trains do not meet."""

PAUSE_SECONDS = 0.5
"""Between two rounds: all compute."""

LOOK_SECONDS = 0.01
"""Between two looks whether a round has ended."""

GIVEN_UP_SECONDS = 60.0
"""A round that has not ended by then."""


@dataclasses.dataclass(frozen=True)
class Round:
    """How one has gone.

    Attributes:
        seconds: from its beginning until the receiver had everything; infinite where it never had.
        resent_bytes: of all senders.
        ended: when each was there, seconds from the beginning.
    """

    seconds: float
    resent_bytes: int
    ended: Sequence[float]

    @property
    def mean(self) -> float:
        """Of the senders."""
        return sum(self.ended) / len(self.ended)


@dataclasses.dataclass(frozen=True)
class Case:
    """Senders that are all alike, and the link of their receiver.

    Attributes:
        silos: how many.
        rate_bps: of the link, bits a second; the senders' own cards are ten times as fast.
        rtt: seconds.
        buffer_bytes: of the link.
        loss: share of the packets lost at random.
        total: bytes that each sends in a round.
        jitter: all begin within so many seconds.
        configured: what `receive.rate` would say, as a multiple of the link's rate; None: nothing.
        repairs: whether there may be repair chunks, with room for them from the beginning.
        loss_share: of each payload that may be missing in the end.
        mtu_bytes: payload of a packet.
        loses_in_front: whether packets are lost before they come to the link.
    """

    silos: int
    rate_bps: float
    rtt: float = 0.02
    buffer_bytes: float = 0.5e6
    loss: float = 0.0
    total: int = 4 << 20
    jitter: float = 0.001
    configured: float | None = None
    repairs: bool = False
    loss_share: float = 0.0
    mtu_bytes: int = 4096
    loses_in_front: bool = False

    def make(self, share: ShareMode, seed: int) -> tuple[VirtualClock, Incast]:
        """The senders, whose data paths are up."""
        clock = VirtualClock()
        profile = BottleneckProfile(
            self.rate_bps,
            self.rtt,
            buffer_bytes=self.buffer_bytes,
            loss=self.loss,
            nic_bps=10 * self.rate_bps,
            mtu_bytes=self.mtu_bytes,
            loses_in_front=self.loses_in_front,
        )
        link = Bottleneck(clock, profile, random.Random(seed))
        configured = None if self.configured is None else self.configured * self.rate_bps / 8
        payloads = [self.total] * self.silos
        repairs, missing = self.repairs, self.loss_share
        return clock, Incast(link, clock, payloads, share, configured=configured, repairs=repairs, loss_share=missing)

    def rounds(self, share: ShareMode, count: int, seed: int) -> list[Round]:
        """Rounds after each other, half a second apart; seconds as multiples of the least possible."""
        clock, incast = self.make(share, seed)
        chance = random.Random(seed)
        played = []
        for _ in range(count):
            one = incast.play(chance, self.jitter)
            least = incast.least_seconds
            ended = [seconds / least for seconds in one.ended]
            played.append(dataclasses.replace(one, seconds=one.seconds / least, ended=ended))
            clock.run(clock.now + PAUSE_SECONDS)
        return played

    def endless(self, share: ShareMode, seconds: float, seed: int) -> list[float]:
        """What each got of the link that sends without end, from the least to the most, over so many seconds."""
        endless = dataclasses.replace(self, total=int(self.rate_bps / 8 * (seconds + 1)))
        clock, incast = endless.make(share, seed)
        began = clock.now
        for flow in incast.flows:
            flow.start()
        clock.run(began + seconds)
        return incast.shares_of(began + self.rtt, clock.now)


def beside_slow(case: Case, slow_bps: float, rounds: int) -> list[tuple[float, float]]:
    """Rounds of all but one, without that one and beside it, whose card is so slow: when they have ended, seconds."""

    def play(nics: list[float]) -> list[float]:
        clock = VirtualClock()
        fast = 10 * case.rate_bps
        profile = BottleneckProfile(case.rate_bps, case.rtt, buffer_bytes=case.buffer_bytes, nic_bps=fast)
        link, chance = Bottleneck(clock, profile, random.Random(1)), random.Random(1)
        incast = Incast(link, clock, [case.total] * len(nics), nics=nics)
        ended = []
        for _ in range(rounds):
            # the slow one is the last
            ended.append(sorted(incast.play(chance, case.jitter).ended)[case.silos - 2])
            clock.run(clock.now + PAUSE_SECONDS)
        return ended

    others = [10 * case.rate_bps] * (case.silos - 1)
    return list(zip(play(others), play([slow_bps, *others]), strict=True))


def print_slow(case: Case, slow: float, rounds: int) -> None:
    """The table of rounds beside one whose card has so much of an equal part of the link."""
    print("| silos, link | one of them has | " + " | ".join(f"round {number + 1}" for number in range(rounds)) + " |")
    print("|---" * (rounds + 2) + "|")
    slow_bps = slow * case.rate_bps / case.silos
    cells = [f"{beside / without:.3f}" for without, beside in beside_slow(case, slow_bps, rounds)]
    where = f"{case.silos}, {case.rate_bps / 1e9:g} Gbit/s"
    print(f"| {where} | {slow_bps / 1e6:g} Mbit/s | " + " | ".join(cells) + " |", flush=True)


def print_incast(case: Case, shares: Sequence[ShareMode], rounds: int, seeds: int) -> None:
    """The table of rounds: each over the least possible time, what was sent again, and the mean time of a silo."""
    print("| silos, link | share | " + " | ".join(f"round {number + 1}" for number in range(rounds)) + " |")
    print("|---" * (rounds + 2) + "|")
    for share in shares:
        runs = [case.rounds(share, rounds, seed + 1) for seed in range(seeds)]
        cells = []
        for played in zip(*runs, strict=True):
            seconds = statistics.median(one.seconds for one in played)
            resent = statistics.median(one.resent_bytes for one in played) / case.total / case.silos
            mean = statistics.median(one.mean for one in played)
            cells.append(f"{seconds:.2f} ({resent:.1%}, mean {mean:.2f})")
        where = f"{case.silos}, {case.rate_bps / 1e9:g} Gbit/s"
        print(f"| {where} | {share} | " + " | ".join(cells) + " |", flush=True)


def print_slowest(case: Case, share: ShareMode, rounds: int) -> None:
    """Of many rounds of one seed: the median, the slowest of a hundred, and the slowest, over the least possible."""
    seconds = sorted(one.seconds for one in case.rounds(share, rounds, 1))
    median, slow = statistics.median(seconds), seconds[max(math.ceil(0.99 * rounds), 1) - 1]
    print("| silos, link | rounds | tolerance | median | p99 | slowest | p99 over median |")
    print("|---" * 7 + "|")
    where = f"{case.silos}, {case.rate_bps / 1e9:g} Gbit/s"
    numbers = f"{median:.3f} | {slow:.3f} | {seconds[-1]:.3f} | {slow / median:.3f}"
    print(f"| {where} | {rounds} | {case.loss_share:g} | {numbers} |", flush=True)


class Incast:
    """Senders of one receiver, whose link they share, each with a link of the engine and the receiver's shares.

    Attributes:
        flows: of the senders.
        shares: the receiver's; what it decides nobody is told where sharing is off.
    """

    def __init__(
        self,
        link: Bottleneck,
        clock: VirtualClock,
        payloads: Sequence[int],
        share: ShareMode = "even",
        *,
        configured: float | None = None,
        paths: Sequence[PathState | None] | None = None,
        nics: Sequence[float] | None = None,
        repairs: bool = False,
        ways: Sequence[Bottleneck] | None = None,
        loss_share: float = 0.0,
    ) -> None:
        """
        Args:
            link: the receiver's.
            clock: virtual time.
            payloads: bytes that each sends in a round.
            share: whether the link is shared out.
            configured: the link's rate as set by hand, bytes a second.
            paths: what each knows of its path, from transfers; None, of one or of all: what its train tells when its
                path comes up.
            nics: rates of the senders' own cards, bits a second; None: that of the bottleneck's profile.
            repairs: whether there may be repair chunks.
            ways: links of the senders' own in front of the receiver's, whose round trip is 0 then.
            loss_share: of each payload that may be missing in the end.
        """
        self._ways = [link] * len(payloads) if ways is None else list(ways)
        self.shares = ReceiveShares(configured, turns=share == "turns")
        self.flows: list[XFlow] = []
        self._clock = clock
        self._link = link
        self._payloads = payloads
        self._share = share
        self._began = 0.0
        self._ended: dict[int, float] = {}
        self._timer = SharesTimer(clock, self.shares, self._wake)
        for number, payload in enumerate(payloads):
            plan = ChunkPlan(payload, FIRST_CHUNK_BYTES)
            path = None if paths is None else paths[number]
            nic_bps = None if nics is None else nics[number]
            way = self._ways[number]
            flow = XFlow(
                clock,
                way,
                plan,
                path,
                recut=True,
                probed=path is None,
                repairs=repairs,
                nic_bps=nic_bps,
                loss_share=loss_share,
            )
            flow.on_announced = functools.partial(self._on_announced, str(number))
            flow.on_received = functools.partial(self._on_received, number)
            self.flows.append(flow)
            if share != "off":
                self.shares.join(str(number), clock.now, way.profile.rtt)
            self._look()
            if path is None:
                clock.run(clock.now + PROBE_SECONDS)
        if share != "off" and paths is None and configured is None and len(self.flows) > 1:
            clock.run(clock.now + WANTED_SECONDS)
            self._want_trains()

    def _want_trains(self) -> None:
        """As the gateway does while nothing comes, see `ReceiveSharing`."""
        clock, told, held = self._clock, 0.0, 0
        round_trips = {str(number): way.profile.rtt for number, way in enumerate(self._ways)}
        longest = max(round_trips.values())
        self._look()
        for more in (False, True):
            began, count = clock.now, datagrams_each(len(self.flows), more=more)
            for name, delay in wanted_delays(round_trips).items():
                want = functools.partial(Link.want_train, began=began, count=count)
                clock.after(delay, functools.partial(self.flows[int(name)].receiver.do, want))
            clock.run(began + ANSWERED_SECONDS + longest)
            links = [flow.receiver.link for flow in self.flows]
            trains = [
                Arrived(each.seconds, longest, link.probed_rate or math.inf, each.came, each.spread, each.sent)
                for link in links
                if (each := link.wanted) is not None and each.began == began
            ]
            rate = wanted_rate(trains, len(links))
            told, held = believed_rate(rate, told, trains, len(links)), held_bytes(trains)
            if not self.shares.wants_more(rate) or any(train.sent < count for train in trains):
                break
        if told:
            self.shares.on_wanted_train(told, clock.now, held)
        self._look()

    def play(
        self, chance: random.Random, jitter: float, silos: Sequence[int] | None = None, *, expected: bool = False
    ) -> Round:
        """One round, in which all, or these, begin within a while.

        Args:
            chance: draws when each does.
            jitter: within so many seconds.
            silos: who; None: all.
            expected: whether the receiver knows that only these may, as a gateway does of those in its tasks' sessions.
        """
        flows = self.flows if silos is None else [self.flows[number] for number in silos]
        self.shares.expect([str(number) for number in silos] if expected and silos else (), self._clock.now)
        # trains of slow paths may have ended meanwhile
        self._look()
        self._clock.run(self._clock.now + PROBE_SECONDS)
        began = self._began = self._clock.now
        self._ended.clear()
        for flow in flows:
            self._clock.at(began + chance.uniform(0, jitter), flow.start)
        self._clock.run_until(lambda: len(self._ended) == len(flows), began + GIVEN_UP_SECONDS, LOOK_SECONDS)
        seconds = max(self._ended.values()) if len(self._ended) == len(flows) else float("inf")
        # the senders hear of it, too
        self._clock.run(self._clock.now + 2 * max(way.profile.rtt for way in self._ways))
        done = [flow.stats for flow in flows if flow.outcome == Finished() and flow.stats is not None]
        return Round(seconds, sum(stats.resent_bytes for stats in done), list(self._ended.values()))

    def ended_of(self, silos: Sequence[int]) -> list[float | None]:
        """When each of these was there in the latest round, seconds from its beginning; None for one that was not."""
        return [self._ended.get(number) for number in silos]

    @property
    def least_seconds(self) -> float:
        """Of a round: all payloads and their headers at the link's rate, and half a round trip."""
        profile = self._link.profile
        heads = (profile.mtu_bytes + PACKET_OVERHEAD_BYTES) / profile.mtu_bytes
        return profile.rtt / 2 + sum(self._payloads) * heads * 8 / profile.rate_bps

    def shares_of(self, since: float, until: float) -> list[float]:
        """Of the link, what each got in a span of time, headers and all, from the least to the most."""
        profile = self._link.profile
        heads = (profile.mtu_bytes + PACKET_OVERHEAD_BYTES) / profile.mtu_bytes
        return sorted(flow.goodput_bps(since, until) * heads / profile.rate_bps for flow in self.flows)

    def _note_probes(self) -> None:
        for number, flow in enumerate(self.flows):
            rate = flow.receiver.link.probed_rate
            self.shares.on_path(str(number), self._clock.now, rate, self._ways[number].profile.rtt)

    def _on_announced(self, name: str, transfer: int) -> None:
        self.shares.on_arrivals(name, self.flows[int(name)].receiver.link.arrivals)
        self.shares.on_begin(name, transfer, self._clock.now, self._payloads[int(name)])
        self._look()

    def _on_received(self, number: int, transfer: int) -> None:
        self._ended[number] = self._clock.now - self._began
        self.shares.on_end(str(number), transfer, self._clock.now)
        self._look()

    def _look(self) -> None:
        """Tell what has changed, and come again when the shares want it."""
        self._note_probes()
        for name, share in self.shares.take_told().items():
            place = self.shares.senders[name].place
            self.flows[int(name)].receiver.do(functools.partial(Link.share, rate=share, place=place))
        self._timer.set()

    def _wake(self) -> None:
        for number, flow in enumerate(self.flows):
            self.shares.on_arrivals(str(number), flow.receiver.link.arrivals)
        self.shares.on_timer(self._clock.now)
        self._look()
