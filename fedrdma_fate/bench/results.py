"""What was measured, its ratios, and how it is shown."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from fedrdma_fate.bench.plots import Series, bar_plot
from fedrdma_fate.bench.report import DataTable, Plot, format_bytes, format_seconds
from fedrdma_fate.quantities import MEGABYTE

REFERENCES: Mapping[str, str] = {
    "x_memcpy": "memcpy",
    "x_raw_tcp": "raw-tcp",
    "x_fate_standalone": "fate-standalone",
}
"""Ratio by ratio, the row it is made with."""


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """One row, as measured.

    Attributes:
        name: of the row.
        seconds: from the start of the put to the end of the get, one per timed iteration.
        put_seconds: the put alone.
        cpu_seconds: of both parties and their gateways.
        extra_bytes_sender: peak memory of the sending side beyond the payload.
        extra_bytes_receiver: the same of the receiving side.
    """

    name: str
    seconds: tuple[float, ...]
    put_seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    extra_bytes_sender: int
    extra_bytes_receiver: int

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One row of the result; times are medians, a ratio is None where its reference was not measured.

    Attributes:
        name: of the row.
        seconds: from the start of the put to the end of the get.
        cpu_seconds: of both parties and their gateways.
        extra_bytes_sender: peak memory of the sending side beyond the payload.
        extra_bytes_receiver: the same of the receiving side.
        x_memcpy: seconds over those of one memcpy.
        x_raw_tcp: seconds over those of one raw TCP socket.
        x_fate_standalone: seconds over those of FATE's standalone federation.
    """

    name: str
    seconds: float
    cpu_seconds: float
    extra_bytes_sender: int
    extra_bytes_receiver: int
    x_memcpy: float | None
    x_raw_tcp: float | None
    x_fate_standalone: float | None


def to_rows(measurements: Sequence[Measurement]) -> list[Row]:
    """Medians and ratios."""
    references = {measurement.name: measurement.median_seconds for measurement in measurements}
    return [_to_row(measurement, references) for measurement in measurements]


def _to_row(measurement: Measurement, references: Mapping[str, float]) -> Row:
    seconds = measurement.median_seconds
    ratios = {key: seconds / references[name] if name in references else None for key, name in REFERENCES.items()}
    return Row(
        name=measurement.name,
        seconds=seconds,
        cpu_seconds=statistics.median(measurement.cpu_seconds),
        extra_bytes_sender=measurement.extra_bytes_sender,
        extra_bytes_receiver=measurement.extra_bytes_receiver,
        **ratios,
    )


def to_document(payload_bytes: int, rows: Sequence[Row]) -> dict[str, object]:
    """The result for `--json`."""
    return {"payload_bytes": payload_bytes, "rows": [dataclasses.asdict(row) for row in rows]}


def to_table(payload: str, payload_bytes: int, measurements: Sequence[Measurement]) -> DataTable:
    """The result for people."""
    times = ("put to get", "slowest", "put", "rate", "CPU")
    columns = ("", *times, "+ sender", "+ receiver", "× memcpy", "× TCP", "× FATE")
    rows = [
        (*_cells(measurement, payload_bytes), *map(_ratio, (row.x_memcpy, row.x_raw_tcp, row.x_fate_standalone)))
        for measurement, row in zip(measurements, to_rows(measurements), strict=True)
    ]
    return DataTable(f"{payload}, {payload_bytes:,} bytes: medians, memory beyond the payload, ratios", columns, rows)


def _cells(measurement: Measurement, payload_bytes: int) -> tuple[str, ...]:
    return (
        measurement.name,
        format_seconds(measurement.median_seconds),
        format_seconds(max(measurement.seconds)),
        format_seconds(statistics.median(measurement.put_seconds)),
        f"{format_bytes(payload_bytes / measurement.median_seconds)}/s",
        format_seconds(statistics.median(measurement.cpu_seconds)),
        format_bytes(measurement.extra_bytes_sender),
        format_bytes(measurement.extra_bytes_receiver),
    )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def to_plots(payload: str, rows: Sequence[Row]) -> list[Plot]:
    """Seconds and memory, each as bars.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when matplotlib is not installed.
    """
    names = [row.name for row in rows]
    wall = Series("wall", [row.seconds for row in rows])
    cpu = Series("CPU, all processes", [row.cpu_seconds for row in rows])
    sender = Series("sender", [row.extra_bytes_sender / MEGABYTE for row in rows])
    receiver = Series("receiver", [row.extra_bytes_receiver / MEGABYTE for row in rows])
    seconds = bar_plot(f"{payload}: put to get", "seconds", names, [wall, cpu], logarithmic=True)
    memory = bar_plot(f"{payload}: memory beyond the payload", "MB", names, [sender, receiver])
    return [
        Plot("bench-fate-seconds", "From the start of the put to the end of the get; CPU of all processes.", seconds),
        Plot("bench-fate-memory", "Peak memory beyond the payload on both sides.", memory),
    ]
