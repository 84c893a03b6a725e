"""Table 2: the largest and the best chunk for each bandwidth, whether Link-Enable is needed, and the time of 1 GB."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from fedrdma_fate.bench.paper.chunks import Cut, CutResult, send_cut
from fedrdma_fate.bench.paper.evaluation import NOT_MEASURED, Evaluation, seconds_cell
from fedrdma_fate.bench.paper.networks import PAPER_CHUNK_BYTES, Experiment
from fedrdma_fate.bench.paper.published import NOT_STATED, BandwidthColumn, column_for
from fedrdma_fate.bench.plots import Series, bar_plot
from fedrdma_fate.bench.report import DataTable, Plot, format_bytes
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.core.tuning import LINK_ENABLE_FROM_BPS, LinkTraits, plan_transfer
from fedrdma_fate.quantities import GIGABYTE, MEGABYTE, parse_size
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

STEADY_CHUNK_BYTES = PAPER_CHUNK_BYTES
"""The paper's, and what the formula is checked with."""
CHUNKS = (MEGABYTE, STEADY_CHUNK_BYTES, 4 * 2**20, 12 * MEGABYTE)
"""Besides the whole payload. 4 MiB is the modes' default, 4.2 MB."""
ENABLED_CHUNKS = (STEADY_CHUNK_BYTES, 12 * MEGABYTE)


@dataclasses.dataclass(frozen=True, slots=True)
class Bandwidth:
    """What was measured over one link.

    Attributes:
        link: with its bandwidth.
        tried: `fedrdma-e` with every cut, Link-Enable or not; None where a payload did not arrive.
        staged: `fedrdma` with the paper's chunk.
        x_gigabyte_seconds: `fedrdma-x` between two gateways, nothing set by hand, scaled to 1 GB.
    """

    link: WanLink
    tried: Sequence[tuple[Cut, CutResult | None]]
    staged: CutResult | None
    x_gigabyte_seconds: float | None

    @property
    def paper(self) -> BandwidthColumn | None:
        return column_for(self.link.rate_bps)

    @property
    def plain(self) -> list[CutResult]:
        """What arrived without Link-Enable."""
        return [result for cut, result in self.tried if result is not None and not cut.link_enable]

    @property
    def best(self) -> CutResult | None:
        """The fastest without Link-Enable."""
        return min(self.plain, key=lambda one: one.seconds, default=None)

    @property
    def largest(self) -> CutResult | None:
        """The largest chunk that arrived, at whatever speed."""
        return _largest(self.plain)

    @property
    def largest_clean(self) -> CutResult | None:
        """The largest chunk of which no packet was dropped."""
        return _largest(one for one in self.plain if not one.dropped_packets)

    @property
    def steady(self) -> CutResult | None:
        """With the paper's chunk, without Link-Enable."""
        return self.result(STEADY_CHUNK_BYTES, link_enable=False)

    def result(self, chunk_bytes: int, *, link_enable: bool) -> CutResult | None:
        """Of this cut."""
        wanted = (chunk_bytes, link_enable)
        return next((result for cut, result in self.tried if (cut.chunk_bytes, cut.link_enable) == wanted), None)


def _largest(results: Iterable[CutResult]) -> CutResult | None:
    return max(results, key=lambda one: one.cut.chunk_bytes, default=None)


def table2(
    experiment: Experiment, links: Sequence[WanLink], sample_bytes: int, x_bytes: int, repeats: int
) -> Evaluation:
    """Try every chunk size at every bandwidth.

    Args:
        experiment: where it is measured.
        links: one for each bandwidth.
        sample_bytes: of the payload that is cut.
        x_bytes: of `fedrdma-x`'s, which needs a longer one to be steady; 0 leaves it out.
        repeats: transfers of `fedrdma-x` after the first.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: the sample is no larger than a chunk.
    """
    if sample_bytes <= max(CHUNKS):
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"--size: {sample_bytes:,} bytes are no more than the largest chunk that is tried.",
            f"Give more than {max(CHUNKS):,} bytes, such as 64MB.",
        )
    measured = [_measure(experiment, link, sample_bytes, x_bytes, repeats) for link in links]
    return Evaluation(
        name="table2",
        title=f"Table 2: chunks by bandwidth; network {experiment.network.name}: {experiment.network.about}",
        tables=[_summary(measured), _sweep(measured), _enabling(measured), _formula(measured)],
        notes=_notes(sample_bytes, x_bytes),
        document={
            **experiment.to_document(),
            "sample_bytes": sample_bytes,
            "fedrdma_x_bytes": x_bytes,
            "rows": [_document_row(one) for one in measured],
        },
        failures=experiment.failures,
        draw=lambda: _plots(measured),
    )


