"""`fedrdma bench aggregate`: the sum of masked updates, added by the gateway as they come or by FATE in its order.

Two gateways on this host: all clients at one, the arbiter at the other. The update of the first rank comes last, when
all others have come to rest; that is what FATE's order suffers from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedrdma_fate.bench.baselines.gateway_process import GatewayProcess
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.ports import free_ports
from fedrdma_fate.bench.processes import cpu_seconds
from fedrdma_fate.bench.report import DataTable
from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from fedrdma_fate.wire.frames import Party
from fedrdma_fate.wire.summand import ITEM_BYTES, Shape, Summand, encode_footer, planes_bytes, planes_of

MODELS = {"resnet18": 11_689_512, "resnet34": 21_797_672, "resnet152": 60_192_808}
"""Parameters, as torchvision counts them: the models of the LIFL paper."""

TRANSPORTS = ("tcp", "shm")
"""Between two gateways of one host: over `shm` updates are lent."""

ROWS = ("slots", "slots-rank", "fate", "copy", "add")

_START_SECONDS = 60.0
"""For both gateways to start and to connect: their pools are touched page by page meanwhile."""
_REST_SECONDS = 120.0
"""For updates to come to rest: none is on its way, and none is being added."""
_SUM_SECONDS = 300.0
"""For a sum."""

_LOOK_SECONDS = 0.01
"""Between two looks at the gateways' status, which are answered by the event loop that is being measured."""
_QUIET_LOOKS = 10
"""So many looks that show the same, and nothing under way, are rest."""
_LAYERS = 60
"""Arrays that the parameters are cut into: as many as ResNet-18 has, give or take a few."""
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


