"""Small messages that neither memory nor disk has room for: what stays in the heap has a bound."""

from __future__ import annotations

from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.messages.unspilled import MOST_BYTES, Unspilled
from fedrdma_fate.wire.frames import MessageKey, Party


def message(number: int, total_bytes: int) -> Message:
    key = MessageKey("s", f"m{number}", "t", Party("guest", "1"), Party("host", "2"))
    return Message(key, "bytes", total_bytes, body=bytes(total_bytes))


def test_messages_of_no_length_are_bounded_too() -> None:
    kept = Unspilled()
    numbers = iter(range(10**6))
    while not kept.is_full:
        kept.add(message(next(numbers), 0), "owner")
    assert next(numbers) <= MOST_BYTES // 1000


def test_one_counts_once_and_no_longer_than_it_is_wanted() -> None:
    kept = Unspilled()
    first, second = message(1, 1000), message(2, 500)
    for each in (first, first, second):
        kept.add(each, "owner")
    both = kept.total_bytes
    assert kept.keep_those(lambda each: each is second) == [(second, "owner")]
    assert 0 < kept.total_bytes < both / 2 + 500
    assert kept.keep_those(lambda _: False) == []
    assert (kept.total_bytes, bool(kept)) == (0, False)
