"""What sealing costs: the rate at which one core seals and opens records, as the streams of `tcp` and `grpc` do."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

from fedrdma_fate.bench.report import DataTable
from fedrdma_fate.core.digest import BLOCK_BYTES
from fedrdma_fate.security.ciphers import AES, CHACHA
from fedrdma_fate.security.key_schedule import DirectionKeys
from fedrdma_fate.security.sealing import PathOpener, PathSealer, Seal
from fedrdma_fate.wire.sealed import RECORD_OVERHEAD

SEALED_BYTES = 256 << 20
"""In each repetition: long enough for a steady rate, far more than caches hold."""

WAYS: tuple[tuple[str, Seal], ...] = ((AES, "on"), (AES, "integrity"), (CHACHA, "on"), (CHACHA, "integrity"))
"""What is measured."""

_KEYS = DirectionKeys(bytes(32), bytes(32), bytes(32))
_PLACE = bytes(45)
"""As long as the place of a record is."""


@dataclasses.dataclass(frozen=True, slots=True)
class SealingRow:
    """What one cipher costs.

    Attributes:
        cipher: its name.
        seal: `on` or `integrity`.
        seal_rate: bytes that a core seals in a second, from memory that is in no cache.
        open_rate: bytes that it opens in a second, to such memory.
    """

    cipher: str
    seal: str
    seal_rate: float
    open_rate: float


def measure_sealing(repeats: int, tell: Callable[[str], None]) -> list[SealingRow]:
    """Measure each way; medians.

    Args:
        repeats: of each.
        tell: is called with what is being done.
    """
    memory = memoryview(bytearray(SEALED_BYTES))
    rows = []
    for cipher, seal in WAYS:
        tell(f"{cipher}, {seal}")
        rates = [_rates(cipher, seal, memory) for _ in range(repeats)]
        rows.append(SealingRow(cipher, seal, *(statistics.median(each) for each in zip(*rates, strict=True))))
    return rows


def _rates(cipher: str, seal: Seal, memory: memoryview) -> tuple[float, float]:
    """Bytes a second of processor time: sealed, and opened."""
    sealer, opener = PathSealer(_KEYS, cipher, seal).begin(1, 1, bytes(32)), PathOpener(_KEYS, cipher, seal)
    record = memoryview(bytearray(BLOCK_BYTES + RECORD_OVERHEAD))
    began = time.thread_time()
    for start in range(0, len(memory), BLOCK_BYTES):
        sealer.seal(_PLACE, memory[start : start + BLOCK_BYTES], record)
    sealed = time.thread_time()
    for start in range(0, len(memory), BLOCK_BYTES):
        opener.open(1, sealer.introduction, _PLACE, record, memory[start : start + BLOCK_BYTES])
    opened = time.thread_time()
    return len(memory) / (sealed - began), len(memory) / (opened - sealed)


def sealing_document(rows: Sequence[SealingRow]) -> dict[str, object]:
    """For `--json`."""
    return {"sealing": [dataclasses.asdict(row) for row in rows]}


def sealing_table(rows: Sequence[SealingRow]) -> DataTable:
    """For people."""
    cells = [
        (row.cipher, row.seal, f"{row.seal_rate / 1e9:.1f} GB/s", f"{row.open_rate / 1e9:.1f} GB/s") for row in rows
    ]
    return DataTable("sealing: rate of one core", ("cipher", "seal", "seals", "opens"), cells)
