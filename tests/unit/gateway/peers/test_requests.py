"""Requests for receive memory: how many of one peer are kept, and how many a sender makes at once."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from fedrdma_fate.core.credits import MOST_REQUESTS, MOST_SESSION_REQUESTS
from fedrdma_fate.gateway.config.schema import ReceiveConfig
from fedrdma_fate.gateway.link_sharing import LinkSharing
from fedrdma_fate.gateway.peers.receiving import MOST_REQUESTS_KEPT, Receiving, pool_owner
from fedrdma_fate.gateway.summand_grants import SummandGrants
from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.obs.complaints import Complaints
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import PROBE_TRANSFERS_FROM, Delivered, GrantRequest, MessageKey, Party, Refused
from tests.support.endpoints import HeapRegion
from tests.support.twin import Twin
from tests.support.twin_play import Play, pull, sent_by, work

KIB = 1024
PEERS = ["greedy", "honest"]


class Granting:
    """A link that notes what is granted."""

    def __init__(self) -> None:
        self.granted: list[int] = []

    def grant(self, grant: int, slot: object, transfer: int, kept: object = None) -> None:
        del grant, slot, kept
        self.granted.append(transfer)


class Gateway:
    """What two peers share."""

    def __init__(self) -> None:
        self.mode = "fedrdma-e"
        self.round_trip = 0.001
        pool = SlotPool(HeapRegion(4096 * KIB), "receive", sharers=[pool_owner(peer) for peer in PEERS])
        self.context: Any = SimpleNamespace(
            receive_pool=pool,
            sharing=LinkSharing(ReceiveConfig(), lambda _site, _share: None),
            tasks=set(),
            complaints=Complaints(),
            recalls={pool: []},
            making_room=set(),
            summand_grants=SummandGrants(),
            config=SimpleNamespace(mode_for=lambda _peer: self.mode),
            mailbox=SimpleNamespace(in_region=lambda _region: iter(()), find=lambda _key: None),
        )
        self.answers: dict[str, list[Any]] = {peer: [] for peer in PEERS}
        self.links: dict[str, Any] = {peer: Granting() for peer in PEERS}
        self.receiving = {
            peer: Receiving(
                peer,
                self.context,
                self.answers[peer].append,
                lambda: None,
                least_round_trip=lambda: self.round_trip,
            )
            for peer in PEERS
        }

    def ask(self, peer: str, transfer: int, slot_bytes: int) -> None:
        self.receiving[peer].on_grant_request(GrantRequest("tcp", transfer, slot_bytes), self.links[peer])

    def ask_early(self, peer: str, transfer: int, slot_bytes: int) -> None:
        self.receiving[peer].on_early_grant_request(GrantRequest("tcp", transfer, slot_bytes), self.links[peer])

    def ask_for(self, peer: str, transfer: int, key: MessageKey, *, early: bool = False) -> None:
        receiving = self.receiving[peer]
        ask = receiving.on_early_grant_request if early else receiving.on_grant_request
        ask(GrantRequest("tcp", transfer, 64 * KIB, key), self.links[peer])

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for receiving in self.receiving.values():
            receiving.forget_requests()
        await self.settle()


KEYS = [MessageKey("s", "masked", "t", Party("host", str(number)), Party("arbiter", "1")) for number in range(5)]


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_a_peer_that_asks_for_all_memory_20000_times_keeps_no_other_from_a_slot() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        most = gateway.context.receive_pool.most_bytes
        for transfer in range(1, 20_001):
            gateway.ask("greedy", transfer, most)
        await gateway.settle()
        for transfer in range(1, 4):
            gateway.ask("honest", transfer, 64 * KIB)
            await gateway.settle()
        assert gateway.links["honest"].granted == [1, 2, 3]
        await gateway.close()

    run(scenario())


def test_no_more_requests_of_a_peer_are_kept_than_its_limit_and_the_next_are_refused() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        for transfer in range(1, MOST_REQUESTS_KEPT + 51):
            gateway.ask("greedy", transfer, 1024 * KIB)
        await gateway.settle()
        assert len(gateway.context.tasks) <= MOST_REQUESTS_KEPT
        refused = gateway.answers["greedy"]
        assert len(refused) == 50
        assert all(isinstance(answer, Refused) and answer.code == ErrorCode.LIMIT_REACHED.value for answer in refused)
        await gateway.close()

    run(scenario())


def test_requests_for_no_transfer_get_no_slot_however_many_there_are() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        for _ in range(MOST_REQUESTS_KEPT):
            gateway.ask_early("greedy", 0, 4 * KIB)
            gateway.ask("greedy", 0, 4 * KIB)
            await gateway.settle()
        assert gateway.links["greedy"].granted == [], "nothing would count them"
        refused = gateway.answers["greedy"]
        assert len(refused) == MOST_REQUESTS_KEPT
        assert all(isinstance(answer, Refused) and answer.code == ErrorCode.MALFORMED_FRAME.value for answer in refused)
        await gateway.close()

    run(scenario())


def test_a_request_by_a_datagram_gets_what_is_free_and_the_frame_does_all_else() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        most = gateway.context.receive_pool.most_bytes
        gateway.ask_early("honest", 1, 64 * KIB)
        assert gateway.links["honest"].granted == [1], "at once"
        gateway.ask("honest", 1, 64 * KIB)
        gateway.ask_early("honest", 1, 64 * KIB)
        await gateway.settle()
        assert gateway.links["honest"].granted == [1], "once"
        # what waits, is refused, is a probe's or makes no sense is for the frame
        for transfer, slot_bytes in ((2, most), (3, 2 * most), (PROBE_TRANSFERS_FROM, 64 * KIB), (4, 63), (5, -1)):
            gateway.ask_early("honest", transfer, slot_bytes)
        await gateway.settle()
        assert gateway.links["honest"].granted == [1]
        assert (gateway.answers["honest"], gateway.receiving["honest"]._requests) == ([], {})
        await gateway.close()

    run(scenario())


def test_no_more_requests_by_datagrams_have_a_slot_than_a_peer_may_have() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        gateway.receiving["greedy"]._asked_by.update(
            dict.fromkeys(range(1, MOST_REQUESTS_KEPT), gateway.links["greedy"])
        )
        for transfer in (MOST_REQUESTS_KEPT, MOST_REQUESTS_KEPT + 1):
            gateway.ask_early("greedy", transfer, 64 * KIB)
        assert gateway.links["greedy"].granted == [MOST_REQUESTS_KEPT]
        assert gateway.answers["greedy"] == [], "the frame is answered"

    run(scenario())


def test_a_request_by_a_datagram_that_comes_after_the_end_gets_nothing() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        gateway.receiving["honest"]._remember(Delivered(1))
        gateway.ask_early("honest", 1, 64 * KIB)
        assert gateway.links["honest"].granted == []

    run(scenario())


def test_a_sender_asks_for_so_many_slots_at_once_and_all_its_payloads_arrive(play: Play) -> None:
    count = MOST_REQUESTS + 30

    async def scenario(twin: Twin) -> None:
        keys = [twin.put("a", f"m{number}", bytes([number % 251]) * 70_000) for number in range(count)]
        pulls = [pull(twin, key) for key in keys]
        await twin.connect()
        asked: set[int] = set()
        while not asked:
            await twin.turn("a")
            asked |= {frame.transfer for frame in sent_by(twin, "a", GrantRequest)}
            await twin.carry("a")
            await twin.turn("b")
            await twin.carry("b")
        assert len(asked) <= MOST_REQUESTS
        while not all(pulled.done() for pulled in pulls):
            await work(twin, 5)
        assert [pulled.result()[0] for pulled in pulls] == [number % 251 for number in range(count)]

    play(scenario, memory={"send_bytes": "32MiB", "receive_bytes": "1MiB", "ring_slots": 0})


def test_a_session_of_many_payloads_does_not_keep_anothers_from_asking(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        for number in range(MOST_REQUESTS + 30):
            twin.put("a", f"m{number}", bytes(70_000))
        twin.put("a", "late", bytes(70_000), session="another")
        await twin.connect()
        asked: set[int] = set()
        while not asked:
            await twin.turn("a")
            asked |= {frame.transfer for frame in sent_by(twin, "a", GrantRequest)}
            await twin.carry("a")
            await twin.turn("b")
            await twin.carry("b")
        pending = twin.halves["a"].peer.sending._transfers
        sessions = Counter(pending[transfer].outgoing.key.session for transfer in asked)
        assert sessions == {"s": MOST_SESSION_REQUESTS, "another": 1}

    play(scenario, memory={"send_bytes": "32MiB", "receive_bytes": "1MiB", "ring_slots": 0})


def test_updates_of_a_sum_get_slots_two_at_a_time_and_do_not_count_as_waiting_for_memory() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        expected = gateway.context.summand_grants.expect(KEYS)
        for transfer, key in enumerate(KEYS, 1):
            gateway.ask_for("honest", transfer, key)
        await gateway.settle()
        granted = gateway.links["honest"].granted
        assert granted == [1, 2]
        assert not gateway.receiving["honest"].waits_for_memory
        gateway.ask("honest", 9, 64 * KIB)
        gateway.ask_for("honest", 5, KEYS[4], early=True)
        await gateway.settle()
        assert granted == [1, 2, 9]
        expected.added(KEYS[1])
        await gateway.settle()
        assert granted == [1, 2, 9, 3]
        expected.close()
        await gateway.settle()
        assert granted == [1, 2, 9, 3, 4, 5]
        await gateway.close()

    run(scenario())


def test_one_that_waits_for_its_turn_asks_again_on_the_next_path() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        expected = gateway.context.summand_grants.expect(KEYS)
        for transfer, key in enumerate(KEYS[:3], 1):
            gateway.ask_for("honest", transfer, key)
        await gateway.settle()
        gateway.receiving["honest"].forget_requests()
        await gateway.settle()
        expected.added(KEYS[0])
        gateway.ask_for("honest", 3, KEYS[2])
        await gateway.settle()
        assert gateway.links["honest"].granted == [1, 2, 3]
        await gateway.close()

    run(scenario())


@pytest.mark.parametrize(
    ("mode", "round_trip", "granted"),
    [
        pytest.param("fedrdma-e", 0.03, 5, id="a far one, and each chunk is waited for"),
        pytest.param("fedrdma-e", math.inf, 5, id="nobody knows how far"),
        pytest.param("fedrdma-x", 0.03, 2, id="a far one, whose path one transfer fills"),
    ],
)
def test_where_two_do_not_fill_the_path_all_come_at_once(mode: str, round_trip: float, granted: int) -> None:
    async def scenario() -> None:
        gateway = Gateway()
        gateway.mode, gateway.round_trip = mode, round_trip
        gateway.context.summand_grants.expect(KEYS)
        for transfer, key in enumerate(KEYS, 1):
            gateway.ask_for("honest", transfer, key)
        await gateway.settle()
        assert len(gateway.links["honest"].granted) == granted
        await gateway.close()

    run(scenario())


def test_requests_of_probes_are_of_no_sum_whatever_message_they_name() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        expected = gateway.context.summand_grants.expect(KEYS)
        for number, key in enumerate(KEYS):
            gateway.ask_for("greedy", PROBE_TRANSFERS_FROM + number, key)
        for transfer, key in enumerate(KEYS[:3], 1):
            gateway.ask_for("greedy", transfer, key)
        await gateway.settle()
        assert gateway.links["greedy"].granted == [PROBE_TRANSFERS_FROM, 1, 2]
        refused = [answer for answer in gateway.answers["greedy"] if isinstance(answer, Refused)]
        assert len(refused) == len(KEYS) - 1, "one probe at a time has memory"
        expected.close()
        await gateway.settle()
        await gateway.close()

    run(scenario())
