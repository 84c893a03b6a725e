"""The rate of a path from a packet train: datagrams sent back to back arrive as the bottleneck spaces them.

This is the dispersion of a packet train (Dovrolis, Ramanathan and Moore, "What do packet dispersion techniques
measure?", INFOCOM 2001). On a busy path it lies below the capacity, for packets of others get between.

A short train of short ones comes first, which no buffer worth the name loses. Where it arrives so fast that it tells
how soon datagrams are looked at, and not the path, a train of long ones follows, sixteen times as many bytes in each.
Where some of it came much faster than all of it, packets are early and late by chance, and by more than the train
takes: one follows that takes four times as long.

The estimate is where a rate controller starts, and nothing more: it is proved or corrected by the first transfer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.x.chunking import SLOW_PATH_RATE
from fedrdma_fate.core.x.estimators import MOST_RATE
from fedrdma_fate.wire.datagrams import (
    DATAGRAM_BYTES,
    PADDED_DATAGRAM_BYTES,
    SEAL_BYTES,
    PathProbe,
    PathProbeAnswer,
    TrainWanted,
    padded_probe,
)

TRAIN_DATAGRAMS = 64
"""256 KiB: half of a buffer of 0.5 MB, and 2 ms at 1 Gbit/s. 4 MiB of long ones: what a transfer would send at once
on a path that nothing is known of."""

FAST_RATE = 1.5e9
"""Bytes a second, 12 Gbit/s: faster than this, a short datagram takes no longer than to look at one."""

LONG_PADDING_BYTES = PADDED_DATAGRAM_BYTES - DATAGRAM_BYTES
"""What a datagram of a long train has besides: they are as long as one may be."""

JITTERED_PADDING_BYTES = 4 * DATAGRAM_BYTES - DATAGRAM_BYTES
"""The same of the train that follows where packets are early and late by chance: 1 MiB, of which a buffer of 0.5 MB
still lets more than ROOM_SHARE through at 10 Gbit/s. Where they keep their order, a train comes as late as its latest
packet did so far; of a longer one less of the time is that."""

JITTERED_GAIN = 1.25
"""A train of which half came so many times as fast as all of it, or faster, was held up by chance: what one PROBE_UP
tries for. Below it, the first transfer finds the rest."""

HELD_UP_SHARE = 0.4
"""Of the time that such a train was held up is the standard deviation of round trips: where both ways are by up to J
earlier or later, evenly, that is 0.82 J, and a train is held up for twice J at most."""

LEAST_JITTERED_RATE = 312.5e6
"""Bytes a second, 2.5 Gbit/s: at less a short train takes 0.8 ms and more, which is told well enough, and a longer one
would fill a small buffer for milliseconds."""

LONG_TRAIN_PACKETS = TRAIN_DATAGRAMS * PADDED_DATAGRAM_BYTES // 4096
"""Of a long train, at least, for no path has a larger MTU than RDMA's 4096: so many that came tell of the loss."""

TRAINS = 3
"""A train that came to nothing is followed by another, up to so many. Ours: one short, one long, one in reserve."""

MOST_UNANSWERED_TRAINS = 6
"""Where none has been answered, up to so many, each after twice as long: the peer's end of the path may come up seconds
after this one where packets are lost, and all of three trains be gone by then."""

MOST_TRAINS = 16
"""Of a peer that are answered on a data path: each answer goes several times, and a train may be one datagram. Those
six, and ten that go to all peers at one moment."""

ANSWER_SECONDS = 0.5
"""An answer that is not here by then is not waited for: longer than any round trip between two sites."""

AWAITED_SECONDS = TRAINS * ANSWER_SECONDS
"""So long is a transfer kept back for what trains tell, once a train of the peer has shown that its end is up. What it
is cut into stands until its end: of chunks of several packets few come where a fifth of these are lost, and it takes
minutes in place of seconds. Fast paths lose no fifth: where a train has come so soon that the path is no slow one, and
told nothing else, it is not kept back for the next."""

