"""`fedrdma bench paper`: what is asked of the testbed, the arithmetic, and ours beside the paper's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.paper import table3 as paper_table3
from fedrdma_fate.bench.paper.chunks import Cut, CutResult, send_cut
from fedrdma_fate.bench.paper.evaluation import Evaluation
from fedrdma_fate.bench.paper.figure1 import figure1, rows_over
from fedrdma_fate.bench.paper.figure7 import figure7
from fedrdma_fate.bench.paper.figure8 import figure8, rank_bytes
from fedrdma_fate.bench.paper.networks import NETWORKS, Lab, network_named
from fedrdma_fate.bench.paper.published import TABLE_2, TABLE_4, column_for
from fedrdma_fate.bench.paper.rounds import COMPUTE_SECONDS, model_bytes
from fedrdma_fate.bench.paper.table2 import Bandwidth, cuts, deviation, gigabyte_seconds, table2
from fedrdma_fate.bench.paper.table4 import Power, table4
from fedrdma_fate.bench.report import DataTable
from fedrdma_fate.bench.results import Measurement
from fedrdma_fate.bench.table3 import PAPER_TABLE_3, compare_rank
from fedrdma_fate.bench.wan.testbed import HostRun
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.cli.main import main
from fedrdma_fate.wire.errors import ConfigError

MB = 10**6
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
LINK = WanLink(10**10, 20_000_000, 4 * MB, 0.0)
EMULATED, BUFFERED = NETWORKS

Answer = Callable[[Sequence[str]], HostRun]


class FakeHosts:
    """Answers every program by one function, and remembers what it was asked, where."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[tuple[WanLink, tuple[str, ...], Sequence[str]]] = []
        self._where: tuple[WanLink, tuple[str, ...]] = LINK, ()

    def on(self, link: WanLink, more: tuple[str, ...]) -> FakeHosts:
        self._where = link, more
        return self

    def run(self, program: Sequence[str], memory_bytes: int) -> HostRun:
        assert memory_bytes > 2**30
        self.asked.append((*self._where, program))
        return self._answer(program)

    def lab(self, network: str = "buffered") -> Lab:
        return Lab(self.on, network_named(network), lambda _: None)


def transfers(first: float, later: float) -> HostRun:
    told = [
        {"seconds": seconds, "sent_bytes": 1, "resent_bytes": 0, "tcp_resent_bytes": 0} for seconds in (first, later)
    ]
    return HostRun([json.dumps(told)], 0, 0, 1.0)


def rows_by_mode(seconds: Mapping[str, float]) -> Answer:
    """Programs of `bench wan` take so many seconds, by mode; the first transfer twice as many."""

    def answer(program: Sequence[str]) -> HostRun:
        if program[1] not in seconds:
            raise RowError("host 0: out of order")
        return transfers(2 * seconds[program[1]], seconds[program[1]])

    return answer


def cell(table: DataTable, row: str, column: int) -> str:
    (cells,) = (cells for cells in table.rows if cells[0] == row)
    return cells[column]


# --- the paper's own figures ---


def test_every_bandwidth_of_the_papers_table_has_its_column() -> None:
    by_rate = {gbit: column_for(gbit * 10**9) for gbit in (1, 2, 3, 4, 5, 6, 8, 9, 10, 100)}
    assert [column.label for column in by_rate.values() if column] == [
        "1",
        "2",
        "3",
        "4-5",
        "4-5",
        "6-9",
        "6-9",
        "6-9",
        "10",
        "100",
    ]
    assert column_for(50 * 10**9) is None
    assert TABLE_2[3].latency == "~6.57 s"


def test_the_papers_energy_is_its_power_times_its_time() -> None:
    for row in TABLE_4.values():
        assert row.watts * row.seconds == pytest.approx(row.joules, rel=0.005)


def test_the_default_computation_makes_communication_the_papers_share() -> None:
    share = 45.9 / (45.9 + COMPUTE_SECONDS)
    assert share == pytest.approx(0.4497)


def test_five_rounds_of_the_model_both_ways_are_the_papers_traffic() -> None:
    assert 5 * 2 * model_bytes() / 2**30 == pytest.approx(9.3, abs=0.05)


# --- networks ---


