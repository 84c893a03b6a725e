"""Two gateways' peers, step by step: receive slots, and who waits for them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from fedrdma_fate.core.plan import HEADER_SPACE_BYTES
from fedrdma_fate.engine.events import GrantRequested
from fedrdma_fate.engine.link_thread import LinkHandle
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, MemoryPoolError
from fedrdma_fate.wire.frames import (
    GrantRequest,
    Refused,
)
from tests.support.twin import Twin
from tests.support.twin_play import Play, peer_of, pull, sent_by, work


def test_a_payload_that_no_receive_slot_can_ever_hold_is_refused_and_both_sides_know(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(twin: Twin) -> None:
        key = twin.put("a", "huge", bytes(1_500_000))
        assert key is not None
        waiting = pull(twin, key)
        await twin.connect()
        await work(twin)
        with pytest.raises(FedRDMAError) as pushed:
            twin.halves["a"].context.mailbox.sessions.raise_push_failure("s", key.source)
        with pytest.raises(FedRDMAError) as pulled:
            await waiting
        for error in (pushed.value, pulled.value):
            assert error.code is ErrorCode.PAYLOAD_TOO_LARGE
        assert twin.halves["a"].context.send_pool.stats().slots == 0

    play(scenario)
    told = [
        record.getMessage() for record in caplog.records if ErrorCode.PAYLOAD_TOO_LARGE.value in record.getMessage()
    ]
    assert any(text.startswith("refused transfer") for text in told)
    assert any("was not delivered to b" in text for text in told)


def test_a_payload_as_large_as_the_receive_memory_gets_through_the_rings_of_all(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        assert twin.halves["b"].credits_held() == 2
        body = random.Random(1).randbytes(2**20 - HEADER_SPACE_BYTES)
        arrived = pull(twin, twin.put("a", "m", body))
        await work(twin, 100)
        assert await arrived == body
        await work(twin)
        await twin.quiesce()

    play(scenario)


def test_after_a_large_message_the_next_like_it_starts_without_asking_until_others_need_the_room(
    play: Play,
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        receiving = twin.halves["b"].peer.receiving
        asked: list[GrantRequest] = []
        answer = receiving.on_grant_request

        def on_grant_request(request: GrantRequest, link: LinkHandle) -> None:
            asked.append(request)
            answer(request, link)

        receiving.on_grant_request = on_grant_request  # type: ignore[method-assign]
        for length in (140_000, 140_010, 140_020):
            arrived = pull(twin, twin.put("a", f"m{length}", bytes(length), "fedrdma-x"))
            await work(twin, 100)
            assert await arrived == bytes(length)
            await work(twin)
            # the ring, and one more as long as there is room for two of those
            assert twin.halves["b"].credits_held() == 3
        assert len(asked) == 1
        body = bytes(2**20 - HEADER_SPACE_BYTES)
        arrived = pull(twin, twin.put("a", "all of it", body, "fedrdma-x"))
        await work(twin, 100)
        assert await arrived == body
        await twin.quiesce()

    play(scenario)


def test_the_slot_for_another_large_message_is_granted_as_soon_as_its_task_lets_go_of_the_last(
    play: Play,
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        key = twin.put("a", "m", bytes(300_000), "fedrdma-x")
        await work(twin, 100)
        assert twin.halves["b"].credits_held() == 2, "there is room for one more like it, and not for two"
        await pull(twin, key)
        await work(twin)
        assert twin.halves["b"].credits_held() == 3

    play(scenario)


def test_a_first_large_message_of_fedrdma_x_starts_without_asking_and_takes_no_more_room_than_it_needs(
    play: Play,
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        receiving, pool = twin.halves["b"].peer.receiving, twin.halves["b"].context.receive_pool
        receiving.on_grant_request = None  # type: ignore[method-assign, assignment]
        assert twin.halves["b"].credits_held() == 3
        assert pool.stats().leased_bytes == 2 * 128 * 1024 + 3 * 2**20 // 8
        key = twin.put("a", "m", bytes(140_000))
        await work(twin, 100)
        assert twin.halves["a"].peer.sending.pending == 0
        # the slot that it came in, a ring, and one for the next like it, in steps of 64 KiB
        assert pool.stats().leased_bytes == 262_144 + 2 * 128 * 1024 + 262_144
        assert await pull(twin, key) == bytes(140_000)

    play(scenario, mode="fedrdma-x")


def test_what_was_granted_ahead_and_is_too_small_makes_room_for_what_is_asked_for(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        body = bytes(2**20 - 300_000)
        arrived = pull(twin, twin.put("a", "m", body))
        recalls: list[object] = []
        twin.halves["b"].peer.paths.main.link.recall_credits = lambda: recalls.append(1)  # type: ignore
        await work(twin, 100)
        assert await arrived == body
        assert recalls == []
        await twin.quiesce()

    play(scenario, mode="fedrdma-x")


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"mode": "fedrdma-e"}, id="another mode"),
        pytest.param(
            {"mode": "fedrdma-x", "memory": {"receive_bytes": "1MiB", "ring_slot_bytes": "400KiB", "ring_slots": 1}},
            id="no larger than the ring's",
        ),
        pytest.param(
            {"mode": "fedrdma-x", "memory": {"receive_bytes": "1MiB", "ring_slot_bytes": "4KiB", "warm": False}},
            id="cold memory",
        ),
    ],
)
def test_where_it_would_not_help_nothing_large_is_granted_ahead(play: Play, settings: dict[str, Any]) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        held = twin.halves["b"].peer.receiving._granted.values()
        assert held
        assert not any(grant.large for grant in held)

    play(scenario, **settings)


def test_only_payloads_that_had_the_link_to_themselves_tune_it(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        sending = twin.halves["a"].peer.sending
        noted: list[int] = []
        sending.tuners["tcp"].on_transfer = (  # type: ignore[method-assign, assignment]
            lambda *told: noted.append(told[1].total_bytes)
        )
        for lengths in ((100_001,), (100_002, 100_003), (100_004,)):
            for arrived in [pull(twin, twin.put("a", f"m{length}", bytes(length))) for length in lengths]:
                await work(twin, 100)
                await arrived
        assert noted == [100_001, 100_004]
        await twin.quiesce()

    play(scenario)


def test_a_peer_that_is_gone_holds_no_credits(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        assert twin.halves["b"].context.receive_pool.stats().slots == 2
        await twin.lose_control("b")
        await twin.turn("b")
        assert twin.halves["b"].context.receive_pool.stats().slots == 0

    play(scenario)


def test_a_peer_that_is_gone_waits_for_no_memory(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        pool = twin.halves["b"].context.receive_pool
        held = pool.lease(700_000, "task")
        assert held is not None
        key = twin.put("a", "m", random.Random(1).randbytes(600_000))
        await work(twin)
        assert pool.stats().waiting == 1
        await twin.lose_control("b")
        await twin.settle()
        assert pool.stats().waiting == 0
        held.release()
        await twin.quiesce()
        assert len(await twin.get(key)) == 600_000  # type: ignore[arg-type]

    play(scenario)


def test_a_request_for_a_slot_that_holds_no_header_is_refused(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        for slot_bytes in (-1, 0, 63):
            peer_of(twin, "b")._on_link_event("tcp", GrantRequested(GrantRequest("tcp", 1, slot_bytes)))
            await twin.settle()
        assert [frame.code for frame in sent_by(twin, "b", Refused)] == [ErrorCode.MALFORMED_FRAME.value] * 3
        assert peer_of(twin, "b").receiving._requests == {}

    play(scenario)


class NoPages:
    """Keeps the pages of a cold region whose file system is full."""

    def take(self, offset: int, length: int) -> None:
        raise MemoryPoolError(ErrorCode.REGION_UNAVAILABLE, f"no memory for {length} bytes at {offset}.")

    def give_back(self, offset: int, length: int) -> None:
        raise AssertionError(f"{length} bytes at {offset} were never taken")


def test_where_there_are_no_pages_for_a_slot_ahead_of_time_none_is_granted_and_later_it_is(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        half = twin.halves["b"]
        pool, link = half.context.receive_pool, peer_of(twin, "b").paths.main.link
        half.peer.receiving._ahead["tcp"] = 300_000
        before = pool.stats()
        pool._pages = NoPages()
        half.peer.receiving.fill_ring(link, "tcp")
        assert pool.stats() == before
        pool._pages = None
        half.peer.receiving.fill_ring(link, "tcp")
        assert half.credits_held() == 3
        await twin.quiesce()

    play(scenario)


def test_a_slot_that_the_peer_may_still_write_into_is_never_leased_again(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        peer = peer_of(twin, "b")
        stuck, other = sorted(peer.receiving._granted)[:2]
        transport: Any = twin.transports["b"]["tcp"]
        wire = transport.wires[len(transport.wires)]
        end = next(end for end in wire.ends if any(slot.offset == stuck for _, slot in end._exposed.values()))
        end.stuck = {grant for grant, slot in end._exposed.values() if slot.offset == stuck}
        wire.break_down("the test cut it")
        for _ in range(20):
            await work(twin, 2)
            await asyncio.sleep(0.1)
        assert peer.paths.main.up, "it is renewed"
        assert other in peer.receiving._granted
        assert stuck not in peer.receiving._granted
        pool = twin.halves["b"].context.receive_pool
        taken = []
        while (lease := pool.lease(4096, "others")) is not None:
            taken.append(lease)
        assert stuck not in {lease.slot.offset for lease in taken}
        for lease in taken:
            lease.release()

    play(scenario)
    assert "bytes of receive memory stay unused: a may still write there" in caplog.text
