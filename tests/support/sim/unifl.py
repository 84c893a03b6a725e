"""The setting of UniFL's evaluation (section 4.1) in virtual time: rounds of some of many silos, each behind a link of
its own. Prints one round a line, as JSON. `python -m tests.support.sim.unifl --help`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from fedrdma_fate.core.held import bytes_in
from tests.support.sim.bottleneck import AccessLink, Bottleneck, BottleneckProfile
from tests.support.sim.clock import VirtualClock
from tests.support.sim.incast import PAUSE_SECONDS, Incast, ShareMode
from tests.support.sim.streams import Bbr, Control, Cubic, Reno, Stream, Unbounded

JITTER_SECONDS = 0.001
"""Within which all begin."""

LEAST_PART_OF_THE_LINK = 0.001
"""A round that would have used less of the receiver's link has not ended."""

LOOK_SECONDS = 0.1
"""Between two looks whether all have ended."""

MASKED_SHARE = 0.01
"""Of a payload may be missing in the row that tolerates loss: the highest loss of the paper's evaluation."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """Who sends to whom, over what.

    Attributes:
        silos: in all.
        chosen: by chance, that send in a round.
        rates: bits a second of a silo's own link, evenly between these.
        round_trips: of a silo's way, seconds, the same.
        rate_bps: of the receiver's link, bits a second.
        buffer_bytes: of each link.
        loss: share of the packets lost on a silo's own link.
        payload_bytes: that each sends in a round.
        mtu_bytes: of payload in a packet.
    """

    silos: int = 64
    chosen: int = 8
    rates: tuple[float, float] = (0.6e9, 0.8e9)
    round_trips: tuple[float, float] = (0.02, 0.06)
    rate_bps: float = 1e9
    buffer_bytes: float = 4e6
    loss: float = 0.0
    payload_bytes: int = 16 << 20
    mtu_bytes: int = 1472


@dataclasses.dataclass(frozen=True)
class Played:
    """A round, or what a sender had of it.

    Attributes:
        seconds: until all was there.
        resent_bytes: sent again.
        missing_bytes: that never came.
        ended: when each of the silos was there, in the order in which they were.
    """

    seconds: float
    resent_bytes: int
    missing_bytes: int
    ended: Sequence[float]


class Senders(Protocol):
    """All silos of a row."""

    def play(self, chance: random.Random, silos: Sequence[int]) -> Played:
        """A round of these."""


class World:
    """The links of a setting, drawn by a seed: every row has the same."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self.clock = VirtualClock()
        mtu, buffer = setting.mtu_bytes, setting.buffer_bytes
        shared = BottleneckProfile(setting.rate_bps, 0.0, buffer_bytes=buffer, mtu_bytes=mtu)
        self.shared = Bottleneck(self.clock, shared, random.Random(seed))
        chance = random.Random(seed)
        self.ways: list[Bottleneck] = []
        for number in range(setting.silos):
            profile = BottleneckProfile(
                chance.uniform(*setting.rates),
                chance.uniform(*setting.round_trips),
                buffer_bytes=buffer,
                loss=setting.loss,
                nic_bps=10e9,
                mtu_bytes=mtu,
            )
            self.ways.append(AccessLink(self.clock, profile, random.Random(1000 * seed + number), self.shared))

    def least_seconds(self, silos: Sequence[int]) -> float:
        """Of a round: all payloads and headers at the receiver's rate and half the shortest round trip, or those of the
        slowest silo by its own link and half its round trip, whichever is longer."""
        bits = self.shared.wire_bytes(self.setting.payload_bytes) * 8
        profiles = [self.ways[number].profile for number in silos]
        together = len(silos) * bits / self.setting.rate_bps + min(each.rtt for each in profiles) / 2
        return max(together, *(bits / each.rate_bps + each.rtt / 2 for each in profiles))


class OfOurs:
    """Links of the engine, with the receiver's shares or without."""

    def __init__(self, world: World, share: ShareMode, loss_share: float = 0.0) -> None:
        payloads = [world.setting.payload_bytes] * world.setting.silos
        self._incast = Incast(
            world.shared, world.clock, payloads, share, ways=world.ways, loss_share=loss_share, repairs=True
        )

    def play(self, chance: random.Random, silos: Sequence[int]) -> Played:
        """A round of these."""
        played = self._incast.play(chance, JITTER_SECONDS, silos)
        missing = sum(bytes_in(self._incast.flows[number].missing) for number in silos)
        return Played(played.seconds, played.resent_bytes, missing, sorted(played.ended))


