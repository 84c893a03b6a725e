"""Small messages that neither memory nor disk has room for: what stays in the heap has a bound."""

from __future__ import annotations

from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.messages.unspilled import MOST_BYTES, RECOUNT_SECONDS, Unspilled
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


def test_those_that_were_pulled_count_no_more_when_another_would_be_refused() -> None:
    kept = Unspilled()
    for number in range(3):
        kept.add(message(number, MOST_BYTES // 2), "owner")
    assert kept.is_full
    kept.recount(lambda each: each.key.name == "m0", 5.0)
    assert not kept.is_full
    kept.add(message(3, MOST_BYTES), "owner")
    kept.recount(lambda _: False, 5.0 + RECOUNT_SECONDS / 2)
    assert kept.is_full, "a flood does not make it look each time"
    kept.recount(lambda _: False, 5.0 + 2 * RECOUNT_SECONDS)
    assert kept.total_bytes == 0
