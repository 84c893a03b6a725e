"""A bottleneck that several flows share: a rate, a drop-tail buffer in bytes, a round trip and its jitter, random loss.

Simulated per message, not per packet. A message of n packets meets the random loss of each with one draw,
`1 - (1 - loss) ** n`, and the buffer as a fluid: while its bytes come in at the NIC's rate the buffer drains at the
link's, and what does not fit is dropped, from the message's end. A message that lost anything does not arrive, and what
of it got through takes its share of the link all the same.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Sequence

from tests.support.sim.bad_paths import BurstLoss, FullLine, Policer
from tests.support.sim.clock import VirtualClock

PACKET_OVERHEAD_BYTES = 100
"""Headers, preamble and gap of a packet on the wire."""

_SLOT_SLACK = 1e-9
"""Of a slot: what comes just when one begins waits for no other, though doubles are not exact."""


@dataclasses.dataclass(slots=True)
class BottleneckProfile:
    """What the bottleneck is like; may be changed while it runs.

    Attributes:
        rate_bps: bits a second.
        rtt: round trip without a queue, seconds.
        jitter: by which a packet is earlier or later, evenly, on its way to the bottleneck, and an answer on its way
            back; not more than half a round trip. Seconds.
        reorders: with jitter, packets overtake each other; else they wait for those in front of them.
        buffer_bytes: what the queue holds.
        loss: probability that a packet is lost at random.
        loses_in_front: whether that never comes to the link, as in the testbed; else it has passed it.
        nic_bps: rate at which a sender's NIC puts bytes on the wire.
        mtu_bytes: payload of a packet.
        bursts: packets lost in a row, besides those lost at random.
        policer: in front of the queue; drops what it has no tokens for.
        line: in front of it, holds so many packets and drops the others.
        drops_whole_packets: of what does not fit a packet takes no room; else its beginning does.
        burst_bytes: that an idle link lets pass at once, as a token bucket does (the testbed's holds two packets).
        slot: what has come to the bottleneck goes on into its queue every so many seconds, as a radio lets it; 0: at
            once.
        back_slot: the same at the end of the way back.
    """

    rate_bps: float
    rtt: float = 0.02
    jitter: float = 0.0
    reorders: bool = False
    buffer_bytes: float = 4e6
    loss: float = 0.0
    nic_bps: float = 100e9
    mtu_bytes: int = 4096
    bursts: BurstLoss | None = None
    policer: Policer | None = None
    line: FullLine | None = None
    burst_bytes: float = 0.0
    drops_whole_packets: bool = False
    loses_in_front: bool = False
    slot: float = 0.0
    back_slot: float = 0.0


class Nic:
    """A sender's port: messages leave one after the other.

    Attributes:
        rate_bps: bits a second; None: that of the bottleneck's profile.
    """

    def __init__(self, rate_bps: float | None = None) -> None:
        self.free_at = 0.0
        self.rate_bps = rate_bps


class DelayLine:
    """A way that all take half a round trip for, but for the jitter."""

    def __init__(self, clock: VirtualClock, profile: BottleneckProfile, chance: random.Random) -> None:
        self._clock = clock
        self._profile = profile
        self._chance = chance
        self._last = 0.0

    def half_trip(self) -> float:
        """How long what is sent now is on its way, seconds."""
        way = self._profile.rtt / 2
        if not self._profile.jitter:
            return way
        return self.jittered(self._clock.now + way - self._profile.jitter) - self._clock.now

    def jittered(self, earliest: float, packets: int = 1, seconds: float = 0.0) -> float:
        """When what cannot come before this moment does: the last of so many packets, spread over so many seconds."""
        most = 2 * self._profile.jitter
        if not most:
            return earliest
        last = max(earliest - seconds * number / packets + self._chance.uniform(0, most) for number in range(packets))
        if not self._profile.reorders:
            last = self._last = max(self._last, last)
        return last


class WayBack(DelayLine):
    """The same, and what has come goes on every so often."""

    def half_trip(self) -> float:
        """How long what is sent now is on its way, seconds."""
        now = self._clock.now
        return in_slots(now + super().half_trip(), self._profile.back_slot) - now


def in_slots(comes: float, slot: float) -> float:
    """When what comes at this moment goes on: every so many seconds, 0: at once."""
    return max(comes, math.ceil(comes / slot - _SLOT_SLACK) * slot) if slot else comes


class Bottleneck:
    """Carries messages of several flows, in one direction; the other one is never full.

    Attributes:
        profile: what it is like.
        answers: the other direction.
        dropped_messages: that did not fit, or were lost at random.
        deepest_queue_bytes: the most that was queued.
    """

    def __init__(
        self, clock: VirtualClock, profile: BottleneckProfile, chance: random.Random, *, jitter_seed: int = 2
    ) -> None:
        self.profile = profile
        self.dropped_messages = 0
        self.deepest_queue_bytes = 0.0
        self._clock = clock
        self._chance = chance
        self._queue = 0.0
        self._at = 0.0
        # losses are drawn as they would be without jitter
        self._before = DelayLine(clock, profile, random.Random(jitter_seed))
        self.answers = WayBack(clock, profile, random.Random(jitter_seed + 1))

    def post(self, nic: Nic, length: int, landed: Callable[[], None], lost: Callable[[], None] | None = None) -> None:
        """Send a message through; one of the two is called when it arrives, or would have."""
        profile = self.profile
        packets = max(1, -(-length // profile.mtu_bytes))
        wire = length + packets * PACKET_OVERHEAD_BYTES
        nic_bps = nic.rate_bps or profile.nic_bps
        nic.free_at = max(self._clock.now, nic.free_at) + wire * 8 / nic_bps
        spoilt = profile.loss > 0 and self._chance.random() < 1 - (1 - profile.loss) ** packets
        span = wire * 8 / nic_bps
        if spoilt and profile.loses_in_front:
            # one for certain, and of the others as many as chance has it
            others = sum(self._chance.random() < profile.loss for _ in range(packets - 1))
            wire = wire * (packets - 1 - others) // packets
        if profile.bursts is not None:
            spoilt = profile.bursts.loses_any(packets) or spoilt
        comes = in_slots(self._before.jittered(nic.free_at, packets, span), profile.slot)
        self._clock.at(comes, lambda: self._enqueue(wire, span, spoilt, landed, lost))

    def take(
        self, length: int, rate_bps: float, landed: Callable[[], None], lost: Callable[[], None] | None = None
    ) -> None:
        """A message has just come in at this rate, from a link in front; nothing of it is lost at random."""
        wire = self.wire_bytes(length)
        self._enqueue(wire, wire * 8 / rate_bps, spoilt=False, landed=landed, lost=lost)

    def wire_bytes(self, length: int) -> int:
        """Of a message, with the headers of its packets."""
        return length + max(1, -(-length // self.profile.mtu_bytes)) * PACKET_OVERHEAD_BYTES

    def set_rate(self, rate_bps: float) -> None:
        """The link is as fast as this from now on; what is queued already comes when it would have."""
        self._drain(self._clock.now)
        self.profile.rate_bps = rate_bps

    def follow(self, trace: Sequence[tuple[float, float]]) -> None:
        """The link's rate follows (seconds from now, bits a second)."""
        for seconds, rate_bps in trace:
            self._clock.after(seconds, functools.partial(self.set_rate, rate_bps))

    def _drain(self, now: float) -> None:
        # below 0 are the tokens of an idle link
        drained = self._queue - (now - self._at) * self.profile.rate_bps / 8
        self._queue = max(-self.profile.burst_bytes, drained)
        self._at = now

    def _enqueue(
        self, wire: int, span: float, spoilt: bool, landed: Callable[[], None], lost: Callable[[], None] | None
    ) -> None:
        profile, now = self.profile, self._clock.now
        if profile.line is not None:
            packet = profile.mtu_bytes + PACKET_OVERHEAD_BYTES
            passed = min(wire, profile.line.takes(-(-wire // packet), now) * packet)
            wire, spoilt = passed, spoilt or passed < wire
        if profile.policer is not None:
            # what it lets through takes its share of the link, though the message is spoilt without the rest
            passed = profile.policer.passes(wire, span, profile.mtu_bytes + PACKET_OVERHEAD_BYTES, now)
            wire, spoilt = passed, spoilt or passed < wire
        self._drain(now)
        rate = profile.rate_bps / 8
        # what came in drained meanwhile is not in the queue; a part of the message always passes straight through
        room = profile.buffer_bytes - self._queue + min(span * rate, wire)
        fits = wire <= room
        if fits:
            self._queue += wire
        elif profile.drops_whole_packets:
            packet = profile.mtu_bytes + PACKET_OVERHEAD_BYTES
            self._queue += max(room, 0.0) // packet * packet
        else:
            self._queue = max(self._queue, profile.buffer_bytes)
        self.deepest_queue_bytes = max(self.deepest_queue_bytes, min(self._queue, profile.buffer_bytes))
        arrival = now + max(self._queue, 0.0) / rate + profile.rtt / 2 - profile.jitter
        if fits and not spoilt:
            self._clock.at(arrival, landed)
            return
        self.dropped_messages += 1
        if lost is not None:
            self._clock.at(arrival, lost)


class AccessLink(Bottleneck):
    """A sender's own link, with a buffer and losses of its own, in front of one that many share."""

    def __init__(
        self, clock: VirtualClock, profile: BottleneckProfile, chance: random.Random, shared: Bottleneck
    ) -> None:
        """
        Args:
            clock: virtual time.
            profile: of the own link, with the round trip of the whole way.
            chance: draws losses.
            shared: the link behind it, whose own round trip is 0.
        """
        super().__init__(clock, profile, chance)
        self._shared = shared

    def post(self, nic: Nic, length: int, landed: Callable[[], None], lost: Callable[[], None] | None = None) -> None:
        """Send a message through both; the packets of one that has lost some go on, in vain."""
        rate_bps, rest = self.profile.rate_bps, length - self.profile.mtu_bytes

        def tell_lost() -> None:
            if lost is not None:
                lost()

        def on_lost() -> None:
            # all but one: of a message rarely more are lost at random
            self._shared.take(rest, rate_bps, tell_lost, lost)

        super().post(
            nic,
            length,
            lambda: self._shared.take(length, rate_bps, landed, lost),
            on_lost if rest > 0 else lost,
        )
