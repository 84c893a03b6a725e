"""`fedrdma bench notices`: from a worker being told of an update until it begins to add it, by each way.

The rows of a way have a worker as gateways have it, and an update in shared memory that it is told of again and again.
`gateway` is the whole of it: from an update lying whole at the arbiter's gateway until its addition begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from fedrdma_fate.aggregate.jobs import Add, Begin, Done, End
from fedrdma_fate.aggregate.notices import Line, Notices, RecordLine, SocketNotices
from fedrdma_fate.aggregate.place import accumulator_bytes
from fedrdma_fate.aggregate.skmsg import SkMsgNotices
from fedrdma_fate.aggregate.worker import OpenSum, WorkerHandle, WorkerLostError
from fedrdma_fate.bench.aggregate_adder import SharedMemory
from fedrdma_fate.bench.aggregate_setting import AggregateSetting, make_update
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.notices_gateways import Wait, waits_at_a_gateway
from fedrdma_fate.bench.report import DataTable
from fedrdma_fate.core.fold import Order
from fedrdma_fate.wire.summand import ITEM_BYTES

WAYS = ("socket", "skmsg", "broker", "gateway")

_PAIR_BYTES = 2 * ITEM_BYTES
"""Of a parameter, as FATE masks it."""


@dataclasses.dataclass(frozen=True, slots=True)
class NoticeRow:
    """What was measured.

    Attributes:
        way: by which the worker was told.
        update_bytes: that it was told of.
        notices: how many, the first one not counted.
        first_seconds: of the first one, at which memory is mapped.
        least_seconds: from being told to the start of the addition, the shortest: what the way takes on a busy host.
        median_seconds: likewise, the median.
        most_seconds: likewise, the longest.
        addition_seconds: from being told to the answer, the median.
    """

    way: str
    update_bytes: int
    notices: int
    first_seconds: float
    least_seconds: float
    median_seconds: float
    most_seconds: float
    addition_seconds: float


class BrokerNotices(SocketNotices):
    """Notices go through a process that passes them on."""

    way = "broker"

    def __init__(self, on_taken: Callable[[str, float], object]) -> None:
        """
        Args:
            on_taken: see `aggregate.notices.OnTaken`.
        """
        super().__init__(on_taken)
        self._broker: subprocess.Popen[bytes] | None = None

    def open(self) -> Line:
        """See `aggregate.notices.Notices`."""
        ours, from_us = socket.socketpair()
        to_it, its = socket.socketpair()
        ends = [from_us.fileno(), to_it.fileno()]
        command = [sys.executable, "-m", "fedrdma_fate.bench.notice_broker", *map(str, ends), str(os.getpid())]
        self._broker = subprocess.Popen(command, pass_fds=ends, stdin=subprocess.DEVNULL)
        from_us.close()
        to_it.close()
        return RecordLine(self.way, ours, its)

    def close(self) -> None:
        """See `aggregate.notices.Notices`."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.kill()
            broker.wait()


def measure_notices(
    ways: Sequence[str], sizes: Sequence[int], count: int, tell: Callable[[str], None]
) -> tuple[list[NoticeRow], dict[str, str]]:
    """Measure these ways for updates of these sizes in bytes, `count` notices each.

    Returns:
        what was measured, and why the others were not.
    """
    measured, failures = [], {}
    for size in sizes:
        for way in ways:
            tell(f"{way}, {size / 1e6:.0f} MB")
            try:
                measured.append(_row(way, size, count))
            except (RowError, OSError, WorkerLostError) as error:
                failures[f"{way}, {size / 1e6:.0f} MB"] = str(error)
    return measured, failures


def _row(way: str, size: int, count: int) -> NoticeRow:
    setting = AggregateSetting(f"{size} bytes", size // _PAIR_BYTES, count + 1, 2, "shm")
    waits = waits_at_a_gateway(setting) if way == "gateway" else asyncio.run(_waits_of(way, setting))
    first, *others = (wait.start for wait in waits)
    addition = statistics.median(wait.end for wait in waits[1:])
    return NoticeRow(way, size, len(others), first, min(others), statistics.median(others), max(others), addition)


def _notices(way: str, on_taken: Callable[[str, float], object]) -> Notices:
    match way:
        case "skmsg":
            return SkMsgNotices(on_taken)
        case "broker":
            return BrokerNotices(on_taken)
        case _:
            return SocketNotices(on_taken)


async def _waits_of(way: str, setting: AggregateSetting) -> list[Wait]:
    """Of a worker that is told of one update again and again."""
    taken: list[tuple[str, float]] = []
    waits: list[Wait] = []
    with contextlib.ExitStack() as stack:
        notices = _notices(way, lambda by, seconds: taken.append((by, seconds)))
        stack.callback(notices.close)
        handle = WorkerHandle(notices=notices)
        stack.callback(handle.close)
        update, sum_ = (
            SharedMemory(stack, setting.update_bytes),
            SharedMemory(stack, accumulator_bytes(*_exact(setting))),
        )
        update.mapping[:] = make_update(setting).tobytes()
        begin = Begin(1, "exact", setting.updates, setting.shapes, 0, len(sum_.mapping))
        opened = OpenSum(begin, sum_.descriptor)
        for number in range(1, setting.updates + 1):
            started = time.monotonic()
            answer = await handle.do(Add(1, number, 0, True), opened, update.descriptor)
            if not isinstance(answer, Done):
                raise RowError(f"a worker has not added: {answer}")
            waits.append(Wait(taken[-1][1], time.monotonic() - started))
        await handle.do(End(1), opened)
    if any(by != way for by, _ in taken[1:]):
        raise RowError(f"not all notices went by the way {way}")
    return waits


def _exact(setting: AggregateSetting) -> tuple[Order, int]:
    return Order.EXACT, setting.update_bytes


def to_document(rows: Sequence[NoticeRow]) -> dict[str, object]:
    """For programs."""
    return {"rows": [dataclasses.asdict(row) for row in rows]}


def _starts(row: NoticeRow) -> tuple[float, ...]:
    return row.first_seconds, row.least_seconds, row.median_seconds, row.most_seconds


def to_table(rows: Sequence[NoticeRow]) -> DataTable:
    """For people."""
    cells = [
        (
            row.way,
            f"{row.update_bytes / 1e6:.0f} MB",
            str(row.notices),
            *(f"{seconds * 1e3:.2f} ms" for seconds in _starts(row)),
            f"{row.addition_seconds * 1e3:.1f} ms",
        )
        for row in rows
    ]
    columns = ("way", "update", "notices", "first", "least", "median", "longest", "until it is in")
    return DataTable("From being told of an update to the start of its addition", columns, cells)