UNHEARD_SECONDS = 5.0
"""The same from the first train on where none of the peer has come: its end is up seconds later where the answers by
which both learn of it are lost, or it had nothing to measure; then ours are answered."""

HEARD_SECONDS = 0.2
"""A train that went so long before the first of the peer came had come before its end was up, unless the round trip is
longer; then one goes that was not needed."""

QUIET_SECONDS = 0.05
"""Of a train of which something was lost, the rest is taken for lost when nothing came for so long: all of a short one
takes that long at 42 Mbit/s."""

ROOM_SHARE = 0.5
"""Where no more of a train has come, that was no chance: a policer's bucket, or a very small buffer, let some in at
once, and how fast that was says nothing of a lasting rate. Less is believed then, and proved. Slow paths lose as many
short packets at random."""

LEAST_ARRIVAL_TIMES = 4
"""Arrivals seen at fewer moments are spaced by whoever looks, not by the path."""

LEAST_JOINT_DATAGRAMS = 2
"""Of a train that goes with others, however little of one came that went alone: with one it has no spread."""

LEAST_PADDING_BYTES = DATAGRAM_BYTES - SEAL_BYTES - 64
"""Of a datagram of a train: all but its seal and some numbers and names."""

SKIPPED_DIVISOR = 4
"""The first quarter of a train is left out: a token bucket lets it pass as it came."""


