"""FedComm's Figures 3 to 11, by number: what each asks, and what its text states beside what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedrdma_fate.bench.paper.evaluation import NOT_MEASURED, Evaluation, factor_cell, per_cent_cell, seconds_cell
from fedrdma_fate.bench.paper.published import (
    ACCURACY_DIFFERS,
    AMQP_FACTORS,
    CPU_STRESS_ADDS,
    CPU_STRESS_ADDS_VGG8,
    NETWORK_STRESS_ADDS_VGG8,
    NOT_STATED,
    TCP_ACCURACY_VGG5,
)
from fedrdma_fate.bench.plots import Series, bar_plot, line_plot
from fedrdma_fate.bench.protocols.results import ProtocolMeasurement
from fedrdma_fate.bench.protocols.settings import ProtocolSetting
from fedrdma_fate.bench.report import DataTable, Plot

TCP, UDP, MQTT, AMQP, ZMTP = "tcp-serial", "udp-fedcomm", "mqtt-0", "amqp-fanout", "zmtp-pub"
"""Our rows that do as FedComm's code does."""
BASIC, OPTIMIZED = (TCP, UDP), (TCP, MQTT, AMQP, ZMTP)
BOTH_MODELS = ("vgg5", "vgg8")
USUAL_ROUNDS = 5
"""Of the paper's figures of time."""
LOSS_NETWORK = "4g"
"""Of Figure 6: on which network packets are lost is not stated."""
LOOPBACK = "loopback"


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the paper.

    Attributes:
        number: of it.
        about: what it shows.
        rows: the paper's.
        models: that it has, one part each.
        losses: in place of networks, where packets are lost.
        stress: `cpu` or `net`: what was added by it is the point.
        rounds: of its own.
        trains: whether it shows accuracy.
        networks: where not all of them are in it.
    """

    number: int
    about: str
    rows: Sequence[str]
    models: Sequence[str] = BOTH_MODELS
    losses: Sequence[str] = ()
    stress: str | None = None
    rounds: int = USUAL_ROUNDS
    trains: bool = False
    networks: Sequence[str] | None = None

    @property
    def on_loopback(self) -> bool:
        """A busy core delays nobody in virtual time: there is no network then."""
        return self.stress == "cpu"


FIGURES = {
    one.number: one
    for one in (
        Figure(3, "communication by TCP and UDP", BASIC),
        Figure(4, "communication by TCP and UDP beside a busy core", BASIC, stress="cpu"),
        Figure(5, "communication by TCP and UDP beside other flows", BASIC, stress="net"),
        Figure(6, "communication by TCP and UDP where packets are lost", BASIC, losses=("0", "5%", "10%", "20%")),
        Figure(7, "accuracy by TCP and UDP", BASIC, ("vgg5",), rounds=100, trains=True),
        Figure(8, "communication by TCP and application layer protocols", OPTIMIZED),
        Figure(9, "the same beside a busy core", OPTIMIZED, stress="cpu"),
        Figure(10, "the same beside other flows", OPTIMIZED, stress="net"),
        Figure(
            11, "accuracy by TCP and application layer protocols", OPTIMIZED, ("vgg5",), trains=True, networks=["wifi"]
        ),
    )
}


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A setting of a figure.

    Attributes:
        column: of the table: a network, a loss, or loopback.
        model: the figure's part.
        stressed: with the figure's stress, or without to compare with.
        setting: as it is measured.
    """

    column: str
    model: str
    stressed: bool
    setting: ProtocolSetting


class Found:
    """What was measured for a figure."""

    def __init__(
        self, places: Sequence[Place], find: Callable[[ProtocolSetting, str], ProtocolMeasurement | None]
    ) -> None:
        """
        Args:
            find: what was measured of a row in a setting; None: it was not.
        """
        self._places, self._find = places, find
        self.columns = list(dict.fromkeys(place.column for place in places))
        self.models = list(dict.fromkeys(place.model for place in places))

    def at(self, row: str, model: str, column: str, *, stressed: bool = False) -> ProtocolMeasurement | None:
        """One row in one place; None: not measured."""
        wanted = (column, model, stressed)
        for place in self._places:
            if (place.column, place.model, place.stressed) == wanted:
                return self._find(place.setting, row)
        return None

    def total(self, row: str, model: str, column: str, *, stressed: bool = False) -> float | None:
        """Seconds of communication of all rounds, the paper's metric."""
        one = self.at(row, model, column, stressed=stressed)
        return None if one is None else sum(each.seconds for each in one.rounds)

    def added(self, row: str, model: str) -> float | None:
        """Seconds that stress adds, over all columns; None where one is not measured."""
        pairs = [
            (self.total(row, model, column, stressed=True), self.total(row, model, column)) for column in self.columns
        ]
        known = [after - before for after, before in pairs if after is not None and before is not None]
        return sum(known) if known and len(known) == len(pairs) else None

    def ratio(self, row: str, other: str, model: str, column: str, *, stressed: bool = False) -> float | None:
        """Seconds of one row over those of another."""
        one = self.total(row, model, column, stressed=stressed)
        base = self.total(other, model, column, stressed=stressed)
        return None if one is None or base is None else one / base

    def accuracy(self, row: str, model: str, column: str, number: int) -> float | None:
        """After the round of this number, from 1 on."""
        one = self.at(row, model, column)
        return one.rounds[number - 1].accuracy if one is not None and number <= len(one.rounds) else None