class OfStreams:
    """A stream of each, on a connection that stays."""

    def __init__(self, world: World, make: Callable[[], Control], *, waits_for_lost: bool = True) -> None:
        self._world = world
        setting = world.setting
        self._streams = [
            Stream(world.clock, way, setting.payload_bytes, make(), waits_for_lost=waits_for_lost) for way in world.ways
        ]

    def play(self, chance: random.Random, silos: Sequence[int]) -> Played:
        """A round of these."""
        world, clock = self._world, self._world.clock
        began, ended = clock.now, dict[int, float]()

        def on_received(number: int) -> None:
            ended[number] = clock.now - began

        for number in silos:
            stream = self._streams[number]
            stream.on_received = functools.partial(on_received, number)
            clock.at(began + chance.uniform(0, JITTER_SECONDS), stream.start)
        given_up = began + world.least_seconds(silos) / LEAST_PART_OF_THE_LINK
        until = began
        while len(ended) < len(silos) and until < given_up:
            until += LOOK_SECONDS
            clock.run(until)
        seconds = max(ended.values()) if len(ended) == len(silos) else float("inf")
        mtu = world.setting.mtu_bytes
        counts = [self._streams[number].counts for number in silos]
        resent, missing = sum(each.resent for each in counts), sum(each.missing for each in counts)
        return Played(seconds, resent * mtu, missing * mtu, sorted(ended.values()))


ROWS: dict[str, Callable[[World], Senders]] = {
    "fedrdma-x": lambda world: OfOurs(world, "even"),
    "fedrdma-x-unshared": lambda world: OfOurs(world, "off"),
    "fedrdma-x-bounded": lambda world: OfOurs(world, "even", MASKED_SHARE),
    "tcp-reno": lambda world: OfStreams(world, Reno),
    "tcp-cubic": lambda world: OfStreams(world, Cubic),
    "tcp-bbr": lambda world: OfStreams(world, Bbr),
    "ltp": lambda world: OfStreams(world, Bbr, waits_for_lost=False),
    "masked": lambda world: OfStreams(
        world, functools.partial(Unbounded, world.setting.rate_bps / 8 / world.setting.mtu_bytes), waits_for_lost=False
    ),
}
"""What moves the payloads: this project's links; models of others'. `masked`: every loss forgiven, and none heeded."""


def rounds(setting: Setting, row: str, count: int, seed: int) -> Iterator[tuple[float, Played]]:
    """(least seconds, what came of it) of rounds after each other. The silos of a round depend on the seed alone."""
    world = World(setting, seed)
    senders = ROWS[row](world)
    chance, jitter = random.Random(seed), random.Random(seed)
    for _ in range(count):
        silos = sorted(chance.sample(range(setting.silos), setting.chosen))
        yield world.least_seconds(silos), senders.play(jitter, silos)
        world.clock.run(world.clock.now + PAUSE_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the rounds of a row."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.sim.unifl", description=__doc__)
    default = Setting()
    parser.add_argument("row", choices=list(ROWS))
    parser.add_argument("--silos", type=int, default=default.silos, help="in all")
    parser.add_argument("--chosen", type=int, default=default.chosen, help="in a round")
    parser.add_argument("--rates", type=float, nargs=2, default=default.rates, help="of silos' links, bits a second")
    parser.add_argument("--round-trips", type=float, nargs=2, default=default.round_trips, help="seconds")
    parser.add_argument("--rate", type=float, default=default.rate_bps, help="of the receiver's link, bits a second")
    parser.add_argument("--buffer", type=float, default=default.buffer_bytes, help="of each link, bytes")
    parser.add_argument("--loss", type=float, default=default.loss, help="share of the packets")
    parser.add_argument("--size", type=int, default=default.payload_bytes, help="of a payload, bytes")
    parser.add_argument("--mtu", type=int, default=default.mtu_bytes, help="payload of a packet, bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    setting = Setting(
        chosen.silos,
        chosen.chosen,
        tuple(chosen.rates),
        tuple(chosen.round_trips),
        chosen.rate,
        chosen.buffer,
        chosen.loss,
        chosen.size,
        chosen.mtu,
    )
    for least, played in rounds(setting, chosen.row, chosen.rounds, chosen.seed):
        told = {
            "seconds": played.seconds if played.seconds < float("inf") else None,
            "least_seconds": least,
            "resent_bytes": played.resent_bytes,
            "missing_bytes": played.missing_bytes,
            "silo_seconds": played.ended,
        }
        print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
