"""Rows of a whole round between sites of several parties and an arbiter: what crosses the WAN, up and down.

All gateways on this host. Each party puts its update; the arbiter gets the sum, and puts it to each of them, as FATE
does; a round is over when each has it.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedrdma_fate.bench.aggregate_setting import START_SECONDS, AggregateRow, AggregateSetting, check, pairs_of
from fedrdma_fate.bench.aggregate_update import put_update
from fedrdma_fate.bench.aggregate_watch import Watch, is_connected, leased, wait, waiting
from fedrdma_fate.bench.baselines.gateway_process import GatewayProcess
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.ports import free_ports
from fedrdma_fate.bench.processes import cpu_seconds
from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from fedrdma_fate.wire.frames import Party

_ROUND_SECONDS = 300.0
"""For each step of a round."""
_HEADROOM_BYTES = 64 * 2**20
"""Room in a pool beside the updates: standing grants, the block kept aside, rounding."""
_ARBITER = Party("arbiter", "1")
_TOP = "site-0"
"""Of the tree: the parent of all others."""
_UP, _DOWN = "bench_mixed_client_values", "bench_aggregated_values"


def sites(
    setting: AggregateSetting, update: npt.NDArray[np.uint8], name: str, *, once: bool, tree: bool = False
) -> AggregateRow:
    """Measure a round of sites.

    Args:
        setting: its clients are shared out evenly among its sites.
        update: of a client, before `mark`.
        name: of the row.
        once: sites send their sums, and the arbiter puts one payload to all; else each has a transfer of its own.
        tree: all sites but the first send their sums to that, which adds them to its own.

    Raises:
        RowError: why it was not measured.
    """
    with _Sites(setting, once=once, tree=tree) as running:
        # the first round warms up: workers have started, and what maps memory has mapped it
        running.round(name, update, "first")
        return running.round(name, update, "second")


class _Sites:
    """The gateways, and a task for each party."""

    def __init__(self, setting: AggregateSetting, *, once: bool, tree: bool) -> None:
        self._setting = setting
        self._once = once
        self._tree = tree
        self._stack = contextlib.ExitStack()
        if setting.updates < setting.sites:
            raise RowError(f"{setting.updates} updates are too few for {setting.sites} sites")
        parties = [setting.party(rank) for rank in range(setting.updates)]
        bounds = [-(-setting.updates * number // setting.sites) for number in range(setting.sites + 1)]
        self._of_site = {
            f"site-{number}": parties[start:end] for number, (start, end) in enumerate(itertools.pairwise(bounds))
        }

    def __enter__(self) -> _Sites:
        with contextlib.ExitStack() as stack:
            workspace = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sites-")))
            control = {site: f"127.0.0.1:{port}" for site, port in zip(("arbiter", _TOP), free_ports(2), strict=True)}
            self._gateway = self._start(workspace, "arbiter", [_ARBITER], self._of_site, control)
            stack.callback(self._gateway.stop)
            self._sites = {}
            for site, parties in self._of_site.items():
                others = {
                    other: its
                    for other, its in self._of_site.items()
                    if self._tree and other != site and _TOP in (other, site)
                }
                self._sites[site] = self._start(workspace, site, parties, {"arbiter": [_ARBITER], **others}, control)
                stack.callback(self._sites[site].stop)
            everybody = [self._gateway, *self._sites.values()]
            wait(lambda: all(map(is_connected, everybody)), START_SECONDS, "the gateways to connect")
            self._arbiter = stack.enter_context(GatewayClient(self._gateway.address, "bench", _ARBITER))
            self._hosts = [
                stack.enter_context(GatewayClient(self._sites[site].address, "bench", party))
                for site, parties in self._of_site.items()
                for party in parties
            ]
            self._at_rest = leased(self._gateway)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def round(self, name: str, update: npt.NDArray[np.uint8], tag: str) -> AggregateRow:
        """One round."""
        setting = self._setting
        before = self._moved()
        with Watch(lambda: waiting(self._gateway, self._at_rest)) as watch, ThreadPoolExecutor(1) as pool:
            cpu, started = self._cpu_seconds(), time.monotonic()
            future = pool.submit(self._sum, tag)
            self._await_asked()
            for rank in range(setting.updates):
                put_update(self._hosts[rank], setting, rank, update, _UP, tag, _ARBITER, _ROUND_SECONDS)
            put = time.monotonic()
            summed = future.result(_ROUND_SECONDS)
            after_last = time.monotonic() - put
            self._push_down(summed, tag)
            for host in self._hosts:
                received = host.get(_DOWN, tag, _ARBITER, timeout=_ROUND_SECONDS)
                if len(received.buffer) != setting.update_bytes:
                    raise RowError("the aggregate that came is not as long as the one that was put")
            seconds = time.monotonic() - started
            used = self._cpu_seconds() - cpu
        check(setting, update, pairs_of(received.buffer, setting))
        up, down = (now - then for now, then in zip(self._moved(), before, strict=True))
        return AggregateRow(name, setting.model, setting.updates, seconds, after_last, used, watch.most, up, down)

    def _sum(self, tag: str) -> ReceivedSum:
        sources = [self._setting.party(rank) for rank in range(self._setting.updates)]
        summed = self._arbiter.get_sum(_UP, tag, sources, timeout=_ROUND_SECONDS)
        if not isinstance(summed, ReceivedSum) or summed.reason:
            raise RowError(f"the gateway has not added: {summed.reason}")
        return summed

    def _await_asked(self) -> None:
        """As FATE's arbiter, which asks while its clients still train."""

        def asked() -> bool:
            if not (self._gateway.status() or {}).get("sums"):
                return False
            # of one party there is no sum
            ordering = [site for site, parties in self._of_site.items() if self._once and len(parties) > 1]
            statuses = [self._sites[site].status() or {"peers": []} for site in ordering]
            return all(any(peer["sum_orders"] for peer in status["peers"]) for status in statuses)

        wait(asked, START_SECONDS, "the sum to be asked for")

    def _push_down(self, summed: ReceivedSum, tag: str) -> None:
        """One put after the other, by rank, out of one slot, or each out of its own."""
        ranks = range(self._setting.updates)
        parties = [self._setting.party(rank) for rank in ranks]
        lease = None
        for number, party in enumerate(parties):
            if lease is None:
                lease = self._arbiter.lease(self._setting.update_bytes, timeout=_ROUND_SECONDS)
                lease.buffer[:] = summed.buffer[: self._setting.update_bytes]
            is_last = number == len(parties) - 1 or not self._once
            lease.commit(_DOWN, tag, [party], "object", keep=not is_last)
            if is_last:
                lease = None

    def _moved(self) -> tuple[int, int]:
        """Payload bytes that transfers have brought so far, to the arbiter's site and from it."""
        up = _brought(self._gateway)
        return up, sum(_brought(site, "arbiter") for site in self._sites.values())

    def _cpu_seconds(self) -> float:
        """Of all gateways, what they have started, and this process."""
        pids = (self._gateway.pid, *(gateway.pid for gateway in self._sites.values()))
        return cpu_seconds(pids) + time.process_time()

    def _start(
        self,
        workspace: Path,
        site: str,
        parties: list[Party],
        others: dict[str, list[Party]],
        control: dict[str, str],
    ) -> GatewayProcess:
        is_arbiter = site == "arbiter"
        parent = _TOP if self._tree and site not in (_TOP, "arbiter") else None
        update = self._setting.update_bytes + _HEADROOM_BYTES // 16
        # all updates of a site, the sum of them, and the aggregates that go down, each by itself
        many = update * ((self._setting.updates if is_arbiter else len(parties)) + 2) + _HEADROOM_BYTES
        return GatewayProcess(
            {
                "site": site,
                "parties": list(map(str, parties)),
                "security": "off",
                "transport": self._setting.transport,
                "listen": {"control": control.get(site, "127.0.0.1:0")},
                "memory": {
                    "send_bytes": many,
                    "receive_bytes": many,
                    "directory": str(workspace),
                    "spill_directory": str(workspace),
                },
                "aggregate": {
                    "sums": True,
                    "order": "exact",
                    "site_sums": self._once,
                    "site_wait": _ROUND_SECONDS,
                    "parent": parent,
                },
                # the first site is dialled by the others, and dials the arbiter's
                "peers": [
                    {
                        "site": other,
                        "parties": list(map(str, its)),
                        "address": None if is_arbiter else control.get(other),
                    }
                    for other, its in others.items()
                ],
            },
            workspace,
        )


def _brought(gateway: GatewayProcess, origin: str | None = None) -> int:
    """Payload bytes that have come by transfers, from one site or from all."""
    delivered = [event for event in gateway.traced("delivered") if origin is None or event["peer"] == origin]
    return sum(int(event["bytes"]) for event in delivered if event["transport"] not in ("", "control", "local"))
