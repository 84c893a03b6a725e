"""Whoever is on the path may cut, change, leave out, repeat, reorder and move what travels on sealed streams.

Whatever he does: what is delivered is what was sent, once, or both ends are told that it is not; and as soon as he lets
things be, everything else arrives.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrdma_fate.security.sealing import Seal
from fedrdma_fate.wire.frames import Mode
from tests.support.on_path import IDLE_SECONDS, OnPath

MODES: tuple[Mode, ...] = ("fedrdma", "fedrdma-e", "fedrdma-x", "grpc")
PATIENCE_SECONDS = 5 * IDLE_SECONDS

SIZES = ((0, 1000, 0), (3000, 3000, 0), (5000, 1000, 0), (5000, 1000, 300), (700_000, 300_000, 0))
"""Of a message, of its chunks, and of the one for Link-Enable; the last in several blocks a chunk."""

BODY = random.Random(5).randbytes(1 << 20)

SEND = st.tuples(st.just("send"), st.integers(0, len(SIZES) - 1), st.sampled_from(MODES))
WHICH = st.integers(0, 7)
"""Of the streams and ways on which there is a frame just now."""

WHERE = st.floats(0, 1, exclude_max=True)
STEPS = st.lists(
    st.one_of(
        SEND,
        st.tuples(st.just("let"), st.integers(1, 12)),
        st.tuples(st.sampled_from(("pass_on", "drop", "double", "swap", "move")), WHICH),
        st.tuples(st.sampled_from(("flip", "replay", "cut_within")), WHICH, WHERE),
        st.tuples(st.sampled_from(("cut", "reconnect"))),
    ),
    min_size=15,
    max_size=60,
)


def play(world: OnPath, steps: list[tuple[Any, ...]]) -> None:
    """What he does, step by step; the links go on meanwhile."""
    for name, *arguments in steps:
        waiting = world.waiting
        if name == "send":
            number, mode = arguments
            total, chunk_bytes, enable_bytes = SIZES[number]
            world.send(BODY[len(world.sent) :][:total], mode, chunk_bytes, enable_bytes)
        elif name == "let":
            for number in range(arguments[0]):
                if waiting:
                    world.pass_on(*waiting[number % len(waiting)])
                world.settle(relays=False)
                waiting = world.waiting
        elif name == "reconnect":
            world.forget_losses()
            world.connect()
        elif name == "cut":
            world.cut()
        elif waiting:
            which, *where = arguments
            getattr(world, name)(*waiting[which % len(waiting)], *where)
        world.settle(relays=False)
        world.check()


ATTACKS = ("flip", "flip", "drop", "double", "swap", "move", "replay", "cut_within")


def steps_of(number: int) -> list[tuple[Any, ...]]:
    """Some, with more of what does something than hypothesis finds."""
    chance = random.Random(number)
    steps: list[tuple[Any, ...]] = []
    for _ in range(12):
        steps += [("send", chance.randrange(len(SIZES)), chance.choice(MODES)) for _ in range(chance.randrange(3))]
        steps.append(("let", chance.randrange(1, 8)))
        name, which = chance.choice(ATTACKS), chance.randrange(8)
        steps.append((name, which, chance.random()) if name in ("flip", "replay", "cut_within") else (name, which))
        if chance.random() < 0.3:
            steps += [("let", 3), ("reconnect",)]
    return steps


def play_and_let_be(seal: Seal, steps: list[tuple[Any, ...]]) -> None:
    """And look at what has become of everything."""
    world = OnPath(seal)
    try:
        play(world, steps)
        under_attack = len(world.sent)
        for number, mode in enumerate(MODES):
            world.send(BODY[number : number + 5000], mode, 1000)
        world.let_time_pass(PATIENCE_SECONDS)
        world.check()
        outcomes = [world.outcome(transfer) for transfer in world.sent]
        assert outcomes[under_attack:] == ["delivered"] * len(MODES)
        for link in world.links.values():
            assert link.progress() == []
    finally:
        world.close()


@pytest.mark.parametrize("number", range(15))
@pytest.mark.parametrize("seal", ["on", "integrity"])
def test_nothing_that_is_done_again_and_again_on_the_path_is_delivered(seal: Seal, number: int) -> None:
    play_and_let_be(seal, steps_of(number))


@pytest.mark.parametrize("seal", ["on", "integrity"])
@given(first=st.lists(SEND, min_size=1, max_size=3), steps=STEPS)
@settings(max_examples=15)
def test_whatever_is_done_on_the_path_what_is_delivered_was_sent_or_both_ends_are_told(
    seal: Seal, first: list[tuple[Any, ...]], steps: list[tuple[Any, ...]]
) -> None:
    play_and_let_be(seal, first + steps)