Statement = tuple[str, str, str]
"""What it is of, the paper's, ours."""


def evaluate(
    figure: Figure,
    rows: Sequence[str],
    found: Found,
    failures: dict[str, str],
    rounds: int,
    documents: Sequence[dict[str, Any]],
) -> Evaluation:
    """A figure, ours beside the paper's.

    Args:
        rows: the paper's, then ours.
        rounds: that were measured.
        documents: of what was measured, for programs.
    """
    make = _accuracies if figure.trains else _times
    statements = list(_STATEMENTS[figure.number](found))
    tables = [make(figure, rows, found, model, stressed) for model in found.models for stressed in _kinds(figure)]
    if figure.stress is not None:
        tables.append(_added(rows, found))
    tables.append(DataTable("What the paper's text states", ("", "paper", "ours"), statements))
    return Evaluation(
        name=f"fedcomm-figure{figure.number}",
        title=f"FedComm, Figure {figure.number}: {figure.about}",
        tables=tables,
        notes=_notes(figure, rounds),
        document={
            "rounds": rounds,
            "settings": list(documents),
            "stated": [{"what": what, "paper": paper, "ours": ours} for what, paper, ours in statements],
        },
        failures=failures,
        draw=lambda: _plots(figure, rows, found),
    )


def _kinds(figure: Figure) -> Sequence[bool]:
    return (False,) if figure.stress is None else (False, True)


def _part(figure: Figure, model: str) -> str:
    part = f" {'ab'[BOTH_MODELS.index(model)]}" if len(figure.models) > 1 else ""
    clock = "real time" if figure.on_loopback else "virtual time"
    return f"Figure {figure.number}{part}, {model}; {clock}"


def _times(figure: Figure, rows: Sequence[str], found: Found, model: str, stressed: bool) -> DataTable:
    harder = "" if figure.stress is None else f"; {figure.stress} stress" if stressed else "; without stress"
    cells = [
        (
            row,
            *(seconds_cell(found.total(row, model, column, stressed=stressed)) for column in found.columns),
            NOT_STATED,
        )
        for row in rows
    ]
    title = f"{_part(figure, model)}{harder}; communication of all rounds"
    return DataTable(title, ("", *found.columns, "paper's"), cells)


def _added(rows: Sequence[str], found: Found) -> DataTable:
    cells = [(row, *(_signed_cell(found.added(row, model)) for model in found.models)) for row in rows]
    return DataTable("Added by stress, the sum of the columns", ("", *found.models), cells)


def _signed_cell(seconds: float | None) -> str:
    """A difference of ours."""
    return NOT_MEASURED if seconds is None else f"{seconds:+.3g} s"


def _accuracies(figure: Figure, rows: Sequence[str], found: Found, model: str, stressed: bool) -> DataTable:
    del stressed
    numbers = [number for number in TCP_ACCURACY_VGG5 if number <= _most_rounds(rows, found, model)]
    cells = [
        (
            f"{row}, {column}",
            *(per_cent_cell(found.accuracy(row, model, column, number)) for number in numbers),
            NOT_STATED,
        )
        for row in rows
        for column in found.columns
    ]
    columns = ("", *(f"after round {number}" for number in numbers), "paper's")
    return DataTable(f"{_part(figure, model)}; accuracy of the average", columns, cells)


def _most_rounds(rows: Sequence[str], found: Found, model: str) -> int:
    measured = [found.at(row, model, column) for row in rows for column in found.columns]
    return max((len(one.rounds) for one in measured if one is not None), default=1)


def _plots(figure: Figure, rows: Sequence[str], found: Found) -> list[Plot]:
    if figure.trains:
        return [_curves(figure, rows, found, model) for model in found.models]
    plots = []
    for model in found.models:
        stressed = figure.stress is not None
        series = [
            Series(column, [found.total(row, model, column, stressed=stressed) for row in rows])
            for column in found.columns
        ]
        title = f"Figure {figure.number}, {model}"
        image = bar_plot(title, "communication of all rounds, s", list(rows), series)
        plots.append(Plot(f"paper-fedcomm-figure{figure.number}-{model}", f"{title}: {figure.about}.", image))
    return plots


