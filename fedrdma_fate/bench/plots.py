"""Plots as PNG bytes, drawn by matplotlib without a display and without global state."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from fedrdma_fate.wire.errors import ConfigError, ErrorCode

# as wide as the text of a page, and fine enough for a screen
_WIDTH_INCHES = 7.2
_HEIGHT_INCHES = 3.8
_DOTS_PER_INCH = 130
_COLOURS = ("#3366aa", "#dd7733", "#339977", "#aa4477", "#777777", "#bbaa33", "#55bbdd", "#884422", "#99cc66")


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """One line, or one set of bars; `values` go with the plot's x values or labels, None leaves a gap."""

    label: str
    values: Sequence[float | None]


def line_plot(title: str, x_label: str, y_label: str, x: Sequence[float], series: Sequence[Series]) -> bytes:
    """Lines with a marker at every value; whole numbers on the x axis.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when matplotlib is not installed.
    """
    figure, axes = _new_figure(title, y_label)
    for one, colour in zip(series, _colours(len(series)), strict=True):
        axes.plot(x, _with_gaps(one.values), marker="o", markersize=4, label=one.label, color=colour)
    axes.set_xlabel(x_label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return _finish(figure, axes, len(series))


def point_plot(title: str, x_label: str, y_label: str, labels: Sequence[str], series: Sequence[Series]) -> bytes:
    """Lines with a marker at every label; the labels are equally far from each other.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when matplotlib is not installed.
    """
    figure, axes = _new_figure(title, y_label)
    for one, colour in zip(series, _colours(len(series)), strict=True):
        axes.plot(range(len(labels)), _with_gaps(one.values), marker="o", markersize=4, label=one.label, color=colour)
    axes.set_xlabel(x_label)
    axes.set_ylim(bottom=0)
    _label_groups(axes, labels)
    return _finish(figure, axes, len(series))


def bar_plot(
    title: str, y_label: str, labels: Sequence[str], series: Sequence[Series], *, logarithmic: bool = False
) -> bytes:
    """Groups of bars, one group per label and one bar in it per series.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when matplotlib is not installed.
    """
    figure, axes = _new_figure(title, y_label)
    width = 0.8 / max(len(series), 1)
    for number, (one, colour) in enumerate(zip(series, _colours(len(series)), strict=True)):
        places = [place + (number - (len(series) - 1) / 2) * width for place in range(len(labels))]
        axes.bar(places, _with_gaps(one.values), width, label=one.label, color=colour)
    _label_groups(axes, labels)
    if logarithmic:
        axes.set_yscale("log")
    return _finish(figure, axes, len(series))


def stacked_plot(title: str, y_label: str, labels: Sequence[str], series: Sequence[Series]) -> bytes:
    """One bar per label, made of one piece per series; a gap counts as nothing.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when matplotlib is not installed.
    """
    figure, axes = _new_figure(title, y_label)
    tops = [0.0] * len(labels)
    for one, colour in zip(series, _colours(len(series)), strict=True):
        values = [0.0 if value is None else value for value in one.values]
        axes.bar(range(len(labels)), values, 0.6, bottom=tops, label=one.label, color=colour)
        tops = [top + value for top, value in zip(tops, values, strict=True)]
    _label_groups(axes, labels)
    return _finish(figure, axes, len(series))


def _new_figure(title: str, y_label: str) -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"plots need {error.name}, which is not installed.",
            "Install the wheel of a clone with its extra bench (docs/operators.md, Installing).",
        ) from error
    figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11)
    axes.set_ylabel(y_label)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _label_groups(axes: Any, labels: Sequence[str]) -> None:
    slanted = sum(len(label) for label in labels) > 60
    axes.set_xticks(range(len(labels)), labels, rotation=30 if slanted else 0, ha="right" if slanted else "center")


def _finish(figure: Any, axes: Any, series: int) -> bytes:
    if series > 1:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _colours(count: int) -> list[str]:
    return [_COLOURS[number % len(_COLOURS)] for number in range(count)]


def _with_gaps(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
