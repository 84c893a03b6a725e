"""The virtual data path: order, time, loss, damage and breaks."""

from __future__ import annotations

import random

import pytest

from fedrdma_fate.wire.frames import ControlFrame, Ping
from tests.support.sim.clock import VirtualClock
from tests.support.sim.endpoint import ExposedSlots, SparseRegion
from tests.support.sim.link import ControlChannel, DataPath, Faults, LinkProfile, Write

LINK = LinkProfile(rate_bps=8e6, rtt=0.02, mtu_bytes=100)
"""A megabyte a second."""


class ByteMemory:
    """Bytes from address 0 on."""

    def __init__(self, length: int) -> None:
        self._bytes = bytearray(length)

    def read(self, at: int, length: int) -> bytes:
        return bytes(self._bytes[at : at + length])

    def write(self, at: int, data: bytes) -> None:
        if not 0 <= at <= at + len(data) <= len(self._bytes):
            raise IndexError(f"[{at}, {at + len(data)}) is outside a memory of {len(self._bytes)} bytes")
        self._bytes[at : at + len(data)] = data


class Bench:
    """A path into a memory of 10 kB, and what it reports."""

    def __init__(self, profile: LinkProfile = LINK, faults: Faults | None = None, seed: int = 0) -> None:
        self.clock = VirtualClock()
        self.memory = ByteMemory(10_000)
        chance = random.Random(seed)
        self.path = DataPath(self.clock, profile, faults or Faults(), chance, self.memory, self)
        self.events: list[tuple[str, int, float]] = []

    def write_done(self, path: DataPath, work_request: int) -> None:  # noqa: ARG002
        self.events.append(("done", work_request, self.clock.now))

    def landed(self, path: DataPath, write: Write) -> None:  # noqa: ARG002
        self.events.append(("landed", write.work_request, self.clock.now))

    def lost(self, path: DataPath) -> None:  # noqa: ARG002
        self.events.append(("lost", 0, self.clock.now))

    def post(self, request: int, length: int, at: int = 0, *, announce: bool = False) -> None:
        self.path.post(Write(request, at, length, bytes([request]) * length, announce))

    def order_of(self, kind: str) -> list[int]:
        return [request for name, request, _ in self.events if name == kind]


def test_a_write_takes_its_bytes_at_the_links_rate_and_half_a_round_trip_each_way() -> None:
    bench = Bench()
    bench.post(1, 1000)
    bench.clock.run()
    assert bench.events == [("landed", 1, pytest.approx(0.011)), ("done", 1, pytest.approx(0.021))]
    assert bench.memory.read(0, 1001) == b"\x01" * 1000 + b"\x00"


def test_writes_share_the_link_one_after_the_other() -> None:
    bench = Bench()
    bench.post(1, 1000)
    bench.post(2, 1000)
    bench.clock.run()
    landed = [when for name, _, when in bench.events if name == "landed"]
    assert landed == [pytest.approx(0.011), pytest.approx(0.012)]


def test_jitter_disorders_chunks_but_an_announcing_write_lands_behind_them_all() -> None:
    bench = Bench(faults=Faults(jitter=1.0))
    for request in range(1, 20):
        bench.post(request, 10)
    bench.post(99, 10, announce=True)
    bench.clock.run()
    landed = bench.order_of("landed")
    assert landed[:-1] != sorted(landed[:-1])
    assert landed[-1] == 99


def test_loss_costs_time_and_no_data() -> None:
    clean, lossy = Bench(), Bench(LinkProfile(rate_bps=8e6, rtt=0.02, mtu_bytes=100, loss=0.1))
    for bench in (clean, lossy):
        bench.post(1, 10_000)
        bench.clock.run()
        assert bench.memory.read(0, 10_000) == b"\x01" * 10_000
    assert lossy.events[-1][2] > clean.events[-1][2] + 0.02


