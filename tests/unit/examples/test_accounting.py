"""Bytes and seconds of a run: counted once per destination, compared with what gateways delivered."""

from __future__ import annotations

from collections import Counter

import pytest

from examples.gpt2_advertisegen import accounting
from examples.gpt2_advertisegen.accounting import Message, Operation
from examples.gpt2_advertisegen.plan import ARBITER, GUEST, HOST
from examples.gpt2_advertisegen.summary import MeasurementError, check_delivered, check_same_model, round_spans

UP = Message("guest:9999", "arbiter:10000", "mixed", "default.aggregation-0", 160)
DOWN = Message("arbiter:10000", "guest:9999", "aggregated", "default.aggregation-0", 80)


def record(op: str, name: str, tag: str, size: int, *peers: str) -> dict[str, object]:
    return {"op": op, "name": name, "tag": tag, "bytes": size, "seconds": 0.1, "peers": list(peers)}


def delivered(message: Message, *, kept: bool = True) -> dict[str, object]:
    return {
        "event": "delivered",
        "source": message.source,
        "destination": message.destination,
        "name": message.name,
        "tag": message.tag,
        "bytes": message.size,
        "kept": kept,
    }


def test_a_put_counts_once_for_each_destination_and_a_get_not_at_all() -> None:
    journal = [record("put", "a", "t", 10, "guest:9999", "host:10000"), record("get", "b", "t", 7, "guest:9999")]
    pushed = accounting.pushed_messages({ARBITER: journal})
    assert accounting.total_bytes(pushed) == accounting.bytes_from(pushed, ARBITER) == 20
    assert accounting.bytes_to(pushed, GUEST) == 10


def test_a_repeated_delivery_that_the_gateway_dropped_does_not_count() -> None:
    trace = [delivered(UP), delivered(UP, kept=False), {"event": "get", "bytes": 160}]
    assert accounting.delivered_messages(trace) == Counter([UP])


def test_equal_messages_pass() -> None:
    check_delivered(Counter([UP, DOWN]), Counter([DOWN, UP]))


@pytest.mark.parametrize(
    ("pushed", "arrived", "text"),
    [
        ([UP, DOWN], [UP], "no gateway delivered: 1 messages, 80 bytes"),
        ([UP], [UP, DOWN], "did not push: 1 messages, 80 bytes"),
        ([UP], [UP, UP], "did not push: 1 messages, 160 bytes"),
        ([UP], [Message("guest:9999", "arbiter:10000", "mixed", "default.aggregation-0", 159)], "160 bytes"),
    ],
)
def test_a_byte_that_is_lost_doubled_or_changed_is_found(
    pushed: list[Message], arrived: list[Message], text: str
) -> None:
    with pytest.raises(MeasurementError, match=text):
        check_delivered(Counter(pushed), Counter(arrived))


def test_clients_that_end_with_different_models_are_found() -> None:
    check_same_model({"guest:9999": "aa", "host:10000": "aa"})
    with pytest.raises(MeasurementError, match="guest:9999 aa, host:10000 bb"):
        check_same_model({"guest:9999": "aa", "host:10000": "bb"})


def test_bytes_go_to_the_round_of_their_tag_and_set_up_to_none() -> None:
    journal = [
        record("put", "keys", "default", 99, "arbiter:10000"),
        record("put", "mixed", "default.aggregation-0", 160, "arbiter:10000"),
        record("put", "mixed", "default.aggregation-1", 170, "arbiter:10000"),
        record("put", "loss", "default.loss_aggregation-1", 5, "arbiter:10000"),
        record("get", "aggregated", "default.aggregation-1", 80, "arbiter:10000"),
    ]
    assert accounting.bytes_by_round(journal, "put", 2) == [160, 175]
    assert accounting.bytes_by_round(journal, "get", 2) == [0, 80]


def test_a_get_waits_until_its_peer_s_put_begins_and_communicates_from_then_on() -> None:
    tag = "default.aggregation-0"
    done = {
        GUEST: [Operation("put", "mixed", tag, ("arbiter:10000",), begin=103.0, end=104.0)],
        HOST: [],
        ARBITER: [Operation("get", "mixed", tag, ("guest:9999",), begin=100.0, end=104.5)],
    }
    (split,) = accounting.seconds_by_round(ARBITER, done, 1)
    assert (split.waiting, split.communication) == pytest.approx((3.0, 1.5))
    (put,) = accounting.seconds_by_round(GUEST, done, 1)
    assert (put.waiting, put.communication) == pytest.approx((0.0, 1.0))


def test_a_get_that_starts_behind_the_put_does_not_wait() -> None:
    tag = "default.aggregation-0"
    done = {
        GUEST: [Operation("put", "mixed", tag, ("arbiter:10000",), begin=90.0, end=91.0)],
        ARBITER: [Operation("get", "mixed", tag, ("guest:9999",), begin=100.0, end=100.25)],
    }
    (split,) = accounting.seconds_by_round(ARBITER, done, 1)
    assert (split.waiting, split.communication) == pytest.approx((0.0, 0.25))


def test_a_get_from_several_waits_for_the_last_of_them() -> None:
    tag = "default.aggregation-0"
    done = {
        GUEST: [Operation("put", "x", tag, ("arbiter:10000",), begin=101.0, end=101.5)],
        HOST: [Operation("put", "x", tag, ("arbiter:10000",), begin=102.0, end=102.5)],
        ARBITER: [Operation("get", "x", tag, ("guest:9999", "host:10000"), begin=100.0, end=103.0)],
    }
    (split,) = accounting.seconds_by_round(ARBITER, done, 1)
    assert (split.waiting, split.communication) == pytest.approx((2.0, 1.0))


def test_messages_before_the_first_round_belong_to_none_but_count_in_all() -> None:
    tag = "default.aggregation-0"
    done = {
        GUEST: [
            Operation("put", "keys", "default", ("host:10000",), begin=1.0, end=2.0),
            Operation("get", "aggregated", tag, ("arbiter:10000",), begin=3.0, end=7.0),
        ],
        ARBITER: [Operation("put", "aggregated", tag, ("guest:9999",), begin=5.5, end=6.0)],
    }
    (split,) = accounting.seconds_by_round(GUEST, done, 1)
    assert (split.waiting, split.communication) == pytest.approx((2.5, 1.5))
    in_all = accounting.seconds_in_all(GUEST, done)
    assert (in_all.waiting, in_all.communication) == pytest.approx((2.5, 2.5))


def test_a_round_lasts_from_its_first_step_to_its_last_message_and_the_arbiter_s_from_the_first_client() -> None:
    def begin(number: int, time: float) -> dict[str, object]:
        return {"event": "round-begin", "round": number, "time": time}

    def got(number: int, end: float) -> Operation:
        return Operation("get", "aggregated", f"default.aggregation-{number}", ("arbiter:10000",), end - 1, end)

    events = {GUEST: [begin(0, 10.0), begin(1, 20.0)], HOST: [begin(0, 11.0), begin(1, 19.0)], ARBITER: []}
    done = {GUEST: [got(0, 15.0), got(1, 26.0)], HOST: [got(0, 16.0), got(1, 25.0)], ARBITER: [got(0, 14.0)]}
    spans = round_spans(events, done, 2)
    assert spans == {"guest:9999": [5.0, 6.0], "host:10000": [5.0, 6.0], "arbiter:10000": [4.0, 0.0]}
