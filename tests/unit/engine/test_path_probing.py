"""A new data path is measured before any payload, and what is found is where the first transfer starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.path_probe import MOST_UNANSWERED_TRAINS, UNHEARD_SECONDS
from fedrdma_fate.core.x.phases import Phase
from fedrdma_fate.engine.link_datagrams import LinkDatagrams
from fedrdma_fate.engine.path_memory import KnownPath, PathMemory
from fedrdma_fate.engine.path_probing import PathProbing
from fedrdma_fate.ports import ChunkService
from fedrdma_fate.wire.datagrams import (
    DATAGRAM_BYTES,
    PADDED_DATAGRAM_BYTES,
    PathProbe,
    PathProbeAnswer,
    TrainWanted,
)
from tests.support.endpoints import MemoryWire
from tests.support.engine import DATAGRAM_KEYS

OURS_TO_PACE = ChunkService(reliable=False, self_paced=False)
SPACING_SECONDS = 1e-5
HALF_TRIP = 0.01


class Ends:
    """Two sides of a link over a wire in memory, whose datagrams arrive one by one."""

    def __init__(self) -> None:
        self.memories = PathMemory(), PathMemory()
        self.datagrams = LinkDatagrams("a"), LinkDatagrams("b")
        self.told: list[float] = []
        self.sides = tuple(
            PathProbing(memory, datagrams, self.told.append)
            for memory, datagrams in zip(self.memories, self.datagrams, strict=True)
        )
        self.wire = MemoryWire()
        self.wire.chunk_service, self.wire.has_datagrams = OURS_TO_PACE, True
        self.now = 0.0

    def connect(self) -> None:
        for number in (0, 1):
            self.connect_one(number)

    def connect_one(self, number: int) -> None:
        keys = DATAGRAM_KEYS.reversed if number else DATAGRAM_KEYS
        self.datagrams[number].path_up(self.wire.ends[number], keys)
        self.sides[number].path_up(self.wire.ends[number], self.now)

    def carry(self, to: int, *, lose_every: int = 0, keep_every: int = 1, spacing: float = SPACING_SECONDS) -> int:
        """Half a round trip passes, and what the other side has sent arrives; how many datagrams that were."""
        self.now += HALF_TRIP
        arrived = self.wire.ends[to].progress()
        for number, completion in enumerate(arrived, 1):
            if (lose_every and number % lose_every == 0) or number % keep_every:
                continue
            self.now += spacing
            datagram = self.datagrams[to].open(completion.data)
            assert isinstance(datagram, PathProbe | PathProbeAnswer | TrainWanted)
            self.sides[to].on_datagram(datagram, self.now)
        return len(arrived)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    for end in made.wire.ends:
        end.close()


def test_while_no_train_is_answered_the_memory_says_so(ends: Ends) -> None:
    memory = ends.memories[0]
    assert not memory.is_probing
    ends.connect()
    assert memory.is_probing
    ends.carry(1)
    assert memory.is_probing
    ends.carry(0)
    assert not memory.is_probing


def test_what_nobody_knew_is_awaited_until_a_train_is_answered(ends: Ends) -> None:
    memory = ends.memories[0]
    ends.connect()
    assert memory.awaits_train
    ends.carry(1)
    assert not ends.told
    ends.carry(0)
    assert not memory.awaits_train
    assert not memory.lost_trains
    assert len(ends.told) == 1, "of one side; the other has got no answer yet"


def test_or_until_none_of_the_first_trains_has_been(ends: Ends) -> None:
    memory = ends.memories[0]
    ends.connect_one(0)
    while memory.awaits_train:
        due = ends.sides[0].timer()
        assert due is not None
        ends.now = due
        ends.sides[0].on_timer(due)
    assert ends.told == [ends.now]
    assert ends.now == pytest.approx(UNHEARD_SECONDS)
    assert memory.is_probing, "more go, for it may be known later"
    assert memory.lost_trains, "and what goes now is cut for a path that loses many packets"


def test_of_a_path_whose_trains_are_answered_and_lost_most_it_is_known_that_it_loses_many_packets(ends: Ends) -> None:
    memory, answered = ends.memories[0], 0
    ends.connect_one(0)
    ends.connect_one(1)
    ends.carry(0)
    while memory.awaits_train:
        # three of each four, and what came did so at one moment
        ends.carry(1, keep_every=4, spacing=0.0)
        late = ends.sides[1].timer()
        assert late is not None
        ends.now = max(ends.now, late)
        ends.sides[1].on_timer(ends.now)
        answered += ends.carry(0)
        due = ends.sides[0].timer()
        assert due is not None
        ends.now = due
        ends.sides[0].on_timer(due)
    assert answered
    assert memory.known is None
    assert memory.lost_trains


def test_an_end_that_comes_up_later_is_measured_as_soon_as_it_is_heard(ends: Ends) -> None:
    ends.connect_one(0)
    ends.wire.ends[1].progress()
    ends.now = 0.4
    ends.connect_one(1)
    ends.carry(0)
    ends.carry(1)
    ends.carry(0)
    assert ends.memories[0].known is not None
    assert not ends.memories[0].awaits_train


def test_where_a_path_is_known_nothing_is_awaited(ends: Ends) -> None:
    ends.memories[0].known = KnownPath(PathState(1e8, 0.02, None), "remembered")
    ends.connect_one(0)
    assert ends.memories[0].is_probing
    assert not ends.memories[0].awaits_train


def test_a_path_that_is_lost_is_not_being_probed(ends: Ends) -> None:
    ends.connect()
    ends.sides[0].path_lost()
    assert not ends.memories[0].is_probing


def test_both_directions_of_a_new_path_are_measured(ends: Ends) -> None:
    ends.connect()
    for to in (1, 0, 1):
        ends.carry(to)
    for memory in ends.memories:
        assert memory.known is not None
        assert memory.known.source == "probed"
        assert memory.state is not None
        assert memory.state.rate == pytest.approx(4096 / SPACING_SECONDS, rel=1e-3)
    assert all(side.timer() is None for side in ends.sides)


def test_a_fast_path_is_measured_once_more_with_long_datagrams(ends: Ends) -> None:
    long = PADDED_DATAGRAM_BYTES - DATAGRAM_BYTES
    ends.connect()
    ends.carry(1, spacing=1e-6)
    ends.carry(0)
    assert ends.wire.paddings.count(long) == 0
    ends.sides[0].on_timer(ends.now)
    assert not ends.memories[0].awaits_train
    assert not ends.memories[0].lost_trains, "it has told nothing yet, but it was answered"
    assert ends.wire.paddings.count(long) == 1
    ends.carry(1, spacing=5.4e-6)
    ends.carry(0)
    state = ends.memories[0].state
    assert state is not None
    assert state.rate == pytest.approx(PADDED_DATAGRAM_BYTES / 5.4e-6, rel=1e-3)
    assert state.loss == pytest.approx(1 / 1024)
    assert ends.sides[0].timer() is None


def test_a_path_whose_transport_paces_itself_is_left_alone(ends: Ends) -> None:
    ends.wire.chunk_service = ChunkService()
    ends.connect()
    assert ends.carry(1) == 0


def test_a_path_without_datagrams_is_not_measured(ends: Ends) -> None:
    ends.wire.has_datagrams = False
    ends.connect()
    assert [side.timer() for side in ends.sides] == [None, None]


def test_what_a_transfer_has_found_is_not_measured_again(ends: Ends) -> None:
    ends.memories[0].learn(PathState(1e9, 0.02, 0.0), "measured")
    ends.connect()
    assert ends.carry(1) == 0
    assert ends.memories[0].state == PathState(1e9, 0.02, 0.0)


def test_a_transfer_that_ends_before_the_answer_comes_knows_better(ends: Ends) -> None:
    ends.connect()
    ends.carry(1)
    ends.memories[0].learn(PathState(1e9, 0.02, 0.0), "measured")
    ends.carry(0)
    assert ends.memories[0].state == PathState(1e9, 0.02, 0.0)


def test_a_train_that_lost_something_is_answered_late_and_tells_the_rate_all_the_same(ends: Ends) -> None:
    ends.connect()
    ends.carry(1, lose_every=9)
    due = ends.sides[1].timer()
    assert due is not None
    ends.now = due
    ends.sides[1].on_timer(ends.now)
    ends.carry(0)
    state = ends.memories[0].state
    assert state is not None
    assert state.min_rtt == pytest.approx(2 * HALF_TRIP, rel=0.1)


def test_a_peer_that_does_not_answer_is_asked_again_and_then_left_alone(ends: Ends) -> None:
    ends.connect_one(0)
    sent = len(ends.wire.ends[1].progress())
    while (due := ends.sides[0].timer()) is not None:
        ends.sides[0].on_timer(due)
        sent += len(ends.wire.ends[1].progress())
    assert sent == MOST_UNANSWERED_TRAINS * 64
    assert ends.memories[0].state is None


def test_a_path_that_is_lost_meanwhile_is_forgotten(ends: Ends) -> None:
    ends.connect()
    for side in ends.sides:
        side.path_lost()
        assert side.timer() is None
        side.on_timer(100.0)
    ends.wire.break_down("the test cut it")
    ends.connect()
    ends.sides[0].on_datagram(PathProbe(1, 1, b""), 0.0)
    assert ends.memories[0].state is None


def test_a_transfer_begins_at_what_was_probed_and_proves_it() -> None:
    memory = PathMemory()
    memory.learn(PathState(1e9, 0.02, None), "probed")
    control = memory.begin()
    assert (control.phase, control.known) == (Phase.PROBE_UP, True)
    memory.end(control)
    assert memory.known == KnownPath(PathState(1e9, 0.02, None), "probed"), "nothing was seen to arrive"
    memory.learn(PathState(2e9, 0.02, 0.0), "measured")
    assert memory.begin().phase is Phase.CRUISE


def remembered(rate: float = 1e9) -> PathMemory:
    return PathMemory(KnownPath(PathState(rate, 0.02, 0.001), "remembered"))


def test_what_an_earlier_run_has_found_is_a_start_and_stands_while_a_train_agrees() -> None:
    memory = remembered()
    assert memory.begin().phase is Phase.PROBE_UP, "the path may have changed"
    memory.learn(PathState(1.9e9, 0.02, None), "probed")
    assert memory.state == PathState(1e9, 0.02, 0.001)
    memory.learn(PathState(2.1e9, 0.02, None), "probed")
    assert memory.known == KnownPath(PathState(2.1e9, 0.02, None), "probed")


def test_a_configured_rate_serves_only_where_nothing_else_is_known() -> None:
    memory, configured = PathMemory(), PathState(5e8, 0.02, None)
    memory.learn(configured, "configured")
    assert memory.known == KnownPath(configured, "configured")
    memory.learn(PathState(9e9, 0.02, None), "probed")
    memory.learn(configured, "configured")
    assert memory.state == PathState(9e9, 0.02, None)
    known = remembered()
    known.learn(configured, "configured")
    assert known.state == PathState(1e9, 0.02, 0.001)


def test_a_train_that_is_wanted_comes_once_and_is_seen_by_who_wanted_it(ends: Ends) -> None:
    ends.connect()
    ends.carry(0)
    ends.carry(1)
    ends.carry(0)
    ends.carry(1)
    began = ends.now
    ends.sides[1].want_train(began, 8)
    assert ends.carry(0) == 2, "two copies"
    assert ends.carry(1) == 8
    wanted = ends.sides[1].wanted
    assert wanted is not None
    assert (wanted.began, wanted.came, wanted.sent) == (began, 8, 8)
    assert wanted.seconds == pytest.approx(ends.now - began)
    assert wanted.spread == pytest.approx(7 * SPACING_SECONDS)
    ends.carry(0)
    assert ends.sides[0].joint is None, "the answer to it tells its sender nothing"
