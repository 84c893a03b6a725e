"""One end has left a data path for another and comes back, of which the other end knows nothing: its link went on.

As where a gateway stood still: it finds the path lost before the control channel, and the peer has both up again.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

from fedrdma_fate.core.path import PathState
from fedrdma_fate.engine.link import Link
from fedrdma_fate.ports import ChunkService
from tests.support.endpoints import HeapRegion, MemoryWire
from tests.support.engine import SETTINGS, Pair, outgoing

BODY = random.Random(7).randbytes(40_000)
SLOW = PathState(1e5, 0.02, 0.0)
KNOWS = dataclasses.replace(SETTINGS, tells_digests=lambda: True, continues=lambda: True)
CARRIES = {
    "stream": ChunkService(),
    "queue pairs": ChunkService(reliable=False, self_paced=False, queue_pairs=2, mtu_bytes=500),
    "datagrams": ChunkService(reliable=False, self_paced=False, mtu_bytes=500, repairs_packets=True),
}


def wire_of(kind: str) -> MemoryWire:
    wire = MemoryWire()
    wire.chunk_service, wire.has_datagrams = CARRIES[kind], kind != "stream"
    return wire


def run(pair: Pair, seconds: float, until_bytes: int) -> None:
    """For so long, or until so much has come of a transfer."""
    ends_at = pair.now + seconds
    while pair.now < ends_at and not any(each.done_bytes >= until_bytes for each in pair.incoming.progress()):
        for request in pair.receiving.wanted:
            pair.grant(HeapRegion(request.slot_bytes).slot(), request.transfer)
        pair.receiving.wanted.clear()
        pair.carry()
        pair.progress(most=2)
        pair.now += 0.001
        for side in (pair.outgoing, pair.incoming):
            if (due := side.timer()) is not None and due <= pair.now:
                side.on_timer(pair.now)


# over a stream a payload as short as this is one chunk, where it may be cut anew
@pytest.mark.parametrize(("kind", "recut"), [(kind, recut) for kind in CARRIES for recut in {False, kind != "stream"}])
@pytest.mark.parametrize("come", [1000, 21_000, 36_000])
def test_what_was_under_way_comes_whole(kind: str, recut: bool, come: int) -> None:
    pair = Pair(KNOWS)
    pair.outgoing.memory.learn(SLOW, "probed")
    pair.connect(wire_of(kind))
    message = dataclasses.replace(outgoing(BODY, mode="fedrdma-x", chunk_bytes=1000), recut=recut)
    pair.outgoing.submit(message, pair.now)
    run(pair, 5.0, come)
    assert pair.incoming.progress(), "it has begun, and not ended"
    pair.lose_path()
    pair.sending.frames.clear()
    pair.receiving.frames.clear()
    pair.sender = Link("receiver", KNOWS, pair.sending.emit, pair.time)
    pair.outgoing = pair.sender._outgoing
    pair.outgoing.memory.learn(SLOW, "probed")
    pair.outgoing.submit(message.plain, pair.now)
    pair.connect(wire_of(kind))
    run(pair, 10.0, len(BODY) + 1)
    assert len(pair.sending.sent_messages) == 1
    ((_, slot, at),) = pair.receiving.received_offers
    assert slot.view[at : at + len(BODY)] == BODY