def _settled(arrivals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What came behind the first quarter; empty where that tells nothing."""
    skipped = sum(count for count, _ in arrivals) // SKIPPED_DIVISOR
    settled = list(arrivals)
    while settled and skipped > 0:
        skipped -= settled.pop(0)[0]
    return settled if len(settled) >= LEAST_ARRIVAL_TIMES and all(count > 0 for count, _ in settled) else []


def dispersion_rate(arrivals: Sequence[tuple[int, int]], datagram_bytes: int) -> float | None:
    """Bytes a second at which a train arrived; None when it cannot be told.

    Args:
        arrivals: (datagrams, nanoseconds since the first) of each moment at which some were found to have come.
        datagram_bytes: length of each.
    """
    settled = _settled(arrivals)
    if not settled:
        return None
    seconds = (settled[-1][1] - settled[0][1]) * 1e-9
    # what was there at the first moment came before it
    came = sum(count for count, _ in settled[1:])
    return came * datagram_bytes / seconds if seconds > 0 else None


def fastest_rate(arrivals: Sequence[tuple[int, int]], datagram_bytes: int) -> float:
    """Bytes a second at which the fastest half of a train arrived, in a row; 0 when it cannot be told.

    Args:
        arrivals: as for `dispersion_rate`.
        datagram_bytes: length of each.
    """
    settled = _settled(arrivals)
    half = sum(count for count, _ in settled) / 2
    fastest = 0.0
    for first, (_, since) in enumerate(settled):
        came = 0
        for place, (count, until) in enumerate(settled[first + 1 :], 2):
            came += count
            # seen at fewer moments it is spaced by whoever looks
            if came >= half and place >= LEAST_ARRIVAL_TIMES and until > since:
                fastest = max(fastest, came * datagram_bytes / ((until - since) * 1e-9))
    return fastest


def least_rate(arrivals: Sequence[tuple[int, int]], datagram_bytes: int) -> float:
    """Bytes a second at which a train arrived at least, however late some of it was looked at; 0 when nothing is sure.

    Args:
        arrivals: as for `dispersion_rate`.
        datagram_bytes: length of each.
    """
    nanoseconds = arrivals[-1][1] - arrivals[0][1] if arrivals else 0
    if nanoseconds <= 0 or any(count < 1 for count, _ in arrivals):
        return 0.0
    return sum(count for count, _ in arrivals[1:]) * datagram_bytes / (nanoseconds * 1e-9)


@dataclasses.dataclass(frozen=True, slots=True)
class Train:
    """What to send so many times, now.

    Attributes:
        datagram: its bytes.
        padding: bytes to send behind each.
        count: how many.
    """

    datagram: bytes
    padding: int
    count: int = TRAIN_DATAGRAMS


class JointAnswer(NamedTuple):
    """How one of several trains arrived that went to different peers at one moment, or were wanted of them.

    Attributes:
        began: that moment, seconds.
        seconds: from it until the train had come, and the way back, or the way of what wanted it.
        spread: from its first datagram's arrival to its last's, seconds.
        came: how many of its datagrams.
        sent: how many there were.
    """

    began: float
    seconds: float
    spread: float
    came: int
    sent: int


class ProbingSide:
    """Sends trains until one is answered with a rate, and no more than TRAINS. Times in seconds of one clock.

    Attributes:
        joint: what the latest of those that went with others has told; None while that is not known.
        most_came: of one that went alone, whatever that told of the rate.
    """

    def __init__(self) -> None:
        self.joint: JointAnswer | None = None
        self._joint: dict[int, tuple[float, int]] = {}
        self._train = 0
        self._padding = 0
        self._short: PathState | None = None
        self._room = TRAIN_DATAGRAMS
        self._unanswered: dict[int, tuple[float, int]] = {}
        self._due: float | None = None
        self._awaited_until = 0.0
        self._sent_at = 0.0
        self._is_heard = self._is_answered = False
        self.most_came = False
        self._wanted = self._wanted_trains = 0

    def start(self, now: float) -> Train:
        """The first train, or the next."""
        self._train += 1
        self._unanswered[self._train] = now, self._padding
        self._sent_at = now
        self._awaited_until = self._awaited_until or now + UNHEARD_SECONDS
        self._due = now + ANSWER_SECONDS * 2 ** max(0, self._train - TRAINS)
        return Train(padded_probe(self._train, TRAIN_DATAGRAMS), self._padding)

    def start_joint(self, began: float, count: int) -> Train:
        """One that others go with, to other peers, from this moment on; it says nothing of this path alone.

        It is no longer than what came of one that went alone: the queues of this way hold no more.
        """
        count = min(count, self._room)
        self._train += 1
        self.joint, self._joint = None, {self._train: (began, count)}
        return Train(padded_probe(self._train, count), 0, count)

    def on_wanted(self, number: int, count: int) -> Train | None:
        """One that the peer wants, who sees how it arrives; None where it is late, or has had as many as it may.

        It is no longer than what came of one that went alone, as with `start_joint`.
        """
        if number <= self._wanted or self._wanted_trains >= MOST_TRAINS:
            return None
        self._wanted = number
        self._wanted_trains += 1
        self._train += 1
        count = max(1, min(count, self._room))
        return Train(padded_probe(self._train, count), 0, count)

    def _on_joint_answer(self, answer: PathProbeAnswer, began: float, count: int, now: float) -> None:
        came = sum(number for number, _ in answer.arrivals)
        # what came last did so when the others had, and no later than the answer went
        spread = answer.arrivals[-1][1] * 1e-9 if answer.arrivals else -1.0
        held = answer.held_ns * 1e-9 - spread
        # its first datagram came after that moment
        if 0 < came <= count and held >= 0 and 0 <= spread <= now - began - held:
            self.joint = JointAnswer(began, now - began - held, spread, came, count)

    def on_answer(self, answer: PathProbeAnswer, now: float) -> PathState | None:
        """What it says of the path; of a train that another has followed already, too: a slow path answers late."""
        joint = self._joint.pop(answer.train, None)
        if joint is not None:
            self._on_joint_answer(answer, *joint, now)
            return None
        sent = self._unanswered.pop(answer.train, None)
        if self._due is None or sent is None:
            return None
        self._is_answered = True
        came = sum(count for count, _ in answer.arrivals)
        self.most_came = self.most_came or came > ROOM_SHARE * TRAIN_DATAGRAMS
        sent_at, padding = sent
        round_trip = now - sent_at - answer.held_ns * 1e-9
        if round_trip <= 0 or came > TRAIN_DATAGRAMS:
            return None
        if not padding:
            self._room = max(came, LEAST_JOINT_DATAGRAMS)
        length = DATAGRAM_BYTES + padding
        rate, least = dispersion_rate(answer.arrivals, length), least_rate(answer.arrivals, length)
        if not padding and max(rate or 0.0, least) > FAST_RATE:
            if not self._padding:
                # what is so fast is no slow path, whatever the longer one tells
                self._padding, self._due, self._awaited_until = LONG_PADDING_BYTES, now, now
        elif rate is not None or (padding and least > FAST_RATE):
            self._due = None
            believed = _believed(min(rate or least, MOST_RATE), came)
            found = PathState(believed, round_trip, _loss(answer, padding))
            fastest = 0.0 if self._padding else fastest_rate(answer.arrivals, DATAGRAM_BYTES)
            if _is_jittered(fastest, believed):
                found = dataclasses.replace(found, rtt_variation=_variation(answer.arrivals, fastest, round_trip))
                self._padding, self._due, self._short = JITTERED_PADDING_BYTES, now, found
                return found
            if self._short is None:
                return found
            nearest = min(round_trip, self._short.min_rtt)
            return dataclasses.replace(self._short, rate=max(believed, self._short.rate), min_rtt=nearest)
        elif _is_no_slow_path(answer, length, round_trip):
            self._awaited_until = now
        return None

    def on_heard(self, now: float) -> Train | None:
        """A train of the peer has come: one of ours, at once, where those before may have gone to nobody."""
        if self._is_heard or self._due is None:
            return None
        self._is_heard = True
        self._awaited_until = min(self._awaited_until, now + AWAITED_SECONDS)
        is_early = not self._is_answered and now > self._sent_at + HEARD_SECONDS
        return self.start(now) if is_early and self._train < MOST_UNANSWERED_TRAINS else None

    def is_awaited(self, now: float) -> bool:
        """Whether what these trains tell may be about to come."""
        return self._due is not None and now < self._awaited_until

    def awaited_until(self) -> float | None:
        """When that is over, if they tell nothing."""
        return None if self._due is None else self._awaited_until

    def timer(self) -> float | None:
        """When to call `on_timer`, or None."""
        return self._due

    def on_timer(self, now: float) -> Train | None:
        """What to send as at the start; None when there is nothing more to be had, or it is too early."""
        if self._due is None or now < self._due:
            return None
        if self._train < (TRAINS if self._is_answered else MOST_UNANSWERED_TRAINS):
            return self.start(now)
        self._due = None
        return None


def _believed(rate: float, came: int) -> float:
    """What of the rate at which a train arrived to begin with, when so many of it came."""
    has_room = came > ROOM_SHARE * TRAIN_DATAGRAMS or rate <= SLOW_PATH_RATE
    return rate if has_room else rate * came / TRAIN_DATAGRAMS


def _is_no_slow_path(answer: PathProbeAnswer, datagram_bytes: int, round_trip: float) -> bool:
    """Whether so much of a train has come so soon that the path is no slow one, at however few moments it was seen."""
    came = sum(count for count, _ in answer.arrivals)
    if came <= ROOM_SHARE * TRAIN_DATAGRAMS:
        return False
    return came * datagram_bytes > SLOW_PATH_RATE * (round_trip + answer.arrivals[-1][1] * 1e-9)


def _is_jittered(fastest: float, rate: float) -> bool:
    """Whether a train of which half came so fast, and all at this rate, was held up: packets are early and late by
    chance."""
    return fastest > max(JITTERED_GAIN * rate, LEAST_JITTERED_RATE)


def _variation(arrivals: Sequence[tuple[int, int]], fastest: float, round_trip: float) -> float:
    """By how much round trips vary where a train of short datagrams was held up: a standard deviation, seconds."""
    came = sum(count for count, _ in arrivals)
    held_up = arrivals[-1][1] * 1e-9 - came * DATAGRAM_BYTES / fastest
    # nothing is held up for longer than it is under way, whatever the peer says
    return HELD_UP_SHARE * min(max(held_up, 0.0), round_trip)


def _loss(answer: PathProbeAnswer, padding: int) -> float | None:
    """What a packet's chance of being lost is at most, roughly; of so few as a short train has nobody can tell."""
    whole = sum(count for count, _ in answer.arrivals) == TRAIN_DATAGRAMS
    return 1 / LONG_TRAIN_PACKETS if padding == LONG_PADDING_BYTES and whole else None


class ProbedSide:
    """Takes down how the peer's trains arrive. Times in seconds of one clock.

    Attributes:
        rate: bytes a second at which the latest train came that went alone; None where that cannot be told, as on fast
            paths, where the length of what comes next is not known here. Behind one that was held up it is not, either.
        wanted: how the latest came that was wanted; None while that is not known.
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        self.wanted: JointAnswer | None = None
        self._wants: tuple[float, int] | None = None
        self._wants_number = 0
        self._wanted_began: float | None = None
        self._is_fast = self._is_jittered = False
        self._train = 0
        self._trains = 0
        self._count = 0
        self._came = 0
        self._first_at = 0.0
        self._last_at = 0.0
        self._arrivals: list[tuple[int, int]] = []

    def want(self, began: float, count: int) -> TrainWanted:
        """What asks for a train of so many datagrams at most, which others are wanted with, from this moment on."""
        self.wanted, self._wants = None, (began, count)
        self._wants_number += 1
        return TrainWanted(self._wants_number, count)

    def on_probe(self, probe: PathProbe, now: float) -> PathProbeAnswer | None:
        """A datagram of a train; the answer, with its last."""
        if len(probe.padding) < LEAST_PADDING_BYTES or probe.count < 1:
            # it would make the link look faster than it is, or is of no train
            return None
        wanted_began = self._wants[0] if self._wants is not None and probe.count <= self._wants[1] else None
        if probe.train > self._train and (wanted_began is not None or self._trains < MOST_TRAINS):
            self._trains += wanted_began is None
            self._wanted_began = wanted_began
            self._train, self._count, self._came = probe.train, min(probe.count, TRAIN_DATAGRAMS), 0
            self._first_at = now
            self._arrivals = []
        elif probe.train != self._train or not self._count:
            # of a train that was answered, or superseded, or is one too many
            return None
        self._note(now)
        return self._answer(now) if self._came >= self._count else None

    def timer(self) -> float | None:
        """When to call `on_timer`, or None."""
        return self._last_at + QUIET_SECONDS if self._count else None

    def on_timer(self, now: float) -> PathProbeAnswer | None:
        """The answer to a train whose end did not come."""
        if not self._count or now < self._last_at + QUIET_SECONDS:
            return None
        return self._answer(now)

    def _note(self, now: float) -> None:
        since = round((now - self._first_at) * 1e9)
        self._came += 1
        self._last_at = now
        if self._arrivals and self._arrivals[-1][1] == since:
            self._arrivals[-1] = (self._arrivals[-1][0] + 1, since)
        else:
            self._arrivals.append((1, since))

    def _answer(self, now: float) -> PathProbeAnswer:
        count, self._count = self._count, 0
        answer = PathProbeAnswer(self._train, tuple(self._arrivals), round((now - self._first_at) * 1e9))
        if self._wanted_began is not None:
            self._note_wanted(self._wanted_began, count)
            return answer
        rate = dispersion_rate(self._arrivals, DATAGRAM_BYTES)
        self._is_fast |= max(rate or 0.0, least_rate(self._arrivals, DATAGRAM_BYTES)) > FAST_RATE
        if rate is not None and not self._is_fast and not self._is_jittered:
            self.rate = rate
            self._is_jittered = _is_jittered(fastest_rate(self._arrivals, DATAGRAM_BYTES), rate)
        return answer

    def _note_wanted(self, began: float, count: int) -> None:
        """It has come, or what of it does: it is not wanted any more, unless another one is since."""
        if self._wants is not None and self._wants[0] == began:
            self._wants = None
            self.wanted = JointAnswer(began, self._last_at - began, self._last_at - self._first_at, self._came, count)
