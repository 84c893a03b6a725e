"""The setting of UniFL's evaluation (section 4.1) in virtual time: rounds of some of many silos, each behind a link of
its own. Prints one round a line, as JSON. `python -m tests.support.sim.unifl --help`.
"""

from __future__ import annotations

import argparse
import copy
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
from tests.support.sim.incast import PAUSE_SECONDS, PROBE_SECONDS, Incast, ShareMode
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
        told: whether the receiver knows before a round who sends in it, as a gateway does whose tasks name them.
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
    told: bool = False


@dataclasses.dataclass(frozen=True)
class Played:
    """A round, or what a sender had of it.

    Attributes:
        seconds: until all was there.
        resent_bytes: sent again.
        missing_bytes: that never came.
        ended: when each of the silos was there, by their numbers; None for one that never was.
    """

    seconds: float
    resent_bytes: int
    missing_bytes: int
    ended: Sequence[float | None]


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

    def of_first(self) -> World:
        """The same, in which only the first silo is."""
        alone = copy.copy(self)
        alone.setting = dataclasses.replace(self.setting, silos=1, chosen=1)
        alone.ways = self.ways[:1]
        return alone

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
        self._told = world.setting.told
        payloads = [world.setting.payload_bytes] * world.setting.silos
        self._incast = Incast(
            world.shared, world.clock, payloads, share, ways=world.ways, loss_share=loss_share, repairs=True
        )

    def play(self, chance: random.Random, silos: Sequence[int]) -> Played:
        """A round of these."""
        played = self._incast.play(chance, JITTER_SECONDS, silos, expected=self._told)
        missing = sum(bytes_in(self._incast.flows[number].missing) for number in silos)
        return Played(played.seconds, played.resent_bytes, missing, self._incast.ended_of(silos))


class OfStreams:
    """A stream of each, on a connection that stays."""

    def __init__(self, world: World, make: Callable[[], Control], *, waits_for_lost: bool = True) -> None:
        self._world = world
        setting = world.setting
        self._streams = [
            Stream(world.clock, way, setting.payload_bytes, make(), waits_for_lost=waits_for_lost) for way in world.ways
        ]
        self._silos: Sequence[int] = ()
        self._began = 0.0
        self._ended: dict[int, float] = {}

    def play(self, chance: random.Random, silos: Sequence[int]) -> Played:
        """A round of these."""
        self.begin(chance, silos, self._world.clock.now)
        return self.wait()

    def begin(self, chance: random.Random, silos: Sequence[int], began: float) -> None:
        """A round of these is to begin then."""
        self._silos, self._began = silos, began
        self._ended.clear()
        for number in silos:
            self._streams[number].on_received = functools.partial(self._on_received, number)
            self._world.clock.at(began + chance.uniform(0, JITTER_SECONDS), self._streams[number].start)

    def wait(self) -> Played:
        """Until all of the round are there, or it has gone on for far too long."""
        clock, silos = self._world.clock, self._silos
        given_up = self._began + self._world.least_seconds(silos) / LEAST_PART_OF_THE_LINK
        clock.run_until(lambda: len(self._ended) == len(silos), given_up, LOOK_SECONDS)
        seconds = max(self._ended.values()) if len(self._ended) == len(silos) else float("inf")
        mtu = self._world.setting.mtu_bytes
        counts = [self._streams[number].counts for number in silos]
        resent, missing = sum(each.resent for each in counts), sum(each.missing for each in counts)
        return Played(seconds, resent * mtu, missing * mtu, [self._ended.get(number) for number in silos])

    def _on_received(self, number: int) -> None:
        self._ended[number] = self._world.clock.now - self._began


class OneBeside:
    """The first silo sends by another row than the rest, whose row has to be a model; all of the setting send in each
    round."""

    def __init__(self, world: World, row: str, others: str) -> None:
        if world.setting.chosen < world.setting.silos or others not in MODELS:
            raise ValueError(f"all silos, and beside one a model: not {world.setting.chosen}, {others}")
        self._world = world
        # no train goes over the links of the others
        self._one = ROWS[row](world.of_first())
        others_senders = ROWS[others](world)
        assert isinstance(others_senders, OfStreams)
        self._others = others_senders

    def play(self, chance: random.Random, silos: Sequence[int]) -> Played:
        """A round of these."""
        first, *rest = silos
        # ours waits so long before it begins
        began = self._world.clock.now + (PROBE_SECONDS if isinstance(self._one, OfOurs) else 0.0)
        self._others.begin(chance, rest, began)
        one = self._one.play(chance, [first])
        others = self._others.wait()
        return Played(
            max(one.seconds, others.seconds),
            one.resent_bytes + others.resent_bytes,
            one.missing_bytes + others.missing_bytes,
            [*one.ended, *others.ended],
        )


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

MODELS = [row for row in ROWS if not row.startswith("fedrdma")]
"""Of others'."""


def rounds(
    setting: Setting, row: str, count: int, seed: int, others: str | None = None
) -> Iterator[tuple[float, Played]]:
    """(least seconds, what came of it) of rounds after each other. The silos of a round depend on the seed alone; all
    but the first of them send by the row `others` where one is named, see `OneBeside`."""
    world = World(setting, seed)
    senders = ROWS[row](world) if others is None else OneBeside(world, row, others)
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
    parser.add_argument("--told", action="store_true", help="the receiver knows before a round who sends in it")
    parser.add_argument("--others", choices=MODELS, help="by what all but the first silo of a round send")
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
        chosen.told,
    )
    for least, played in rounds(setting, chosen.row, chosen.rounds, chosen.seed, chosen.others):
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
