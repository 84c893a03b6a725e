"""The fault injector itself: what is planned happens, and nothing else."""

from __future__ import annotations

import dataclasses
import itertools
import select
import threading
from collections.abc import Sequence

import pytest

from fedrdma_fate.core.x.chunking import immediate_of
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import Completion, CompletionKind, EndpointAddress, RemoteSlot, Role, Slot
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from tests.support.faulty import TRUNCATED_TURNS, FaultPlan, FaultyEndpoint, FaultyTransport

TARGET = RemoteSlot(1, 0, 1 << 20)
LANDED = Completion(CompletionKind.LANDED, immediate=1, offset=8, length=16)
IMMEDIATE = Completion(CompletionKind.IMMEDIATE, immediate=1)
DONE = Completion(CompletionKind.WRITE_DONE, work_request=1)


class Recorder:
    """An endpoint that remembers what it was asked, and completes what it is told."""

    transport = "recorder"

    def __init__(self) -> None:
        self.posted: list[tuple[object, ...]] = []
        self.ready: list[Completion] = []
        self.closed = 0

    def expose(self, grant: int, slot: Slot) -> RemoteSlot:
        return RemoteSlot(grant, 0, slot.length)

    def withdraw(self, grant: int) -> None:
        self.posted.append(("withdraw", grant))

    def drain(self, grant: int) -> None:
        self.posted.append(("drain", grant))

    def post_write(self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int) -> None:
        self.posted.append((work_request, source, target, target_offset))

    def post_bytes(
        self, work_request: int, data: bytes, target: RemoteSlot, target_offset: int, immediate: int
    ) -> None:
        self.posted.append((work_request, data, target, target_offset, immediate))

    def post_chunk(
        self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int, queue_pair: int, immediate: int
    ) -> None:
        del source, target, target_offset, queue_pair, immediate
        self.posted.append(("chunk", work_request))

    def poll_set(self) -> Sequence[tuple[int, int]]:
        return [(0, select.POLLIN)]

    def progress(self) -> Sequence[Completion]:
        ready, self.ready = self.ready, []
        return ready

    def close(self) -> None:
        self.closed += 1


@dataclasses.dataclass
class RecorderTransport:
    """Gives out recorders."""

    name: str = "recorder"
    address: EndpointAddress = dataclasses.field(default_factory=dict)

    def open(self, role: Role) -> RecorderTransport:
        del role
        return self

    def connect(self, peer: EndpointAddress, timeout: float) -> Recorder:
        del peer, timeout
        return Recorder()

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def slot() -> Slot:
    return Slot(SharedRegion.create("region", 4096), 0, 4096)


def faulty(plan: FaultPlan) -> tuple[FaultyEndpoint, Recorder]:
    inner = Recorder()
    return FaultyEndpoint(inner, plan), inner


def lost(error: pytest.ExceptionInfo[TransportError]) -> bool:
    return error.value.code is ErrorCode.LINK_LOST and "fault plan" in error.value.message


def test_a_plan_without_faults_changes_nothing(slot: Slot) -> None:
    endpoint, inner = faulty(FaultPlan())
    endpoint.post_write(1, slot, TARGET, 7)
    endpoint.post_bytes(2, b"abc", TARGET, 9, 3)
    inner.ready = [DONE, LANDED, IMMEDIATE]
    assert endpoint.progress() == [DONE, LANDED, IMMEDIATE]
    assert inner.posted == [(1, slot, TARGET, 7), (2, b"abc", TARGET, 9, 3)]
    assert endpoint.poll_set() == inner.poll_set()
    endpoint.close()
    endpoint.close()
    assert inner.closed == 2


def test_the_link_breaks_after_so_many_bytes(slot: Slot) -> None:
    endpoint, inner = faulty(FaultPlan(break_after_bytes=4096 + 3))
    endpoint.post_write(1, slot, TARGET, 0)
    endpoint.post_bytes(2, b"abc", TARGET, 0, 1)
    with pytest.raises(TransportError) as error:
        endpoint.post_bytes(3, b"d", TARGET, 0, 1)
    assert lost(error)
    assert len(inner.posted) == 2
    assert inner.closed == 1
    with pytest.raises(TransportError):
        endpoint.progress()
    endpoint.close()


