"""What the command line of `fedrdma bench` refuses, and how it says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedrdma_fate.bench.baselines import all_rivals, select_rivals
from fedrdma_fate.cli.main import main
from fedrdma_fate.wire.errors import ConfigError


def bench_fate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "fate", *arguments])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--payload", "gpt3"], "[FR102] there is no payload 'gpt3'."),
        (["--payload", "lora-0"], "[FR102] there is no payload 'lora-0'."),
        (["--bytes", "many"], "[FR102] --bytes: 'many' is no size"),
        (["--bytes", "0"], "[FR102] --bytes: 0 is n"),
        (["--bytes", "-1"], "[FR102] --bytes: '-1' is no size"),
        (["--rows", "fedrdma-e/verbs"], "[FR102] there is no row 'fedrdma-e/verbs'."),
        (["--rows", "memcpy,,"], "[FR102] there is no row ''."),
        (["--output", "/proc/nothing"], "[FR102] --output: [Errno "),
    ],
)
def test_what_there_is_not_is_refused_with_a_code(arguments: list[str], said: str) -> None:
    result = bench_fate(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert said in result.stderr


@pytest.mark.parametrize("arguments", [["--payload", "lora-8", "--bytes", "1MB"], ["--repeat", "0"], ["--rounds", "1"]])
def test_options_that_make_no_sense_are_refused_with_the_usage(arguments: list[str]) -> None:
    result = bench_fate(*arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_an_output_directory_that_cannot_be_made_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = bench_fate("--bytes", "1", "--rows", "memcpy", "--output", str(tmp_path / "file" / "new"))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "[FR102] --output:" in result.stderr
    assert "Name a directory that you may write to." in result.stderr


def test_an_unknown_row_is_told_which_rows_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        select_rivals(["memcpy", "rsync"])
    assert all(rival.name in caught.value.remedy for rival in all_rivals())


def test_rows_come_in_one_order_however_they_are_named() -> None:
    names = ["fate-standalone", "fedrdma/tcp", "memcpy"]
    assert [rival.name for rival in select_rivals(names)] == ["memcpy", "fedrdma/tcp", "fate-standalone"]


def test_json_is_all_that_is_printed() -> None:
    result = bench_fate("--bytes", "1MiB", "--rows", "memcpy", "--repeat", "1", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["payload_bytes"] == 2**20
    assert [row["name"] for row in document["rows"]] == ["memcpy"]


def test_the_table_names_the_payload_and_the_row() -> None:
    result = bench_fate("--payload", "lora-1", "--rows", "memcpy", "--repeat", "1")
    assert result.exit_code == 0, result.stderr
    assert "lora-1, 294,912 bytes" in result.stdout
    assert "memcpy" in result.stdout
