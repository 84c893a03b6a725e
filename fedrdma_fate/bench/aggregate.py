"""`fedrdma bench aggregate`: the sum of masked updates, added by the gateway as they come or by FATE in its order.

Two gateways on this host: all clients at one, the arbiter at the other. The update of the first rank comes last, when
all others have come to rest; that is what FATE's order suffers from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedrdma_fate.bench.aggregate_adder import exact_addition
from fedrdma_fate.bench.aggregate_hierarchy import over_grpc, tree
from fedrdma_fate.bench.aggregate_ray import with_ray
from fedrdma_fate.bench.aggregate_setting import (
    START_SECONDS,
    AggregateRow,
    AggregateSetting,
    Sums,
    check,
    make_update,
    pairs_of,
)
from fedrdma_fate.bench.aggregate_sites import sites
from fedrdma_fate.bench.aggregate_update import put_update
from fedrdma_fate.bench.aggregate_watch import Watch, is_connected, leased, wait, waiting
from fedrdma_fate.bench.baselines.gateway_process import GatewayProcess
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.ports import free_ports
from fedrdma_fate.bench.processes import cpu_seconds
from fedrdma_fate.bench.report import DataTable
from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from fedrdma_fate.wire.frames import Party
from fedrdma_fate.wire.summand import ITEM_BYTES

MODELS = {"resnet18": 11_689_512, "resnet34": 21_797_672, "resnet152": 60_192_808}
"""Parameters, as torchvision counts them: the models of the LIFL paper."""

TRANSPORTS = ("tcp", "shm")
"""Between two gateways of one host: over `shm` updates are lent."""

ROWS = (
    "slots",
    "slots-rank",
    "fate",
    "sites",
    "sites-tree",
    "sites-alone",
    "tree",
    "grpc",
    "broker",
    "broker-sidecar",
    "ray",
    "add-exact",
    "add-fate",
    "copy",
    "add",
)

_LIMITS = ("add-exact", "add-fate", "copy", "add")

_ELSEWHERE: dict[str, Callable[[AggregateSetting, npt.NDArray[np.uint8]], AggregateRow]] = {
    "sites": functools.partial(sites, name="sites", once=True),
    "sites-tree": functools.partial(sites, name="sites-tree", once=True, tree=True),
    "sites-alone": functools.partial(sites, name="sites-alone", once=False),
    "tree": tree,
    "grpc": functools.partial(over_grpc, broker=False, proxies=False),
    "broker": functools.partial(over_grpc, broker=True, proxies=False),
    "broker-sidecar": functools.partial(over_grpc, broker=True, proxies=True),
    "ray": with_ray,
}

_REST_SECONDS = 120.0
"""For updates to come to rest: none is on its way, and none is being added."""
_SUM_SECONDS = 300.0
"""For a sum."""

_QUIET_LOOKS = 10
"""So many looks that show the same, and nothing under way, are rest."""
_HEADROOM_BYTES = 64 * 2**20
"""Room in a pool beside the updates: standing grants, the block kept aside, rounding."""
_LIMIT_REPEATS = 3
"""Of one memcpy or addition; the best counts."""
_BLOCK_BYTES = 256 * 1024
"""Added at once by the row `add`, as workers do."""
_ASIDE_BYTES = 1024 * 1024
"""More than an accumulator has beside the planes."""
_ARBITER = Party("arbiter", "1")
_NAME = "bench_mixed_client_values"


def measure_aggregate(
    setting: AggregateSetting, rows: Sequence[str], tell: Callable[[str], None]
) -> tuple[list[AggregateRow], dict[str, str]]:
    """Measure these rows; what was measured, and why the others were not."""
    measured, failures = [], {}
    update = make_update(setting)
    for name in rows:
        tell(name)
        try:
            measured.append(_row(setting, name, update))
        except RowError as error:
            failures[name] = str(error)
    return measured, failures


def _row(setting: AggregateSetting, name: str, update: npt.NDArray[np.uint8]) -> AggregateRow:
    if name == "add-exact":
        seconds, cpu = exact_addition(setting, update, _LIMIT_REPEATS)
        return AggregateRow(name, setting.model, 1, seconds, seconds, cpu, 0)
    if name in _LIMITS:
        return _limit(setting, name, update)
    if (measure := _ELSEWHERE.get(name)) is not None:
        return measure(setting, update)
    return _sum(setting, name, update)


def _limit(setting: AggregateSetting, name: str, update: npt.NDArray[np.uint8]) -> AggregateRow:
    values, target = update.view(np.float64), np.zeros(len(update) // ITEM_BYTES)
    step = _BLOCK_BYTES // ITEM_BYTES
    # the first is written, not added
    fates, pairs = _fates_own(pairs_of(update, setting)) if name == "add-fate" else None, pairs_of(update, setting)
    best, best_cpu = float("inf"), 0.0
    for _ in range(_LIMIT_REPEATS):
        started, cpu = time.monotonic(), time.process_time()
        if name == "copy":
            np.copyto(target, values)
        elif fates is not None:
            fates.aggregate(pairs)
        else:
            for at in range(0, len(values), step):
                np.add(target[at : at + step], values[at : at + step], out=target[at : at + step])
        seconds = time.monotonic() - started
        if seconds < best:
            best, best_cpu = seconds, time.process_time() - cpu
    return AggregateRow(name, setting.model, 1, best, best, best_cpu, 0)


def _sum(setting: AggregateSetting, name: str, update: npt.NDArray[np.uint8]) -> AggregateRow:
    order: Literal["exact", "rank"] = "rank" if name == "slots-rank" else "exact"
    add = _fates_loop() if name == "fate" else _our_sum
    with _Gateways(setting, order) as gateways:
        # the first round warms up: the worker has started, and what maps memory has mapped it
        _round(setting, name, gateways, add, update, "first")
        return _round(setting, name, gateways, add, update, "second")


def sum_of_all_at_once(setting: AggregateSetting, update: npt.NDArray[np.uint8]) -> AggregateRow:
    """As the row `slots`, but all clients put their updates at once.

    Raises:
        RowError: a gateway has ended, has not added, or the sum is wrong.
    """
    with _Gateways(setting, "exact") as gateways:
        # the first round warms up
        for tag in ("first", "second"):
            with Watch(gateways.waiting) as watch, ThreadPoolExecutor(1 + setting.updates) as pool:
                future = pool.submit(_our_sum, gateways.arbiter, setting, tag)
                gateways.await_asked()
                cpu, started = gateways.cpu_seconds(), time.monotonic()
                puts = [pool.submit(gateways.push, rank, update, tag) for rank in range(setting.updates)]
                for each in puts:
                    each.result()
                put = time.monotonic()
                sums = future.result(_SUM_SECONDS)
                done = time.monotonic()
                used = gateways.cpu_seconds() - cpu
            check(setting, update, sums)
            del sums
        return AggregateRow("slots", setting.model, setting.updates, done - started, done - put, used, watch.most)


Add = Callable[[GatewayClient, AggregateSetting, str], Sums]


def _round(
    setting: AggregateSetting, name: str, gateways: _Gateways, add: Add, update: npt.NDArray[np.uint8], tag: str
) -> AggregateRow:
    with Watch(gateways.waiting) as watch, ThreadPoolExecutor(1) as pool:
        cpu, started = gateways.cpu_seconds(), time.monotonic()
        future = pool.submit(add, gateways.arbiter, setting, tag)
        if add is _our_sum:
            # as FATE's arbiter does, which has nothing else to do
            gateways.await_asked()
        for rank in range(1, setting.updates):
            gateways.push(rank, update, tag)
        gateways.rest(all_added=name == "slots")
        gateways.push(0, update, tag)
        put = time.monotonic()
        sums = future.result(_SUM_SECONDS)
        # the second as gateways trace it
        done, traced = time.monotonic(), time.time()
        used = gateways.cpu_seconds() - cpu
    check(setting, update, sums)
    arrived = gateways.arrived(0, tag)
    return AggregateRow(
        name,
        setting.model,
        setting.updates,
        done - started,
        done - put,
        used,
        watch.most,
        after_arrival_seconds=None if arrived is None else max(0.0, traced - arrived),
    )


def _our_sum(arbiter: GatewayClient, setting: AggregateSetting, tag: str) -> Sums:
    sources = [setting.party(rank) for rank in range(setting.updates)]
    summed = arbiter.get_sum(_NAME, tag, sources, timeout=_SUM_SECONDS)
    if not isinstance(summed, ReceivedSum) or summed.reason:
        raise RowError(f"the gateway has not added: {summed.reason}")
    return pairs_of(summed.buffer, setting)


def _fates_own(pairs: Sums) -> Any:
    """What FATE adds with, and these in it already.

    Raises:
        RowError: FATE is not installed.
    """
    try:
        from fate_utils.secure_aggregation_helper import MixAggregate  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise RowError(f"FATE is not installed ({error})") from error
    total = MixAggregate()
    total.aggregate(pairs)
    return total


def _fates_loop() -> Add:
    """FATE's server: one get after the other, by rank, each added by FATE's own library."""
    _fates_own([])

    def add(arbiter: GatewayClient, setting: AggregateSetting, tag: str) -> Sums:
        total = _fates_own([])
        for rank in range(setting.updates):
            message = arbiter.get(_NAME, tag, setting.party(rank), timeout=_SUM_SECONDS)
            total.aggregate(pairs_of(message.buffer, setting))
        # what FATE gives is fraction and whole number in one
        return [(each, None) for each in total.finalize(None)]

    return add


class _Gateways:
    """The two gateways, and a task for each party."""

    def __init__(self, setting: AggregateSetting, order: Literal["exact", "rank"]) -> None:
        self._setting = setting
        self._order = order
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> _Gateways:
        with contextlib.ExitStack() as stack:
            workspace = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aggregate-")))
            hosts = [str(self._setting.party(rank)) for rank in range(self._setting.updates)]
            control = f"127.0.0.1:{free_ports(1)[0]}"
            self._clients_gateway = self._start(workspace, "clients", hosts, "arbiter", [str(_ARBITER)], control)
            stack.callback(self._clients_gateway.stop)
            self._gateway = self._start(workspace, "arbiter", [str(_ARBITER)], "clients", hosts, control)
            stack.callback(self._gateway.stop)
            wait(
                lambda: is_connected(self._gateway) and is_connected(self._clients_gateway),
                START_SECONDS,
                "the gateways to connect",
            )
            self.arbiter = stack.enter_context(GatewayClient(self._gateway.address, "bench", _ARBITER))
            address = self._clients_gateway.address
            self._hosts = [
                stack.enter_context(GatewayClient(address, "bench", self._setting.party(rank)))
                for rank in range(self._setting.updates)
            ]
            self._at_rest = leased(self._gateway)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def push(self, rank: int, update: npt.NDArray[np.uint8], tag: str) -> None:
        """Put the update of a client."""
        put_update(self._hosts[rank], self._setting, rank, update, _NAME, tag, _ARBITER, _REST_SECONDS)

    def await_asked(self) -> None:
        """Wait until a sum is asked for."""
        wait(lambda: bool((self._gateway.status() or {}).get("sums")), START_SECONDS, "the sum to be asked for")

    def rest(self, *, all_added: bool) -> None:
        """Wait until nothing is under way, and where all are added at once, nothing is left of them but the sum."""
        most = 1.5 * self._setting.update_bytes + _ASIDE_BYTES
        seen: list[object] = []

        def at_rest() -> bool:
            status, theirs = self._gateway.status(), self._clients_gateway.status()
            if status is None or theirs is None:
                raise RowError("a gateway does not answer")
            moving = status["transfers"] or theirs["transfers"]
            pending = any(peer["pending_messages"] for peer in theirs["peers"])
            seen.append(None if moving or pending else (leased(self._gateway), status["mailbox"]["messages"]))
            last = seen[-_QUIET_LOOKS:]
            if all_added and self.waiting() > most:
                return False
            return len(last) == _QUIET_LOOKS and last[0] is not None and all(look == last[0] for look in last)

        wait(at_rest, _REST_SECONDS, "the updates to come to rest")

    def arrived(self, rank: int, tag: str) -> float | None:
        """When an update lay whole at the arbiter's gateway, in Unix seconds; None where its trace does not say so."""
        its = {"tag": tag, "source": str(self._setting.party(rank))}
        lines = self._gateway.traced("delivered")
        return next((float(line["time"]) for line in lines if its.items() <= line.items()), None)

    def waiting(self) -> int:
        """Bytes that the arbiter's site has of updates now."""
        return waiting(self._gateway, self._at_rest)

    def cpu_seconds(self) -> float:
        """Of both gateways, what they have started, and this process."""
        return cpu_seconds((self._gateway.pid, self._clients_gateway.pid)) + time.process_time()

    def _start(
        self, workspace: Path, site: str, parties: list[str], other: str, its: list[str], control: str
    ) -> GatewayProcess:
        clients = site == "clients"
        update = self._setting.update_bytes + _HEADROOM_BYTES // 16
        # where there is room for few, clients wait for theirs as well
        updates = min(self._setting.updates, self._setting.room) if clients else self._setting.room
        many = update * updates + _HEADROOM_BYTES
        return GatewayProcess(
            {
                "site": site,
                "parties": parties,
                "security": "off",
                "transport": self._setting.transport,
                "listen": {"control": control if clients else "127.0.0.1:0"},
                "memory": {
                    "send_bytes": many if clients else _HEADROOM_BYTES,
                    "receive_bytes": _HEADROOM_BYTES if clients else many,
                    "directory": str(workspace),
                    "spill_directory": str(workspace),
                },
                # all clients are of one site here, and what is measured is the adding of each
                "aggregate": {"sums": True, "order": self._order, "site_sums": False},
                "peers": [{"site": other, "parties": its, "address": None if clients else control}],
            },
            workspace,
        )


def to_document(rows: Sequence[AggregateRow]) -> dict[str, object]:
    """For programs."""
    return {"rows": [dataclasses.asdict(row) for row in rows]}


def to_table(setting: AggregateSetting, rows: Sequence[AggregateRow]) -> DataTable:
    """For people."""
    title = (
        f"{setting.updates} masked updates of {setting.model}, {setting.update_bytes / 1e6:.1f} MB each, over "
        f"{setting.transport}; the first rank comes last"
    )
    columns = ("row", "after the last", "once it is here", "in all", "CPU", "most waiting", "up, down")
    return DataTable(title, columns, list(_cells(rows)))


def _cells(rows: Sequence[AggregateRow]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        measured = row.after_last_seconds, row.after_arrival_seconds, row.seconds, row.cpu_seconds
        times = ("" if seconds is None else f"{seconds * 1e3:.1f} ms" for seconds in measured)
        moved = ", ".join(f"{count / 1e6:.1f} MB" for count in (row.up_bytes, row.down_bytes) if count is not None)
        yield (row.name, *times, f"{row.waiting_bytes / 1e6:.1f} MB", moved)
