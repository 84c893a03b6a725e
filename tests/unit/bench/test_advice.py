"""What `fedrdma advise` estimates, against what `fedrdma bench protocols` measured."""

from __future__ import annotations

import itertools
import math

import pytest

from fedrdma_fate.bench.protocols.advice import BBR_LOSS, HIGHEST_LOSS, Path, estimate_ways, rate_with_headers
from fedrdma_fate.bench.protocols.models import VGG5_BYTES, VGG8_BYTES

TCP, UDP, BBR = "fedrdma-x over tcp", "fedrdma-x over udp", "fedrdma-x over tcp, BBR"
BROKERS, FATE = "MQTT, AMQP, ZeroMQ or gRPC over TCP", "FATE's rabbitmq"

Link = tuple[float, float, float, int, int]

MEASURED: dict[Link, dict[str, float]] = {
    # Mbit/s, ms, loss, silos, bytes; medians of docs/results/protocols.md
    (20, 2, 0.0, 4, VGG5_BYTES): {TCP: 4.893, BBR: 4.924, BROKERS: 4.891, UDP: 4.966, FATE: 9.882},
    (20, 2, 0.05, 4, VGG5_BYTES): {BBR: 4.905, BROKERS: 6.404, UDP: 5.104},
    (60, 2, 0.0, 4, VGG5_BYTES): {BBR: 1.637, BROKERS: 1.632, UDP: 1.719},
    (60, 2, 0.05, 4, VGG5_BYTES): {BBR: 1.650, TCP: 3.576, BROKERS: 4.120, UDP: 1.759},
    (5, 2, 0.0, 4, VGG5_BYTES): {BBR: 19.697, BROKERS: 19.557, UDP: 19.88},
    (5, 2, 0.05, 4, VGG5_BYTES): {TCP: 19.850, BBR: 19.704, BROKERS: 19.866, UDP: 20.79},
    (20, 2, 0.0, 1, VGG5_BYTES): {BROKERS: 1.956, FATE: 4.037},
    (20, 2, 0.05, 1, VGG5_BYTES): {BBR: 2.171, UDP: 2.010},
    (20, 2, 0.10, 1, VGG5_BYTES): {BBR: 2.016, UDP: 2.063},
    (20, 2, 0.20, 1, VGG5_BYTES): {BBR: 42.267, UDP: 2.267},
    (20, 20, 0.05, 1, VGG5_BYTES): {TCP: 19.204, BBR: 2.122, BROKERS: 19.089, UDP: 2.076},
    (20, 20, 0.10, 1, VGG5_BYTES): {TCP: 41.508, BBR: 2.177, BROKERS: 54.910, UDP: 2.110},
    (20, 20, 0.20, 1, VGG5_BYTES): {BBR: 8.135, UDP: 2.513},
    (20, 2, 0.0, 4, VGG8_BYTES): {BBR: 11.238, BROKERS: 11.230, UDP: 11.461},
    (20, 2, 0.0, 7, VGG8_BYTES): {BBR: 18.069, UDP: 18.919},
    (5, 2, 0.0, 1, VGG8_BYTES): {BROKERS: 17.961, UDP: 18.084},
    (60, 2, 0.0, 1, VGG8_BYTES): {BROKERS: 1.499, UDP: 1.529},
}


def path(rate: float, rtt: float, loss: float) -> Path:
    """As the benchmark has it: the server's card sends ten times as fast as a link carries."""
    return Path(rate * 1e6, rtt / 1e3, loss, server_sends_bps=rate * 1e7)


def estimated(rate: float, rtt: float, loss: float, silos: int, size: int = VGG5_BYTES) -> dict[str, float]:
    return {one.name: one.seconds for one in estimate_ways(path(rate, rtt, loss), silos, size)}


@pytest.mark.parametrize("where", MEASURED)
def test_estimates_are_near_what_was_measured(where: Link) -> None:
    told, loss = estimated(*where), where[2]
    for name, seconds in MEASURED[where].items():
        if loss and where[1] < 10 and name in (TCP, BROKERS):
            # at short round trips the formula expects more timeouts than there are
            assert 0.9 * seconds < told[name] < 2.3 * seconds, name
            continue
        if name == BBR and loss >= BBR_LOSS:
            # how slow it gets is not known well, but that it does
            assert told[name] > 3 * told[UDP]
            assert seconds > 3 * MEASURED[where][UDP]
            continue
        # what losses do to CUBIC varies by as much between two seeds
        near = 0.3 if loss and name in (TCP, BROKERS) else 0.1 if loss else 0.05
        assert told[name] == pytest.approx(seconds, rel=near), name


@pytest.mark.parametrize("where", MEASURED)
def test_the_first_is_within_a_tenth_of_the_fastest_that_was_measured(where: Link) -> None:
    measured = MEASURED[where]
    told = [one for one in estimate_ways(path(*where[:3]), where[3], where[4]) if one.name in measured]
    assert measured[told[0].name] <= 1.1 * min(measured.values())


def test_the_fastest_is_first_and_each_says_why_and_where_its_number_comes_from() -> None:
    for rate, rtt, loss, silos in itertools.product(
        (1, 20, 1000), (0.0, 2, 200), (0.0, 0.01, 0.2, HIGHEST_LOSS), (1, 64)
    ):
        found = estimate_ways(path(rate, rtt, loss), silos, 1000)
        assert [one.seconds for one in found] == sorted(one.seconds for one in found)
        assert all(math.isfinite(one.seconds) and one.seconds > 0 for one in found)
        assert all(one.reason and "docs/" in one.source for one in found)
        assert {one.name for one in found} == {TCP, UDP, BBR, BROKERS, FATE}


@pytest.mark.parametrize(("loss", "formula"), [(0.1, "bytes with headers"), (BBR_LOSS, "that of CUBIC")])
def test_where_bbr_slows_down_its_number_is_said_to_be_cubic_s(loss: float, formula: str) -> None:
    found = {one.name: one for one in estimate_ways(path(20, 20, loss), 1, VGG5_BYTES)}
    assert formula in found[BBR].source
    assert (found[BBR].seconds == found[TCP].seconds) == (loss >= BBR_LOSS)


def test_more_silos_loss_or_bytes_and_less_rate_take_no_less_time() -> None:
    usual = estimated(20, 20, 0.02, 4)
    for other in (
        estimated(20, 20, 0.02, 5),
        estimated(20, 20, 0.03, 4),
        estimated(10, 20, 0.02, 4),
        estimated(20, 20, 0.02, 4, 2 * VGG5_BYTES),
    ):
        assert all(other[name] >= usual[name] for name in usual)


def test_a_server_whose_link_is_no_faster_than_a_silo_s_sends_to_all_through_it() -> None:
    alone, shared = Path(20e6, 0.002), Path(20e6, 0.002, server_sends_bps=40e6, server_receives_bps=10e6)
    assert (alone.down_bps(4), alone.up_bps(4), alone.down_bps(1)) == (5e6, 5e6, 20e6)
    assert (shared.down_bps(4), shared.up_bps(4), shared.down_bps(1)) == (10e6, 2.5e6, 20e6)
    assert rate_with_headers(1448, 1500) == 1514
