"""The example's data: the shipped sample, reading AdvertiseGen's format, shares of the clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.gpt2_advertisegen.data import disjoint_shares, read_rows, write_rows
from examples.gpt2_advertisegen.make_sample import make_rows, write_sample
from examples.gpt2_advertisegen.options import SAMPLE_DATA
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

ROWS = [{"content": f"类型#{number}", "summary": f"第{number}行"} for number in range(11)]


@pytest.mark.parametrize("name", ["train.json", "dev.json"])
def test_the_shipped_sample_is_what_its_script_writes(tmp_path: Path, name: str) -> None:
    write_sample(tmp_path)
    assert (tmp_path / name).read_bytes() == (SAMPLE_DATA / name).read_bytes()


def test_the_sample_is_small_enough_to_ship() -> None:
    assert sum(path.stat().st_size for path in SAMPLE_DATA.iterdir()) < 200_000


def test_no_row_of_the_sample_is_in_both_files() -> None:
    train, dev = (read_rows(SAMPLE_DATA / name) for name in ("train.json", "dev.json"))
    assert not {row["summary"] for row in train} & {row["summary"] for row in dev}


def test_the_copy_of_a_sample_row_mentions_its_product_and_its_benefit() -> None:
    for row in make_rows(50, seed=3):
        tags = dict(tag.split("#") for tag in row["content"].split("*"))
        assert tags["亮点"] in row["summary"]
        assert "{" not in row["summary"]


def test_another_seed_gives_other_rows() -> None:
    assert make_rows(5, seed=1) != make_rows(5, seed=2)


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    write_rows(path, ROWS)
    assert read_rows(path) == ROWS


def test_columns_beside_the_two_and_empty_lines_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({**ROWS[0], "id": 7}) + "\n\n", encoding="utf-8")
    assert read_rows(path) == [ROWS[0]]


@pytest.mark.parametrize(
    "line", ["no json", "[1, 2]", '{"content": "x"}', '{"content": "x", "summary": 5}', '{"content": null}']
)
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(ROWS[0]) + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rows\.json:2") as caught:
        read_rows(path)
    assert caught.value.code is ErrorCode.CONFIG_BAD_VALUE


def test_a_missing_file_says_what_data_has_to_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.json and dev\.json") as caught:
        read_rows(tmp_path / "train.json")
    assert caught.value.code is ErrorCode.CONFIG_UNREADABLE


def test_a_file_that_is_not_utf8_is_an_error_with_a_code(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError):
        read_rows(path)


def test_shares_are_disjoint_and_equally_long() -> None:
    first, second = disjoint_shares(ROWS, 2, None, seed=1)
    assert len(first) == len(second) == 5
    assert not {row["content"] for row in first} & {row["content"] for row in second}


def test_the_same_seed_draws_the_same_shares_and_another_seed_others() -> None:
    assert disjoint_shares(ROWS, 2, 4, seed=1) == disjoint_shares(ROWS, 2, 4, seed=1)
    assert disjoint_shares(ROWS, 2, 4, seed=1) != disjoint_shares(ROWS, 2, 4, seed=2)


@pytest.mark.parametrize("wanted", [0, 6])
def test_more_rows_than_there_are_or_none_is_refused(wanted: int) -> None:
    with pytest.raises(ConfigError, match="5 for each") as caught:
        disjoint_shares(ROWS, 2, wanted, seed=1)
    assert caught.value.code is ErrorCode.CONFIG_BAD_VALUE
