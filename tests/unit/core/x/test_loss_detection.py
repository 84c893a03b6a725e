"""Which chunks in flight are declared lost, and when."""

from __future__ import annotations

import math

from fedrdma_fate.core.x.loss_detection import (
    LARGEST_BACKOFF,
    UNKNOWN_RTT_SECONDS,
    InFlight,
    RetransmitTimeout,
    SentChunk,
)


def test_a_chunk_overtaken_by_three_on_its_queue_pair_is_lost_and_others_are_not() -> None:
    in_flight = InFlight(2)
    for position in range(8):
        in_flight.on_sent(SentChunk(position, 1, position % 2, 0.0, False))
    in_flight.on_acknowledged(6, 1.0, 0.0)
    assert in_flight.detect_lost() == [0]
    assert in_flight.bytes_in_flight == 6


def test_the_arrival_of_an_earlier_sending_overtakes_nothing() -> None:
    in_flight = InFlight(1)
    for position in range(3):
        in_flight.on_sent(SentChunk(position, 1, 0, 0.0, False))
    in_flight.on_sent(SentChunk(9, 1, 0, 1.0, True))
    assert in_flight.on_acknowledged(9, 1.001, 0.02) is None
    assert in_flight.detect_lost() == []


def test_chunks_sent_no_later_than_the_given_moment_are_overdue_on_every_queue_pair() -> None:
    in_flight = InFlight(2)
    for position in range(4):
        in_flight.on_sent(SentChunk(position, 10, position % 2, 0.1 * position, False))
    in_flight.on_acknowledged(0, 0.5, 0.0)
    assert in_flight.oldest_sent_at == 0.1
    assert sorted(in_flight.detect_overdue(0.2)) == [1, 2]
    assert (len(in_flight), in_flight.bytes_in_flight) == (1, 10)
    assert list(in_flight.clear()) == [3]
    assert in_flight.oldest_sent_at is None


def test_the_time_out_doubles_once_for_all_that_went_out_together_and_is_bounded() -> None:
    timeout = RetransmitTimeout()
    base = timeout.base_seconds(0.02)
    timeout.on_timeout(1.0, 0.02)
    timeout.on_timeout(1.0 + base, 0.02)
    assert timeout.seconds(0.02) == 2 * base, "what is given up now went out with what was before"
    now = 1.0
    for _ in range(10):
        now += timeout.seconds(0.02)
        timeout.on_timeout(now, 0.02)
    assert timeout.seconds(0.02) == LARGEST_BACKOFF * base
    timeout.on_progress(now)
    assert timeout.deadline(now, 0.02) == now + base


def test_a_chunk_is_overdue_at_its_deadline_and_not_before() -> None:
    timeout = RetransmitTimeout()
    deadline = timeout.deadline(1.0, 0.0)
    assert timeout.is_over(1.0, 0.0, deadline)
    assert not timeout.is_over(1.0, 0.0, deadline - 1e-3)
    assert deadline == 1.0 + timeout.base_seconds(UNKNOWN_RTT_SECONDS), "an unknown round trip counts as a long one"


def test_what_still_waits_on_this_host_is_not_overdue() -> None:
    in_flight = InFlight(1)
    sent = SentChunk(0, 10, 0, 1.0, False, left_at=math.inf)
    in_flight.on_sent(sent)
    assert in_flight.oldest_sent_at is None
    assert in_flight.detect_overdue(100.0) == []
    sent.left_at = 50.0
    assert in_flight.oldest_sent_at == 50.0
    assert in_flight.detect_overdue(49.0) == []
    assert in_flight.detect_overdue(50.0) == [0]
