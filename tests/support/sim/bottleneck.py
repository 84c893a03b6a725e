"""A bottleneck that several flows share: a rate, a drop-tail buffer in bytes, a round trip, random loss.

Simulated per message, not per packet. A message of n packets meets the random loss of each with one draw,
`1 - (1 - loss) ** n`, and the buffer as a fluid: while its bytes come in at the NIC's rate the buffer drains at the
link's, and what does not fit is dropped, from the message's end. A message that lost anything does not arrive, and what
of it got through takes its share of the link all the same.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from tests.support.sim.clock import VirtualClock

PACKET_OVERHEAD_BYTES = 100
"""Headers, preamble and gap of a packet on the wire."""


@dataclasses.dataclass(slots=True)
class BottleneckProfile:
    """What the bottleneck is like; may be changed while it runs.

    Attributes:
        rate_bps: bits a second.
        rtt: round trip without a queue, seconds.
        buffer_bytes: what the queue holds.
        loss: probability that a packet is lost at random.
        nic_bps: rate at which a sender's NIC puts bytes on the wire.
        mtu_bytes: payload of a packet.
    """

    rate_bps: float
    rtt: float = 0.02
    buffer_bytes: float = 4e6
    loss: float = 0.0
    nic_bps: float = 100e9
    mtu_bytes: int = 4096


class Nic:
    """A sender's port: messages leave one after the other."""

    def __init__(self) -> None:
        self.free_at = 0.0


class Bottleneck:
    """Carries messages of several flows, in one direction; the other one is never full."""

    def __init__(self, clock: VirtualClock, profile: BottleneckProfile, chance: random.Random) -> None:
        self.profile = profile
        self.dropped_messages = 0
        self.deepest_queue_bytes = 0.0
        self._clock = clock
        self._chance = chance
        self._queue = 0.0
        self._at = 0.0

    def post(self, nic: Nic, length: int, landed: Callable[[], None], lost: Callable[[], None] | None = None) -> None:
        """Send a message through; one of the two is called when it arrives, or would have."""
        profile = self.profile
        packets = max(1, -(-length // profile.mtu_bytes))
        wire = length + packets * PACKET_OVERHEAD_BYTES
        nic.free_at = max(self._clock.now, nic.free_at) + wire * 8 / profile.nic_bps
        spoilt = profile.loss > 0 and self._chance.random() < 1 - (1 - profile.loss) ** packets
        self._clock.at(nic.free_at, lambda: self._enqueue(wire, wire * 8 / profile.nic_bps, spoilt, landed, lost))

    def _enqueue(
        self, wire: int, span: float, spoilt: bool, landed: Callable[[], None], lost: Callable[[], None] | None
    ) -> None:
        profile, now = self.profile, self._clock.now
        rate = profile.rate_bps / 8
        self._queue = max(0.0, self._queue - (now - self._at) * rate)
        self._at = now
        # what came in drained meanwhile is not in the queue; a part of the message always passes straight through
        fits = self._queue + wire - min(span * rate, wire) <= profile.buffer_bytes
        self._queue = self._queue + wire if fits else max(self._queue, profile.buffer_bytes)
        self.deepest_queue_bytes = max(self.deepest_queue_bytes, min(self._queue, profile.buffer_bytes))
        arrival = now + self._queue / rate + profile.rtt / 2
        if fits and not spoilt:
            self._clock.at(arrival, landed)
            return
        self.dropped_messages += 1
        if lost is not None:
            self._clock.at(arrival, lost)
