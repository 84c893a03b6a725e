"""Results for people: units, tables at the terminal, and a self-contained HTML page with its plots inside."""

from __future__ import annotations

import base64
import dataclasses
import html
from collections.abc import Sequence
from pathlib import Path

import rich.box
from rich.table import Table

_STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1.5rem 0; } img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
"""


@dataclasses.dataclass(frozen=True, slots=True)
class DataTable:
    """A table, for the terminal as for the page; the first column names the row, the others are right-aligned."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{len(row)} cells in a table of {len(self.columns)} columns: {list(row)}")


@dataclasses.dataclass(frozen=True, slots=True)
class Plot:
    """A plot.

    Attributes:
        name: file name without ending.
        caption: what it shows; also read out instead of it.
        png: the image.
    """

    name: str
    caption: str
    png: bytes


def terminal_table(table: DataTable) -> Table:
    """The table for a rich console."""
    shown = Table(
        title=table.title, box=rich.box.SIMPLE_HEAD, title_justify="left", pad_edge=False, collapse_padding=True
    )
    for number, column in enumerate(table.columns):
        shown.add_column(column, justify="left" if number == 0 else "right")
    for row in table.rows:
        shown.add_row(*row)
    return shown


def html_page(title: str, paragraphs: Sequence[str], tables: Sequence[DataTable], plots: Sequence[Plot]) -> str:
    """One HTML page that needs nothing else: no script, no style sheet, no image from anywhere."""
    body = [f"<h1>{html.escape(title)}</h1>"]
    body += [f"<p>{html.escape(paragraph)}</p>" for paragraph in paragraphs]
    body += [_html_table(table) for table in tables]
    body += [_html_figure(plot) for plot in plots]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
    )
    content = "\n".join(body)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{content}\n</body></html>\n'


def write_report(
    page: Path, title: str, paragraphs: Sequence[str], tables: Sequence[DataTable], plots: Sequence[Plot]
) -> list[Path]:
    """Write the page, and every plot as a PNG beside it; all paths written, the page first."""
    page.write_text(html_page(title, paragraphs, tables, plots), encoding="utf-8")
    written = [page]
    for plot in plots:
        path = page.parent / f"{plot.name}.png"
        path.write_bytes(plot.png)
        written.append(path)
    return written


def format_bytes(size: float) -> str:
    """A size in decimal units, to three digits: `995 MB`, `1.99 GB`, `412 B`."""
    if size < 1000:
        return f"{size:.0f} B"
    units = ("kB", "MB", "GB", "TB")
    power = next((power for power in range(1, len(units)) if size < 999.5 * 1000**power), len(units))
    value = size / 1000**power
    return f"{value:.{_decimals(value)}f} {units[power - 1]}"


def format_seconds(seconds: float) -> str:
    """A duration: `850 µs`, `12.3 ms`, `4.56 s`, `3 min 20 s`."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.{_decimals(seconds * 1e3)}f} ms"
    if seconds < 99.95:
        return f"{seconds:.{_decimals(seconds)}f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def _decimals(value: float) -> int:
    """Decimals that leave three digits."""
    if value < 9.995:
        return 2
    return 1 if value < 99.95 else 0


def _html_table(table: DataTable) -> str:
    header = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    caption = html.escape(table.title)
    return (
        f'<div class="scroll"><table><caption>{caption}</caption>'
        f"<thead><tr>{header}</tr></thead><tbody>\n{rows}\n</tbody></table></div>"
    )


def _html_figure(plot: Plot) -> str:
    data = base64.b64encode(plot.png).decode("ascii")
    caption = html.escape(plot.caption, quote=True)
    source = f"data:image/png;base64,{data}"
    return f'<figure><img alt="{caption}" src="{source}"><figcaption>{caption}</figcaption></figure>'
