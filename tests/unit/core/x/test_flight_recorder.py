"""Delivery rate sampling: what was delivered between a chunk's sending and its acknowledgement."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.x.flight_recorder import FlightRecorder

CHUNK = 1000
RTT = 0.02


def test_the_rate_is_what_was_delivered_since_the_newest_chunk_went_out_over_the_time_that_took() -> None:
    recorder = FlightRecorder()
    sent = [recorder.on_sent(CHUNK, number * CHUNK, number * 0.001) for number in range(20)]
    for snapshot in sent[:10]:
        recorder.on_acknowledged(snapshot, CHUNK, snapshot.sent_at + RTT)
    recorder.take(10 * CHUNK, RTT)
    late = recorder.on_sent(CHUNK, 10 * CHUNK, 0.029)
    for snapshot in [*sent[10:], late]:
        recorder.on_acknowledged(snapshot, CHUNK, snapshot.sent_at + RTT)
    sample = recorder.take(0, RTT)
    assert sample.rate == pytest.approx(11 * CHUNK / 0.02)
    assert (sample.newly_acked, sample.delivered, sample.prior_delivered) == (11 * CHUNK, 11 * CHUNK, 10 * CHUNK)
    assert sample.sent_in_flight == 11 * CHUNK


def test_chunks_that_come_together_look_no_faster_than_they_were_sent() -> None:
    recorder = FlightRecorder()
    sent = [recorder.on_sent(CHUNK, number * CHUNK, number * 0.001) for number in range(40)]
    for snapshot in sent:
        recorder.on_acknowledged(snapshot, CHUNK, 0.04)
    assert recorder.take(0, RTT).rate == pytest.approx(40 * CHUNK / 0.04)


def test_over_less_than_a_round_trip_nothing_is_told_of_a_rate() -> None:
    recorder = FlightRecorder()
    recorder.on_acknowledged(recorder.on_sent(CHUNK, 0, 0.0), CHUNK, 0.019)
    assert recorder.take(0, RTT).rate == 0.0


def test_a_report_that_acknowledges_nothing_says_nothing() -> None:
    recorder = FlightRecorder()
    recorder.on_sent(CHUNK, 0, 0.0)
    sample = recorder.take(CHUNK, RTT)
    assert (sample.newly_acked, sample.rate, sample.in_flight) == (0, 0.0, CHUNK)


def test_losses_are_told_once_with_what_was_in_flight_and_was_lost_since_the_chunk_went_out() -> None:
    recorder = FlightRecorder()
    sent = [recorder.on_sent(CHUNK, number * CHUNK, 0.0) for number in range(3)]
    recorder.on_lost(sent[0], CHUNK)
    recorder.on_lost(sent[2], CHUNK)
    lost = recorder.take(CHUNK, RTT).newly_lost
    assert [(chunk.in_flight, chunk.lost_since) for chunk in lost] == [(CHUNK, CHUNK), (3 * CHUNK, 2 * CHUNK)]
    assert recorder.take(CHUNK, RTT).newly_lost == ()