def _measure(experiment: Experiment, link: WanLink, sample_bytes: int, x_bytes: int, repeats: int) -> Bandwidth:
    tried = [(cut, send_cut(experiment, link, cut)) for cut in cuts(link, sample_bytes)]
    staged = send_cut(experiment, link, Cut("fedrdma", sample_bytes, STEADY_CHUNK_BYTES))
    found = experiment.measure(["fedrdma-x"], link, x_bytes, repeats) if x_bytes else {}
    beyond = found["fedrdma-x"].median_seconds * GIGABYTE / x_bytes if found else None
    return Bandwidth(link, tried, staged, beyond)


def cuts(link: WanLink, sample_bytes: int) -> list[Cut]:
    """What is tried over a link, smaller chunks first; Link-Enable where the paper needs it."""
    plain = [Cut("fedrdma-e", sample_bytes, size) for size in (*CHUNKS, sample_bytes)]
    if link.rate_bps < LINK_ENABLE_FROM_BPS:
        return plain
    enabled = [Cut("fedrdma-e", sample_bytes, size, link_enable=True) for size in (*ENABLED_CHUNKS, sample_bytes)]
    return [*plain, *enabled]


def gigabyte_seconds(result: CutResult | None, link: WanLink) -> float | None:
    """Seconds of 1 GB in such chunks, or in one piece where the sample was one: then its round trip stays one."""
    if result is None:
        return None
    once = link.rtt_seconds if result.cut.is_whole else 0.0
    return once + (result.seconds - once) * GIGABYTE / result.cut.payload_bytes


def _summary(measured: Sequence[Bandwidth]) -> DataTable:
    columns = (
        *("bandwidth", "largest chunk, paper's", "arrives", "nothing dropped", "best chunk, paper's", "ours"),
        *("Link-Enable, paper's", "1 GB, paper's", "its best chunk, formula", "fedrdma-e, best", "fedrdma-x"),
    )
    return DataTable("Beside the paper's Table 2", columns, [_summary_cells(one) for one in measured])


def _summary_cells(one: Bandwidth) -> tuple[str, ...]:
    paper = one.paper
    chunk_bytes = parse_size(paper.best_chunk) if paper else STEADY_CHUNK_BYTES
    formula = GIGABYTE * 8 / Cut("fedrdma-e", GIGABYTE, chunk_bytes).predicted_bps(one.link)
    return (
        one.link.rate_text,
        paper.largest_chunk if paper else NOT_STATED,
        _label(one.largest),
        _label(one.largest_clean),
        paper.best_chunk if paper else NOT_STATED,
        _label(one.best),
        ("yes" if paper.link_enable else "no") if paper else NOT_STATED,
        paper.latency if paper else NOT_STATED,
        seconds_cell(formula),
        seconds_cell(gigabyte_seconds(one.best, one.link)),
        seconds_cell(one.x_gigabyte_seconds),
    )


def _label(result: CutResult | None) -> str:
    return "none" if result is None else result.cut.label


def _sweep(measured: Sequence[Bandwidth]) -> DataTable:
    labels = list(dict.fromkeys(cut.label for one in measured for cut, _ in one.tried if not cut.link_enable))
    rows = [(one.link.rate_text, *(_outcome(one, label) for label in labels)) for one in measured]
    return DataTable("Mbit/s by chunk, without Link-Enable; in brackets: packets dropped", ("", *labels), rows)


def _outcome(one: Bandwidth, label: str) -> str:
    for cut, result in one.tried:
        if cut.label == label:
            return _rate_cell(result)
    return NOT_MEASURED


