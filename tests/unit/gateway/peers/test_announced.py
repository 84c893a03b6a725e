"""Announced transfers: each is found by its number and by its message, however they come and go."""

from __future__ import annotations

import random

from fedrdma_fate.gateway.peers.announced import AnnouncedTransfers
from fedrdma_fate.wire.frames import MessageKey, Offer, Party

A, B = Party("guest", "1"), Party("host", "2")


def offer(transfer: int, message: int) -> Offer:
    key = MessageKey("s", f"m{message}", "t", A, B)
    return Offer("tcp", transfer, key, "bytes", 70_000, "fedrdma-e", 1, 4096, 0)


def test_what_is_announced_is_what_was_added_and_neither_ended_nor_undeliverable() -> None:
    chance = random.Random(7)
    announced = AnnouncedTransfers()
    expected: dict[int, Offer] = {}
    for _ in range(20_000):
        transfer, message = chance.randrange(50), chance.randrange(10)
        match chance.randrange(4):
            case 0 | 1:
                announced.add(offer(transfer, message))
                expected[transfer] = offer(transfer, message)
            case 2:
                announced.discard(transfer)
                expected.pop(transfer, None)
            case _:
                key = offer(0, message).key
                announced.discard_message(key)
                expected = {number: each for number, each in expected.items() if each.key != key}
        assert sorted(announced) == sorted(expected)
        assert len(announced) == len(expected)
    assert {each.transfer: each for each in announced.offers()} == expected


def test_nothing_is_left_of_what_has_ended() -> None:
    announced = AnnouncedTransfers()
    for transfer in range(100):
        announced.add(offer(transfer, transfer % 7))
    for transfer in range(100):
        announced.discard(transfer)
    assert not len(announced)
    assert announced._of_message == {}
