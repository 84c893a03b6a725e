"""A data path on which nothing arrives is tested, and told of when it is at fault; none is while all arrives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from fedrdma_fate.core.packet_fate import MOMENTS, MOST_PACKETS
from fedrdma_fate.engine.events import LinkEvent, PathStalled
from fedrdma_fate.engine.link_datagrams import LinkDatagrams
from fedrdma_fate.engine.path_watch import LONGEST_PAUSE_SECONDS, STILL_SECONDS, PathWatch
from fedrdma_fate.ports import ChunkService
from fedrdma_fate.wire.datagrams import (
    DATAGRAM_BYTES,
    PADDED_DATAGRAM_BYTES,
    SEAL_BYTES,
    PathEcho,
    PathEchoAnswer,
    PathLongEcho,
    encode_datagram,
    long_echo,
)
from tests.support.endpoints import MemoryWire
from tests.support.engine import DATAGRAM_KEYS

UNRELIABLE = ChunkService(reliable=False, self_paced=False, mtu_bytes=1024)
STEP_SECONDS = 0.01
TEST_MESSAGES = MOMENTS * (MOST_PACKETS + 1)


class World:
    """Two sides of a link; the second answers what the path lets through."""

    def __init__(self) -> None:
        self.wire = MemoryWire()
        self.wire.chunk_service, self.wire.has_datagrams = UNRELIABLE, True
        self.now = 100.0
        self.since: float | None = None
        self.told: list[PathStalled] = []
        self.told_at: list[float] = []
        self.echoes = 0
        self.datagrams = LinkDatagrams("a"), LinkDatagrams("b")
        self.watch = PathWatch(self.datagrams[0], self._note, lambda: self.since)
        self.other = PathWatch(self.datagrams[1], self._note, lambda: None)

    def _note(self, event: LinkEvent) -> None:
        assert isinstance(event, PathStalled)
        self.told.append(event)
        self.told_at.append(self.now)

    def send_no_long_ones(self) -> None:
        """This host has no room for them."""
        post = self.wire.ends[0].post_datagram
        self.wire.ends[0].post_datagram = (  # type: ignore[method-assign]
            lambda data, copies=1, padding=0: not padding and post(data, copies, padding)
        )

    def connect(self, attempt: int = 7) -> None:
        for number, watch in enumerate((self.watch, self.other)):
            self.datagrams[number].path_up(self.wire.ends[number], DATAGRAM_KEYS.reversed if number else DATAGRAM_KEYS)
            watch.path_up(self.wire.ends[number], attempt)

    def run(self, seconds: float, comes: Callable[[bool], bool]) -> None:
        """Time passes on a path of which a message comes, or not, by whether it is a long one."""
        until = self.now + seconds
        while self.now < until:
            self.now += STEP_SECONDS
            due = self.watch.timer()
            if due is None or self.now < due:
                continue
            before = len(self.wire.paddings)
            self.watch.on_timer(self.now)
            arrived = self.wire.ends[1].progress()
            for padding, completion in zip(self.wire.paddings[before:], arrived, strict=True):
                echo = self.datagrams[1].open(completion.data)
                assert isinstance(echo, PathEcho | PathLongEcho)
                self.echoes += 1
                if comes(padding > 0):
                    self.other.on_datagram(echo)
            for completion in self.wire.ends[0].progress():
                answer = self.datagrams[0].open(completion.data)
                assert isinstance(answer, PathEchoAnswer)
                self.watch.on_datagram(answer)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.connect()
    yield made
    for end in made.wire.ends:
        end.close()


def test_long_messages_that_never_come_are_told_of_within_two_seconds(world: World) -> None:
    began = world.since = world.now
    world.run(3, lambda is_long: not is_long)
    (told,) = world.told
    assert (told.attempt, told.silent) == (7, False)
    assert "overtake each other" in told.reason
    assert world.told_at[0] - began < 2


def test_long_messages_that_this_host_could_not_send_say_nothing_of_the_path(world: World) -> None:
    world.send_no_long_ones()
    world.since = world.now
    world.run(20, lambda _: True)
    assert world.told == []
    assert not any(world.wire.paddings)


def test_as_long_as_anything_arrives_nothing_is_tested(world: World) -> None:
    for _ in range(20):
        world.since = world.now
        world.run(STILL_SECONDS - 2 * STEP_SECONDS, lambda _: False)
    world.since = None
    world.run(5, lambda _: False)
    assert (world.echoes, world.told) == (0, [])


def test_a_test_ends_when_nothing_is_waited_for_any_more(world: World) -> None:
    world.since = world.now
    world.run(1, lambda is_long: not is_long)
    assert world.echoes
    world.since = world.now
    world.run(STILL_SECONDS - 2 * STEP_SECONDS, lambda is_long: not is_long)
    before = world.echoes
    world.since = None
    world.run(5, lambda is_long: not is_long)
    assert world.echoes == before
    assert world.told == []


def test_a_chunk_that_comes_now_and_then_does_not_hide_that_long_messages_do_not(world: World) -> None:
    began = world.since = world.now
    world.run(1, lambda is_long: not is_long)
    world.since = world.now
    world.run(1, lambda is_long: not is_long)
    (told,) = world.told
    assert not told.silent
    assert world.told_at[0] - began < 2


@pytest.mark.parametrize("comes", [False, True])
def test_what_arrives_during_a_test_speaks_for_a_path_that_was_silent_before(world: World, comes: bool) -> None:
    world.since = world.now
    world.run(1, lambda _: False)
    for _ in range(20):
        world.since = world.now
        world.run(STILL_SECONDS - 2 * STEP_SECONDS, lambda _: comes)
    assert world.echoes == TEST_MESSAGES
    assert world.told == []


def test_where_long_messages_come_as_well_the_path_is_left_alone_and_tested_less_and_less_often(world: World) -> None:
    world.since = world.now
    world.run(120, lambda _: True)
    assert world.told == []
    tests = world.echoes / TEST_MESSAGES
    assert 120 / (LONGEST_PAUSE_SECONDS + 2) <= tests <= 10


def test_a_path_by_which_nothing_comes_is_told_of_after_two_tests_and_again_as_long_as_it_stays_so(
    world: World,
) -> None:
    began = world.since = world.now
    world.run(10, lambda _: False)
    assert len(world.told) >= 2
    assert all(told.silent for told in world.told)
    assert 2 < world.told_at[0] - began < 3.5


def test_one_silent_test_is_no_silence(world: World) -> None:
    world.since = world.now
    world.run(STILL_SECONDS + 1.4, lambda _: False)
    world.run(1.5, lambda _: True)
    assert world.told == []


@pytest.mark.parametrize(
    "service",
    [
        dataclasses.replace(UNRELIABLE, reliable=True),
        dataclasses.replace(UNRELIABLE, self_paced=True),
        dataclasses.replace(UNRELIABLE, repairs_packets=True),
    ],
)
def test_a_path_that_finds_its_losses_out_itself_is_not_tested(world: World, service: ChunkService) -> None:
    world.wire.chunk_service = service
    world.connect()
    world.since = world.now
    world.run(10, lambda _: False)
    assert world.echoes == 0


def test_a_path_that_is_renewed_is_judged_anew(world: World) -> None:
    world.since = world.now
    world.run(1.5, lambda is_long: not is_long)
    world.connect(8)
    world.since = world.now
    world.run(STILL_SECONDS + 0.5, lambda is_long: not is_long)
    assert world.told == []
    world.run(2, lambda is_long: not is_long)
    assert [told.attempt for told in world.told] == [8]


@pytest.mark.parametrize("mtu_bytes", [256, 512, 1024, 2048, 4096])
def test_a_long_message_has_several_packets_and_is_no_longer_than_one_may_be(world: World, mtu_bytes: int) -> None:
    world.wire.chunk_service = dataclasses.replace(UNRELIABLE, mtu_bytes=mtu_bytes)
    world.connect()
    world.since = world.now
    world.run(1.0, lambda _: True)
    lengths = {DATAGRAM_BYTES + padding for padding in world.wire.paddings if padding}
    assert len(lengths) == 1
    assert 4 * mtu_bytes < max(lengths) <= PADDED_DATAGRAM_BYTES


@pytest.mark.parametrize("number", [0, 1, 127, 128, 65536, 2**32])
def test_a_long_message_fills_a_datagram_for_behind_a_shorter_one_nothing_may_follow(number: int) -> None:
    assert len(encode_datagram(long_echo(number))) + SEAL_BYTES == DATAGRAM_BYTES
