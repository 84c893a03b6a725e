"""Metrics: what a gateway does shows under documented names, per gateway, on an endpoint that stops cleanly."""

from __future__ import annotations

import contextlib
import math
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from fedrdma_fate.obs import metrics_server
from fedrdma_fate.obs.metrics import (
    LONGEST_LABEL_CHARACTERS,
    MOST_MESSAGE_NAMES,
    GatewayMetrics,
    MetricsServer,
    Occupancy,
    PoolUse,
)
from fedrdma_fate.wire.errors import ConfigError, ErrorCode


@pytest.fixture
def metrics() -> GatewayMetrics:
    return GatewayMetrics()


@pytest.fixture
def server(metrics: GatewayMetrics) -> Iterator[MetricsServer]:
    running = metrics.start_http()
    yield running
    running.close()


def _value(metrics: GatewayMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_a_delivered_transfer_shows_its_bytes_its_time_and_its_outcome(metrics: GatewayMetrics) -> None:
    for seconds in (0.2, 3.0):
        metrics.payload_moved("sent", "host", "fedrdma-e", "tcp", 1000)
        metrics.transfer_ended("delivered", "host", "fedrdma-e", seconds, 4096)
    route = {"peer": "host", "mode": "fedrdma-e"}
    assert _value(metrics, "fedrdma_payload_bytes_total", direction="sent", transport="tcp", **route) == 2000
    assert _value(metrics, "fedrdma_transfers_total", outcome="delivered", **route) == 2
    assert _value(metrics, "fedrdma_resent_bytes_total", **route) == 8192
    assert _value(metrics, "fedrdma_transfer_seconds_sum", outcome="delivered", **route) == pytest.approx(3.2)
    assert _value(metrics, "fedrdma_transfer_seconds_bucket", outcome="delivered", le="0.25", **route) == 1


def test_a_failed_transfer_is_counted_but_its_time_is_not(metrics: GatewayMetrics) -> None:
    metrics.transfer_ended("failed", "host", "fedrdma", 0.0, 0)
    assert _value(metrics, "fedrdma_transfers_total", outcome="failed", peer="host", mode="fedrdma") == 1
    assert "fedrdma_transfer_seconds_count" not in metrics.render()


def test_inline_and_spilled_are_counted(metrics: GatewayMetrics) -> None:
    metrics.inline_moved("received", "host")
    metrics.spilled(123)
    assert _value(metrics, "fedrdma_inline_messages_total", direction="received", peer="host") == 1
    assert _value(metrics, "fedrdma_spilled_bytes_total") == 123


def test_what_is_missing_is_counted_by_peer_and_message_name(metrics: GatewayMetrics) -> None:
    metrics.tolerant("host", "model", 1000, 30)
    metrics.tolerant("host", "model", 1000, 0)
    metrics.tolerant("guest", "model", 500, 5)
    missing, tolerant = "fedrdma_missing_bytes_total", "fedrdma_tolerant_bytes_total"
    assert _value(metrics, missing, peer="host", message="model") == 30
    assert _value(metrics, tolerant, peer="host", message="model") == 2000
    assert _value(metrics, missing, peer="guest", message="model") == 5


def test_names_of_messages_do_not_make_labels_without_end(metrics: GatewayMetrics) -> None:
    metrics.tolerant("host", "n" * (LONGEST_LABEL_CHARACTERS + 1), 1, 1)
    for number in range(3 * MOST_MESSAGE_NAMES):
        metrics.tolerant("host", f"name {number}", 1, 1)
    metrics.tolerant("host", "name 0", 1, 1)
    samples = [each for metric in metrics.registry.collect() for each in metric.samples]
    counted = {each.labels["message"]: each.value for each in samples if each.name == "fedrdma_missing_bytes_total"}
    assert len(counted) == MOST_MESSAGE_NAMES + 1
    assert counted["name 0"] == 2
    assert counted["other"] == 2 * MOST_MESSAGE_NAMES + 1


def test_a_lost_link_stays_visible_as_zero(metrics: GatewayMetrics) -> None:
    metrics.link_up("host", "shm", True)
    assert _value(metrics, "fedrdma_links_up", peer="host", transport="shm") == 1
    metrics.link_up("host", "shm", False)
    assert _value(metrics, "fedrdma_links_up", peer="host", transport="shm") == 0


def test_pools_leases_and_waiting_requests_are_read_at_every_scrape(metrics: GatewayMetrics) -> None:
    readings = iter([Occupancy({"receive": PoolUse(used, 100 - used, 2)}, {"get": used}) for used in (10, 30)])
    metrics.watch(lambda: next(readings))
    assert 'fedrdma_pool_bytes{pool="receive",state="used"} 10.0' in metrics.render()
    second = metrics.render()
    assert 'fedrdma_pool_bytes{pool="receive",state="used"} 30.0' in second
    assert 'fedrdma_pool_bytes{pool="receive",state="free"} 70.0' in second
    assert 'fedrdma_leases{pool="receive"} 2.0' in second
    assert 'fedrdma_waiting_requests{request="get"} 30.0' in second


def test_an_occupancy_that_cannot_be_read_leaves_the_other_metrics(
    metrics: GatewayMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Occupancy:
        raise RuntimeError("the loop is closed")

    metrics.watch(broken)
    metrics.spilled(5)
    assert "fedrdma_spilled_bytes_total 5.0" in metrics.render()
    assert "the loop is closed" in caplog.text


def test_the_share_of_a_peer_is_told_apart_by_who_sends(metrics: GatewayMetrics) -> None:
    metrics.share_told("receive", "host", 1e6)
    metrics.share_told("send", "host", math.inf)
    assert _value(metrics, "fedrdma_receive_share_bytes_per_second", peer="host") == 1e6
    assert _value(metrics, "fedrdma_send_share_bytes_per_second", peer="host") == math.inf


def test_two_gateways_in_one_process_share_nothing(metrics: GatewayMetrics) -> None:
    other = GatewayMetrics()
    metrics.spilled(5)
    assert _value(other, "fedrdma_spilled_bytes_total") == 0


def test_every_metric_has_the_prefix_and_ends_in_what_it_measures(metrics: GatewayMetrics) -> None:
    units = re.compile(
        r"fedrdma_[a-z_]+_(bytes|bytes_per_second|seconds|transfers|messages|datagrams|records|up|requests|updates|restarts|calls)$|fedrdma_(transfers|leases|complaints|sums)$"
    )
    metrics.watch(lambda: Occupancy({}, {}))
    names = {family.name for family in metrics.registry.collect()}
    assert len(names) == 30
    assert [name for name in names if not units.match(name)] == []


def test_the_endpoint_serves_the_metrics_on_loopback(metrics: GatewayMetrics, server: MetricsServer) -> None:
    metrics.spilled(77)
    host, port = server.address
    assert host == "127.0.0.1"
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5) as answer:
        assert "fedrdma_spilled_bytes_total 77.0" in answer.read().decode()


def test_closing_the_endpoint_frees_its_port_and_its_thread(server: MetricsServer) -> None:
    host, port = server.address
    threads_before = threading.active_count()
    server.close()
    server.close()
    assert threading.active_count() == threads_before - 1
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5)


