"""What holes in updates do to a model: federated averaging through the project's own aggregation, without a network.

In each round some silos train the model on what they have, and their updates lose chunks by chance, each silo's for
itself. The same seeds make the same silos, batches and lost chunks in every row of a seed.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from fedrdma_fate.bench.report import DataTable
from fedrdma_fate.bench.unifl.model import Array, Federation, accuracy, dealt, first_model, trained
from fedrdma_fate.fate.aggregation.holes import Holes, HoleyMean, MaskedMean, PlainMean

CHUNK_ELEMENTS = 256
"""Of float64, 2 KiB: an update of the small model has 200 such chunks, about as many as a large one of 16 KiB."""

LAST_LOOKS = 3
"""Rounds at the end whose accuracies are averaged."""

Way = Literal["plain", "secure", "zeros"]
"""What becomes of a hole: `plain` and `secure` as in `fate/aggregation`; `zeros`: it is taken for a weight of zero."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What is done with holes, and the share of chunks that each silo's update loses; of `secure`, of both planes."""

    way: Way
    loss: float

    @property
    def name(self) -> str:
        """As the table has it."""
        return self.way if not self.loss else f"{self.way}, {self.loss * 100:g} % lost"


ROWS = (
    Row("plain", 0.0),
    Row("plain", 0.01),
    Row("plain", 0.05),
    Row("plain", 0.1),
    Row("plain", 0.2),
    Row("secure", 0.0),
    Row("secure", 0.001),
    Row("secure", 0.01),
    Row("secure", 0.05),
    Row("zeros", 0.01),
    Row("zeros", 0.05),
)
"""Each is compared with the row of the same way, or for `zeros` of `plain`, without loss."""


@dataclasses.dataclass(frozen=True, slots=True)
class AccuracySetting:
    """Silos in all, silos that a round has, rounds, and seeds."""

    silos: int = 64
    chosen: int = 8
    rounds: int = 80
    seeds: int = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """Of a row.

    Attributes:
        row: which.
        accuracies: at the end, of each seed.
        kept: share of the aggregates' elements that stayed as they were.
    """

    row: Row
    accuracies: tuple[float, ...]
    kept: float

    @property
    def mean(self) -> float:
        """Of the seeds."""
        return statistics.mean(self.accuracies)


def measure_accuracy(
    setting: AccuracySetting, rows: Sequence[Row] = ROWS, tell: Callable[[str], object] = lambda _: None
) -> list[Outcome]:
    """Train in every row.

    Raises:
        FateError: FATE_VERSION when scikit-learn is not there.
    """
    found = []
    for row in rows:
        ends = []
        for seed in range(setting.seeds):
            tell(f"{row.name}, seed {seed + 1} of {setting.seeds}")
            ends.append(train(setting, row, seed))
        accuracies = tuple(end for end, _ in ends)
        found.append(Outcome(row, accuracies, statistics.mean(kept for _, kept in ends)))
    return found


def train(setting: AccuracySetting, row: Row, seed: int) -> tuple[float, float]:
    """The accuracy that one federation comes to, and the share of its aggregates' elements that stayed as they were."""
    federation = dealt(setting.silos, seed)
    model = first_model(seed)
    chance = np.random.default_rng((seed, 3))
    looks: list[float] = []
    kept = []
    for number in range(setting.rounds):
        chosen = sorted(chance.choice(setting.silos, setting.chosen, replace=False).tolist())
        # the first round is whole
        model, stood = _round(federation, model, row if number else Row(row.way, 0.0), chosen, (seed, number))
        kept.append(stood)
        if number >= setting.rounds - LAST_LOOKS:
            looks.append(accuracy(model, federation.test))
    return statistics.mean(looks), statistics.mean(kept)


