"""Sealed payloads from link to link over every transport that leaves the host: by its streams, or in their slots."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedrdma_fate.core.plan import DEFAULT_CHUNK_BYTES, ChunkPlan
from fedrdma_fate.engine.link_thread import LinkThread
from fedrdma_fate.engine.payload import Outgoing, Payload
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.gateway.peers.path_keys import NEVER_SEALED, SEALED_IN_SLOT
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import Slot
from fedrdma_fate.security.ciphers import AES, CHACHA
from fedrdma_fate.security.key_schedule import DirectionKeys, PathKeys
from fedrdma_fate.security.sealing import PathSealing, Seal
from fedrdma_fate.wire.frames import Mode, Offer
from tests.conformance.pairs import ONE_OF_EACH, TRANSPORTS, Site
from tests.support.engine import DATAGRAM_KEYS, KEY, Recorded
from tests.support.rdma import skip_without_device
from tests.support.sites import eventually

MIB = 1024 * 1024
MODES: tuple[Mode, ...] = ("fedrdma", "fedrdma-e", "fedrdma-x")
LENGTHS = (0, 1, DEFAULT_CHUNK_BYTES, 5 * MIB + 13)
LONG = 6 * MIB
PATIENCE_SECONDS = 60.0
MOST_EXTRA_BYTES = 64 * 10**6
"""Of one end of a path, besides the regions that payloads lie in."""

PLAIN = [
    each
    for each in ONE_OF_EACH
    if each.values[0] not in NEVER_SEALED and not str(each.values[0]).endswith(("sealed", "integrity"))
]
"""The transports themselves: here links seal, as those of gateways do."""


class Ends:
    """Two links with threads over one transport; the test carries their frames, and grants what is asked for."""

    def __init__(self, name: str, directory: Path, regions: tuple[SharedRegion, SharedRegion], seal: Seal) -> None:
        self.heap_before = heap_bytes()
        self.seal = seal
        self.regions = regions
        self.transports = tuple(TRANSPORTS[name](Site(directory, region)) for region in regions)
        self.rings: list[SharedRegion] = []
        self.sending, self.receiving = Recorded(), Recorded()
        settings = LinkSettings(self.transports[0].name, idle_timeout=PATIENCE_SECONDS, sealing_region=self._ring)
        self.sender = LinkThread("passive", settings, self.sending.emit)
        self.receiver = LinkThread("active", settings, self.receiving.emit)
        self.attempts = 0
        self.grants = 0
        self.asked_by: set[int] = set()

    def _ring(self, length: int) -> SharedRegion:
        self.rings.append(SharedRegion.create("ring", length))
        return self.rings[-1]

    def connect(self) -> None:
        """A new data path, under new keys."""
        self.attempts += 1
        attempt = self.attempts
        active, passive = (each.open(role) for each, role in zip(self.transports, ("active", "passive"), strict=True))
        one_way = DirectionKeys(b"d" * 32, b"a" * 32, bytes([attempt]) * 32)
        keys = PathKeys(one_way, DirectionKeys(b"e" * 32, b"b" * 32, bytes([attempt + 100]) * 32))
        cipher = AES if attempt % 2 else CHACHA
        there = PathSealing.of_keys(keys.reversed, cipher, self.seal)
        here = PathSealing.of_keys(keys, cipher, self.seal)
        self.receiver.connect(passive, active.address, attempt, DATAGRAM_KEYS.reversed, there)
        self.sender.connect(active, passive.address, attempt, DATAGRAM_KEYS, here)
        for side in (self.sending, self.receiving):
            eventually(lambda side=side: [path for path in side.paths if path[1] == attempt])  # type: ignore[misc]
            assert ("up", attempt, "") in side.paths, side.paths

    def lose(self) -> None:
        """Both notice that the control channel is gone, with whatever was on its way by it, and so is the data path."""
        for link, events in ((self.sender, self.sending), (self.receiver, self.receiving)):
            link.suspend("the test cut it")
            eventually(lambda link=link: not link.backlog)  # type: ignore[misc]
            with events.happened:
                events.frames.clear()
                events.wanted.clear()
        self.asked_by.clear()

    def put(self, transfer: int, mode: Mode, length: int, chunk_bytes: int = DEFAULT_CHUNK_BYTES) -> None:
        """Send so many bytes of the sender's region."""
        plan = ChunkPlan(length, chunk_bytes)
        slot = Slot(self.regions[0], 0, max(length, 1))
        self.sender.send(Outgoing(transfer, KEY, "bytes", Payload(slot, length), plan, mode, recut=mode == "fedrdma-x"))

    def carry(self) -> None:
        """Carry frames both ways, and grant what is asked for."""
        for events, link in ((self.sending, self.receiver), (self.receiving, self.sender)):
            with events.happened:
                frames, events.frames = events.frames, []
                wanted, events.wanted = events.wanted, []
            for frame in frames:
                link.frame(frame)
            for request in wanted:
                # which may have come by a datagram as well
                if request.transfer not in self.asked_by:
                    self.asked_by.add(request.transfer)
                    self.grants += 1
                    self.receiver.grant(self.grants, Slot(self.regions[1], 0, request.slot_bytes), request.transfer)

    def has_begun(self) -> bool:
        """Whether the sender writes; the receiver is not told of it, so that this is not over soon."""
        with self.sending.happened:
            begun = any(isinstance(frame, Offer) for frame in self.sending.frames)
        if not begun:
            self.carry()
        return begun or bool(self.sending.sent_messages)

    def run_until_sent(self, count: int) -> None:
        """Until so many messages are known to have arrived."""

        def done() -> bool:
            self.carry()
            assert not self.sending.send_failures, self.sending.send_failures
            assert not self.receiving.receive_failures, self.receiving.receive_failures
            return len(self.sending.sent_messages) >= count

        eventually(done, PATIENCE_SECONDS)

    def newest(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """What came last."""
        offer, slot, payload_at = self.receiving.received_offers[-1]
        return np.frombuffer(slot.part(payload_at, offer.total_bytes).view, np.uint8)

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()
        for transport in self.transports:
            transport.close()
        for ring in self.rings:
            ring.close()


@pytest.fixture(params=PLAIN)
def name(request: pytest.FixtureRequest) -> str:
    skip_without_device(request.param)
    return str(request.param)


@pytest.fixture(params=["on", "integrity"])
def ends(
    name: str, request: pytest.FixtureRequest, shared_directory: Path, regions: tuple[SharedRegion, SharedRegion]
) -> Iterator[Ends]:
    made = Ends(name, shared_directory, regions, request.param)
    try:
        made.connect()
        yield made
    finally:
        made.close()


def heap_bytes() -> int:
    """Of this process, without what it shares: the regions."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def fill(region: SharedRegion, length: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Bytes of which no two pieces are equal; they lie in the region."""
    body = np.frombuffer(np.random.default_rng(seed).bytes(length), np.uint8)
    np.frombuffer(region.view[:length], np.uint8)[:] = body
    return body


@pytest.mark.parametrize("mode", MODES)
def test_sealed_payloads_of_every_size_arrive_as_they_were(ends: Ends, mode: Mode) -> None:
    for number, length in enumerate(LENGTHS, 1):
        body = fill(ends.regions[0], length, number)
        ends.put(number, mode, length)
        ends.run_until_sent(number)
        assert np.array_equal(ends.newest(), body), length
    assert not ends.sending.refused + ends.receiving.refused
    assert bool(ends.rings) == (ends.transports[0].name in SEALED_IN_SLOT), "else it was not sealed as it says"


@pytest.mark.parametrize("mode", MODES)
def test_sealing_takes_less_than_64_mb_for_each_path(ends: Ends, mode: Mode) -> None:
    fill(ends.regions[0], LONG, 9)
    ends.put(1, mode, LONG)
    ends.run_until_sent(1)
    # of both ends, and all that a link takes besides
    extra = heap_bytes() - ends.heap_before + sum(ring.length for ring in ends.rings)
    assert extra < 2 * MOST_EXTRA_BYTES, f"{extra / MIB:.1f} MiB"


@pytest.mark.parametrize("mode", MODES)
def test_a_sealed_payload_whose_path_is_lost_arrives_by_the_next_under_other_keys(ends: Ends, mode: Mode) -> None:
    body = fill(ends.regions[0], LONG, 7)
    ends.put(1, mode, LONG, MIB // 4)
    eventually(ends.has_begun)
    ends.lose()
    ends.connect()
    ends.run_until_sent(1)
    assert np.array_equal(ends.newest(), body)