def test_a_port_in_use_is_a_configuration_error(metrics: GatewayMetrics) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}") as caught:
            metrics.start_http("127.0.0.1", port)
    assert caught.value.code is ErrorCode.CONFIG_BAD_VALUE
    assert "listen.metrics" in caught.value.remedy


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70000), ("203.0.113.1", 0)])
def test_an_address_that_cannot_be_bound_is_a_configuration_error(
    metrics: GatewayMetrics, host: str, port: int
) -> None:
    with pytest.raises(ConfigError):
        metrics.start_http(host, port)


def test_no_more_than_some_connections_are_served_at_a_time(server: MetricsServer) -> None:
    silent = [socket.create_connection(server.address, timeout=10) for _ in range(metrics_server.MOST_SCRAPES)]
    _wait_until(lambda: threading.active_count() >= metrics_server.MOST_SCRAPES)
    with socket.create_connection(server.address, timeout=10) as refused:
        assert refused.recv(1) == b""
    for connection in silent:
        connection.close()
    _wait_until(lambda: _is_served(server))


def test_who_says_something_now_and_then_is_ended_all_the_same(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "_SCRAPE_SECONDS", 0.5)
    with socket.create_connection(server.address, timeout=10) as slow, contextlib.suppress(ConnectionError):
        slow.settimeout(0.05)
        for _ in range(400):
            slow.send(b"G")
            with contextlib.suppress(TimeoutError):
                assert slow.recv(1) == b""
                return
        pytest.fail("it is still served")


def _is_served(server: MetricsServer) -> bool:
    host, port = server.address
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def _wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        time.sleep(0.01)
    pytest.fail("it never was")


def test_what_came_to_the_udp_port_for_no_link_is_shown_where_there_is_such_a_port() -> None:
    readings = iter([Occupancy({}, {}), Occupancy({}, {}, port_strays=7)])
    metrics = GatewayMetrics()
    metrics.watch(lambda: next(readings))
    assert metrics.registry.get_sample_value("fedrdma_udp_port_stray_datagrams_total") is None
    assert metrics.registry.get_sample_value("fedrdma_udp_port_stray_datagrams_total") == 7