def _round(
    federation: Federation, last: list[Array], row: Row, chosen: Sequence[int], seed: tuple[int, int]
) -> tuple[list[Array], float]:
    samples = [len(federation.silos[silo].labels) for silo in chosen]
    mean = _mean_of(row.way)
    for rank, silo in enumerate(chosen):
        update = trained(last, federation.silos[silo], (*seed, silo, 4))
        # as FATE computes it: the weights make one
        weight = samples[rank] / sum(samples)
        sent: list[Any] = update if row.way != "secure" else _mixer(rank, len(chosen), seed).mix(update, weight)
        flat = [plane for pair in sent for plane in pair] if row.way == "secure" else sent
        holes = _lost(flat, row.loss, (*seed, silo, 5))
        for array, ranges in holes.items():
            for start, end in ranges:
                flat[array].reshape(-1)[start:end] = 0
        mean.add(sent, weight, {} if row.way == "zeros" else holes)
    aggregate = mean.finish(last)
    return aggregate.arrays, aggregate.kept / aggregate.elements


def _mean_of(way: Way) -> HoleyMean:
    if way != "secure":
        return PlainMean()
    from fate_utils.secure_aggregation_helper import MixAggregate

    return MaskedMean(MixAggregate)


def _mixer(rank: int, count: int, seed: tuple[int, int]) -> Any:
    """FATE's own masks, of seeds that each two silos share."""
    from fate_utils.secure_aggregation_helper import RandomMix

    shared = {
        other: np.random.default_rng((*seed, min(rank, other), max(rank, other))).bytes(32)
        for other in range(count)
        if other != rank
    }
    return RandomMix(shared, rank)


def _lost(arrays: Sequence[Any], loss: float, seed: tuple[int, ...]) -> Holes:
    """Chunks that are lost by chance, of arrays of two dimensions; biases come whole."""
    chance = np.random.default_rng(seed)
    holes = {}
    for number, array in enumerate(arrays):
        if array.ndim < 2:
            continue
        lost = np.flatnonzero(chance.random(-(-array.size // CHUNK_ELEMENTS)) < loss)
        if len(lost):
            holes[number] = tuple(
                (int(at) * CHUNK_ELEMENTS, min(array.size, (int(at) + 1) * CHUNK_ELEMENTS)) for at in lost
            )
    return holes


def reference_of(outcome: Outcome, outcomes: Sequence[Outcome]) -> Outcome | None:
    """The row that a row is compared with, if it was measured."""
    way = "plain" if outcome.row.way == "zeros" else outcome.row.way
    return next((each for each in outcomes if (each.row.way, each.row.loss) == (way, 0.0)), None)


def to_document(setting: AccuracySetting, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """For programs."""
    return {
        **dataclasses.asdict(setting),
        "rows": [
            {
                "way": outcome.row.way,
                "loss": outcome.row.loss,
                "accuracies": list(outcome.accuracies),
                "accuracy": outcome.mean,
                "kept_share": outcome.kept,
            }
            for outcome in outcomes
        ],
    }


def to_table(setting: AccuracySetting, outcomes: Sequence[Outcome]) -> DataTable:
    """For people; in per cent."""
    columns = (
        "what becomes of holes",
        "accuracy",
        "beside lossless",
        "of the seeds",
        "aggregate that stood still",
        "paper",
    )
    rows = []
    for outcome in outcomes:
        reference = reference_of(outcome, outcomes)
        beside = "" if reference is None or reference is outcome else f"{100 * (outcome.mean - reference.mean):+.2f}"
        rows.append(
            (
                outcome.row.name,
                f"{100 * outcome.mean:.2f} %",
                beside,
                ", ".join(f"{100 * each:.2f}" for each in outcome.accuracies),
                f"{100 * outcome.kept:.2f} %",
                "-0.2 at 1 %" if outcome.row == Row("plain", 0.01) else "not stated",
            )
        )
    title = (
        f"scikit-learn's digits: {setting.silos} silos, {setting.chosen} a round, {setting.rounds} rounds, "
        f"{setting.seeds} seeds"
    )
    return DataTable(title, columns, rows)