@dataclasses.dataclass(frozen=True, slots=True)
class AggregateRow:
    """What was measured.

    Attributes:
        name: of the row.
        model: what was summed.
        updates: how many.
        seconds: from the first put to the sum.
        after_last_seconds: from the end of the last put to the sum; of `copy` and `add`, what one update takes.
        cpu_seconds: of all processes meanwhile.
        waiting_bytes: the most that was leased from the arbiter's receive region and lay on its disk, less what is
            leased at rest; the sum itself included.
    """

    name: str
    model: str
    updates: int
    seconds: float
    after_last_seconds: float
    cpu_seconds: float
    waiting_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class AggregateSetting:
    """What to sum.

    Attributes:
        model: its name.
        parameters: of the model; each has two float64.
        updates: how many, 2 or more.
        room: updates that the arbiter's receive region has room for.
        transport: data path between the gateways.
    """

    model: str
    parameters: int
    updates: int
    room: int
    transport: str

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Of the arrays."""
        layers = min(_LAYERS, self.parameters)
        each, left = divmod(self.parameters, layers)
        return ((each + left,), *(((each,),) * (layers - 1)))

    @property
    def update_bytes(self) -> int:
        """Of one update, without its footer."""
        return planes_bytes(self.shapes)

    def party(self, rank: int) -> Party:
        """The client of a rank."""
        return Party("host", str(rank + 1))


def measure_aggregate(
    setting: AggregateSetting, rows: Sequence[str], tell: Callable[[str], None]
) -> tuple[list[AggregateRow], dict[str, str]]:
    """Measure these rows; what was measured, and why the others were not."""
    measured, failures = [], {}
    update = _update(setting)
    for name in rows:
        tell(name)
        try:
            measured.append(_limit(setting, name, update) if name in ("copy", "add") else _sum(setting, name, update))
        except RowError as error:
            failures[name] = str(error)
    return measured, failures


def _update(setting: AggregateSetting) -> npt.NDArray[np.uint8]:
    """The planes of an update; a party adds its own bit to the first whole number."""
    update = np.zeros(setting.update_bytes, np.uint8)
    chance = np.random.default_rng(1)
    for plane in planes_of(setting.shapes):
        values: Any = np.frombuffer(update, np.float64, plane.items, plane.offset)
        values[:] = chance.uniform(-1, 1, plane.items)
        if plane.whole:
            np.rint(values * 1e7, out=values)
    return update


def _limit(setting: AggregateSetting, name: str, update: npt.NDArray[np.uint8]) -> AggregateRow:
    values, target = update.view(np.float64), np.zeros(len(update) // ITEM_BYTES)
    step = _BLOCK_BYTES // ITEM_BYTES
    best, best_cpu = float("inf"), 0.0
    for _ in range(_LIMIT_REPEATS):
        started, cpu = time.monotonic(), time.process_time()
        if name == "copy":
            np.copyto(target, values)
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


Sums = list[tuple[Any, Any]]
Add = Callable[[GatewayClient, AggregateSetting, str], Sums]


def _round(
    setting: AggregateSetting, name: str, gateways: _Gateways, add: Add, update: npt.NDArray[np.uint8], tag: str
) -> AggregateRow:
    with _Watch(gateways) as watch, ThreadPoolExecutor(1) as pool:
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
        done = time.monotonic()
        used = gateways.cpu_seconds() - cpu
    _check(setting, update, sums)
    return AggregateRow(name, setting.model, setting.updates, done - started, done - put, used, watch.most)


def _our_sum(arbiter: GatewayClient, setting: AggregateSetting, tag: str) -> Sums:
    sources = [setting.party(rank) for rank in range(setting.updates)]
    summed = arbiter.get_sum(_NAME, tag, sources, timeout=_SUM_SECONDS)
    if not isinstance(summed, ReceivedSum) or summed.reason:
        raise RowError(f"the gateway has not added: {summed.reason}")
    return _pairs(summed.buffer, setting)


def _fates_loop() -> Add:
    """FATE's server: one get after the other, by rank, each added by FATE's own library."""
    try:
        from fate_utils.secure_aggregation_helper import MixAggregate  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise RowError(f"FATE is not installed ({error})") from error

    def add(arbiter: GatewayClient, setting: AggregateSetting, tag: str) -> Sums:
        total = MixAggregate()
        for rank in range(setting.updates):
            message = arbiter.get(_NAME, tag, setting.party(rank), timeout=_SUM_SECONDS)
            total.aggregate(_pairs(message.buffer, setting))
        # what FATE gives is fraction and whole number in one
        return [(each, None) for each in total.finalize(None)]

    return add


def _pairs(buffer: Any, setting: AggregateSetting) -> Sums:
    planes = [np.frombuffer(buffer, np.float64, plane.items, plane.offset) for plane in planes_of(setting.shapes)]
    return list(zip(planes[::2], planes[1::2], strict=True))


def _check(setting: AggregateSetting, update: npt.NDArray[np.uint8], sums: Sums) -> None:
    """Raise where a party is not in it exactly once."""
    expected = _pairs(update, setting)
    for number, ((found, found_whole), (fraction, whole)) in enumerate(zip(sums, expected, strict=True)):
        total = found if found_whole is None else found + found_whole
        right = setting.updates * (fraction + whole)
        if not number:
            right[0] += 2**setting.updates - 1
        # the whole numbers leave 29 bits of a float64 to the fraction
        if not np.allclose(total, right, rtol=0, atol=1e-6):
            raise RowError("the sum is wrong")


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
            _wait(self._connected, _START_SECONDS, "the gateways to connect")
            self.arbiter = stack.enter_context(GatewayClient(self._gateway.address, "bench", _ARBITER))
            address = self._clients_gateway.address
            self._hosts = [
                stack.enter_context(GatewayClient(address, "bench", self._setting.party(rank)))
                for rank in range(self._setting.updates)
            ]
            self._at_rest = self._leased()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def push(self, rank: int, update: npt.NDArray[np.uint8], tag: str) -> None:
        """Put the update of a client."""
        setting = self._setting
        footer = encode_footer(Summand((setting.party(rank),), 1.0, setting.shapes))
        lease = self._hosts[rank].lease(len(update) + len(footer), timeout=_REST_SECONDS)
        raw: Any = np.frombuffer(lease.buffer, np.uint8)
        raw[: len(update)] = update
        raw[len(update) :] = np.frombuffer(footer, np.uint8)
        whole = next(plane for plane in planes_of(setting.shapes) if plane.whole)
        raw[whole.offset :][:ITEM_BYTES].view(np.float64)[0] += 2**rank
        del raw
        lease.commit(_NAME, tag, [_ARBITER], "object")

    def await_asked(self) -> None:
        """Wait until a sum is asked for."""
        _wait(lambda: bool((self._gateway.status() or {}).get("sums")), _START_SECONDS, "the sum to be asked for")

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
            seen.append(None if moving or pending else (self._leased(), status["mailbox"]["messages"]))
            last = seen[-_QUIET_LOOKS:]
            if all_added and self.waiting() > most:
                return False
            return len(last) == _QUIET_LOOKS and last[0] is not None and all(look == last[0] for look in last)

        _wait(at_rest, _REST_SECONDS, "the updates to come to rest")

    def waiting(self) -> int:
        """Bytes that the arbiter's site has of updates now."""
        status = self._gateway.status()
        return 0 if status is None else self._leased() - self._at_rest + int(status["mailbox"]["spilled_bytes"])

    def cpu_seconds(self) -> float:
        """Of both gateways, what they have started, and this process."""
        return cpu_seconds((self._gateway.pid, self._clients_gateway.pid)) + time.process_time()

    def _leased(self) -> int:
        status = self._gateway.status()
        if status is None:
            raise RowError("the arbiter's gateway does not answer")
        return next(int(pool["leased_bytes"]) for pool in status["pools"] if pool["name"] == "receive")

    def _connected(self) -> bool:
        for gateway in (self._gateway, self._clients_gateway):
            status = gateway.status()
            if status is None or not status["peers"][0]["connected"]:
                return False
            if not any(path["up"] for path in status["peers"][0]["paths"]):
                return False
        return True

    def _start(
        self, workspace: Path, site: str, parties: list[str], other: str, its: list[str], control: str
    ) -> GatewayProcess:
        clients = site == "clients"
        update = self._setting.update_bytes + _HEADROOM_BYTES // 16
        many = update * (self._setting.updates if clients else self._setting.room) + _HEADROOM_BYTES
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
                "aggregate": {"sums": True, "order": self._order},
                "peers": [{"site": other, "parties": its, "address": None if clients else control}],
            },
            workspace,
        )


