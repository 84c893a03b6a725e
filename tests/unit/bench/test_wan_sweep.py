"""`fedrdma bench wan` over many links: what is run, what is kept, what is shown, and how it is interrupted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.sweep import INTERRUPTED
from fedrdma_fate.bench.wan.checkpoint import Conditions, MeasurementLog
from fedrdma_fate.bench.wan.overview import slices, to_overview, to_overview_plots
from fedrdma_fate.bench.wan.rows import select_wan_rows
from fedrdma_fate.bench.wan.settings import Peculiarities, Setting, parse_peculiarities, parse_settings
from fedrdma_fate.bench.wan.sweep import Sweep, run_sweep
from fedrdma_fate.bench.wan.testbed import HostRun, Testbed
from fedrdma_fate.cli.main import main
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, TransportError
from tests.support.repository import ROOT

CONDITIONS = Conditions(repeats=1, seed=1, kernel="nic")
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


class Hosts:
    """Take a second for a gigabit of payload, whatever the link; may fail or be interrupted at a run by its number."""

    def __init__(self, failing: int | None = None, interrupted: int | None = None) -> None:
        self.failing, self.interrupted = failing, interrupted
        self.programs: list[Sequence[str]] = []

    def run(self, program: Sequence[str], memory_bytes: int) -> HostRun:
        del memory_bytes
        self.programs.append(program)
        if len(self.programs) == self.interrupted:
            raise KeyboardInterrupt
        if len(self.programs) == self.failing:
            raise RowError("the testbed is tired")
        size, count = int(program[-2]), int(program[-1])
        told = {"seconds": size * 8 / 1e9, "sent_bytes": size, "resent_bytes": 0, "tcp_resent_bytes": 0}
        return HostRun([json.dumps([told] * count)], 1, 2, 3.0, [(1.0, 4)])


def sweep(hosts: Hosts, settings: Sequence[Setting], log: MeasurementLog | None = None) -> Sweep:
    rows = select_wan_rows(["tcp-bbr", "fedrdma-x"])
    return run_sweep(settings, rows, lambda _: hosts, 1, log or MeasurementLog(None, CONDITIONS), lambda _: None)


def two_rates() -> list[Setting]:
    return parse_settings("1gbit,10gbit", "20ms", "4MB", "0", "1MB")


# --- settings ---


def test_one_value_of_each_is_one_link() -> None:
    (setting,) = parse_settings("10gbit", "20ms", "4MB", "0.1%", "1GB")
    link = setting.link
    assert (link.rate_bps, link.rtt_ns, link.buffer_bytes, link.loss) == (10**10, 20_000_000, 4_000_000, 0.001)
    assert setting.payload_bytes == 10**9


def test_lists_are_run_in_all_combinations_rates_outermost() -> None:
    settings = parse_settings("1gbit, 10gbit", "20ms", "4MB", "0,1%", "8MB")
    assert [(one.link.rate_bps, one.link.loss) for one in settings] == [
        (10**9, 0.0),
        (10**9, 0.01),
        (10**10, 0.0),
        (10**10, 0.01),
    ]


def test_a_buffer_of_the_bandwidth_delay_product_follows_the_link() -> None:
    settings = parse_settings("1gbit,10gbit", "20ms,50ms", "bdp", "0", "8MB")
    assert [one.link.buffer_bytes for one in settings] == [2_500_000, 6_250_000, 25_000_000, 62_500_000]
    assert {one.place("buffer") for one in settings} == {"bdp"}


def test_what_is_peculiar_to_a_path_is_asked_of_the_testbed_and_told() -> None:
    common = Peculiarities(reorders=True, burst_packets=8, delay_packets=1000, mtu_bytes=1500)
    plain, late = parse_settings("1gbit", "20ms", "4MB", "0.5%", "1MB", "0,300us", common)
    assert [one.place("jitter") for one in (plain, late)] == ["0 ms", "0.3 ms"]
    asked = Testbed(ROOT, late.link, 1, "nic", 600.0)._options(1, Path("report"))
    for option, value in (("--jitter", "300000ns"), ("--burst", "8"), ("--delay-packets", "1000"), ("--mtu", "1500")):
        assert asked[asked.index(option) + 1] == value
    assert "--reorder" in asked
    assert str(late.link).endswith(
        "loss 0.5 %, in bursts of 8, jitter 0.3 ms, packets overtake, 1000 packets on their way, MTU 1500"
    )
    usual = Testbed(ROOT, two_rates()[0].link, 1, "nic", 600.0)._options(1, Path("report"))
    assert not {"--jitter", "--burst", "--delay-packets", "--mtu", "--reorder"} & {*usual}


def test_a_policer_cards_and_the_way_back_are_asked_of_the_testbed_and_told() -> None:
    common = parse_peculiarities(policer="500mbit:100kB", nic_rate="1gbit", back_rate="20mbit", back_loss="1%")
    (setting,) = parse_settings("1gbit", "20ms", "4MB", "0", "1MB", "0", common)
    asked = Testbed(ROOT, setting.link, 1, "nic", 600.0)._options(1, Path("report"))
    wanted = {"--policer": "500000000bit:100000B", "--nic-rate": "1000000000bit", "--back-rate": "20000000bit"}
    for option, value in {**wanted, "--back-loss": "1.000000000%"}.items():
        assert asked[asked.index(option) + 1] == value
    assert str(setting.link).endswith(
        "loss 0 %, policed to 500 Mbit/s after 100 kB, cards of 1 Gbit/s, back 20 Mbit/s, back loss 1 %"
    )
    told = {"policer_bps": 5 * 10**8, "policer_burst_bytes": 100_000, "nic_rate_bps": 10**9, "back_loss": 0.01}
    document = setting.link.to_document()
    assert told | {"back_rate_bps": 2 * 10**7} == {name: document[name] for name in (*told, "back_rate_bps")}


def test_slots_of_each_way_are_asked_of_the_testbed_and_told() -> None:
    common = parse_peculiarities(slots="10ms", back_slots="20ms")
    (setting,) = parse_settings("1gbit", "20ms", "4MB", "0", "1MB", "0", common)
    asked = Testbed(ROOT, setting.link, 1, "nic", 600.0)._options(1, Path("report"))
    for option, value in {"--slots": "10000000ns", "--back-slots": "20000000ns"}.items():
        assert asked[asked.index(option) + 1] == value
    assert str(setting.link).endswith("loss 0 %, in slots of 10 ms, back in slots of 20 ms")
    document = setting.link.to_document()
    assert (document["slot_s"], document["back_slot_s"]) == (0.01, 0.02)
    (usual,) = parse_settings("1gbit", "20ms", "4MB", "0", "1MB", "0", parse_peculiarities())
    assert not {"--slots", "--back-slots"} & {*Testbed(ROOT, usual.link, 1, "nic", 600.0)._options(1, Path("report"))}
    assert not {"slot_s", "back_slot_s"} & usual.link.to_document().keys()


def test_slots_that_are_no_time_are_refused_by_the_name_of_the_option() -> None:
    for said in ({"slots": "often"}, {"back_slots": "often"}):
        with pytest.raises(ConfigError, match="--" + next(iter(said)).replace("_", "-")):
            parse_peculiarities(**said)  # type: ignore[arg-type]


def test_a_trace_is_handed_to_the_testbed_and_its_mean_is_the_rate(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("0 1000000000\n0.25 200000000\n0.5 repeat\n")
    (setting,) = parse_settings("10gbit", "20ms", "bdp", "0", "1MB", "0", parse_peculiarities(rate_trace=str(path)))
    assert (setting.link.rate_bps, setting.link.buffer_bytes) == (6 * 10**8, 1_500_000)
    asked = Testbed(ROOT, setting.link, 1, "nic", 600.0)._options(1, tmp_path / "report")
    assert asked[asked.index("--rate-trace") + 1] == str(path)
    assert "--rate" not in asked
    assert str(setting.link).endswith("the rate varies from 200 Mbit/s to 1 Gbit/s")
    document = setting.link.to_document()
    assert document["rate_trace"] == [[0.0, 10**9], [0.25, 2 * 10**8]]
    assert document["rate_trace_repeat_s"] == 0.5


def test_cross_traffic_is_asked_of_the_testbed_and_told() -> None:
    common = parse_peculiarities(cross="2:500ms:250ms")
    (setting,) = parse_settings("1gbit", "20ms", "4MB", "0", "1MB", "0", common)
    asked = Testbed(ROOT, setting.link, 1, "nic", 600.0)._options(1, Path("report"))
    assert asked[asked.index("--cross") + 1] == "2:500000000ns:250000000ns"
    assert str(setting.link).endswith("beside 2 TCP flows, on for 500 ms, off for 250 ms")
    document = setting.link.to_document()
    assert [document[f"cross_{name}"] for name in ("flows", "on_s", "off_s")] == [2, 0.5, 0.25]


def test_a_peculiarity_that_links_did_not_have_yet_leaves_what_was_measured_known(tmp_path: Path) -> None:
    path, setting = tmp_path / "log", two_rates()[0]
    sweep(Hosts(), [setting], MeasurementLog(path, CONDITIONS))
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    for entry in entries:
        del entry["what"]["cross"], entry["what"]["policer"]
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    assert MeasurementLog(path, CONDITIONS).find(setting, "tcp-bbr") is not None
    (other,) = parse_settings("1gbit", "20ms", "4MB", "0", "1MB", "0", parse_peculiarities(cross="2"))
    assert MeasurementLog(path, CONDITIONS).find(other, "tcp-bbr") is None


def test_what_was_measured_over_a_policed_link_is_found_again(tmp_path: Path) -> None:
    policed = parse_peculiarities(policer="500mbit:100kB")
    (setting,) = parse_settings("1gbit", "20ms", "4MB", "0", "1MB", "0", policed)
    hosts, path = Hosts(), tmp_path / "log"
    measured = sweep(hosts, [setting], MeasurementLog(path, CONDITIONS))
    again = sweep(hosts, [setting], MeasurementLog(path, CONDITIONS))
    assert [run.measurements for run in again.runs] == [run.measurements for run in measured.runs]
    assert len(hosts.programs) == 2
    (other,) = parse_settings("1gbit", "20ms", "4MB", "0", "1MB", "0", parse_peculiarities(policer="500mbit:200kB"))
    sweep(hosts, [other], MeasurementLog(path, CONDITIONS))
    assert len(hosts.programs) == 4


@pytest.mark.parametrize(
    ("jitter", "common", "said"),
    [
        ("11ms", Peculiarities(), "--jitter: it may not be longer than a way, which takes 10 ms"),
        ("late", Peculiarities(), "--jitter: 'late'"),
        ("0", Peculiarities(burst_packets=2), "--burst: a link that loses nothing"),
    ],
)
def test_peculiarities_that_make_no_sense_are_refused_with_the_option(
    jitter: str, common: Peculiarities, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings("1gbit", "20ms", "4MB", "0", "1MB", jitter, common)
    assert caught.value.code is ErrorCode.CONFIG_BAD_VALUE
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("fast", "20ms", "4MB", "0", "1MB"), "--rate: 'fast' is not a rate"),
        (("1gbit,", "20ms", "4MB", "0", "1MB"), "--rate: '' is not a rate"),
        (("1gbit", "20ms,20ms", "4MB", "0", "1MB"), "--rtt: '20ms,20ms' has a value twice"),
        (("1gbit", "0", "bdp", "0", "1MB"), "--buffer: a link without delay has no bandwidth-delay product"),
    ],
)
def test_lists_that_make_no_sense_are_refused_with_the_option(options: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(*options)
    assert caught.value.code is ErrorCode.CONFIG_BAD_VALUE
    assert said in str(caught.value)


# --- running ---


def test_each_row_is_run_over_each_link_and_the_document_lists_the_runs() -> None:
    document = json.loads(json.dumps(sweep(Hosts(), two_rates()).to_document()))
    assert [run["link"]["rate_bps"] for run in document["runs"]] == [10**9, 10**10]
    for run in document["runs"]:
        assert set(run) == {"link", "payload_bytes", "rows", "failures"}
        assert [row["name"] for row in run["rows"]] == ["tcp-bbr", "fedrdma-x"]
        assert run["rows"][0]["queue_bytes"] == 4
    assert [run["rows"][0]["goodput_share"] for run in document["runs"]] == [pytest.approx(1.0), pytest.approx(0.1)]


def test_the_document_of_one_link_is_not_wrapped() -> None:
    assert set(sweep(Hosts(), two_rates()[:1]).to_document()) == {"link", "payload_bytes", "rows", "failures"}


def test_a_row_that_fails_over_one_link_is_named_with_it_and_the_rest_goes_on() -> None:
    done = sweep(Hosts(failing=2), two_rates())
    assert list(done.failures.items()) == [
        ("fedrdma-x (1.00 MB over 1 Gbit/s, RTT 20 ms, buffer 4.00 MB, loss 0 %)", "the testbed is tired")
    ]
    assert [len(run.measurements) for run in done.runs] == [1, 2]


def test_an_interrupted_sweep_keeps_what_it_has_and_says_what_is_missing() -> None:
    done = sweep(Hosts(interrupted=2), two_rates())
    assert done.interrupted
    assert [[one.name for one in run.measurements] for run in done.runs] == [["tcp-bbr"], []]
    assert list(done.runs[0].failures) == ["fedrdma-x"]
    assert done.runs[1].failures == {"tcp-bbr": INTERRUPTED, "fedrdma-x": INTERRUPTED}


# --- what is kept ---


def test_a_rerun_measures_only_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    sweep(Hosts(interrupted=3), two_rates(), MeasurementLog(path, CONDITIONS))
    second = Hosts()
    done = sweep(second, two_rates(), MeasurementLog(path, CONDITIONS))
    assert [program[0].rpartition(".")[2] for program in second.programs] == ["tcp_streams", "gateway_transfers"]
    assert done.to_document() == sweep(Hosts(), two_rates()).to_document()


def test_what_failed_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    sweep(Hosts(failing=1), two_rates(), MeasurementLog(path, CONDITIONS))
    again = Hosts()
    assert sweep(again, two_rates(), MeasurementLog(path, CONDITIONS)).failures == {}
    assert len(again.programs) == 1


@pytest.mark.parametrize("other", [Conditions(2, 1, "nic"), Conditions(1, 7, "nic"), Conditions(1, 1, "stock")])
def test_measurements_under_other_conditions_do_not_count(tmp_path: Path, other: Conditions) -> None:
    path = tmp_path / "log.jsonl"
    sweep(Hosts(), two_rates(), MeasurementLog(path, other))
    hosts = Hosts()
    sweep(hosts, two_rates(), MeasurementLog(path, CONDITIONS))
    assert len(hosts.programs) == 4


def test_a_line_that_was_cut_off_is_dropped_and_the_log_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    sweep(Hosts(), two_rates(), MeasurementLog(path, CONDITIONS))
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:3]) + whole[3][:40])
    hosts = Hosts()
    sweep(hosts, two_rates(), MeasurementLog(path, CONDITIONS))
    assert len(hosts.programs) == 1
    assert path.read_text() == "".join(whole)


@pytest.mark.parametrize("text", ["not JSON\n", "[]\n", '{"what": {}, "measured": {"name": "x"}}\n'])
def test_a_log_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="holds no measurements"):
        MeasurementLog(path, CONDITIONS)
    assert path.read_text() == text


# --- what is shown ---


def test_what_varies_is_laid_side_by_side() -> None:
    (shown,) = slices(sweep(Hosts(failing=2), two_rates()).runs)
    table = to_overview(shown)
    assert table.columns == ("", "1 Gbit/s", "10 Gbit/s")
    assert list(table.rows) == [("tcp-bbr", "100.0 / 100.0", "10.0 / 10.0"), ("fedrdma-x", "–", "10.0 / 10.0")]
    assert table.title.startswith("% of the link by rate (RTT 20 ms, buffer 4.00 MB, loss 0 %, payload 1.00 MB)")


def test_two_things_that_vary_are_shown_by_each_for_each_value_of_the_other() -> None:
    runs = sweep(Hosts(), parse_settings("1gbit,10gbit", "20ms", "bdp", "0,0.1%,1%", "1MB")).runs
    assert [(shown.name, shown.places) for shown in slices(runs)] == [
        ("by-rate-1", ["1 Gbit/s", "10 Gbit/s"]),
        ("by-rate-2", ["1 Gbit/s", "10 Gbit/s"]),
        ("by-rate-3", ["1 Gbit/s", "10 Gbit/s"]),
        ("by-loss-1", ["0 %", "0.1 %", "1 %"]),
        ("by-loss-2", ["0 %", "0.1 %", "1 %"]),
    ]


def test_plots_of_what_varies_are_images() -> None:
    (shown,) = slices(sweep(Hosts(failing=2), two_rates()).runs)
    plots = to_overview_plots(shown)
    assert [plot.name for plot in plots] == ["bench-wan-by-rate", "bench-wan-by-rate-first"]
    assert all(plot.png.startswith(PNG_MAGIC) for plot in plots)


# --- the command ---


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    """In place of the testbed."""
    fake = Hosts()
    monkeypatch.setattr(Testbed, "check", lambda _: None)
    monkeypatch.setattr(Testbed, "run", lambda _, program, memory_bytes: fake.run(program, memory_bytes))
    return fake


def bench_wan(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "wan", "--rate", "1gbit,10gbit", "--size", "1MB", *arguments])


def test_a_sweep_writes_one_report_of_all_links(hosts: Hosts, tmp_path: Path) -> None:
    result = bench_wan("--rows", "tcp-bbr,fedrdma-x", "--json", "--output", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    assert len(hosts.programs) == 4
    assert json.loads(result.stdout) == json.loads((tmp_path / "bench-wan.json").read_text())
    page = (tmp_path / "bench-wan.html").read_text()
    assert page.count("<table>") == 3
    assert page.count("<img") == 2


def test_an_interrupted_command_writes_what_it_has_and_goes_on_when_run_again(hosts: Hosts, tmp_path: Path) -> None:
    hosts.interrupted = 3
    arguments = ("--rows", "tcp-bbr,fedrdma-x", "--json", "--output", str(tmp_path))
    result = bench_wan(*arguments)
    assert result.exit_code == 130
    assert "interrupted; 2 of 4 are not measured" in result.stderr
    assert len(json.loads(result.stdout)["runs"][0]["rows"]) == 2
    assert json.loads((tmp_path / "bench-wan.json").read_text()) == json.loads(result.stdout)
    again = bench_wan(*arguments)
    assert again.exit_code == 0, again.stderr
    assert "holds measurements, which are not made again" in again.stderr
    assert len(hosts.programs) == 5


@pytest.mark.usefixtures("hosts")
def test_of_all_rows_those_without_their_program_are_left_out_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    result = bench_wan("--json")
    assert result.exit_code == 0, result.stderr
    assert "iperf3-cubic is left out: iperf3 is not on this machine" in result.stderr
    names = [row["name"] for row in json.loads(result.stdout)["runs"][0]["rows"]]
    assert "fedrdma-x" in names
    assert not any(name.startswith("iperf3") for name in names)


def test_without_a_testbed_a_sweep_does_not_begin(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Testbed) -> None:
        raise TransportError(ErrorCode.TESTBED_UNAVAILABLE, "the testbed: there is no nic kernel.")

    monkeypatch.setattr(Testbed, "check", missing)
    assert bench_wan().exit_code == 1
    assert hosts.programs == []
