"""Prometheus metrics of one gateway, in a registry of their own."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fedrdma_fate.obs.metrics_server import MetricsServer, Secure

_log = logging.getLogger(__name__)

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""From a small LoRA update between two gateways on one host to gigabytes over a slow WAN."""

NOTICE_BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0)
"""Seconds until an addition begins: from a worker that waits on a core of its own to one that has still to start."""

MOST_MESSAGE_NAMES = 16
"""Of a peer's messages that are counted apart, the first ones: a job of FATE has one or two that may have holes."""

LONGEST_LABEL_CHARACTERS = 128
"""Of such a name; a longer one is none of FATE's aggregation."""

OTHER_NAMES = "other"
"""As what all others count."""

FAILED = "failed"
"""The outcome of a transfer that was not delivered; it took no time worth measuring."""

ANSWERED = "answered"
"""The outcome of a scheduling call that FATE Flow answered."""


@dataclasses.dataclass(frozen=True, slots=True)
class PoolUse:
    """How full a pool is: bytes and leases."""

    used_bytes: int
    free_bytes: int
    leases: int


@dataclasses.dataclass(frozen=True, slots=True)
class Occupancy:
    """What a gateway holds at one moment.

    Attributes:
        pools: use by name of the pool, `send` and `receive`.
        waiting: requests of tasks that wait, by kind: `put` for room, `get` for its message.
        certificate_end: Unix time at which the gateway's own certificate ends; None where it has none.
        port_strays: datagrams that came to the UDP port for no link; None where there is no such port.
        sums: sums of updates that are under way.
        updates: of those, by where they are: `in` the sum, `waiting` here, or `missing`.
        longest_sum: seconds since the oldest of them was asked for.
    """

    pools: Mapping[str, PoolUse]
    waiting: Mapping[str, int]
    certificate_end: float | None = None
    port_strays: int | None = None
    sums: int = 0
    updates: Mapping[str, int] = dataclasses.field(default_factory=dict)
    longest_sum: float = 0.0