def test_the_time_lost_grows_with_the_loss_as_go_back_n_loses_a_round_trip_each_time() -> None:
    losses, packets = 0.001, 100_000
    profile = LinkProfile(rate_bps=1e12, rtt=0.02, mtu_bytes=1000, loss=losses)
    clock = VirtualClock()
    seconds = []
    for seed in range(20):
        bench = Bench(profile)
        path = DataPath(clock, profile, Faults(), random.Random(seed), ByteMemory(0), bench)
        start = clock.now
        path.post(Write(1, 0, packets * 1000, b"", False))
        clock.run()
        seconds.append(clock.now - start)
    assert sum(seconds) / len(seconds) == pytest.approx(losses * packets * 0.02, rel=0.1)


def test_a_packet_lost_too_often_breaks_the_path() -> None:
    bench = Bench(LinkProfile(loss=1.0, retry_limit=3))
    bench.post(1, 1000)
    bench.clock.run()
    assert [name for name, _, _ in bench.events] == ["lost"]


def test_a_closed_path_completes_nothing_and_leaves_any_packets_behind() -> None:
    left = set()
    for seed in range(10):
        bench = Bench(seed=seed)
        bench.post(1, 1000)
        bench.clock.run(until=0.005)
        bench.path.close()
        bench.post(2, 10)
        bench.clock.run()
        assert bench.events == []
        left.add(bench.memory.read(0, 1000).count(1) // 100)
    assert len(left) > 2, "a break must leave different pieces of a write behind"


def test_a_withdrawn_slot_is_not_written_any_more() -> None:
    bench = Bench()
    bench.post(1, 1000)
    bench.path.withdraw()
    bench.clock.run()
    assert not any(bench.memory.read(0, 1000))


def test_damage_changes_one_byte_of_the_writes_it_is_meant_for() -> None:
    bench = Bench(faults=Faults(corrupt_chunk=1.0))
    bench.post(1, 100)
    bench.post(2, 100, 200, announce=True)
    bench.clock.run()
    assert sum(byte != 1 for byte in bench.memory.read(0, 100)) == 1
    assert bench.memory.read(200, 100) == b"\x02" * 100


def test_a_torn_header_lands_in_two_pieces_and_is_announced_when_whole() -> None:
    bench = Bench(faults=Faults(torn_header=0.5))
    bench.post(1, 64, announce=True)
    bench.clock.run(until=0.2)
    assert bench.memory.read(0, 64) == b"\x01" * 32 + bytes(32)
    assert bench.events == []
    bench.clock.run()
    assert bench.memory.read(0, 64) == b"\x01" * 64
    assert bench.order_of("landed") == [1]


def test_an_announcement_may_come_twice_but_no_other_event() -> None:
    bench = Bench(faults=Faults(repeat_announcement=1.0))
    bench.post(1, 10)
    bench.post(2, 10, announce=True)
    bench.clock.run()
    assert bench.order_of("landed") == [1, 2, 2]
    assert bench.order_of("done") == [1, 2]


def test_control_frames_arrive_in_order_after_half_a_round_trip_of_their_own() -> None:
    clock = VirtualClock()
    got: list[tuple[ControlFrame | str, float]] = []
    channel = ControlChannel(clock, LinkProfile(control_rtt=0.5), lambda frame: got.append((frame, clock.now)))
    channel.send(Ping(1.0))
    channel.signal(lambda: got.append(("signal", clock.now)))
    channel.send(Ping(2.0))
    clock.run()
    assert got == [(Ping(1.0), 0.25), ("signal", 0.25), (Ping(2.0), 0.25)]


def test_a_write_beyond_the_end_of_a_slot_is_an_error_of_the_protocol_and_one_into_none_is_lost() -> None:
    slots = ExposedSlots()
    slot = SparseRegion(10_000).slot()
    remote = slots.expose(1, slot)
    slots.write(remote.address + 9_999, b"x")
    assert slot.view[9_999] == ord("x")
    for offset in (9_999, 10_001):
        with pytest.raises(ValueError, match="outside a slot"):
            slots.write(remote.address + offset, b"xy")
    slots.withdraw(1)
    slots.write(remote.address, b"x")
    assert slot.view[0] == 0