@pytest.mark.parametrize("operation", ["expose", "withdraw", "post_write", "post_bytes", "progress"])
def test_the_link_breaks_at_the_nth_call_of_an_operation(slot: Slot, operation: str) -> None:
    endpoint, _ = faulty(FaultPlan(break_at=(operation, 2)))  # type: ignore[arg-type]
    calls = {
        "expose": lambda: endpoint.expose(1, slot),
        "withdraw": lambda: endpoint.withdraw(1),
        "post_write": lambda: endpoint.post_write(1, slot, TARGET, 0),
        "post_bytes": lambda: endpoint.post_bytes(1, b"x", TARGET, 0, 1),
        "progress": endpoint.progress,
    }
    for call in calls.values():
        call()
    for other in calls.keys() - {operation}:
        calls[other]()
    with pytest.raises(TransportError) as error:
        calls[operation]()
    assert lost(error)
    endpoint.close()


def test_silence_withholds_everything_and_breaks_nothing(slot: Slot) -> None:
    endpoint, inner = faulty(FaultPlan(silent_after_writes=1))
    endpoint.post_write(1, slot, TARGET, 0)
    endpoint.post_write(2, slot, TARGET, 0)
    inner.ready = [DONE, LANDED]
    assert endpoint.progress() == []
    assert endpoint.poll_set() == []
    assert len(inner.posted) == 1
    endpoint.close()


def test_delayed_completions_all_come_in_order_and_keep_the_loop_awake() -> None:
    endpoint, inner = faulty(FaultPlan(seed=1, delay_completions=4))
    all_of_them = [Completion(CompletionKind.WRITE_DONE, work_request=number) for number in range(20)]
    inner.ready = list(all_of_them)
    came = [list(endpoint.progress())]
    assert came[0] != all_of_them, "none was delayed"
    assert len(endpoint.poll_set()) == 2
    came += [list(endpoint.progress()) for _ in range(5)]
    assert list(itertools.chain.from_iterable(came)) == all_of_them
    assert len(endpoint.poll_set()) == 1
    endpoint.close()


def test_only_arrivals_are_doubled() -> None:
    endpoint, inner = faulty(FaultPlan(duplicate_share=1.0))
    inner.ready = [DONE, LANDED, IMMEDIATE]
    assert endpoint.progress() == [DONE, LANDED, LANDED, IMMEDIATE, IMMEDIATE]
    endpoint.close()


def test_the_chosen_landed_write_has_one_byte_changed(slot: Slot) -> None:
    endpoint, inner = faulty(FaultPlan(seed=3, corrupt_landed=frozenset({2})))
    endpoint.expose(1, slot)
    inner.ready = [LANDED]
    endpoint.progress()
    assert not any(slot.view)
    inner.ready = [LANDED, LANDED]
    endpoint.progress()
    changed = [at for at, byte in enumerate(slot.view) if byte]
    assert len(changed) == 1
    assert LANDED.offset <= changed[0] < LANDED.offset + LANDED.length
    endpoint.close()


def test_the_chosen_posted_bytes_have_one_byte_changed_the_same_for_the_same_seed() -> None:
    sent: list[list[object]] = []
    for _ in range(2):
        endpoint, inner = faulty(FaultPlan(seed=9, corrupt_posted_bytes=frozenset({2})))
        for number in range(3):
            endpoint.post_bytes(number, bytes(64), TARGET, 0, 1)
        sent.append([entry[1] for entry in inner.posted])
        endpoint.close()
    assert sent[0] == sent[1]
    assert [isinstance(data, bytes) and len(data) - data.count(0) for data in sent[0]] == [0, 1, 0]


def test_plans_are_for_one_connection_each_and_then_all_is_well() -> None:
    transport = FaultyTransport(RecorderTransport(), [FaultPlan(refuse_connect=True)])
    with pytest.raises(TransportError) as error:
        transport.open("active").connect({}, 1)
    assert error.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
    endpoint = transport.open("active").connect({}, 1)
    assert endpoint.progress() == []
    endpoint.close()
    assert transport.name == "recorder"