class GatewayMetrics:
    """Counts what a gateway does. Two gateways in one process do not share anything. Any thread may call."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._payload = self._counter(
            "fedrdma_payload_bytes",
            "Payload bytes of transfers that arrived whole.",
            ("direction", "peer", "mode", "transport"),
        )
        self._transfers = self._counter(
            "fedrdma_transfers",
            "Transfers that ended: delivered (sent by us), received, or failed.",
            ("outcome", "peer", "mode"),
        )
        self._seconds = Histogram(
            "fedrdma_transfer_seconds",
            "How long transfers took that did not fail.",
            ("outcome", "peer", "mode"),
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )
        self._resent = self._counter("fedrdma_resent_bytes", "Payload bytes sent more than once.", ("peer", "mode"))
        self._inline = self._counter(
            "fedrdma_inline_messages", "Small messages that went over the control channel.", ("direction", "peer")
        )
        self._updates = self._counter("fedrdma_added_updates", "Updates that were added to sums.", ("order",))
        self._added = self._counter("fedrdma_added_bytes", "Bytes of updates that were added to sums.", ("order",))
        self._addition = Histogram(
            "fedrdma_addition_seconds",
            "From an update being handed to the worker until it was in the sum.",
            ("order",),
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )
        self._waited = Histogram(
            "fedrdma_update_wait_seconds",
            "From an update being here whole until its addition began.",
            ("order",),
            buckets=(*NOTICE_BUCKETS, 30.0, 120.0, 600.0),
            registry=self.registry,
        )
        self._notice = Histogram(
            "fedrdma_notice_seconds",
            "From a worker being told of an update until its addition began, by the way it was told.",
            ("way",),
            buckets=NOTICE_BUCKETS,
            registry=self.registry,
        )
        self._worker_restarts = self._counter(
            "fedrdma_sum_worker_restarts", "How often the process that adds ended over a job and was started again.", ()
        )
        self._spilled = self._counter("fedrdma_spilled_bytes", "Payload bytes moved from memory to disk.", ())
        self._missing = self._counter(
            "fedrdma_missing_bytes",
            "Payload bytes that did not come, of messages whose tasks both let some be missing.",
            ("peer", "message"),
        )
        self._tolerant = self._counter(
            "fedrdma_tolerant_bytes",
            "Payload bytes of messages of which their senders let some be missing, whether it came or not.",
            ("peer", "message"),
        )
        self._names: dict[str, set[str]] = {}
        self._calls = self._counter(
            "fedrdma_flow_calls",
            "Scheduling calls of FATE Flow, asked by the own one or served: answered, or the code of what went wrong.",
            ("direction", "peer", "outcome"),
        )
        self._call_seconds = Histogram(
            "fedrdma_flow_call_seconds",
            "How long scheduling calls took that FATE Flow answered.",
            ("direction", "peer"),
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )
        self._dropped = self._counter(
            "fedrdma_dropped_datagrams",
            "Datagrams of a data path that were not taken: forged (or changed), replayed, or malformed.",
            ("reason", "peer"),
        )
        self._complaints = self._counter(
            "fedrdma_complaints",
            "Causes for complaint about a peer or a user of the host, by kind; most are in the log as a count.",
            ("kind", "about"),
        )
        self._refused_records = self._counter(
            "fedrdma_refused_records",
            "Sealed records that were not taken: forged (or changed, or moved), other-transfer, or replayed.",
            ("reason", "peer"),
        )
        self._shares = {
            "receive": Gauge(
                "fedrdma_receive_share_bytes_per_second",
                "What a peer that sends was told to keep to, of the link to this site; +Inf: no bound.",
                ("peer",),
                registry=self.registry,
            ),
            "send": Gauge(
                "fedrdma_send_share_bytes_per_second",
                "What goes to a peer has so much of this site's own link; +Inf: no bound.",
                ("peer",),
                registry=self.registry,
            ),
        }
        self._links = Gauge(
            "fedrdma_links_up",
            "1 while the data path to a peer over a transport is up, 0 after it was lost.",
            ("peer", "transport"),
            registry=self.registry,
        )

    def payload_moved(self, direction: str, peer: str, mode: str, transport: str, payload_bytes: int) -> None:
        """A payload was sent (`sent`) or received (`received`)."""
        self._payload.labels(direction, peer, mode, transport).inc(payload_bytes)

    def transfer_ended(self, outcome: str, peer: str, mode: str, seconds: float, resent_bytes: int) -> None:
        """A transfer ended: `delivered`, `received`, or `failed`, whose time is not recorded."""
        self._transfers.labels(outcome, peer, mode).inc()
        self._resent.labels(peer, mode).inc(resent_bytes)
        if outcome != FAILED:
            self._seconds.labels(outcome, peer, mode).observe(seconds)

    def inline_moved(self, direction: str, peer: str) -> None:
        """A small message was sent or received."""
        self._inline.labels(direction, peer).inc()

    def spilled(self, payload_bytes: int) -> None:
        """A message that nobody had pulled was moved to disk."""
        self._spilled.inc(payload_bytes)

    def update_added(self, order: str, update_bytes: int, seconds: float) -> None:
        """An update was added to a sum."""
        self._updates.labels(order).inc()
        self._added.labels(order).inc(update_bytes)
        self._addition.labels(order).observe(seconds)

    def update_waited(self, order: str, seconds: float) -> None:
        """An addition has begun, so long after its update was here whole."""
        self._waited.labels(order).observe(seconds)

    def notice_taken(self, way: str, seconds: float) -> None:
        """An addition has begun, so long after its worker was told by this way."""
        self._notice.labels(way).observe(seconds)

    def sum_worker_restarted(self) -> None:
        """The process that adds has ended over a job, and is started again."""
        self._worker_restarts.inc()

    def tolerant(self, peer: str, name: str, payload_bytes: int, missing_bytes: int) -> None:
        """A message is here of which its sender let something be missing; so much of it did not come."""
        known = self._names.setdefault(peer, set())
        if len(known) < MOST_MESSAGE_NAMES and len(name) <= LONGEST_LABEL_CHARACTERS:
            known.add(name)
        label = name if name in known else OTHER_NAMES
        self._tolerant.labels(peer, label).inc(payload_bytes)
        self._missing.labels(peer, label).inc(missing_bytes)

    def call_ended(self, direction: str, peer: str, outcome: str, seconds: float) -> None:
        """A scheduling call of FATE Flow's was `answered`, or ended with a code."""
        self._calls.labels(direction, peer, outcome).inc()
        if outcome == ANSWERED:
            self._call_seconds.labels(direction, peer).observe(seconds)

    def datagrams_dropped(self, peer: str, reason: str, count: int) -> None:
        """Datagrams in a peer's name were dropped: `forged`, `replayed` or `malformed`."""
        self._dropped.labels(reason, peer).inc(count)

    def complained(self, kind: str, about: str) -> None:
        """There was cause for a complaint about a peer or a user of the host."""
        self._complaints.labels(kind, about).inc()

    def records_refused(self, peer: str, reason: str, count: int) -> None:
        """Sealed records in a peer's name were refused: `forged`, `other-transfer` or `replayed`."""
        self._refused_records.labels(reason, peer).inc(count)

    def share_told(self, direction: Literal["receive", "send"], peer: str, share: float) -> None:
        """A peer has another share of the link, bytes a second; infinite: no bound."""
        self._shares[direction].labels(peer).set(share)

    def link_up(self, peer: str, transport: str, up: bool) -> None:
        """A data path came or went."""
        self._links.labels(peer, transport).set(1 if up else 0)

    def watch(self, read: Callable[[], Occupancy]) -> None:
        """Ask for the occupancy at every scrape, from the thread that serves it; called once."""
        self.registry.register(_OccupancyCollector(read))

    def render(self) -> str:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    def start_http(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        secure: Secure | None = None,
        refused: Callable[[str, Exception], object] = lambda _host, _error: None,
    ) -> MetricsServer:
        """Serve the metrics over HTTP from a thread; port 0 takes a free one. See `MetricsServer`.

        Raises:
            ConfigError: CONFIG_BAD_VALUE when the address cannot be bound.
        """
        return MetricsServer(self.registry, host, port, secure, refused)

    def _counter(self, name: str, documentation: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, documentation, labels, registry=self.registry)