def test_the_emulated_network_holds_cards_to_the_link_and_bounds_the_delay_line() -> None:
    assert BUFFERED.options(LINK, by_tcp=True) == ()
    assert EMULATED.options(LINK, by_tcp=False) == ("--nic-rate", "10000000000bit", "--delay-packets", "1000")
    assert EMULATED.options(LINK, by_tcp=True)[-2:] == ("--mtu", "1500")


def test_only_rows_that_go_by_tcp_get_its_mtu() -> None:
    hosts = FakeHosts(rows_by_mode({"grpc": 1.0, "fedrdma-x": 1.0}))
    hosts.lab("emulated").measure(["grpc", "fedrdma-x"], LINK, MB, 1)
    assert ["--mtu" in more for _, more, _ in hosts.asked] == [True, False]


def test_gateways_of_the_papers_modes_are_told_its_best_chunk() -> None:
    slow, other = WanLink(10**9, 20_000_000, 4 * MB, 0.0), WanLink(5 * 10**7, 20_000_000, 4 * MB, 0.0)
    assert [EMULATED.chunk_bytes(link, 64 * MB) for link in (slow, LINK, other)] == [64 * MB, 4 * MB, 4 * MB]
    assert BUFFERED.chunk_bytes(slow, 64 * MB) == 4 * MB
    assert BUFFERED.chunk_bytes(slow, MB) == MB
    hosts = FakeHosts(rows_by_mode({"fedrdma-e": 1.0, "fedrdma-x": 1.0}))
    hosts.lab("emulated").measure(["fedrdma-e", "fedrdma-x"], slow, 64 * MB, 1)
    assert [list(program[3:]) for _, _, program in hosts.asked] == [["2", "auto", "64000000"], ["2"]]


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="'dialup'"):
        network_named("dialup")


# --- figures ---


