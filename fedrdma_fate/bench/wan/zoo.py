"""A fixed list of paths that are not ideal, and one table of them: how our time compares with the best other's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from fedrdma_fate.bench.report import DataTable, format_bytes, format_seconds
from fedrdma_fate.bench.wan.results import WanMeasurement
from fedrdma_fate.bench.wan.settings import Setting, format_payload
from fedrdma_fate.bench.wan.shaping import CrossTraffic, Policer, RateTrace
from fedrdma_fate.bench.wan.sweep import Sweep
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

ALL = "all"
ZOO_ROWS = ("tcp-cubic", "tcp-bbr", "grpc", "fedrdma-e", "fedrdma-x", "fedrdma-x-udp")
"""What is compared unless one says otherwise: what a site may have now, then ours."""
OURS = "fedrdma-x"
"""How the names of our rows begin; all others are what they are compared with."""
MOST_RATIO = 1.05
"""Of our time to the best other's: what is above it is marked."""
MARK = " !"
NOT_MEASURED = "–"

_MBIT, _GBIT, _MS = 10**6, 10**9, 10**6
_SMALL, _MIDDLE, _LARGE = 1_100_000, 18_000_000, 256 * 2**20
"""Payloads: LoRA of small rank, of rank 64, and what keeps a gigabit a second busy for two seconds."""
_EDGE_SIZES = (_SMALL, 10_000_000)
_TRACE_MBIT = (1000, 800, 500, 300, 200, 400, 700, 900)
_TRACE_STEP_NS = 250 * _MS
"""A dozen round trips: long enough to be followed, short enough that every payload but the smallest meets some."""

_GO_BACK = ("fedrdma-e",)
"""A device that sends all again behind each lost packet needs hours where many are lost."""
_LOSS_BASED = ("tcp-cubic", "grpc", "fedrdma-e")
"""What takes each loss for a full queue needs hours as well, where packets are lost by chance in such numbers."""


@dataclasses.dataclass(frozen=True, slots=True)
class ZooPath:
    """One path of the zoo.

    Attributes:
        name: as on the command line; what stands before its first dash names all of its kind.
        link: what it does to packets.
        sizes: of payloads.
        left_out: rows that would not end in any sensible time.
    """

    name: str
    link: WanLink
    sizes: Sequence[int] = (_SMALL, _MIDDLE, _LARGE)
    left_out: tuple[str, ...] = ()


def _link(
    rate: int = _GBIT, rtt_ns: int = 20 * _MS, buffer: int = 4_000_000, loss: float = 0.0, **more: Any
) -> WanLink:
    return WanLink(rate, rtt_ns, buffer, loss, **more)


def _edge(name: str, rate_mbit: int, rtt_ms: int, loss: float = 0.0, **more: Any) -> ZooPath:
    link = _link(rate_mbit * _MBIT, rtt_ms * _MS, loss=loss, mtu_bytes=1500, **more)
    return ZooPath(f"edge-{name}", link, _EDGE_SIZES, _LOSS_BASED if loss else ())


def zoo_paths() -> list[ZooPath]:
    """All of them: 1 Gbit/s, 20 ms and a buffer of 4 MB where nothing else is said."""
    trace = RateTrace(
        tuple((number * _TRACE_STEP_NS, rate * _MBIT) for number, rate in enumerate(_TRACE_MBIT)),
        len(_TRACE_MBIT) * _TRACE_STEP_NS,
    )
    fast: dict[str, Any] = {"rate": 10 * _GBIT}
    return [
        ZooPath("ideal", _link()),
        ZooPath("ideal-10gbit", _link(**fast), (_MIDDLE, _LARGE)),
        ZooPath("loss-1%", _link(loss=0.01), left_out=_GO_BACK),
        ZooPath("jitter-0.3ms", _link(jitter_ns=300_000)),
        ZooPath("jitter-1ms", _link(jitter_ns=_MS)),
        ZooPath("jitter-3ms", _link(jitter_ns=3 * _MS)),
        ZooPath("jitter-1ms-10gbit", _link(**fast, jitter_ns=_MS), (_LARGE,)),
        ZooPath("reorder-0.3ms", _link(jitter_ns=300_000, reorders=True), left_out=_GO_BACK),
        ZooPath("slots-10ms", _link(slot_ns=10 * _MS)),
        ZooPath("slots-20ms-back", _link(back_slot_ns=20 * _MS)),
        ZooPath("burst-2", _link(loss=0.005, burst_packets=2.0), left_out=_GO_BACK),
        ZooPath("burst-8", _link(loss=0.005, burst_packets=8.0), left_out=_GO_BACK),
        ZooPath("burst-30", _link(loss=0.005, burst_packets=30.0), left_out=_GO_BACK),
        ZooPath("metro-2ms", _link(**fast, rtt_ns=2 * _MS, buffer=500_000), (_MIDDLE, _LARGE)),
        ZooPath("metro-0.5ms", _link(**fast, rtt_ns=500_000, buffer=500_000), (_MIDDLE, _LARGE)),
        ZooPath("policer", _link(policer=Policer(500 * _MBIT, 100_000)), left_out=_GO_BACK),
        ZooPath("trace", _link(trace.mean_bps, rate_trace=trace)),
        ZooPath("back", _link(back_rate_bps=20 * _MBIT, back_loss=0.01)),
        ZooPath("cross", _link(cross=CrossTraffic(2, 500 * _MS, 500 * _MS)), (_MIDDLE, _LARGE)),
        ZooPath("emulated", _link(delay_packets=1000, nic_rate_bps=_GBIT)),
        _edge("5mbit-2ms", 5, 2),
        _edge("5mbit-2ms-10%", 5, 2, 0.1),
        _edge("20mbit", 20, 20),
        _edge("20mbit-card", 20, 20, nic_rate_bps=20 * _MBIT),
        _edge("20mbit-slots-10ms", 20, 20, slot_ns=10 * _MS),
        _edge("20mbit-slots-20ms-back", 20, 20, back_slot_ns=20 * _MS),
        _edge("20mbit-5%", 20, 20, 0.05),
        _edge("20mbit-20%", 20, 20, 0.2),
        _edge("60mbit-2ms", 60, 2),
        _edge("60mbit-2ms-10%", 60, 2, 0.1),
    ]