def _curves(figure: Figure, rows: Sequence[str], found: Found, model: str) -> Plot:
    """Accuracy by round, a line for each row and network, all in one plot."""
    numbers = list(range(1, _most_rounds(rows, found, model) + 1))
    series = [
        Series(f"{row}, {column}", [found.accuracy(row, model, column, number) for number in numbers])
        for row in rows
        for column in found.columns
    ]
    title = f"Figure {figure.number}, {model}"
    image = line_plot(title, "rounds", "accuracy of the average", numbers, series)
    return Plot(f"paper-fedcomm-figure{figure.number}-{model}", f"{title}: {figure.about}.", image)


# --- what its text states ---


def _figure_3(found: Found) -> Iterator[Statement]:
    for model, column, said in (("vgg5", "4g", "above 1"), ("vgg5", "wifi", "above 1"), ("vgg8", "3g", "below 1")):
        yield f"UDP over TCP, {model}, {column}", said, factor_cell(found.ratio(UDP, TCP, model, column))


def _figure_4(found: Found) -> Iterator[Statement]:
    for (row, model), seconds in CPU_STRESS_ADDS.items():
        yield f"added, {row}, {model}", f"+{seconds:g} s", _signed_cell(found.added(row, model))


def _figure_5(found: Found) -> Iterator[Statement]:
    for column in found.columns:
        ours = factor_cell(found.ratio(UDP, TCP, "vgg8", column, stressed=True))
        yield f"UDP over TCP beside other flows, vgg8, {column}", "below 1", ours


def _figure_6(found: Found) -> Iterator[Statement]:
    for row, said in ((UDP, "uniform"), (TCP, "increases significantly")):
        for model in found.models:
            most, none = (found.total(row, model, column) for column in (found.columns[-1], found.columns[0]))
            ours = factor_cell(None if most is None or not none else most / none)
            yield f"{row}, {found.columns[-1]} over {found.columns[0]}, {model}", said, ours


def _figure_7(found: Found) -> Iterator[Statement]:
    for number, share in TCP_ACCURACY_VGG5.items():
        for column in found.columns:
            ours = per_cent_cell(found.accuracy(TCP, "vgg5", column, number))
            yield f"{TCP} after round {number}, {column} (its repository)", f"{share:.2%}", ours


def _figure_8(found: Found) -> Iterator[Statement]:
    for column in found.columns:
        factor = AMQP_FACTORS.get(column)
        for model in found.models:
            paper = NOT_STATED if factor is None else f"{factor:g}×"
            yield f"TCP over AMQP, {column}, {model}", paper, factor_cell(found.ratio(TCP, AMQP, model, column))


def _figure_9(found: Found) -> Iterator[Statement]:
    for row, seconds in CPU_STRESS_ADDS_VGG8.items():
        yield f"added, {row}, vgg8", f"+{seconds:g} s", _signed_cell(found.added(row, "vgg8"))


def _figure_10(found: Found) -> Iterator[Statement]:
    for row, seconds in NETWORK_STRESS_ADDS_VGG8.items():
        yield f"added, {row}, vgg8", f"+{seconds:g} s", _signed_cell(found.added(row, "vgg8"))


def _figure_11(found: Found) -> Iterator[Statement]:
    (column,) = found.columns
    for row in (MQTT, AMQP, ZMTP):
        one, base = found.at(row, "vgg5", column), found.at(TCP, "vgg5", column)
        pairs = [] if one is None or base is None else zip(one.rounds, base.rounds, strict=False)
        gaps = [abs(a.accuracy - b.accuracy) for a, b in pairs if a.accuracy is not None and b.accuracy is not None]
        ours = f"{max(gaps):.2%}" if gaps else NOT_MEASURED
        yield f"{row}, largest difference from TCP", f"below {ACCURACY_DIFFERS:.1%}", ours


_STATEMENTS: dict[int, Callable[[Found], Iterator[Statement]]] = {
    3: _figure_3,
    4: _figure_4,
    5: _figure_5,
    6: _figure_6,
    7: _figure_7,
    8: _figure_8,
    9: _figure_9,
    10: _figure_10,
    11: _figure_11,
}


def _notes(figure: Figure, rounds: int) -> list[str]:
    notes = [
        f"{rounds} rounds; the paper's figure has {figure.rounds}. Communication is by the wall: what the server's "
        "sends take counts, which FedComm's own clock leaves out.",
        "The paper prints no values in its figures: what its text does not say is not stated here.",
    ]
    if figure.on_loopback:
        notes.append(
            "Real time on loopback: the paper's networks are not there, so its sums over networks are of another thing."
        )
    if figure.losses:
        notes.append(
            f"On which network packets are lost is not stated: {LOSS_NETWORK}, where it is among those asked for."
        )
    if figure.trains:
        notes.append(
            "The paper's accuracies are on CIFAR-10: without --data, ours are on a stand-in, and not to be compared."
        )
    return notes
