"""Costs of chunks by their size, and the rate at which they keep a core busy."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

from fedrdma_fate.bench.cpu.loopback import Loopback
from fedrdma_fate.bench.report import DataTable, format_bytes
from fedrdma_fate.core.digest import chunk_digest

CHUNK_SIZES = (16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20)

MOST_BYTES = 2 << 30
"""Of a payload, that bounds how long the largest chunks take."""
MOST_CHUNKS = 8192
"""Of a payload, that bounds how long the smallest chunks take; so many give a steady mean."""
DIGESTED_BYTES = 256 << 20
"""Far more than caches hold."""

PATH_RATE = 100e9 / 8
"""Bytes a second of the path, 100 Gbit/s: faster than the threads, so that they never wait for it."""


@dataclasses.dataclass(frozen=True, slots=True)
class CpuRow:
    """What chunks of one size cost.

    Attributes:
        chunk_bytes: their size.
        send_seconds: of the sender's link thread, a chunk.
        receive_seconds: of the receiver's, without the digest.
        digest_seconds: for the digest of a chunk that is in no cache.
    """

    chunk_bytes: int
    send_seconds: float
    receive_seconds: float
    digest_seconds: float

    @property
    def send_bps(self) -> float:
        """At which the sender's thread keeps a core busy, bits a second."""
        return self.chunk_bytes * 8 / self.send_seconds

    @property
    def receive_bps(self) -> float:
        """At which the receiver's does, which computes digests, too."""
        return self.chunk_bytes * 8 / (self.receive_seconds + self.digest_seconds)


def measure(sizes: Sequence[int], repeats: int, tell: Callable[[str], None]) -> list[CpuRow]:
    """Measure each size; medians.

    Args:
        sizes: of chunks, bytes.
        repeats: of each transfer.
        tell: is called with what is being done.
    """
    memory = memoryview(bytearray(DIGESTED_BYTES))
    rows = []
    for size in sizes:
        tell(format_bytes(size))
        count = max(16, min(MOST_CHUNKS, MOST_BYTES // size))
        costs = [Loopback(size, count, PATH_RATE).run() for _ in range(repeats)]
        digests = [digest_seconds(memory, size) for _ in range(repeats)]
        rows.append(
            CpuRow(
                size,
                statistics.median(cost.send_seconds for cost in costs),
                statistics.median(cost.receive_seconds for cost in costs),
                statistics.median(digests),
            )
        )
    return rows


def digest_seconds(memory: memoryview, chunk_bytes: int) -> float:
    """For the digest of a chunk, over the whole memory, chunk by chunk."""
    began = time.thread_time()
    for start in range(0, len(memory) - chunk_bytes + 1, chunk_bytes):
        chunk_digest(memory[start : start + chunk_bytes])
    return (time.thread_time() - began) / (len(memory) // chunk_bytes)


def to_document(rows: Sequence[CpuRow]) -> dict[str, object]:
    """For `--json`."""
    return {
        "rows": [{**dataclasses.asdict(row), "send_bps": row.send_bps, "receive_bps": row.receive_bps} for row in rows]
    }


def to_table(rows: Sequence[CpuRow]) -> DataTable:
    """For people."""
    columns = ("chunk", "send", "receive", "digest", "sender full at", "receiver full at")
    return DataTable(
        "fedrdma-x: processor time of a chunk, without the device's part", columns, [_cells(row) for row in rows]
    )


def _cells(row: CpuRow) -> tuple[str, ...]:
    times = (f"{seconds * 1e6:.1f} us" for seconds in (row.send_seconds, row.receive_seconds, row.digest_seconds))
    rates = (f"{bps / 1e9:.1f} Gbit/s" for bps in (row.send_bps, row.receive_bps))
    return (format_bytes(row.chunk_bytes), *times, *rates)
