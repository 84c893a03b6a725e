"""Quantities as people write them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pytest

from fedrdma_fate.quantities import QuantityError, counted, exact_size, parse_loss, parse_rate, parse_size, parse_time


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_rate, "1gbit", 10**9),
        (parse_rate, "2.5Gbit", 2_500_000_000),
        (parse_rate, "300 kbit", 300_000),
        (parse_time, "20ms", 20_000_000),
        (parse_time, "1.5s", 1_500_000_000),
        (parse_time, "0", 0),
        (parse_size, "4MB", 4_000_000),
        (parse_size, "4MiB", 4 * 2**20),
        (parse_size, "1500", 1500),
        (parse_loss, "0.1%", 0.001),
        (parse_loss, "0", 0.0),
    ],
)
def test_quantities_are_read_as_written(parse: Callable[[str], float], text: str, value: float) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "problem"),
    [
        (parse_rate, "1", "not a rate"),
        (parse_rate, "0gbit", "cannot be zero"),
        (parse_rate, "-1gbit", "not a rate"),
        (parse_rate, "1gib", "not a rate"),
        (parse_rate, "", "not a rate"),
        (parse_time, "20", "not a time"),
        (parse_time, "0.1ns", "whole number"),
        (parse_time, "20ms 10ms", "not a time"),
        (parse_size, "4 megabytes", "not a size"),
        (parse_size, "0", "cannot be zero"),
        (parse_loss, "0.1", "not a loss"),
        (parse_loss, "100%", "loses everything"),
        (parse_loss, "1e1%", "not a loss"),
    ],
)
def test_other_quantities_are_refused(parse: Callable[[str], float], text: str, problem: str) -> None:
    with pytest.raises(QuantityError, match=problem):
        parse(text)


def test_a_size_may_be_had_as_it_is_written_for_others_to_round() -> None:
    assert (exact_size("0.3KB"), exact_size("1.5"), exact_size("0")) == (300, Decimal("1.5"), 0)
    with pytest.raises(QuantityError, match="whole number"):
        parse_size("1.5")


def test_one_thing_is_told_without_an_s() -> None:
    assert [counted(number, "message") for number in (0, 1, 2)] == ["0 messages", "1 message", "2 messages"]
