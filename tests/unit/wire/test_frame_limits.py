"""What a frame may carry at most: names, tags, reasons and lists have a length."""

from __future__ import annotations

import math

import pytest

from fedrdma_fate.wire.datagrams import PathProbe, PathProbeAnswer, decode_datagram, encode_datagram
from fedrdma_fate.wire.errors import ErrorCode, WireError
from fedrdma_fate.wire.frames import (
    LEAST_FRAMES_PER_SECOND,
    MOST_ADDRESS_ITEMS,
    MOST_HOLDERS,
    MOST_NAME_CHARACTERS,
    MOST_PARTY_CHARACTERS,
    MOST_REASON_CHARACTERS,
    MOST_SUM_ORDERS,
    Connect,
    Frame,
    Goodbye,
    Hello,
    Inline,
    MemoryHeld,
    MessageKey,
    Party,
    Refused,
    Report,
    SamePayload,
    SumOrder,
    SumOrders,
    Undeliverable,
    decode_frame,
    encode_frame,
)

A, B = Party("guest", "1"), Party("host", "2")
LONG = "n" * (MOST_NAME_CHARACTERS + 1)
ROLE = "r" * (MOST_PARTY_CHARACTERS + 1)


@pytest.mark.parametrize(
    "frame",
    [
        Inline(1, MessageKey(LONG, "m", "t", A, B), "bytes", b""),
        Inline(1, MessageKey("s", LONG, "t", A, B), "bytes", b""),
        Inline(1, MessageKey("s", "m", LONG, A, B), "bytes", b""),
        Inline(1, MessageKey("s", "m", "t", Party(ROLE, "1"), B), "bytes", b""),
        Undeliverable(MessageKey("s", "m", "t", A, B), ROLE, "why"),
        Connect("t" * 300, "why", 1, True, {}),
        MemoryHeld(((B, -1),)),
        SamePayload(1, MessageKey(LONG, "m", "t", A, B), "bytes", 1, 2, True),
        SamePayload(1, MessageKey("s", "m", "t", A, B), "bytes", -1, 2, True),
        SumOrders((SumOrder(1, "s", "m", "t", B, (A,), 8),)),
        SumOrders((SumOrder(-1, "s", "m", "t", B, (A, B), 8),)),
        SumOrders((SumOrder(1, "s", "m", "t", B, (A, B), 1),)),
        SumOrders((SumOrder(1, LONG, "m", "t", B, (A, B), 2),)),
        SumOrders((SumOrder(1, "s", "m", "t", B, (A, B), 2),) * (MOST_SUM_ORDERS + 1)),
        MemoryHeld(((B, 1),) * (MOST_HOLDERS + 1)),
        Connect("tcp", "why", 1, True, {str(number): 0 for number in range(MOST_ADDRESS_ITEMS + 1)}),
        Hello("a", "i", 2, ROLE, "h", (), (), 1),
        Hello("a", "i", 2, "v", "h", (ROLE,), (), 1),
        Hello("a", "i", 2, "v", "h", (), (), 1, frames_per_second=LEAST_FRAMES_PER_SECOND / 2),
    ],
)
def test_a_frame_with_more_than_it_may_carry_is_malformed(frame: Frame) -> None:
    with pytest.raises(WireError) as refused:
        decode_frame(encode_frame(frame))
    assert refused.value.code is ErrorCode.MALFORMED_FRAME


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e300])
def test_what_is_no_time_is_malformed(number: float) -> None:
    for arrived_at, held in ((number, 0.0), (0.0, number)):
        with pytest.raises(WireError) as refused:
            decode_frame(encode_frame(Report(1, 0, 1, b"", 0, arrived_at, held, 1)))
        assert refused.value.code is ErrorCode.MALFORMED_FRAME
    with pytest.raises(WireError):
        decode_frame(encode_frame(Report(1, 0, 1, b"", 0, 0.0, 0.0, -1)))


@pytest.mark.parametrize(
    "datagram",
    [
        PathProbe(1, -1, b""),
        PathProbe(1, 1 << 60, b""),
        PathProbeAnswer(1, ((1, 0),), -1),
        PathProbeAnswer(1, ((1, 0),), 1 << 60),
        PathProbeAnswer(1, ((1, -1),), 0),
        PathProbeAnswer(1, ((1 << 62, 1),), 0),
        PathProbeAnswer(1, ((1, 0),) * 1025, 0),
    ],
)
def test_a_train_of_what_cannot_be_counted_or_timed_is_malformed(datagram: PathProbe | PathProbeAnswer) -> None:
    with pytest.raises(WireError) as refused:
        decode_datagram(encode_datagram(datagram))
    assert refused.value.code is ErrorCode.MALFORMED_FRAME


def test_what_is_as_long_as_may_be_gets_through() -> None:
    key = MessageKey(LONG[1:], LONG[1:], LONG[1:], Party(ROLE[1:], ROLE[1:]), B)
    assert decode_frame(encode_frame(Inline(1, key, "bytes", b""))) == Inline(1, key, "bytes", b"")


@pytest.mark.parametrize("make", [lambda why: Refused(1, "FR610", why), Goodbye])
def test_a_reason_that_is_too_long_is_cut_by_whoever_sends_it(make: type[Goodbye]) -> None:
    sent = decode_frame(encode_frame(make("y" * 4_000_000)))
    assert sent == make("y" * MOST_REASON_CHARACTERS)
