"""`fedrdma bench wan --zoo`: which paths there are, what is compared with what, and what is marked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deploy.softroce.__main__ import make_parser, make_run
from fedrdma_fate.bench.wan.results import Transfer, WanMeasurement
from fedrdma_fate.bench.wan.sweep import SettingRun, Sweep
from fedrdma_fate.bench.wan.testbed import HostRun, Testbed
from fedrdma_fate.bench.wan.zoo import (
    MARK,
    ZOO_ROWS,
    compare,
    format_ratio,
    select_zoo,
    to_zoo_document,
    to_zoo_table,
    zoo_paths,
    zoo_settings,
)
from fedrdma_fate.cli.main import main
from fedrdma_fate.wire.errors import ConfigError, ErrorCode
from tests.support.repository import ROOT


def measured(name: str, first: float, *later: float) -> WanMeasurement:
    return WanMeasurement(name, Transfer(first, 0, 0), tuple(Transfer(each, 0, 0) for each in later), 0, 0, 1.0)


# --- the paths ---


def test_every_path_has_a_name_of_its_own_and_a_link_of_its_own() -> None:
    paths = zoo_paths()
    assert len({path.name for path in paths}) == len({path.link for path in paths}) == len(paths)
    kinds = {path.name.partition("-")[0] for path in paths}
    named = {"ideal", "loss", "jitter", "reorder", "burst", "metro", "policer", "trace", "back", "cross", "emulated"}
    assert kinds == named | {"slots", "edge"}


def test_the_testbed_takes_every_path(tmp_path: Path) -> None:
    kernel = tmp_path / "linux"
    kernel.write_text("")
    kernel.chmod(0o755)
    for path in zoo_paths():
        bed = Testbed(ROOT, path.link, 1, str(kernel), 9.0)
        if path.link.rate_trace is not None:
            (tmp_path / "trace").write_text(path.link.rate_trace.to_text())
        options = bed._options(2**31, tmp_path / "report.json")
        wan = make_run(make_parser().parse_args(["run", *options, "--", "true"])).wan
        assert (wan.loss, wan.policer, wan.back_rate) == (path.link.loss, path.link.policer, path.link.back_rate_bps)
        assert wan.trace == path.link.rate_trace
        assert (wan.slot_ns, wan.back_slot_ns) == (path.link.slot_ns, path.link.back_slot_ns)


def test_each_path_leaves_one_row_at_least_to_be_compared_with() -> None:
    others = {name for name in ZOO_ROWS if not name.startswith("fedrdma-x")}
    assert all(others - {*path.left_out} for path in zoo_paths())
    assert all({*path.left_out} < others for path in zoo_paths())


def test_paths_are_chosen_by_name_or_by_kind_in_the_zoo_s_order() -> None:
    assert [path.name for path in select_zoo("metro, policer,burst-8")] == [
        "burst-8",
        "metro-2ms",
        "metro-0.5ms",
        "policer",
    ]
    assert select_zoo("all") == zoo_paths()
    with pytest.raises(ConfigError) as caught:
        select_zoo("policer,carrier-pigeon")
    assert caught.value.code is ErrorCode.CONFIG_BAD_VALUE
    assert "there is no path 'carrier-pigeon'" in str(caught.value)
    assert "metro-2ms" in caught.value.remedy


def test_sizes_are_the_path_s_own_or_those_asked_for() -> None:
    (metro,) = select_zoo("metro-2ms")
    assert [one.payload_bytes for one in zoo_settings([metro])] == [18_000_000, 256 * 2**20]
    assert [one.payload_bytes for one in zoo_settings([metro], [7])] == [7]


# --- the comparison ---

RUN = [
    measured("tcp-bbr", 0.4, 0.3, 0.32, 0.34),
    measured("grpc", 0.39, 2.0),
    measured("fedrdma-x", 1.0, 0.32, 0.4, 0.3),
    measured("fedrdma-x-udp", 0.39, 0.352),
]


def test_we_are_compared_with_the_best_of_the_others_first_and_later() -> None:
    first = compare(RUN, lambda one: one.first.seconds)
    assert (first.best, first.best_seconds) == ("grpc", 0.39)
    assert first.ratios == {"fedrdma-x": pytest.approx(1.0 / 0.39), "fedrdma-x-udp": pytest.approx(1.0)}
    later = compare(RUN, lambda one: one.median_seconds)
    assert (later.best, later.ratios["fedrdma-x"]) == ("tcp-bbr", pytest.approx(1.0))
    assert compare(RUN[2:], lambda one: one.first.seconds).best is None


def test_what_is_above_the_limit_is_marked_and_nothing_else() -> None:
    assert [format_ratio(ratio) for ratio in (0.5, 1.05, 1.0501, 2.0)] == ["0.50", "1.05", f"1.05{MARK}", f"2.00{MARK}"]
    assert MARK not in format_ratio(None)


def shown() -> Sweep:
    policed, edge = zoo_settings(select_zoo("policer,edge-20mbit"), [18_000_000])
    return Sweep([SettingRun(policed, RUN), SettingRun(edge, [RUN[2]], {"tcp-bbr": "stopped after 400 s"})])


def test_the_table_has_a_line_for_each_path_and_payload() -> None:
    table = to_zoo_table(shown())
    assert table.columns[1:4] == ["payload", "best other, first", "fedrdma-x"]
    assert table.rows[0] == (
        *("policer", "18.0 MB"),
        *("grpc 390 ms", f"2.56{MARK}", "1.00"),
        *("tcp-bbr 320 ms", "1.00", f"1.10{MARK}"),
    )
    # without another row there is nothing to compare with
    assert table.rows[1] == ("edge-20mbit", "18.0 MB", *["–"] * 6)


def test_the_document_has_each_path_s_name_its_link_and_how_we_compare() -> None:
    first, second = json.loads(json.dumps(to_zoo_document(shown())))["runs"]
    assert (first["path"], first["link"]["policer_bps"]) == ("policer", 5 * 10**8)
    assert first["first"]["ratios"]["fedrdma-x"] == pytest.approx(2.564, abs=0.001)
    assert (first["later"]["best"], first["later"]["best_seconds"]) == ("tcp-bbr", 0.32)
    assert (second["later"]["best"], second["failures"]) == (None, {"tcp-bbr": "stopped after 400 s"})


# --- the command ---


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """What would have run; each transfer took a second."""
    seen: list[Sequence[str]] = []

    def run(_: Testbed, program: Sequence[str], memory_bytes: int) -> HostRun:
        del memory_bytes
        seen.append(program)
        if len(seen) == 3:
            raise KeyboardInterrupt
        told = {"seconds": 1.0, "sent_bytes": 1, "resent_bytes": 0, "tcp_resent_bytes": 0}
        return HostRun([json.dumps([told] * int(program[-1]))], 0, 0, 1.0)

    monkeypatch.setattr(Testbed, "check", lambda _: None)
    monkeypatch.setattr(Testbed, "run", run)
    return seen


def zoo(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "wan", *arguments])


def test_the_zoo_goes_on_where_it_was_interrupted_and_prints_one_table(
    programs: list[Sequence[str]], tmp_path: Path
) -> None:
    options = ("--zoo", "policer", "--size", "1MB", "--output", str(tmp_path))
    result = zoo(*options)
    assert result.exit_code == 130
    # of six rows the policer leaves one out
    assert "interrupted; 3 of 5 are not measured" in result.stderr
    result = zoo(*options)
    assert result.exit_code == 0, result.stderr
    assert len(programs) == 6
    assert result.stdout.count("payload") == 1
    assert "tcp-cubic 1.00 s" in result.stdout
    document = json.loads((tmp_path / "bench-wan.json").read_text())
    assert [row["name"] for row in document["runs"][0]["rows"]] == [name for name in ZOO_ROWS if name != "fedrdma-e"]
    assert (tmp_path / "bench-wan.html").read_text().count("<table>") == 2


@pytest.mark.usefixtures("programs")
def test_the_zoo_s_rows_may_be_named_and_json_is_printed() -> None:
    result = zoo("--zoo", "edge-20mbit", "--size", "1MB", "--rows", "tcp-bbr,fedrdma-x", "--json")
    assert result.exit_code == 0, result.stderr
    (run,) = json.loads(result.stdout)["runs"]
    assert (run["path"], run["first"]["ratios"]) == ("edge-20mbit", {"fedrdma-x": 1.0})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--zoo", "carrier-pigeon"], "[FR102] --zoo: there is no path 'carrier-pigeon'"),
        (["--zoo", "--rate", "1gbit"], "[FR102] --zoo and --rate: the paths of the zoo are what they are"),
        (["--zoo", "policer", "--delay-packets", "9"], "[FR102] --zoo and --delay-packets"),
        (["--zoo", "policer", "--size", "much"], "[FR102] --size: 'much' is not a size"),
        (["--zoo", "policer", "--rows", "quic"], "[FR102] there is no row 'quic'"),
    ],
)
def test_a_zoo_that_makes_no_sense_is_refused_before_anything_boots(
    programs: list[Sequence[str]], arguments: list[str], said: str
) -> None:
    result = zoo(*arguments)
    assert result.exit_code == 1
    assert said in result.stderr
    assert programs == []


def test_every_option_that_describes_a_link_is_refused_beside_the_zoo() -> None:
    from fedrdma_fate.cli.bench_wan import _LINK_OPTIONS, wan

    others = {"zoo", "size", "rows", "repeat", "seed", "kernel", "limit", "checkout", "as_json", "output"}
    assert {parameter.name for parameter in wan.params} == {*_LINK_OPTIONS} | others


def test_a_ratio_is_of_the_median_of_the_later_transfers() -> None:
    slow = dataclasses.replace(RUN[0], later=tuple(Transfer(each, 0, 0) for each in (1.0, 9.0, 2.0)))
    assert compare([slow], lambda one: one.median_seconds).best_seconds == 2.0