def test_of_a_truncated_write_half_arrives_and_the_link_breaks_behind_it(slot: Slot) -> None:
    endpoint, inner = faulty(FaultPlan(truncate_at=2))
    endpoint.post_write(1, slot, TARGET, 0)
    endpoint.post_write(2, slot, TARGET, 8)
    endpoint.post_write(3, slot, TARGET, 16)
    assert inner.posted == [(1, slot, TARGET, 0), (2, slot.part(0, slot.length // 2), TARGET, 8)]
    for _ in range(TRUNCATED_TURNS - 1):
        endpoint.progress()
    with pytest.raises(TransportError) as error:
        endpoint.progress()
    assert lost(error)
    endpoint.close()


def test_of_truncated_bytes_nothing_is_reported(slot: Slot) -> None:
    endpoint, inner = faulty(FaultPlan(truncate_at=1))
    endpoint.post_bytes(1, b"abcd", TARGET, 0, 1)
    endpoint.post_write(2, slot, TARGET, 16)
    assert inner.posted == []
    endpoint.close()


def test_a_half_open_link_is_closed_for_the_peer_alone(slot: Slot) -> None:
    endpoint, inner = faulty(FaultPlan(half_open_after_writes=2))
    endpoint.post_write(1, slot, TARGET, 0)
    assert inner.closed == 0
    endpoint.post_write(2, slot, TARGET, 0)
    endpoint.post_write(3, slot, TARGET, 0)
    assert inner.closed == 1
    assert endpoint.progress() == []
    endpoint.withdraw(1)
    assert endpoint.expose(7, slot).length == slot.length
    endpoint.close()


def test_who_is_deaf_still_sends_and_who_is_mute_still_hears(slot: Slot) -> None:
    endpoint, inner = faulty(FaultPlan(deaf_after_writes=0))
    inner.ready = [LANDED]
    endpoint.post_write(1, slot, TARGET, 0)
    assert endpoint.progress() == []
    assert len(inner.posted) == 1
    endpoint, inner = faulty(FaultPlan(mute_after_writes=1))
    inner.ready = [LANDED]
    endpoint.post_write(1, slot, TARGET, 0)
    endpoint.post_write(2, slot, TARGET, 0)
    assert endpoint.progress() == [LANDED]
    assert len(inner.posted) == 1


def test_a_withdrawn_key_is_one_that_was_in_use_where_there_was_one(slot: Slot) -> None:
    endpoint, inner = faulty(FaultPlan(withdrawn_key_at=2))
    endpoint.post_write(1, slot, TARGET, 0)
    endpoint.post_write(2, slot, dataclasses.replace(TARGET, key=9), 0)
    endpoint.post_write(3, slot, dataclasses.replace(TARGET, key=9), 0)
    assert [post[2].key for post in inner.posted] == [TARGET.key, TARGET.key, 9]  # type: ignore[attr-defined]
    endpoint.close()


def test_a_key_that_still_opens_a_slot_is_none_that_was_withdrawn(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint, inner = faulty(FaultPlan(withdrawn_key_at=2))
    monkeypatch.setattr(type(inner), "opens_at_peer", lambda _inner, key: key == TARGET.key, raising=False)
    endpoint.post_write(1, slot, TARGET, 0)
    endpoint.post_write(2, slot, dataclasses.replace(TARGET, key=9), 0)
    assert inner.posted[1][2].key not in (TARGET.key, 9)  # type: ignore[attr-defined]
    endpoint.close()


def test_only_chunks_and_datagrams_overtake_each_other() -> None:
    endpoint, inner = faulty(FaultPlan(seed=1, reorder_share=1.0))
    chunks = [Completion(CompletionKind.CHUNK_IMMEDIATE, immediate=number) for number in range(3)]
    inner.ready = [LANDED, IMMEDIATE, *chunks]
    first, second, *rest = endpoint.progress()
    assert [first, second] == [LANDED, IMMEDIATE]
    assert rest != chunks
    assert sorted(each.immediate for each in rest) == [0, 1, 2]
    endpoint.close()


def test_a_chunk_is_lost_from_a_moment_on(slot: Slot) -> None:
    inner, begun = Recorder(), threading.Event()
    endpoint = FaultyEndpoint(inner, FaultPlan(lost_always=frozenset((7,)), lost_from=begun))
    for work_request, transfer in enumerate((1, 2)):
        for index in (6, 7):
            endpoint.post_chunk(10 * work_request + index, slot, TARGET, 0, 0, immediate_of(transfer, index))
        begun.set()
    assert inner.posted == [("chunk", 6), ("chunk", 7), ("chunk", 16)]


def test_the_transport_counts_what_has_happened(slot: Slot) -> None:
    transport = FaultyTransport(RecorderTransport(), [FaultPlan(mute_after_writes=1)] * 2)
    endpoint = transport.open("active").connect({}, 1)
    endpoint.post_write(1, slot, TARGET, 0)
    assert transport.strikes == 0
    endpoint.post_write(1, slot, TARGET, 0)
    assert transport.strikes == 1
    transport.heal()
    endpoint = transport.open("active").connect({}, 1)
    for _ in range(3):
        endpoint.post_write(1, slot, TARGET, 0)
    assert transport.strikes == 1