def select_zoo(names: str) -> list[ZooPath]:
    """Paths by name or by kind, with commas between, in the zoo's order; `all` of them.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when there is none of a name.
    """
    paths, wanted = zoo_paths(), {name.strip() for name in names.split(",")}
    known = {ALL} | {name for path in paths for name in _names(path)}
    unknown = sorted(wanted - known)
    if unknown:
        every = ", ".join(path.name for path in paths)
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--zoo: there is no path {unknown[0]!r}.", f"Paths: {every}.")
    return [path for path in paths if wanted & {ALL, *_names(path)}]


def _names(path: ZooPath) -> set[str]:
    return {path.name, path.name.partition("-")[0]}


def zoo_settings(paths: Sequence[ZooPath], sizes: Sequence[int] | None = None) -> list[Setting]:
    """What is to be measured.

    Args:
        sizes: of payloads, for all paths; None: each path's own.
    """
    return [
        Setting(path.link, size, format_bytes(path.link.buffer_bytes), path.name, path.left_out)
        for path in paths
        for size in sizes or path.sizes
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """Of one path and payload, in first or in later transfers.

    Attributes:
        best: the best other row; None: none was measured.
        best_seconds: that it took.
        ratios: our time over that, by row.
    """

    best: str | None
    best_seconds: float
    ratios: dict[str, float]


def compare(measurements: Sequence[WanMeasurement], seconds: Callable[[WanMeasurement], float]) -> Comparison:
    """Our rows with the best of the others."""
    others = [one for one in measurements if not one.name.startswith(OURS)]
    if not others:
        return Comparison(None, 0.0, {})
    best = min(others, key=seconds)
    ours = (one for one in measurements if one.name.startswith(OURS))
    return Comparison(best.name, seconds(best), {one.name: seconds(one) / seconds(best) for one in ours})


def _first(measurement: WanMeasurement) -> float:
    return measurement.first.seconds


def _later(measurement: WanMeasurement) -> float:
    return measurement.median_seconds


def to_zoo_table(sweep: Sweep) -> DataTable:
    """For people: ratios above `MOST_RATIO` are marked."""
    runs = sweep.measured
    ours = list(dict.fromkeys(one.name for run in runs for one in run.measurements if one.name.startswith(OURS)))
    columns = ["", "payload", "best other, first", *ours, "best other, later", *ours]
    rows = []
    for run in runs:
        compared = [compare(run.measurements, seconds) for seconds in (_first, _later)]
        cells = [cell for comparison in compared for cell in _cells(comparison, ours)]
        rows.append((run.setting.path, format_payload(run.setting.payload_bytes), *cells))
    title = f"Our time over the best other's; what is above {MOST_RATIO} has a mark. Virtual time"
    return DataTable(title, columns, rows)


def _cells(comparison: Comparison, ours: Sequence[str]) -> list[str]:
    if comparison.best is None:
        return [NOT_MEASURED] * (1 + len(ours))
    told = (comparison.ratios.get(name) for name in ours)
    return [f"{comparison.best} {format_seconds(comparison.best_seconds)}", *(map(format_ratio, told))]


def format_ratio(ratio: float | None) -> str:
    """Two decimals, with a mark where it is too much."""
    if ratio is None:
        return NOT_MEASURED
    return f"{ratio:.2f}{MARK if ratio > MOST_RATIO else ''}"


def to_zoo_document(sweep: Sweep) -> dict[str, object]:
    """For `--json`: the documents of all paths, each with its name, and how we compare."""
    return {
        "runs": [{"path": run.setting.path, **run.to_document(), **_compared(run.measurements)} for run in sweep.runs]
    }


def _compared(measurements: Sequence[WanMeasurement]) -> dict[str, object]:
    compared = {"first": compare(measurements, _first), "later": compare(measurements, _later)}
    return {name: dataclasses.asdict(comparison) for name, comparison in compared.items()}
