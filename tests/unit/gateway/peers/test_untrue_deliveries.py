"""A peer that says it has what it cannot have is not believed, and gets it all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrdma_fate.engine.payload import Payload
from fedrdma_fate.wire.errors import ErrorCode, WireError
from fedrdma_fate.wire.frames import Delivered, Goodbye
from tests.support.twin import PARTIES, Twin
from tests.support.twin_play import BODY, Play, key_to, player, pull, sent_by, work


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return player(tmp_path)


def _put_unfinished(twin: Twin) -> Payload:
    a = twin.halves["a"]
    lease = a.context.send_pool.lease(len(BODY), "task")
    assert lease is not None
    payload = Payload(lease.slot, len(BODY), written_from=len(BODY))
    a.peer.sending.put_payload(key_to(twin, PARTIES["b"]), "object", payload, lease, None)
    return payload


async def _write(twin: Twin, payload: Payload, start: int) -> None:
    payload.slot.view[start : payload.written_from] = BODY[start : payload.written_from]
    payload.on_written(start, ())
    twin.halves["a"].peer.sending.on_written(payload)
    await work(twin)


def _transfer(twin: Twin) -> int:
    (transfer,) = twin.halves["a"].peer.sending._transfers
    return transfer


def test_what_is_not_written_whole_is_not_delivered_whatever_the_peer_says(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        a, b = twin.halves["a"], twin.halves["b"]
        await twin.connect()
        await work(twin)
        payload = _put_unfinished(twin)
        await _write(twin, payload, len(BODY) // 2)
        assert b.stream is not None
        b.peer.send(Delivered(_transfer(twin)))
        await work(twin)
        # its channel ends, and the message waits for the next
        said = [frame.reason for frame in sent_by(twin, "a") if isinstance(frame, Goodbye)]
        assert not a.peer.connected, said
        assert a.peer.sending.pending == 1
        await _write(twin, payload, 0)
        await twin.quiesce()
        assert await pull(twin, key_to(twin, PARTIES["b"])) == BODY
        assert a.peer.sending.pending == 0

    play(scenario, mode="fedrdma-e")


def test_a_link_does_not_believe_it_of_a_datagram_either(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        a = twin.halves["a"]
        await twin.connect()
        await work(twin)
        payload = _put_unfinished(twin)
        await _write(twin, payload, len(BODY) // 2)
        for link in a.links():
            link._link._outgoing.on_delivered(_transfer(twin), 1.0)
        await work(twin)
        assert a.peer.sending.pending == 1
        await _write(twin, payload, 0)
        assert await pull(twin, key_to(twin, PARTIES["b"])) == BODY

    play(scenario, mode="fedrdma-e")


def test_what_no_data_path_has_had_is_not_delivered_whatever_the_peer_says(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        a = twin.halves["a"]
        twin.put("a", "m", BODY)
        with pytest.raises(WireError) as caught:
            a.peer.sending.on_delivered(_transfer(twin))
        assert caught.value.code is ErrorCode.MALFORMED_FRAME
        await twin.quiesce()
        assert await pull(twin, key_to(twin, PARTIES["b"])) == BODY

    play(scenario)