def _rate_cell(result: CutResult | None) -> str:
    if result is None:
        return "failed"
    dropped = f" ({result.dropped_packets:,})" if result.dropped_packets else ""
    return f"{result.bps / 1e6:,.0f}{dropped}"


def _enabling(measured: Sequence[Bandwidth]) -> DataTable:
    rows = [
        (
            one.link.rate_text,
            Cut(*_plain(cut)).label,
            _rate_cell(one.result(cut.chunk_bytes, link_enable=False)),
            _rate_cell(result),
        )
        for one in measured
        for cut, result in one.tried
        if cut.link_enable
    ]
    return DataTable("Mbit/s without and with Link-Enable", ("", "chunk", "without", "with"), rows)


def _plain(cut: Cut) -> tuple[str, int, int]:
    return cut.mode, cut.payload_bytes, cut.chunk_bytes


def _formula(measured: Sequence[Bandwidth]) -> DataTable:
    columns = ("Mbit/s, chunk 4 MB", "chunk / (RTT + chunk / rate)", "fedrdma", "off", "fedrdma-e", "off")
    return DataTable("One chunk on its way at a time", columns, [_formula_cells(one) for one in measured])


def _formula_cells(one: Bandwidth) -> tuple[str, ...]:
    results = (one.staged, one.steady)
    predicted = next((result.cut.predicted_bps(one.link) for result in results if result), None)
    cells = [cell for result in results for cell in (_rate_cell(result), _deviation_cell(result, one.link))]
    return (one.link.rate_text, NOT_MEASURED if predicted is None else f"{predicted / 1e6:,.1f}", *cells)


def deviation(result: CutResult, link: WanLink) -> float:
    """Of the measured goodput from the formula's, as a share."""
    return result.bps / result.cut.predicted_bps(link) - 1


def _deviation_cell(result: CutResult | None, link: WanLink) -> str:
    return NOT_MEASURED if result is None else f"{deviation(result, link) * 100:+.2f} %"


def _document_row(one: Bandwidth) -> dict[str, Any]:
    results = [*(result for _, result in one.tried), one.staged]
    planned = plan_transfer("fedrdma-e", GIGABYTE, None, "auto", LinkTraits(rate_bps=one.link.rate_bps))
    return {
        "link": one.link.to_document(),
        "paper": None if one.paper is None else dataclasses.asdict(one.paper),
        "largest_chunk": one.largest and one.largest.cut.chunk_bytes,
        "largest_chunk_without_drops": one.largest_clean and one.largest_clean.cut.chunk_bytes,
        "best_chunk": one.best and one.best.cut.chunk_bytes,
        "gigabyte_seconds": gigabyte_seconds(one.best, one.link),
        "fedrdma_x_gigabyte_seconds": one.x_gigabyte_seconds,
        "planned_chunk": planned.chunk_bytes,
        "planned_link_enable": planned.enable_bytes > 0,
        "transfers": [result.to_document(one.link) for result in results if result],
    }


def _notes(sample_bytes: int, x_bytes: int) -> list[str]:
    notes = [
        f"fedrdma and fedrdma-e: one transfer of {sample_bytes:,} bytes between two engines, on fresh connections, "
        "from the offer until the sender knows of the delivery; no gateways. Scaled to 1 GB in proportion.",
        "The formula leaves packet headers out, which are 1.4 % on the wire, and the round trip of the delivery.",
    ]
    if x_bytes:
        said = f"fedrdma-x: between two gateways, {format_bytes(x_bytes)}, median of later transfers, scaled to 1 GB."
        notes.append(said)
    return notes


def _plots(measured: Sequence[Bandwidth]) -> list[Plot]:
    rates = [one.link.rate_text for one in measured]
    series = [
        Series("the paper", [one.paper.seconds if one.paper else None for one in measured]),
        Series("fedrdma-e, 4 MB", [gigabyte_seconds(one.steady, one.link) for one in measured]),
        Series("fedrdma-e, best chunk", [gigabyte_seconds(one.best, one.link) for one in measured]),
        Series("fedrdma-x", [one.x_gigabyte_seconds for one in measured]),
    ]
    png = bar_plot("1 GB by bandwidth", "seconds", rates, series, logarithmic=True)
    return [Plot("paper-table2", "Seconds of 1 GB, by bandwidth.", png)]
