"""What paths do beside rate, delay and loss, as people write it: what is read, and what is refused."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.bench.wan.shaping import (
    LEAST_TRACE_BPS,
    MOST_TRACE_BPS,
    MOST_TRACE_BYTES,
    CrossTraffic,
    Policer,
    RateTrace,
    parse_cross_traffic,
    parse_policer,
    parse_rate_trace,
    read_rate_trace,
)
from fedrdma_fate.quantities import QuantityError

TRACE = "# a link of 1 Gbit/s that sags\n0 1000000000\n\n0.25   250000000  # half the time\n0.5 repeat\n"


def test_a_policer_is_a_rate_and_a_burst() -> None:
    assert parse_policer("500mbit:100kB") == Policer(5 * 10**8, 100_000)
    assert parse_policer(str(Policer(5 * 10**8, 100_000))) == Policer(5 * 10**8, 100_000)


def test_cross_traffic_is_flows_that_are_on_and_off_for_a_second_unless_one_says_otherwise() -> None:
    assert parse_cross_traffic("3") == CrossTraffic(3, 10**9, 10**9)
    made = parse_cross_traffic("2:500ms:0")
    assert made == CrossTraffic(2, 5 * 10**8, 0)
    assert parse_cross_traffic(str(made)) == made


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not FLOWS or FLOWS:ON:OFF"),
        ("two", "is not FLOWS or FLOWS:ON:OFF"),
        ("-1", "is not FLOWS or FLOWS:ON:OFF"),
        ("2:1s", "is not FLOWS or FLOWS:ON:OFF"),
        ("2:1s:1s:1s", "is not FLOWS or FLOWS:ON:OFF"),
        ("0", "there are 1 to 16 flows"),
        ("17", "there are 1 to 16 flows"),
        ("2:1:1", "is not a time"),
        ("2:9ms:1s", "a flow lasts 10 ms at least"),
    ],
)
def test_what_is_no_cross_traffic_is_refused(text: str, problem: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_cross_traffic(text)
    assert problem in str(caught.value)


def test_a_trace_is_read_as_written() -> None:
    trace = parse_rate_trace(TRACE)
    assert trace == RateTrace(((0, 10**9), (250_000_000, 250_000_000)), 500_000_000)
    assert (trace.lowest_bps, trace.highest_bps, trace.mean_bps) == (250_000_000, 10**9, 625_000_000)


def test_a_trace_that_repeats_has_no_end_and_one_that_does_not_ends_with_its_last_rate() -> None:
    seconds = [(at / 1e9, rate) for at, rate in itertools.islice(parse_rate_trace(TRACE).moments(), 5)]
    assert seconds == [(0, 10**9), (0.25, 25 * 10**7), (0.5, 10**9), (0.75, 25 * 10**7), (1.0, 10**9)]
    assert list(parse_rate_trace("0 5000\n2.5 6000\n").moments()) == [(0, 5000), (2_500_000_000, 6000)]


def test_the_mean_is_over_time_until_the_last_rate_begins_where_nothing_repeats() -> None:
    assert parse_rate_trace("0 1000\n3 5000\n4 9000\n").mean_bps == 2000
    assert parse_rate_trace("0 7000").mean_bps == 7000


@given(
    st.lists(st.integers(1, 10**15), max_size=20, unique=True),
    st.lists(st.integers(LEAST_TRACE_BPS, MOST_TRACE_BPS), min_size=21, max_size=21),
    st.none() | st.integers(10**15 + 1, 10**16),
)
def test_what_is_written_is_read_as_it_was(later: list[int], rates: list[int], repeat_ns: int | None) -> None:
    trace = RateTrace(tuple(zip([0, *sorted(later)], rates, strict=False)), repeat_ns)
    assert parse_rate_trace(trace.to_text()) == trace
    assert trace.lowest_bps <= trace.mean_bps <= trace.highest_bps


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it holds no rate"),
        ("# nothing\n", "it holds no rate"),
        ("0.1 5000\n", "line 1: 0.1 s are not 0, where a trace begins"),
        ("0 5000\n0 6000\n", "line 2: 0 s are not later than the line before"),
        ("0 5000\n2 6000\n1 7000\n", "line 3: 1 s are not later"),
        ("0 5000\n2 6000\n2 repeat\n", "line 3: 2 s are not later"),
        ("0 repeat\n", "line 1: 'repeat' is no whole number of bit/s"),
        ("0 5000\n1 repeat\n2 5000\n", "line 3: nothing follows 'repeat'"),
        ("0\n", "line 1: '0' is not seconds and bit/s"),
        ("0 5000 6000\n", "is not seconds and bit/s"),
        ("0,5000\n", "is not seconds and bit/s"),
        ("-1 5000\n", "is not seconds and bit/s"),
        ("1e3 5000\n", "is not seconds and bit/s"),
        ("nan 5000\n", "is not seconds and bit/s"),
        ("0.0000000001 5000\n", "is not seconds and bit/s"),
        ("0 5mbit\n", "'5mbit' is no whole number of bit/s"),
        ("0 5000.5\n", "is no whole number of bit/s"),
        ("0 -5000\n", "is no whole number of bit/s"),
        ("0 0\n", "0 bit/s are not between 1,000 and 1,000,000,000,000"),
        ("0 1000000000001\n", "are not between"),
        ("0 99999999999999999999999\n", "is no whole number of bit/s"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_line(text: str, problem: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_rate_trace(text)
    assert problem in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary, long, bad = tmp_path / "binary", tmp_path / "long", tmp_path / "bad"
    binary.write_bytes(b"0 5000\xff\n")
    long.write_bytes(b"#" * (MOST_TRACE_BYTES + 1))
    bad.write_text("0 fast\n")
    for path, problem in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "Is a directory"),
        (binary, "no text of ASCII characters"),
        (long, "it has more than 4,194,304 bytes"),
        (bad, "line 1: 'fast' is no whole number"),
    ):
        with pytest.raises(QuantityError) as caught:
            read_rate_trace(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert problem in str(caught.value)


@given(st.text(alphabet="0123456789.-e #\nrepeat\u0661", max_size=60))
def test_any_text_is_a_trace_or_is_refused(text: str) -> None:
    with contextlib.suppress(QuantityError):
        trace = parse_rate_trace(text)
        assert trace.points[0][0] == 0
        assert all(LEAST_TRACE_BPS <= rate <= MOST_TRACE_BPS for _, rate in trace.points)
