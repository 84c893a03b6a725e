"""What an opener knows of the slots that have been written into over an earlier connection."""

from __future__ import annotations

from fedrdma_fate.security.ciphers import AES
from fedrdma_fate.security.key_schedule import DirectionKeys, PathKeys
from fedrdma_fate.security.sealing import PathOpener, PathSealing
from tests.support.endpoints import MemoryWire
from tests.support.engine import Pair, outgoing, slot_for

BODY = bytes(range(256)) * 64


def opener() -> PathOpener:
    keys = PathKeys(*[DirectionKeys(b"d" * 32, b"c" * 32, b"a" * 32)] * 2)
    return PathSealing.of_keys(keys, AES, "integrity").opener


def test_what_resumes_is_not_received_in_place_before_it_was_looked_at_and_what_is_new_is() -> None:
    pair = Pair()
    pair.connect()
    message = outgoing(BODY)
    pair.grant(slot_for(message))
    pair.carry()
    pair.outgoing.submit(message, pair.now)
    pair.carry()
    pair.progress(most=1)
    pair.lose_path()
    (resumed,) = pair.incoming._granted
    next_path = opener()
    pair.incoming.path_up(MemoryWire().ends[1], pair.now, next_path)
    assert not next_path.lands_in_place(resumed)
    assert next_path.lands_in_place(resumed + 1)
    # the grant is over, and its number free
    pair.incoming.on_return(resumed)
    assert next_path.lands_in_place(resumed)
