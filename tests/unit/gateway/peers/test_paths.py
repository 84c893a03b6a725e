"""Which transport is chosen, and how its data path is connected, renewed and given up.

Past 500 lines: all tests share one world, by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedrdma_fate.engine.events import TransferProgress
from fedrdma_fate.gateway.peers.paths import (
    ATTEMPTS_BEFORE_FALLBACK,
    FIRST_RETRY_SECONDS,
    GIVE_UP_FOR_LAST_RESORT_SECONDS,
    GIVE_UP_SECONDS,
    DataPaths,
)
from fedrdma_fate.gateway.peers.transport_choice import better_transports, choose_transport
from fedrdma_fate.ports import EndpointAddress, Role
from fedrdma_fate.security.datagram_tags import DATAGRAM_KEY_BYTES, DatagramKeys
from fedrdma_fate.security.sealing import PathSealing
from fedrdma_fate.wire.errors import ErrorCode, TransportError, WireError
from fedrdma_fate.wire.frames import Connect, Hello, MessageKey, Party

ANSWER_SECONDS = 5.0
PEERS_KEY = b"k" * DATAGRAM_KEY_BYTES


def hello(host: str = "here", transports: tuple[str, ...] = ("shm", "tcp", "grpc")) -> Hello:
    return Hello("b", "1", 1, "0", host, ("2",), transports, 100)


@pytest.mark.parametrize(
    ("own", "peer", "unusable", "chosen", "reason"),
    [
        (("shm", "tcp"), hello(), {}, "shm", "both gateways run on one host"),
        (("shm", "tcp"), hello("there"), {}, "tcp", "reachable by TCP; shm: other host"),
        (
            ("shm", "tcp"),
            hello(),
            {"shm": "could not be connected (no such file)"},
            "tcp",
            "reachable by TCP; shm: could not be connected (no such file)",
        ),
        (("shm", "tcp"), hello(transports=("grpc",)), {}, "grpc", "shm: not offered by b; tcp: not offered"),
        (("tcp",), hello(), {"tcp": "was lost (refused)"}, "grpc", "the fallback; tcp: was lost (refused)"),
    ],
)
def test_the_best_transport_that_both_have_is_chosen_and_the_reason_says_why(
    own: tuple[str, ...], peer: Hello, unusable: dict[str, str], chosen: str, reason: str
) -> None:
    name, why = choose_transport(own, "here", peer, unusable)
    assert name == chosen
    assert reason in why


def test_better_than_what_is_used_is_what_stands_before_it_and_may_be_had() -> None:
    own = ("shm", "verbs", "udp", "tcp")
    there = hello("there", ("shm", "verbs", "udp", "tcp"))
    assert better_transports("tcp", own, "here", there) == ("verbs", "udp")
    assert better_transports("udp", own, "here", there) == ("verbs",)
    assert better_transports("grpc", own, "here", there, {"verbs": "no device"}) == ("udp", "tcp")
    assert better_transports("verbs", own, "here", hello("here", ("tcp",))) == ()


class FakeLink:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.connected: list[int] = []
        self.keys: list[DatagramKeys] = []
        self.suspended = 0
        self.retired = False
        self.alive = True
        self.done_bytes = 0

    def progress(self) -> list[TransferProgress]:
        key = MessageKey("s", "m", "t", Party("guest", "1"), Party("host", "2"))
        return [TransferProgress(1, key, "send", "fedrdma-x", "sending", 100, self.done_bytes, 0.0)]

    def connect(
        self, draft: Draft, peer: EndpointAddress, attempt: int, keys: DatagramKeys, sealing: PathSealing | None
    ) -> None:
        del draft, peer, sealing
        self.connected.append(attempt)
        self.keys.append(keys)

    def suspend(self, reason: str) -> None:
        assert reason
        self.suspended += 1

    def retire(self) -> None:
        self.retired = True


class Relay:
    def retire(self) -> None: ...


class Draft:
    def __init__(self) -> None:
        self.closed = self.abandoned = False

    @property
    def address(self) -> EndpointAddress:
        return {"token": "x"}

    def abandon(self) -> None:
        self.abandoned = True

    def close(self) -> None:
        self.closed = True


class FakeTransport:
    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.broken = False

    def open(self, role: Role) -> Draft:
        if self.broken:
            raise TransportError(ErrorCode.TRANSPORT_UNAVAILABLE, f"no {role} half.")
        self.drafts.append(Draft())
        return self.drafts[-1]


class World:
    """Data paths, and everything around them, by hand."""

    def __init__(self, role: Role = "active", *, has_next: bool = True) -> None:
        self.transports = {name: FakeTransport() for name in ("shm", "udp", "tcp", "grpc")}
        self.sent: list[Connect] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.now = 0.0
        self.given_up: list[str] = []
        self.dropped: list[str] = []
        self.links: list[FakeLink] = []
        transports: Any = self.transports
        self.forbidden: set[str] = set()
        self.paths = DataPaths(
            "b",
            transports,
            lambda transport: transport not in self.forbidden,
            self._make_link,
            self._send,
            self._call_later,
            lambda: self.now,
            ANSWER_SECONDS,
            self._give_up,
            has_next=lambda _: has_next,
            drop=lambda transport, _: self.dropped.append(transport),
            secure=lambda _, own, peer: (DatagramKeys(peer, own), None),
        )
        self.paths.online(role)

    def _make_link(self, transport: str) -> Any:
        del transport
        self.links.append(FakeLink())
        return self.links[-1], Relay()

    def _send(self, frame: Any) -> None:
        self.sent.append(frame)

    def _call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        entry = (seconds, call)
        self.timers.append(entry)
        timers = self.timers

        class Handle:
            def cancel(self) -> None:
                if entry in timers:
                    timers.remove(entry)

        return Handle()

    def _give_up(self, transport: str) -> None:
        self.given_up.append(transport)

    def fire(self, after: float | None = None) -> float:
        """The next timer goes off, which was set for so long; how long it was set for."""
        entry = min(self.timers, key=lambda timer: timer[0])
        assert after is None or entry[0] == after
        self.timers.remove(entry)
        self.now += entry[0]
        entry[1]()
        return entry[0]

    def answer(self, attempt: int, transport: str = "tcp", *, main: bool = True) -> None:
        self.paths.on_connect(Connect(transport, "why", attempt, main, {}, PEERS_KEY))

    def up(self) -> None:
        """The path over tcp comes up."""
        path = self.paths.need("tcp", "why", main=True)
        self.answer(path.attempt)
        assert self.paths.on_up("tcp", path.connection)


def test_the_active_side_starts_an_attempt_and_connects_when_it_is_answered() -> None:
    world = World()
    world.paths.need("tcp", "why", main=True)
    (asked,) = world.sent
    assert asked == Connect("tcp", "why", 1, True, {"token": "x"}, asked.nonce)
    world.answer(1)
    assert world.links[0].connected == [1]
    assert world.timers == []
    assert world.paths.on_up("tcp", 1)
    assert world.paths.paths["tcp"].up


def test_the_passive_side_asks_for_an_attempt_and_answers_it() -> None:
    world = World("passive")
    world.paths.need("grpc", "mode grpc", main=False)
    assert world.sent == [Connect("grpc", "mode grpc", 0, False, {})]
    world.answer(3, "grpc")
    assert world.sent[1].attempt == 3
    assert world.links[0].connected == [world.paths.paths["grpc"].connection]


@pytest.mark.parametrize("role", ["active", "passive"])
def test_another_attempt_ends_the_wait_of_the_one_before_and_its_own_meeting_goes_on(role: Role) -> None:
    world = World(role)
    world.paths.need("tcp", "why", main=True)
    world.answer(1)
    (first,) = world.transports["tcp"].drafts
    assert not first.abandoned
    if role == "active":
        world.paths.on_connect(Connect("tcp", "why", 0, True, {}))
        world.paths.on_lost("tcp", "it broke")
        world.fire()
    world.answer(2)
    assert first.abandoned or role == "active", "who dials waits for nobody"
    assert not world.transports["tcp"].drafts[1].abandoned
    assert world.paths.on_up("tcp", world.paths.paths["tcp"].connection)
    assert not world.transports["tcp"].drafts[1].abandoned


def test_an_attempt_that_is_met_when_the_control_channel_is_lost_is_abandoned() -> None:
    world = World("passive")
    world.paths.need("tcp", "why", main=True)
    world.answer(1)
    world.paths.offline("gone")
    assert world.transports["tcp"].drafts[0].abandoned


def test_udp_that_does_not_pass_is_given_up_at_once_and_where_tcp_fails_it_is_tried_as_often_as_others() -> None:
    blocked, unlucky = World(), World()
    for world in (blocked, unlucky):
        world.paths.need("udp", "why", main=True)
        world.answer(1, "udp")
    blocked.paths.on_lost("udp", "no probe has come", ErrorCode.UDP_BLOCKED)
    assert blocked.given_up == ["udp"]
    for _ in range(ATTEMPTS_BEFORE_FALLBACK - 1):
        unlucky.paths.on_lost("udp", "the peer closed the connection", ErrorCode.TRANSPORT_UNAVAILABLE)
        assert not unlucky.given_up
        unlucky.fire()
    unlucky.fire(ANSWER_SECONDS)
    assert unlucky.given_up == ["udp"], "the last was not answered"


def test_udp_that_was_up_and_is_lost_is_given_up_at_once() -> None:
    world = World()
    path = world.paths.need("udp", "why", main=True)
    world.answer(1, "udp")
    assert world.paths.on_up("udp", path.connection)
    world.paths.on_lost("udp", "no sign of life", ErrorCode.LINK_LOST)
    assert world.given_up == ["udp"]


@pytest.mark.parametrize("role", ["active", "passive"])
def test_each_attempt_has_a_nonce_of_its_own_from_each_side(role: Role) -> None:
    world = World(role)
    world.paths.need("tcp", "why", main=True)
    for attempt in (1, 2):
        world.answer(attempt)
        world.paths.on_lost("tcp", "it broke")
        if role == "active":
            world.fire()
    ours = [frame.nonce for frame in world.sent if frame.attempt][:2]
    assert len({*ours, PEERS_KEY}) == 3
    assert all(len(key) == DATAGRAM_KEY_BYTES for key in ours)
    assert world.links[0].keys == [DatagramKeys(PEERS_KEY, key) for key in ours]


@pytest.mark.parametrize("role", ["active", "passive"])
@pytest.mark.parametrize("key", [b"", b"k" * (DATAGRAM_KEY_BYTES - 1), b"k" * (DATAGRAM_KEY_BYTES + 1)])
def test_half_a_data_path_without_a_nonce_is_malformed_and_connects_nothing(role: Role, key: bytes) -> None:
    world = World(role)
    world.paths.need("tcp", "why", main=True)
    with pytest.raises(WireError, match=f"a nonce of {len(key)} bytes, not 32"):
        world.paths.on_connect(Connect("tcp", "why", 1, True, {}, key))
    assert world.links[0].connected == []


def test_an_attempt_that_is_not_answered_is_made_again() -> None:
    world = World()
    world.paths.need("tcp", "why", main=True)
    assert world.fire() == ANSWER_SECONDS
    assert "did not answer" in world.paths.paths["tcp"].last_error
    assert world.transports["tcp"].drafts[0].closed
    assert world.fire() == FIRST_RETRY_SECONDS
    assert [frame.attempt for frame in world.sent] == [1, 2]
    world.answer(1)
    assert world.links[0].connected == []


def test_attempts_come_less_and_less_often() -> None:
    # the passive side is the more patient one
    world = World("passive")
    world.paths.need("tcp", "why", main=True)
    world.answer(1)
    pauses = []
    for _ in range(8):
        world.paths.on_lost("tcp", "it broke")
        pauses.append(world.fire())
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_a_lost_path_is_renewed_and_what_it_carried_makes_earlier_failures_forgotten() -> None:
    world = World()
    world.up()
    for _ in range(10 * ATTEMPTS_BEFORE_FALLBACK):
        world.now += 1.0
        world.links[0].done_bytes += 1
        world.paths.on_lost("tcp", "it broke")
        assert world.fire(FIRST_RETRY_SECONDS) == FIRST_RETRY_SECONDS
        world.answer(world.paths.paths["tcp"].attempt)
        world.paths.on_up("tcp", world.paths.paths["tcp"].connection)
    assert world.given_up == []


def test_a_path_that_comes_up_again_and_again_and_carries_nothing_is_given_up() -> None:
    world = World()
    world.up()
    for _ in range(ATTEMPTS_BEFORE_FALLBACK):
        assert world.given_up == []
        world.now += 1.5
        world.paths.on_lost("tcp", "it broke")
        if not world.given_up:
            world.fire(FIRST_RETRY_SECONDS)
            world.answer(world.paths.paths["tcp"].attempt)
            world.paths.on_up("tcp", world.paths.paths["tcp"].connection)
    assert world.given_up == ["tcp"]
    assert world.paths.unusable == {"tcp": "was lost (it broke)"}


def test_two_reports_of_one_loss_make_one_attempt() -> None:
    world = World()
    world.up()
    world.paths.on_lost("tcp", "it broke")
    world.paths.on_lost("tcp", "it broke")
    assert len(world.timers) == 1


def test_a_path_that_has_never_come_up_is_given_up_after_some_attempts() -> None:
    world = World()
    world.paths.need("tcp", "why", main=True)
    for attempt in range(1, ATTEMPTS_BEFORE_FALLBACK + 1):
        assert world.given_up == []
        world.answer(attempt)
        world.paths.on_lost("tcp", "refused")
        if attempt < ATTEMPTS_BEFORE_FALLBACK:
            world.fire()
    assert world.given_up == ["tcp"]
    assert world.paths.unusable == {"tcp": "could not be connected (refused)"}


@pytest.mark.parametrize("has_next", [True, False])
def test_a_path_that_has_been_up_is_given_up_after_a_while_longer_where_only_the_last_resort_is_left(
    has_next: bool,
) -> None:
    world = World(has_next=has_next)
    world.up()
    began = world.now
    while not world.given_up:
        world.paths.on_lost("tcp", "refused")
        if not world.given_up:
            world.fire()
    patience = GIVE_UP_SECONDS if has_next else GIVE_UP_FOR_LAST_RESORT_SECONDS
    assert patience <= world.now - began <= patience + 11


def test_an_attempt_that_takes_long_does_not_keep_another_path_from_being_taken() -> None:
    world = World()
    world.up()
    began = world.now
    world.paths.on_lost("tcp", "it broke")
    world.fire(FIRST_RETRY_SECONDS)
    # the peer does not answer
    world.fire()
    assert world.given_up == ["tcp"]
    assert world.now - began <= GIVE_UP_SECONDS + FIRST_RETRY_SECONDS


def test_a_path_that_comes_back_in_time_is_not_given_up() -> None:
    world = World()
    world.up()
    world.paths.on_lost("tcp", "it broke")
    world.fire(FIRST_RETRY_SECONDS)
    world.answer(world.paths.paths["tcp"].attempt)
    world.paths.on_up("tcp", world.paths.paths["tcp"].connection)
    assert world.timers == []
    assert world.given_up == []


@pytest.mark.parametrize("role", ["active", "passive"])
def test_a_path_beside_the_main_one_that_is_lost_is_not_connected_anew(role: Role) -> None:
    world = World(role)
    world.paths.need("shm", "tried", main=False)
    world.answer(1, "shm", main=False)
    world.paths.on_lost("shm", "refused")
    assert world.dropped == ["shm"]
    assert world.timers == []
    assert world.given_up == []


def test_the_last_resort_is_never_given_up() -> None:
    world = World()
    world.paths.need("grpc", "the fallback", main=True)
    for _ in range(20):
        world.now += GIVE_UP_SECONDS
        world.paths.on_lost("grpc", "refused")
        world.fire()
    assert world.given_up == []


def test_the_passive_side_gives_nothing_up_but_asks_again() -> None:
    world = World("passive")
    world.paths.need("tcp", "why", main=True)
    for _ in range(ATTEMPTS_BEFORE_FALLBACK + 1):
        world.paths.on_lost("tcp", "refused")
        world.fire()
    assert world.given_up == []
    assert {frame.attempt for frame in world.sent} == {0}


def test_a_transport_that_cannot_even_be_opened_counts_as_failed() -> None:
    world = World()
    world.transports["tcp"].broken = True
    world.paths.need("tcp", "why", main=True)
    for _ in range(ATTEMPTS_BEFORE_FALLBACK - 1):
        world.fire()
    assert world.given_up == ["tcp"]


def test_the_wish_of_the_passive_side_starts_an_attempt_though_the_path_looks_up() -> None:
    world = World()
    world.up()
    world.answer(0)
    assert world.sent[-1].attempt == 2


def test_a_wish_during_an_attempt_changes_nothing() -> None:
    world = World()
    world.paths.need("tcp", "why", main=True)
    world.answer(0)
    assert [frame.attempt for frame in world.sent] == [1]
    world.answer(1)
    world.answer(0)
    assert [frame.attempt for frame in world.sent] == [1]


@pytest.mark.parametrize(("transport", "attempts"), [("grpc", [1]), ("shm", [])])
def test_the_passive_side_may_wish_for_the_path_of_mode_grpc_only(transport: str, attempts: list[int]) -> None:
    world = World()
    world.answer(0, transport)
    assert [frame.attempt for frame in world.sent] == attempts
    assert not any(path.main for path in world.paths.paths.values())


def test_a_path_that_becomes_the_main_one_is_connected_anew_so_that_the_peer_knows() -> None:
    world = World()
    world.paths.need("grpc", "mode grpc", main=False)
    path = world.paths.need("grpc", "the fallback", main=True)
    assert path.main
    assert [(frame.attempt, frame.main) for frame in world.sent] == [(1, False), (2, True)]
    world.paths.need("grpc", "mode grpc", main=False)
    assert path.main
    assert len(world.sent) == 2


def test_an_unknown_transport_is_not_connected() -> None:
    world = World("passive")
    world.answer(1, "carrier-pigeon")
    assert world.paths.paths == {}


@pytest.mark.parametrize("role", ["passive", "active"])
def test_a_transport_that_is_not_allowed_with_this_peer_is_not_connected_though_it_asks(role: Role) -> None:
    world = World(role)
    world.forbidden = {"tcp"}
    world.answer(1, "tcp")
    assert world.paths.paths == {}
    assert world.sent == []


def test_without_a_control_channel_nothing_is_connected() -> None:
    world = World()
    world.up()
    world.paths.offline("the control channel ended")
    path = world.paths.paths["tcp"]
    assert (path.up, path.last_error, world.links[0].suspended) == (False, "the control channel ended", 1)
    world.paths.on_lost("tcp", "it broke")
    assert not world.paths.on_up("tcp", 1)
    assert world.timers == []
    world.paths.online("active")
    assert world.sent[-1].attempt == 2


def test_what_an_earlier_attempt_reports_late_is_not_taken_for_the_present_one() -> None:
    world = World()
    world.up()
    world.paths.offline("the control channel ended")
    world.paths.online("active")
    assert not world.paths.on_up("tcp", 1)
    assert not world.paths.paths["tcp"].up


@pytest.mark.parametrize("role", ["active", "passive"])
def test_a_late_report_of_a_peers_attempt_is_not_taken_for_that_of_ours_or_of_a_restarted_peer(role: Role) -> None:
    world = World("passive")
    world.answer(1)
    world.paths.offline("the control channel ended")
    # dialled by us now, or by a peer that was restarted
    world.paths.online(role)
    world.answer(world.paths.paths["tcp"].attempt)
    before, now = world.links[0].connected
    assert not world.paths.on_up("tcp", before)
    assert world.paths.on_up("tcp", now)


def test_an_abandoned_path_is_retired_with_its_draft_and_its_timer() -> None:
    world = World()
    world.paths.need("tcp", "why", main=True)
    world.paths.abandon("tcp")
    assert world.links[0].retired
    assert world.transports["tcp"].drafts[0].closed
    assert world.timers == []
    assert world.paths.close() == world.links


def test_links_whose_threads_have_ended_are_forgotten() -> None:
    world = World()
    world.paths.need("tcp", "why", main=True)
    world.paths.abandon("tcp")
    world.links[0].alive = False
    world.paths.need("tcp", "why", main=True)
    assert world.paths.close() == [world.links[1]]
