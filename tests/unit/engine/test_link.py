"""A link with its thread: commands, events, the data path, and the end."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any, NoReturn

import pytest

from fedrdma_fate.engine.events import TransferProgress
from fedrdma_fate.engine.link import Link
from fedrdma_fate.engine.link_thread import LinkHandle, LinkThread
from fedrdma_fate.engine.outgoing import OutgoingTransfers
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.ports import Completion, CompletionKind, EndpointAddress
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from fedrdma_fate.wire.frames import Delivered, Grant, GrantRecall, GrantRequest, Offer, Ping
from tests.support.endpoints import HeapRegion, MemoryEndpoint, MemoryTransport, MemoryWire
from tests.support.engine import DATAGRAM_KEYS, KEY, Recorded, outgoing, slot_for
from tests.support.sites import eventually

BODY = os.urandom(4567)


class Ends:
    """Two links, sender and receiver, and the frames between them as the test carries them."""

    def __init__(self) -> None:
        self.wires: dict[int, MemoryWire] = {}
        self.transport = MemoryTransport("memory", self.wires)
        self.sending, self.receiving = Recorded(), Recorded()
        settings = LinkSettings(transport="memory")
        self.sender = LinkThread("b", settings, self.sending.emit)
        self.receiver = LinkThread("a", settings, self.receiving.emit)
        self.attempts = 0

    def connect(self) -> None:
        """A new data path, up on both sides."""
        self.attempts += 1
        passive, active = self.transport.open("passive"), self.transport.open("active")
        offer: EndpointAddress = passive.address
        self.receiver.connect(passive, {}, self.attempts, DATAGRAM_KEYS.reversed)
        self.sender.connect(active, offer, self.attempts, DATAGRAM_KEYS)
        for side in (self.sending, self.receiving):
            eventually(lambda side=side: ("up", self.attempts, "") in side.paths)

    def carry(self) -> None:
        """Carry what waits, both ways."""
        for events, link in ((self.sending, self.receiver), (self.receiving, self.sender)):
            with events.happened:
                frames, events.frames = events.frames, []
            for frame in frames:
                link.frame(frame)

    def run_until(self, events: list[Any], count: int = 1) -> None:
        """Carry frames until a list of events holds so many."""

        def done() -> bool:
            self.carry()
            return len(events) >= count

        eventually(done)

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()
        for wire in self.wires.values():
            for end in wire.ends:
                end.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_a_message_goes_from_link_to_link(ends: Ends) -> None:
    ends.connect()
    message = outgoing(BODY)
    ends.receiver.grant(1, slot_for(message))
    ends.sender.send(message)
    ends.run_until(ends.sending.sent_messages)
    ((offer, slot, at),) = ends.receiving.received_offers
    assert bytes(slot.part(at, offer.total_bytes).view) == BODY


def test_a_request_for_a_slot_reaches_the_owner_behind_what_was_given_back_before_it(ends: Ends) -> None:
    ends.connect()
    slot = HeapRegion(5000).slot()
    ends.receiver.grant(1, slot, transfer=9)
    ends.run_until(ends.receiving.returned)
    ends.receiver.frame(GrantRequest("memory", 9, 5000))
    ends.receiving.wait_for(ends.receiving.wanted)
    assert ends.receiving.returned == [slot]


def test_both_sides_are_told_when_the_data_path_breaks(ends: Ends) -> None:
    ends.connect()
    ends.wires[1].break_down("the test cut it")
    for side in (ends.sending, ends.receiving):
        side.wait_for(side.paths, 2)
        assert side.paths[1][:2] == ("lost", 1)
        assert "the test cut it" in side.paths[1][2]


def test_a_data_path_that_cannot_be_connected_is_told_with_its_attempt(ends: Ends) -> None:
    ends.transport.refusing = True
    ends.sender.connect(ends.transport.open("active"), {"token": 1}, 5, DATAGRAM_KEYS)
    ends.sending.wait_for(ends.sending.paths)
    assert ends.sending.paths[0][:2] == ("lost", 5)
    assert ErrorCode.TRANSPORT_UNAVAILABLE.value in ends.sending.paths[0][2]


def test_a_suspended_link_resumes_with_the_next_data_path(ends: Ends) -> None:
    ends.connect()
    ends.sender.send(outgoing(BODY))
    ends.sender.suspend("the control channel is gone")
    ends.receiver.suspend("the control channel is gone")
    eventually(lambda: ends.wires[1].broken)
    with ends.sending.happened:
        ends.sending.frames.clear()
    ends.connect()
    eventually(lambda: any(isinstance(frame, GrantRequest) for frame in ends.sending.frames))
    ends.carry()
    ends.receiving.wait_for(ends.receiving.wanted)
    ends.receiver.grant(1, HeapRegion(ends.receiving.wanted[0].slot_bytes).slot(), 1)
    ends.run_until(ends.sending.sent_messages)


def test_credits_are_recalled_from_the_peer(ends: Ends) -> None:
    ends.connect()
    slot = HeapRegion(5000).slot()
    ends.receiver.grant(1, slot)
    ends.receiver.recall_credits()
    eventually(lambda: GrantRecall("memory", 1) in ends.receiving.frames)
    ends.run_until(ends.receiving.returned)


def test_an_offer_is_declined_with_the_answer_of_the_owner(ends: Ends) -> None:
    ends.connect()
    message = outgoing(BODY)
    ends.receiver.grant(1, slot_for(message))
    eventually(lambda: [frame for frame in ends.receiving.frames if isinstance(frame, Grant)])
    ends.carry()
    ends.sender.send(message)
    (offer,) = eventually(lambda: [frame for frame in ends.sending.frames if isinstance(frame, Offer)])
    ends.receiver.decline(offer, Delivered(offer.transfer))
    ends.receiving.wait_for(ends.receiving.returned)
    eventually(lambda: Delivered(offer.transfer) in ends.receiving.frames)


def test_the_snapshot_shows_transfers_and_forgets_them_when_they_are_over(ends: Ends) -> None:
    ends.connect()
    message = outgoing(BODY)
    ends.sender.send(message)
    (waiting,) = eventually(ends.sender.progress)
    assert (waiting.transfer, waiting.state, waiting.done_bytes) == (1, "waiting-for-grant", 0)
    ends.receiver.grant(1, slot_for(message), 1)
    ends.run_until(ends.sending.sent_messages)
    eventually(lambda: not ends.sender.progress() and not ends.receiver.progress())


def test_what_ends_by_a_timer_and_nothing_else_leaves_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1.0
    link = Link("a", LinkSettings("memory"), Recorded().emit, lambda: now)
    slices = [2]
    opened = TransferProgress(1, KEY, "receive", "fedrdma-x", "opening", 100, 50, 0.0)
    openings = link._incoming._openings
    monkeypatch.setattr(openings, "timer", lambda: 0.0 if slices[0] else None)
    monkeypatch.setattr(openings, "progress", lambda: [opened] if slices[0] else [])
    monkeypatch.setattr(openings, "on_timer", lambda _now: slices.__setitem__(0, max(0, slices[0] - 1)))
    link.turn(deque([lambda _link: None]))
    link.turn()
    assert link.snapshot == [opened]
    for _ in range(10):
        due = link.turn().until
        now = max(now, due if due is not None else now)
    assert link.snapshot == []
    assert link.turn().until is None, "and then it sleeps"


def test_when_nothing_is_under_way_the_snapshot_says_so_at_once_and_nobody_wakes_for_it() -> None:
    link = Link("a", LinkSettings("memory"), Recorded().emit, lambda: 1.0)
    wait = link.turn(deque([lambda _link: None]))
    assert link.snapshot == []
    assert wait.until is None


def test_while_something_is_under_way_the_snapshot_is_taken_anew() -> None:
    link = Link("a", LinkSettings("memory"), Recorded().emit, lambda: 1.0)
    wait = link.turn(deque([lambda link: link.send(outgoing(BODY))]))
    assert wait.until is not None
    link.turn()
    assert [each.state for each in link.snapshot] == ["waiting-for-grant"]


@pytest.mark.parametrize("shows_all", [True, False])
def test_after_a_completion_a_link_looks_again_only_where_readiness_does_not_show_all(
    monkeypatch: pytest.MonkeyPatch, shows_all: bool
) -> None:
    endpoint = MemoryWire().ends[0]
    monkeypatch.setattr(MemoryEndpoint, "readiness_shows_all", shows_all)
    monkeypatch.setattr(MemoryEndpoint, "progress", lambda _: [Completion(CompletionKind.STRAY, length=1)])
    link = Link("a", LinkSettings("memory"), Recorded().emit, lambda: 1.0)
    link._endpoint = endpoint
    assert link.turn().look_again is not shows_all


@pytest.mark.parametrize("shows_all", [True, False])
def test_while_no_descriptor_is_ready_nothing_is_looked_for_where_readiness_shows_all(
    monkeypatch: pytest.MonkeyPatch, shows_all: bool
) -> None:
    looked: list[bool] = []
    monkeypatch.setattr(MemoryEndpoint, "readiness_shows_all", shows_all)
    monkeypatch.setattr(MemoryEndpoint, "progress", lambda _: looked.append(True) or [])
    link = Link("a", LinkSettings("memory"), Recorded().emit, lambda: 1.0)
    link._endpoint = MemoryWire().ends[0]
    link.turn(ready=False)
    assert bool(looked) is not shows_all
    looked.clear()
    link.turn(ready=True)
    assert looked, "one is"


def test_a_sign_of_life_on_the_data_path_is_noted(ends: Ends) -> None:
    ends.connect()
    before = ends.receiver.heard_at
    message = outgoing(BODY)
    ends.receiver.grant(1, slot_for(message))
    ends.sender.send(message)
    ends.run_until(ends.sending.sent_messages)
    assert ends.receiver.heard_at > before


def test_an_idle_link_sleeps(ends: Ends) -> None:
    ends.connect()
    message = outgoing(BODY)
    ends.receiver.grant(1, slot_for(message))
    ends.sender.send(message)
    ends.run_until(ends.sending.sent_messages)
    eventually(lambda: all(not link._link._changed for link in (ends.sender, ends.receiver)))
    used = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - used < 0.1


# --- the end ---


def test_a_link_that_ends_gives_all_granted_slots_back(ends: Ends) -> None:
    ends.connect()
    slots = [HeapRegion(5000).slot() for _ in range(3)]
    for grant, slot in enumerate(slots, 1):
        ends.receiver.grant(grant, slot)
    ends.receiver.retire()
    ends.receiver.close()
    assert ends.receiving.returned == slots
    assert not ends.receiver.alive


def test_a_slot_granted_on_a_link_that_has_ended_comes_back_at_once(ends: Ends) -> None:
    ends.receiver.close()
    slot = HeapRegion(5000).slot()
    ends.receiver.grant(1, slot)
    assert ends.receiving.returned == [slot]


class UnwantedDraft:
    """One that must be closed, and never connected."""

    address: EndpointAddress = MappingProxyType({})

    def __init__(self) -> None:
        self.closed = threading.Event()

    def connect(self, peer: EndpointAddress, timeout: float) -> NoReturn:
        raise AssertionError((peer, timeout))

    def close(self) -> None:
        self.closed.set()


def test_a_draft_for_a_link_that_has_ended_is_closed(ends: Ends) -> None:
    draft = UnwantedDraft()
    ends.sender.close()
    ends.sender.connect(draft, {}, 1, DATAGRAM_KEYS)
    assert draft.closed.is_set()


# --- bugs of ours ---


def test_after_an_internal_error_transfers_fail_slots_come_back_and_the_link_goes_on(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(self: OutgoingTransfers, *arguments: object) -> NoReturn:
        raise KeyError(f"a bug in {self} with {arguments}")

    ends.connect()
    slot = HeapRegion(90_000).slot()
    ends.receiver.grant(1, slot)
    ends.sender.send(outgoing(BODY))
    monkeypatch.setattr(OutgoingTransfers, "on_grant", bug)
    eventually(lambda: [frame for frame in ends.receiving.frames if isinstance(frame, Grant)])
    ends.carry()
    ends.sending.wait_for(ends.sending.send_failures)
    assert ends.sending.send_failures[0][1] is ErrorCode.UNEXPECTED_EVENT
    ends.receiving.wait_for(ends.receiving.returned)
    monkeypatch.undo()
    ends.connect()
    ends.receiver.grant(2, slot)
    ends.sender.send(outgoing(BODY, transfer=2))
    ends.run_until(ends.sending.sent_messages)


def test_a_frame_that_no_link_has_a_use_for_does_not_end_the_link(ends: Ends) -> None:
    ends.connect()
    ends.receiver.frame(Ping(0.0))
    ends.receiving.wait_for(ends.receiving.paths, 2)
    assert ends.receiving.paths[1] == ("lost", 1, "internal error, see the gateway's log")
    ends.connect()
    assert ends.receiver.alive


def test_a_bug_that_a_peer_finds_again_and_again_is_logged_once_with_its_traceback(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    for attempt in range(1, 5):
        ends.connect()
        ends.receiver.frame(Ping(0.0))
        eventually(lambda number=attempt: ("lost", number) in [path[:2] for path in ends.receiving.paths])
    (logged,) = [record for record in caplog.records if "internal error" in record.getMessage()]
    assert logged.exc_info
    assert logged.exc_info[0] is RuntimeError


def test_nothing_is_lost_when_a_post_finds_the_path_broken(ends: Ends) -> None:
    ends.connect()
    message = outgoing(BODY)
    ends.receiver.grant(1, slot_for(message))
    eventually(lambda: [frame for frame in ends.receiving.frames if isinstance(frame, Grant)])
    ends.carry()
    ends.wires[1].break_down("the test cut it")
    ends.sender.send(message)
    ends.connect()
    ends.run_until(ends.receiving.wanted)
    ends.receiver.grant(2, slot_for(message), 1)
    ends.run_until(ends.sending.sent_messages)


def test_a_descriptor_that_cannot_be_waited_for_loses_the_path_and_not_the_thread(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends.connect()
    slot = HeapRegion(5000).slot()
    ends.receiver.grant(1, slot)
    monkeypatch.setattr(MemoryEndpoint, "poll_set", lambda _: [(-1, select.POLLIN)])
    ends.receiver.recall_credits()
    ends.receiving.wait_for(ends.receiving.paths, 2)
    ends.receiving.wait_for(ends.receiving.returned)
    assert ends.receiving.returned == [slot]
    monkeypatch.undo()
    ends.connect()
    assert ends.receiver.alive


def test_a_path_whose_end_cannot_even_be_closed_is_lost_and_slots_come_back(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: MemoryEndpoint) -> NoReturn:
        monkeypatch.undo()
        raise OSError(5, f"{self} cannot be closed")

    ends.connect()
    slot = HeapRegion(5000).slot()
    ends.receiver.grant(1, slot)
    eventually(lambda: [frame for frame in ends.receiving.frames if isinstance(frame, Grant)])
    monkeypatch.setattr(MemoryEndpoint, "close", refuse)
    ends.wires[1].break_down("the test cut it")
    ends.receiving.wait_for(ends.receiving.returned)
    assert ends.receiving.returned == [slot]
    ends.connect()
    assert ends.receiver.alive


# --- turns ---


def test_however_often_a_link_is_woken_headers_are_looked_for_and_timers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    events = Recorded()
    link = Link("a", LinkSettings("memory", poll_headers=True), events.emit, lambda: now)
    looks: list[float] = []
    monkeypatch.setattr(link._incoming, "wants_polling", lambda: True)
    monkeypatch.setattr(link._incoming, "look_for_headers", looks.append)
    for _ in range(100):
        now += 0.0004
        link.turn()
    assert len(looks) == 100


def test_a_draft_in_the_last_turn_of_a_link_is_closed_and_not_connected() -> None:
    draft = UnwantedDraft()
    events = Recorded()
    link = Link("a", LinkSettings("memory"), events.emit, lambda: 0.0)
    link.end(deque([lambda link: link.connect(draft, {}, 1, DATAGRAM_KEYS)]))
    assert draft.closed.is_set()
    assert events.paths == []


def test_an_attempt_that_waits_its_turn_is_not_made_by_a_link_that_is_to_end() -> None:
    events, draft = Recorded(), UnwantedDraft()
    handle = LinkHandle("a", LinkSettings("memory"), events.emit, lambda: 0.0)

    class Slow(UnwantedDraft):
        def connect(self, peer: EndpointAddress, timeout: float) -> NoReturn:
            del peer, timeout
            # given up while it waits for the peer to dial
            handle.connect(draft, {}, 2, DATAGRAM_KEYS)
            handle.retire()
            raise TransportError(ErrorCode.TRANSPORT_UNAVAILABLE, "nobody came.")

    handle.connect(Slow(), {}, 1, DATAGRAM_KEYS)
    handle.turn()
    assert draft.closed.is_set()
    assert [attempt for _, attempt, _ in events.paths] == [1]


def test_of_attempts_that_wait_their_turn_the_last_is_made_and_the_others_hold_nothing() -> None:
    events, replaced = Recorded(), [UnwantedDraft() for _ in range(4000)]
    handle = LinkHandle("a", LinkSettings("memory"), events.emit, lambda: 0.0)

    class Absent(UnwantedDraft):
        def connect(self, peer: EndpointAddress, timeout: float) -> NoReturn:
            raise TransportError(ErrorCode.TRANSPORT_UNAVAILABLE, f"nobody came within {timeout:g} s: {peer}.")

    for attempt, draft in enumerate(replaced, 1):
        handle.connect(draft, {}, attempt, DATAGRAM_KEYS)
    handle.connect(Absent(), {}, 4001, DATAGRAM_KEYS)
    assert all(draft.closed.is_set() for draft in replaced), "at once: a transport has few of what they hold"
    handle.turn()
    assert [attempt for _, attempt, _ in events.paths] == [4001]


def test_what_has_come_is_taken_in_before_what_is_overdue_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now, wire, order = [0.0], MemoryWire(), list[str]()
    link = Link("b", LinkSettings(transport="memory"), Recorded().emit, lambda: now[0])

    class Met:
        address: EndpointAddress = MappingProxyType({})

        def connect(self, peer: EndpointAddress, timeout: float) -> MemoryEndpoint:
            del peer, timeout
            return wire.ends[0]

        def close(self) -> None:
            pass

    def noted(what: str, done: Callable[..., Any]) -> Callable[..., Any]:
        def note(*values: Any) -> Any:
            order.append(what)
            return done(*values)

        return note

    link.turn(deque([lambda each: each.connect(Met(), {}, 1, DATAGRAM_KEYS)]))
    monkeypatch.setattr(link._outgoing, "timer", lambda: 1.0)
    monkeypatch.setattr(link._outgoing, "on_timer", noted("due", link._outgoing.on_timer))
    monkeypatch.setattr(wire.ends[0], "progress", noted("came", wire.ends[0].progress))
    link.turn()
    # the thread was kept waiting
    now[0] = 2.0
    order.clear()
    link.turn()
    assert order == ["came", "due"]
