"""What lies between the two ends: a reliable data path that may break, and an ordered control channel.

The data path behaves as a reliably connected queue pair: a lost packet costs time (go-back-N), never data, and a packet
lost too often breaks the path. Damage that the NIC does not see, torn headers, hints and completions out of order, and
announcements that come twice are injected on demand.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Protocol

from fedrdma_fate.wire.frames import ControlFrame, decode_frame, encode_frame
from tests.support.sim.clock import Event, VirtualClock
from tests.support.sim.memory import Memory


@dataclasses.dataclass(frozen=True, slots=True)
class LinkProfile:
    """A WAN link.

    Attributes:
        rate_bps: bottleneck rate, bits a second.
        rtt: round-trip time of data path and control channel, seconds.
        control_rtt: round-trip time of the control channel where it is another one, seconds.
        loss: probability that a packet is lost.
        mtu_bytes: packet size.
        retransmit_timeout: seconds until a loss is noticed that no later packet betrays.
        retry_limit: how often one packet is sent again before the path breaks.
    """

    rate_bps: float = 10e9
    rtt: float = 0.02
    control_rtt: float | None = None
    loss: float = 0.0
    mtu_bytes: int = 4096
    retransmit_timeout: float = 0.067
    retry_limit: int = 7


@dataclasses.dataclass(frozen=True, slots=True)
class Break:
    """The data path breaks.

    Attributes:
        at: when, seconds.
        downtime: seconds until it is connected again; None: never.
        same_slot: whether the receive slot is still the same afterwards.
    """

    at: float
    downtime: float | None = 0.1
    same_slot: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong beside loss.

    Attributes:
        corrupt_chunk: probability that a chunk lands with a wrong byte.
        corrupt_header: the same for a header.
        repeat_announcement: probability that a header is announced twice.
        jitter: chunks land, and are hinted and completed, up to so many seconds late and thus out of order.
        torn_header: seconds between the landing of a header's first half and of the rest.
        breaks: when the data path breaks.
    """

    corrupt_chunk: float = 0.0
    corrupt_header: float = 0.0
    repeat_announcement: float = 0.0
    jitter: float = 0.0
    torn_header: float = 0.0
    breaks: tuple[Break, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """A posted RDMA write; with `announce` it is one with immediate, and fenced.

    `data` may be empty where only the length matters.
    """

    work_request: int
    at: int
    length: int
    data: bytes
    announce: bool


class PathEvents(Protocol):
    """What a data path tells of its life."""

    def write_done(self, path: DataPath, work_request: int) -> None:
        """Sending side: a write is whole at the peer."""
        ...

    def landed(self, path: DataPath, write: Write) -> None:
        """Receiving side: a write has landed, perhaps announced twice."""
        ...

    def lost(self, path: DataPath) -> None:
        """The path has broken by itself."""
        ...


class DataPath:
    """One connection: writes go out one after the other at the link's rate, into one receive slot."""

    def __init__(
        self,
        clock: VirtualClock,
        profile: LinkProfile,
        faults: Faults,
        chance: random.Random,
        target: Memory,
        events: PathEvents,
    ) -> None:
        self._clock = clock
        self._profile = profile
        self._faults = faults
        self._chance = chance
        self._target = target
        self._events = events
        self._free_at = 0.0
        self._last_landing = 0.0
        self._under_way: dict[int, Write] = {}
        self._withdrawn = False
        self.closed = False

    def post(self, write: Write) -> None:
        """Queue a write; on a closed path it is lost."""
        if self.closed:
            return
        begin = max(self._clock.now, self._free_at)
        lost_time = self._time_lost(-(-write.length // self._profile.mtu_bytes))
        if lost_time is None:
            self._clock.at(begin, lambda: self._events.lost(self))
            return
        self._free_at = begin + write.length * 8 / self._profile.rate_bps + lost_time
        landing = self._free_at + self._profile.rtt / 2
        if write.announce:
            landing = max(landing, self._last_landing)
        else:
            landing += self._chance.uniform(0, self._faults.jitter)
        self._last_landing = max(self._last_landing, landing)
        self._under_way[write.work_request] = write
        self._clock.at(landing, lambda: self._land(write))

    def withdraw(self) -> None:
        """The slot is no longer granted: later writes miss it."""
        self._withdrawn = True

    def close(self) -> None:
        """Break: nothing completes any more, and of what was under way any packets may have landed."""
        self.closed = True
        for write in self._under_way.values():
            for start in range(0, len(write.data), self._profile.mtu_bytes):
                if self._chance.random() < 0.5:
                    self._place(write.at + start, write.data[start : start + self._profile.mtu_bytes])
        self._under_way.clear()

    def _land(self, write: Write) -> None:
        if self.closed:
            return
        data = self._damaged(write)
        if write.announce and self._faults.torn_header > 0:
            half = len(data) // 2
            self._place(write.at, data[:half])
            self._clock.after(self._faults.torn_header, lambda: self._complete(write, half, data[half:]))
        else:
            self._complete(write, 0, data)

    def _complete(self, write: Write, start: int, data: bytes) -> None:
        if self.closed:
            return
        del self._under_way[write.work_request]
        self._place(write.at + start, data)
        self._events.landed(self, write)
        if write.announce and self._chance.random() < self._faults.repeat_announcement:
            self._clock.after(self._chance.uniform(0, self._profile.rtt), lambda: self._repeat(write))
        self._clock.after(self._profile.rtt / 2, lambda: self._acknowledge(write))

    def _repeat(self, write: Write) -> None:
        if not self.closed:
            self._events.landed(self, write)

    def _acknowledge(self, write: Write) -> None:
        if not self.closed:
            self._events.write_done(self, write.work_request)

    def _place(self, at: int, data: bytes) -> None:
        if not self._withdrawn:
            self._target.write(at, data)

    def _damaged(self, write: Write) -> bytes:
        probability = self._faults.corrupt_header if write.announce else self._faults.corrupt_chunk
        if not write.data or self._chance.random() >= probability:
            return write.data
        data = bytearray(write.data)
        data[self._chance.randrange(len(data))] ^= self._chance.randint(1, 255)
        return bytes(data)

    def _time_lost(self, packets: int) -> float | None:
        """Seconds that go-back-N loses on a message of so many packets; None when a packet is lost for good.

        A loss is betrayed by the packet behind it, and costs the round trip that is sent in vain; the last packet, and
        one that is lost again, cost the retransmission time-out.
        """
        profile, seconds, sent = self._profile, 0.0, 0
        if profile.loss <= 0:
            return 0.0
        while True:
            sent += int(math.log(1 - self._chance.random()) / math.log1p(-min(profile.loss, 1 - 1e-9)))
            if sent >= packets:
                return seconds
            seconds += profile.retransmit_timeout if sent == packets - 1 else profile.rtt
            retries = 1
            while self._chance.random() < profile.loss:
                retries += 1
                if retries > profile.retry_limit:
                    return None
                seconds += profile.retransmit_timeout
            sent += 1


class ControlChannel:
    """One direction of the control channel: every frame arrives, in order, after half a round trip."""

    def __init__(self, clock: VirtualClock, profile: LinkProfile, receive: Callable[[ControlFrame], None]) -> None:
        self._clock = clock
        self._delay = (profile.rtt if profile.control_rtt is None else profile.control_rtt) / 2
        self._receive = receive

    def send(self, frame: ControlFrame) -> None:
        """Send a frame, as bytes."""
        raw = encode_frame(frame)
        self.signal(lambda: self._receive(decode_frame(raw)))

    def signal(self, event: Event) -> None:
        """Let the other end know of something else, in order with the frames."""
        self._clock.after(self._delay, event)