def test_a_round_is_two_transfers_of_the_model_in_proportion_to_the_sample() -> None:
    hosts = FakeHosts(rows_by_mode({"grpc": 1.0, "fedrdma-e": 0.5, "fedrdma-x": 0.1}))
    shown = figure1(hosts.lab(), [LINK], model_bytes() // 8, 1, 60.0)
    by_name = {row["name"]: row for row in shown.to_document()["rows"]}
    assert by_name["grpc"]["communication_seconds"] == pytest.approx(16.0)
    assert by_name["grpc"]["sample_seconds"] == [1.0]
    assert by_name["grpc"]["communication_share"] == pytest.approx(16 / 76)
    assert by_name["fedrdma-x"]["total_seconds"] == pytest.approx(61.6)
    assert cell(shown.tables[0], "10 Gbit/s, grpc", 2) == "45.9 s"
    assert cell(shown.tables[0], "10 Gbit/s, fedrdma-x", 2) == "not stated"


def test_the_papers_share_stands_only_beside_its_own_link() -> None:
    hosts = FakeHosts(rows_by_mode({"grpc": 1.0, "fedrdma-e": 0.5, "fedrdma-x": 0.1}))
    slower = WanLink(10**9, 20_000_000, 4 * MB, 0.0)
    table = figure1(hosts.lab(), [slower], MB, 1, 60.0).tables[0]
    assert {cells[4] for cells in table.rows} == {"not stated"}


def test_the_papers_modes_are_not_measured_below_where_the_papers_bandwidths_begin() -> None:
    assert list(rows_over(WanLink(10**8, 20_000_000, 4 * MB, 0.0))) == ["grpc", "fedrdma-x"]
    assert list(rows_over(WanLink(10**9, 20_000_000, 4 * MB, 0.0))) == ["grpc", "fedrdma-e", "fedrdma-x"]


def test_what_a_mode_saves_stands_beside_what_the_paper_states() -> None:
    hosts = FakeHosts(rows_by_mode({"grpc": 1.0, "fedrdma": 0.5, "fedrdma-e": 0.25, "fedrdma-x": 0.1}))
    shown = figure7(hosts.lab(), LINK, model_bytes() // 2, 1, 4.0)
    table = shown.tables[0]
    assert (cell(table, "fedrdma-e", 3), cell(table, "fedrdma-e", 4)) == ("75.0 %", "73.9 %")
    assert (cell(table, "fedrdma-e", 6), cell(table, "fedrdma-e", 7)) == ("37.5 %", "33.3 %")
    assert cell(table, "fedrdma-x", 7) == "not stated"


def test_without_the_baseline_nothing_is_said_to_be_saved() -> None:
    hosts = FakeHosts(rows_by_mode({"fedrdma": 0.5, "fedrdma-e": 0.25, "fedrdma-x": 0.1}))
    shown = figure7(hosts.lab(), LINK, MB, 1, 1.0)
    assert cell(shown.tables[0], "fedrdma-e", 3) == "-"
    (failed,) = shown.failures.items()
    assert failed[0].startswith("grpc, 1,000,000 bytes, 10 Gbit/s")
    assert failed[1] == "host 0: out of order"


def test_lora_ranks_are_sent_in_full_and_rank_16_stands_beside_the_papers_factor() -> None:
    hosts = FakeHosts(rows_by_mode({"grpc": 0.4, "fedrdma-e": 0.2, "fedrdma-x": 0.1}))
    shown = figure8(hosts.lab(), LINK, [4, 16], ["grpc", "fedrdma-e", "fedrdma-x"], 1)
    sizes = [int(program[2]) for _, _, program in hosts.asked]
    assert sizes == [rank_bytes(4)] * 3 + [rank_bytes(16)] * 3
    assert rank_bytes(4) == 1_179_648
    first, later, gains = shown.tables
    assert (cell(first, "4", 2), cell(later, "4", 2)) == ("800 ms", "400 ms")
    assert gains.rows[1] == ("16", "2.00×", "2.00×", "4.00×", "4.00×", "2.37×")
    assert gains.rows[0][-1] == "not stated"


def test_plots_are_images_also_where_rows_are_missing() -> None:
    hosts = FakeHosts(rows_by_mode({"fedrdma-e": 0.2}))
    shown: list[Evaluation] = [
        figure1(hosts.lab(), [LINK], MB, 1, 60.0),
        figure7(hosts.lab(), LINK, MB, 1, 60.0),
        figure8(hosts.lab(), LINK, [4], ["grpc", "fedrdma-e"], 1),
    ]
    for one in shown:
        (plot,) = one.draw()
        assert plot.name == f"paper-{one.name}"
        assert plot.png.startswith(PNG_MAGIC)


# --- Table 2 ---


def engine(seconds: Callable[[int], float], drops: Callable[[int], int] = lambda _: 0) -> Answer:
    """Transfers of the engines' program take and drop this, by chunk; those of `bench wan` a tenth of a second."""

    def answer(program: Sequence[str]) -> HostRun:
        if "--chunk" not in program:
            return transfers(0.2, 0.1)
        chunk = int(program[program.index("--chunk") + 1])
        return HostRun([json.dumps({"seconds": seconds(chunk), "sent_bytes": 9})], drops(chunk), 0, 1.0)

    return answer


def test_the_formula_is_one_chunk_per_round_trip_and_its_own_time() -> None:
    assert Cut("fedrdma-e", 64 * MB, 4 * MB).predicted_bps(LINK) == pytest.approx(32e6 / 0.0232)
    whole = Cut("fedrdma-e", 64 * MB, 64 * MB)
    assert whole.is_whole
    assert whole.predicted_bps(LINK) == pytest.approx(512e6 / 0.0712)


def test_the_deviation_is_the_measured_goodput_over_the_formula() -> None:
    cut = Cut("fedrdma-e", 64 * MB, 4 * MB)
    assert deviation(CutResult(cut, 16 * 0.0232, 0, 0), LINK) == pytest.approx(0.0)
    assert deviation(CutResult(cut, 16 * 0.0232 * 2, 0, 0), LINK) == pytest.approx(-0.5)


@pytest.mark.parametrize(("gbit", "seconds"), [(1, 8.16), (2, 4.10), (3, 2.77), (10, 6.00)])
def test_the_formula_with_the_papers_best_chunk_is_the_papers_time_within_5_percent(gbit: int, seconds: float) -> None:
    link = WanLink(gbit * 10**9, 20_000_000, 4 * MB, 0.0)
    hosts = FakeHosts(engine(lambda _: 0.5))
    formula = cell(table2(hosts.lab(), [link], 64 * MB, 0, 1).tables[0], f"{gbit} Gbit/s", 8)
    assert float(formula.removesuffix(" s")) == pytest.approx(seconds, rel=0.05)


def test_a_whole_payload_has_one_round_trip_however_large_it_is() -> None:
    whole, cut = Cut("fedrdma-e", 50 * MB, 50 * MB), Cut("fedrdma-e", 50 * MB, 5 * MB)
    assert gigabyte_seconds(CutResult(whole, 0.06, 0, 0), LINK) == pytest.approx(0.02 + 0.04 * 20)
    assert gigabyte_seconds(CutResult(cut, 0.24, 0, 0), LINK) == pytest.approx(0.24 * 20)
    assert gigabyte_seconds(None, LINK) is None


def test_link_enable_is_tried_only_where_the_paper_needs_it() -> None:
    slow, fast = WanLink(3 * 10**9, 20_000_000, 4 * MB, 0.0), WanLink(4 * 10**9, 20_000_000, 4 * MB, 0.0)
    assert not any(cut.link_enable for cut in cuts(slow, 64 * MB))
    enabled = [cut.chunk_bytes for cut in cuts(fast, 64 * MB) if cut.link_enable]
    assert enabled == [4 * MB, 12 * MB, 64 * MB]
    assert "--enable" in cuts(fast, 64 * MB)[-1].arguments()


def test_best_is_the_fastest_and_largest_without_drops_is_told_apart_from_largest() -> None:
    hosts = FakeHosts(engine(lambda chunk: 0.5 + abs(chunk - 4 * MB) / 1e9, lambda chunk: 7 if chunk > 5 * MB else 0))
    shown = table2(hosts.lab("emulated"), [LINK], 64 * MB, 128 * MB, 1)
    (row,) = shown.to_document()["rows"]
    assert row["best_chunk"] == 4 * MB
    assert row["largest_chunk_without_drops"] == 4 * 2**20
    assert row["largest_chunk"] == 64 * MB
    assert row["gigabyte_seconds"] == pytest.approx(0.5 * 1000 / 64)
    assert row["fedrdma_x_gigabyte_seconds"] == pytest.approx(0.1 * 1000 / 128)
    assert (row["planned_chunk"], row["planned_link_enable"]) == (4 * 2**20, True)
    sweep = shown.tables[1]
    assert cell(sweep, "10 Gbit/s", list(sweep.columns).index("12.0 MB")).endswith(" (7)")


def test_a_chunk_that_fails_is_shown_as_failed_and_counts_for_nothing() -> None:
    def answer(program: Sequence[str]) -> HostRun:
        if int(program[program.index("--chunk") + 1]) > 4 * MB:
            raise RowError("host 0: the verbs data path is lost")
        return engine(lambda _: 0.5)(program)

    shown = table2(FakeHosts(answer).lab("emulated"), [LINK], 64 * MB, 0, 1)
    assert cell(shown.tables[1], "10 Gbit/s", 3) == "failed"
    (row,) = shown.to_document()["rows"]
    assert row["largest_chunk"] == 4 * MB
    assert row["fedrdma_x_gigabyte_seconds"] is None
    assert shown.failures["fedrdma-e, chunk whole, 10 Gbit/s, emulated"] == "host 0: the verbs data path is lost"


def test_a_sample_that_is_one_chunk_says_nothing_of_chunks_and_is_refused() -> None:
    with pytest.raises(ConfigError, match="no more than the largest chunk"):
        table2(FakeHosts(engine(lambda _: 0.5)).lab(), [LINK], 12 * MB, 0, 1)


def test_where_nothing_arrives_the_table_says_none() -> None:
    def answer(program: Sequence[str]) -> HostRun:
        raise RowError(f"no {program[0]}")

    shown = table2(FakeHosts(answer).lab(), [LINK], 64 * MB, 0, 1)
    assert cell(shown.tables[0], "10 Gbit/s", 2) == "none"
    assert Bandwidth(LINK, [], None, None).best is None


@pytest.mark.parametrize("lines", [[], ["{"], ['{"seconds": 1}'], ["{}", "{}"]])
def test_a_program_that_says_something_else_is_a_failure(lines: list[str]) -> None:
    lab = FakeHosts(lambda _: HostRun(lines, 0, 0, 1.0)).lab()
    assert send_cut(lab, LINK, Cut("fedrdma", MB, MB)) is None
    (reason,) = lab.failures.values()
    assert "did not say" in reason


# --- Table 3 ---


def test_table_3_stands_beside_the_papers_and_says_why_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [compare_rank(paper, rank_bytes(paper.rank) // 8) for paper in PAPER_TABLE_3]
    monkeypatch.setattr(paper_table3, "build_table3", lambda: rows)
    result = bench_paper("table3", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert (document["name"], document["failures"]) == ("table3", {})
    assert all(row["agrees"] for row in document["rows"])
    shown = paper_table3.table3().tables[0]
    assert list(shown.rows[2]) == ["16", "4,718,592", "4.5", "4.5", "4", "4", "yes", "yes", ""]
    assert cell(shown, "128", 8)


def test_the_papers_counts_are_those_of_chunks_slightly_below_4_mib() -> None:
    larger = [paper for paper in PAPER_TABLE_3 if paper.rank >= 16]
    for chunk_bytes in (4_137_000, 4 * 2**20 - 1):
        assert [-(-rank_bytes(paper.rank) // chunk_bytes) + 2 for paper in larger] == [paper.chunks for paper in larger]


# --- Table 4 ---


def loopback(names: Sequence[str]) -> tuple[list[Measurement], dict[str, str]]:
    made = [Measurement(name, (1.0,), (0.5,), (0.2, 0.1, 0.3), 1000, 2000) for name in names if name != "fedrdma/tcp"]
    return made, {"fedrdma/tcp": "it ended"}


def test_costs_are_scaled_to_a_gigabyte_and_memory_is_not() -> None:
    hosts = FakeHosts(rows_by_mode({"grpc": 1.0, "fedrdma": 0.5, "fedrdma-e": 0.25, "fedrdma-x": 0.1}))
    shown = table4(hosts.lab(), LINK, 100 * MB, 1, loopback, 50 * MB, Power(cpu=10.0))
    rows = {row["name"]: row for row in shown.to_document()["rows"]}
    e = rows["fedrdma-e"]
    assert (e["seconds"], e["cpu_seconds"]) == (pytest.approx(2.5), pytest.approx(4.0))
    assert (e["extra_bytes_sender"], e["extra_bytes_receiver"]) == (1000, 2000)
    assert (e["estimated_card_joules"], e["estimated_cpu_joules"]) == (pytest.approx(2.5 * 18.7), pytest.approx(40.0))
    assert rows["grpc"]["estimated_card_joules"] == pytest.approx(10.0 * 5.1)
    assert rows["fedrdma-x"]["paper"] is None
    assert any("estimate" in note for note in shown.notes)


def test_a_mode_that_was_not_measured_on_loopback_still_has_its_time() -> None:
    hosts = FakeHosts(rows_by_mode({"fedrdma": 0.5}))
    shown = table4(hosts.lab(), LINK, 100 * MB, 1, loopback, 50 * MB, Power())
    assert cell(shown.tables[0], "fedrdma", 2) == "5.00 s"
    assert cell(shown.tables[0], "fedrdma", 6) == "-"
    assert shown.failures["fedrdma/tcp, loopback"] == "it ended"
    assert cell(shown.tables[1], "grpc", 3) == "-"


# --- the commands ---


def bench_paper(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "paper", *arguments])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["figure1", "--rates", "1gbit,fast"], "[FR102] --rate: 'fast' is not a rate"),
        (["figure7", "--size", "some"], "[FR102] --size: 'some' is not a size"),
        (["table2", "--network", "dialup"], "[FR102] there is no network 'dialup'."),
        (["figure8", "--rows", "quic"], "[FR102] there is no row 'quic'."),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_code(arguments: list[str], said: str, tmp_path: Path) -> None:
    kernel = tmp_path / "linux"
    kernel.write_text("#!/bin/sh\n")
    kernel.chmod(0o755)
    result = bench_paper(*arguments, "--kernel", str(kernel))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert said in result.stderr


def test_ranks_that_are_no_numbers_are_refused() -> None:
    result = bench_paper("figure8", "--ranks", "4,many", "--kernel", "/bin/true")
    assert result.exit_code == 2
    assert "'many' is not a LoRA rank" in result.stderr


@pytest.mark.parametrize("name", ["figure1", "figure7", "figure8", "table2", "table4"])
def test_without_a_testbed_every_command_says_what_to_do(name: str, tmp_path: Path) -> None:
    result = bench_paper(name, "--checkout", str(tmp_path))
    assert result.exit_code == 1
    assert f"[FR505] {tmp_path} holds no testbed" in result.stderr


def test_without_a_kernel_nothing_is_measured(tmp_path: Path) -> None:
    result = bench_paper("table2", "--kernel", str(tmp_path / "linux"), "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "[FR505] the testbed: " in result.stderr
