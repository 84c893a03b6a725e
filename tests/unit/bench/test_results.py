"""Medians, ratios, the document and the table of `fedrdma bench fate`."""

from __future__ import annotations

import json

import pytest

from fedrdma_fate.bench.results import Measurement, to_document, to_plots, to_rows, to_table

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def measured(name: str, *seconds: float, cpu: float = 0.5) -> Measurement:
    return Measurement(
        name=name,
        seconds=seconds,
        put_seconds=tuple(one / 2 for one in seconds),
        cpu_seconds=(cpu,) * len(seconds),
        extra_bytes_sender=1000,
        extra_bytes_receiver=2000,
    )


ALL = [
    measured("memcpy", 0.1, 0.1, 0.4),
    measured("raw-tcp", 0.5),
    measured("fedrdma-e/shm", 0.9, 0.2, 0.3),
    measured("fate-standalone", 30.0),
]


def test_seconds_are_the_median_of_the_repeats() -> None:
    assert [row.seconds for row in to_rows(ALL)] == [0.1, 0.5, 0.3, 30.0]


def test_a_ratio_is_this_rows_seconds_over_the_references() -> None:
    ours = to_rows(ALL)[2]
    assert ours.x_memcpy == pytest.approx(3.0)
    assert ours.x_raw_tcp == pytest.approx(0.6)
    assert ours.x_fate_standalone == pytest.approx(0.01)


def test_a_reference_is_one_time_itself() -> None:
    memcpy, raw_tcp, _, standalone = to_rows(ALL)
    assert (memcpy.x_memcpy, raw_tcp.x_raw_tcp, standalone.x_fate_standalone) == (1.0, 1.0, 1.0)


def test_a_ratio_without_its_reference_is_null() -> None:
    (row,) = to_rows([ALL[2]])
    assert (row.x_memcpy, row.x_raw_tcp, row.x_fate_standalone) == (None, None, None)


def test_the_document_has_exactly_the_promised_keys() -> None:
    document = json.loads(json.dumps(to_document(995_518_464, to_rows(ALL))))
    assert document.keys() == {"payload_bytes", "rows"}
    assert document["payload_bytes"] == 995_518_464
    assert document["rows"][2] == {
        "name": "fedrdma-e/shm",
        "seconds": 0.3,
        "cpu_seconds": 0.5,
        "extra_bytes_sender": 1000,
        "extra_bytes_receiver": 2000,
        "x_memcpy": pytest.approx(3.0),
        "x_raw_tcp": pytest.approx(0.6),
        "x_fate_standalone": pytest.approx(0.01),
    }


def test_the_table_shows_median_slowest_rate_and_ratios() -> None:
    table = to_table("a payload", 300_000_000, ALL)
    cells = dict(zip(table.columns, table.rows[2], strict=True))
    assert cells[""] == "fedrdma-e/shm"
    assert (cells["put to get"], cells["slowest"], cells["put"]) == ("300 ms", "900 ms", "150 ms")
    assert cells["rate"] == "1.00 GB/s"
    assert (cells["+ sender"], cells["+ receiver"]) == ("1.00 kB", "2.00 kB")
    assert (cells["× memcpy"], cells["× TCP"], cells["× FATE"]) == ("3", "0.6", "0.01")


def test_the_table_shows_a_dash_for_a_missing_reference() -> None:
    table = to_table("a payload", 1000, [ALL[2]])
    assert table.rows[0][-3:] == ("-", "-", "-")


def test_plots_are_png_images_of_seconds_and_of_memory() -> None:
    plots = to_plots("a payload", to_rows(ALL))
    assert [plot.name for plot in plots] == ["bench-fate-seconds", "bench-fate-memory"]
    assert all(plot.png.startswith(PNG_MAGIC) for plot in plots)
