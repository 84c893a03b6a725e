"""Reports: units, tables, plots, and a page that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from examples.gpt2_advertisegen.cli_options import make_console
from examples.gpt2_advertisegen.plan import ModelFacts, TrainingPlan
from examples.gpt2_advertisegen.report import headline, round_table, write_run_report
from examples.gpt2_advertisegen.summary import LinkFact, Summary
from fedrdma_fate.bench.plots import Series, bar_plot, line_plot, stacked_plot
from fedrdma_fate.bench.report import DataTable, Plot, format_bytes, format_seconds, html_page, terminal_table

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
PARTIES = ("guest:9999", "host:10000", "arbiter:10000")
CLIENTS = PARTIES[:2]


def summary(**changed: object) -> Summary:
    training = TrainingPlan("full", 8, 2, 4, 4, 0.1, 48, "adamw", 42, "seeded")
    fields: dict[str, object] = {
        "federation": "fedrdma",
        "mode": "fedrdma-e",
        "transport": "auto",
        "links": [LinkFact("guest", "arbiter", "shm", "same host")],
        "preset": "tiny",
        "training": training,
        "model": ModelFacts("/m", False, 100, 100, 4, "<|endoftext|>", 16, 4),
        "losses": {party: [6.0, 5.0] for party in CLIENTS},
        "held_out_losses": {party: [5.5, 4.5] for party in CLIENTS},
        "model_sha256": dict.fromkeys(CLIENTS, "ab" * 32),
        "bytes_pushed": dict.fromkeys(PARTIES, 1600),
        "bytes_delivered": dict.fromkeys(PARTIES, 1600),
        "bytes_outside_backend": 0,
        "round_bytes_pushed": {party: [800, 800] for party in PARTIES},
        "round_bytes_got": {party: [400, 400] for party in PARTIES},
        "communication_seconds": {party: [1.0, 2.0] for party in PARTIES},
        "waiting_seconds": {party: [1.0, 1.0] for party in PARTIES},
        "round_seconds": {party: [4.0, 8.0] for party in PARTIES},
        "communication_share": {party: [0.25, 0.25] for party in PARTIES},
        "peak_memory_bytes": {"guest:9999": 5_000_000, "gateway-guest": 7_000_000},
        "peak_total_bytes": 12_000_000,
        "seconds": 30.0,
    }
    return Summary(**{**fields, **changed})  # type: ignore[arg-type]


class References(HTMLParser):
    """Collects every attribute by which a page could fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]


def test_the_run_s_report_is_one_page_with_its_plots_inside_and_png_files_beside_it(tmp_path: Path) -> None:
    page, *plots = write_run_report(tmp_path / "report.html", summary())
    text = page.read_text(encoding="utf-8")
    references = References()
    references.feed(text)
    assert len(references.found) == len(plots) == 4
    assert all(reference.startswith("data:image/png;base64,") for reference in references.found)
    assert not {"script", "link", "iframe"} & set(references.tags)
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", text)
    assert all(plot.read_bytes().startswith(PNG_MAGIC) for plot in plots)


def test_the_headline_says_that_weights_are_random_and_that_no_byte_went_another_way() -> None:
    text = " ".join(headline(summary()))
    assert "random weights" in text
    assert "FATE pushed 4,800 bytes; the gateways delivered 4,800; 0 bytes went another way." in text
    assert "6.0000 in round 1, 5.0000 in round 2" in text


def test_the_standalone_run_claims_no_delivery() -> None:
    text = " ".join(headline(summary(federation="standalone", mode=None, transport=None, bytes_delivered={}, links=[])))
    assert "standalone" in text
    assert "delivered" not in text


def test_the_round_table_has_a_row_per_party_and_round_and_no_loss_for_the_arbiter() -> None:
    rows = round_table(summary()).rows
    assert [(row[0], row[1]) for row in rows] == [(party, number) for party in PARTIES for number in ("1", "2")]
    assert rows[0][2:4] == ("6.0000", "5.5000")
    assert rows[-1][2:4] == ("–", "–")
    assert rows[0][-1] == "25.0%"


def test_what_comes_from_outside_is_escaped_on_the_page() -> None:
    table = DataTable("<b>", ("a&b",), (("<script>alert(1)</script>",),))
    page = html_page("<title>", ['"quoted" & <i>'], [table], [Plot("p", '" onload="x', PNG_MAGIC)])
    references = References()
    references.feed(page)
    assert "script" not in references.tags
    assert "b" not in references.tags
    assert 'alt="&quot; onload=&quot;x"' in page


def test_a_table_with_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="1 cells in a table of 2 columns"):
        DataTable("t", ("a", "b"), (("x",),))


def test_the_terminal_shows_every_cell() -> None:
    shown = Console(width=80)
    with shown.capture() as captured:
        shown.print(terminal_table(DataTable("title", ("name", "value"), (("guest", "12 MB"), ("host", "13 MB")))))
    for text in ("title", "name", "value", "guest", "12 MB", "host", "13 MB"):
        assert text in captured.get()


@pytest.mark.parametrize("draw", [bar_plot, stacked_plot])
def test_bars_with_gaps_are_drawn(draw: Callable[[str, str, Sequence[str], Sequence[Series]], bytes]) -> None:
    png = draw("title", "seconds", ["a", "b"], [Series("one", [1.0, None]), Series("two", [2.0, 3.0])])
    assert png.startswith(PNG_MAGIC)


def test_lines_and_logarithmic_bars_are_drawn_and_differ() -> None:
    line = line_plot("t", "x", "y", [1, 2], [Series("one", [1.0, 2.0])])
    linear = bar_plot("t", "y", ["a"], [Series("one", [100.0])])
    logarithmic = bar_plot("t", "y", ["a"], [Series("one", [100.0])], logarithmic=True)
    assert len({line, linear, logarithmic}) == 3


def test_equal_plots_are_equal_bytes() -> None:
    series = [Series("one", [1.0, 2.0])]
    assert line_plot("t", "x", "y", [1, 2], series) == line_plot("t", "x", "y", [1, 2], series)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_499, "999 kB"),
        (999_600, "1.00 MB"),
        (995_518_464, "996 MB"),
        (1.99e9, "1.99 GB"),
        (5e15, "5000 TB"),
    ],
)
def test_sizes_have_three_digits_and_the_right_unit(size: float, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (0.0123, "12.3 ms"),
        (0.9996, "1.00 s"),
        (99.94, "99.9 s"),
        (99.96, "1 min 40 s"),
        (3599.6, "60 min 0 s"),
    ],
)
def test_durations_have_three_digits_and_the_right_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_file_gets_the_whole_table_of_rounds_whatever_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    make_console(stderr=False).print(terminal_table(round_table(summary())))
    printed = capsys.readouterr().out
    assert "arbiter:10000" in printed
    assert "Communication" in printed
    assert "…" not in printed