class _OccupancyCollector(Collector):
    """Turns an occupancy into gauges when Prometheus asks."""

    def __init__(self, read: Callable[[], Occupancy]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Lets the registry know the names without a read at registration."""
        return self._families()

    def collect(self) -> Iterable[Metric]:
        try:
            now = self._read()
        except Exception:  # the other metrics are still worth a scrape
            _log.exception("the occupancy cannot be read")
            return ()
        families = self._families()
        pool_bytes, leases, waiting, certificate_end, strays, sums, updates, longest_sum = families
        for pool, use in now.pools.items():
            pool_bytes.add_metric((pool, "used"), use.used_bytes)
            pool_bytes.add_metric((pool, "free"), use.free_bytes)
            leases.add_metric((pool,), use.leases)
        for request, count in now.waiting.items():
            waiting.add_metric((request,), count)
        if now.certificate_end is not None:
            certificate_end.add_metric((), now.certificate_end)
        if now.port_strays is not None:
            strays.add_metric((), now.port_strays)
        sums.add_metric((), now.sums)
        for state, count in now.updates.items():
            updates.add_metric((state,), count)
        longest_sum.add_metric((), now.longest_sum)
        return families

    @staticmethod
    def _families() -> tuple[
        GaugeMetricFamily,
        GaugeMetricFamily,
        GaugeMetricFamily,
        GaugeMetricFamily,
        CounterMetricFamily,
        GaugeMetricFamily,
        GaugeMetricFamily,
        GaugeMetricFamily,
    ]:
        return (
            GaugeMetricFamily("fedrdma_pool_bytes", "Bytes of a pool by state.", labels=("pool", "state")),
            GaugeMetricFamily("fedrdma_leases", "Slots of a pool that are leased.", labels=("pool",)),
            GaugeMetricFamily(
                "fedrdma_waiting_requests",
                "Requests of tasks that wait: a put for room, a get for its message.",
                labels=("request",),
            ),
            GaugeMetricFamily(
                "fedrdma_certificate_end_timestamp_seconds",
                "When the certificate ends that the gateway itself shows, in Unix time; only with security mtls.",
                labels=(),
            ),
            CounterMetricFamily(
                "fedrdma_udp_port_stray_datagrams",
                "Datagrams that came to the UDP port for no link, or found no room there; only with transport udp.",
                labels=(),
            ),
            GaugeMetricFamily("fedrdma_sums", "Sums of updates that are under way.", labels=()),
            GaugeMetricFamily(
                "fedrdma_sum_updates",
                "Updates of sums under way: in the sum, waiting here to be added, or missing.",
                labels=("state",),
            ),
            GaugeMetricFamily(
                "fedrdma_longest_sum_seconds", "Since the oldest sum under way was asked for.", labels=()
            ),
        )