class _Watch:
    """Keeps the most that ever waited."""

    def __init__(self, gateways: _Gateways) -> None:
        self.most = 0
        self._gateways = gateways
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="waiting-watch", daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            with contextlib.suppress(RowError):
                self.most = max(self.most, self._gateways.waiting())


def _wait(reached: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise RowError(f"waited {seconds:.0f} s for {what}")
        time.sleep(_LOOK_SECONDS)


def to_document(rows: Sequence[AggregateRow]) -> dict[str, object]:
    """For programs."""
    return {"rows": [dataclasses.asdict(row) for row in rows]}


def to_table(setting: AggregateSetting, rows: Sequence[AggregateRow]) -> DataTable:
    """For people."""
    title = (
        f"{setting.updates} masked updates of {setting.model}, {setting.update_bytes / 1e6:.1f} MB each, over "
        f"{setting.transport}; the first rank comes last"
    )
    return DataTable(title, ("row", "after the last", "in all", "CPU", "most waiting"), list(_cells(rows)))


def _cells(rows: Sequence[AggregateRow]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        times = (f"{seconds * 1e3:.1f} ms" for seconds in (row.after_last_seconds, row.seconds, row.cpu_seconds))
        yield (row.name, *times, f"{row.waiting_bytes / 1e6:.1f} MB")
