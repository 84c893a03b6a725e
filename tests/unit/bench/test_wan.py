"""`fedrdma bench wan`: the link as it is written, the arithmetic, the document, and rows that fail."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.wan import testbed
from fedrdma_fate.bench.wan.results import Transfer, WanMeasurement, to_document, to_plots, to_table
from fedrdma_fate.bench.wan.rows import all_wan_rows, resent_by_device, select_wan_rows
from fedrdma_fate.bench.wan.runner import run_wan_rows
from fedrdma_fate.bench.wan.shaping import Policer
from fedrdma_fate.bench.wan.testbed import HostRun, find_checkout, reason
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.cli.main import main
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, TransportError
from tests.support.repository import ROOT

LINK = WanLink(10**10, 20_000_000, 4_000_000, 0.001)
PAYLOAD = 10**9
MEASURED = WanMeasurement(
    name="fedrdma-x",
    first=Transfer(1.6, 0, 1_020_000_000),
    later=(Transfer(1.0, 300, 1_010_000_000), Transfer(0.8, 100, 1_000_000_000), Transfer(4.0, 200, 1_030_000_000)),
    lost_packets=1234,
    overflowed_packets=5,
    wall_seconds=20.0,
    first_queue_bytes=3_800_000,
    queue_bytes=410_000,
)
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def bench_wan(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "wan", *arguments])


def test_a_link_is_shown_with_its_units() -> None:
    assert str(LINK) == "10 Gbit/s, RTT 20 ms, buffer 4.00 MB, loss 0.1 %"
    assert str(WanLink(2_500_000, 1_500_000, 1000, 0.0)) == "2.5 Mbit/s, RTT 1.5 ms, buffer 1.00 kB, loss 0 %"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rate", "fast"], "[FR102] --rate: 'fast' is not a rate"),
        (["--rate", "0gbit"], "[FR102] --rate: '0gbit': a rate cannot be zero"),
        (["--rtt", "20"], "[FR102] --rtt: '20' is not a time"),
        (["--buffer", "4MX"], "[FR102] --buffer: '4MX' is not a size"),
        (["--loss", "0.1"], "[FR102] --loss: '0.1' is not a loss"),
        (["--loss", "100%"], "[FR102] --loss: '100%' loses everything"),
        (["--size", "0"], "[FR102] --size: '0': a size cannot be zero"),
        (["--policer", "500mbit"], "[FR102] --policer: '500mbit' is not RATE:BURST"),
        (["--nic-rate", "fast"], "[FR102] --nic-rate: 'fast' is not a rate"),
        (["--back-rate", "fast"], "[FR102] --back-rate: 'fast' is not a rate"),
        (["--back-loss", "1"], "[FR102] --back-loss: '1' is not a loss"),
        (["--cross", "2:1s"], "[FR102] --cross: '2:1s' is not FLOWS or FLOWS:ON:OFF"),
        (["--rate-trace", "/dev/null"], "[FR102] --rate-trace: /dev/null: it holds no rate"),
        (["--rate", "1gbit", "--rate-trace", "/dev/null"], "[FR102] --rate and --rate-trace: the trace is the rate"),
        (["--rows", "fedrdma-e,quic"], "[FR102] there is no row 'quic'."),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_code_before_anything_is_booted(arguments: list[str], said: str) -> None:
    result = bench_wan(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert said in result.stderr


def test_the_share_is_payload_over_time_over_rate() -> None:
    assert LINK.share(PAYLOAD, 0.8) == pytest.approx(1.0)
    assert LINK.share(PAYLOAD, 1.6) == pytest.approx(0.5)


def test_the_document_has_the_promised_keys_and_medians_of_the_later_transfers() -> None:
    document = json.loads(json.dumps(to_document(LINK, PAYLOAD, [MEASURED], {"tcp-bbr": "no bbr"})))
    assert document["link"] == {"rate_bps": 10**10, "rtt_s": 0.02, "buffer_bytes": 4_000_000, "loss": 0.001}
    assert document["payload_bytes"] == PAYLOAD
    assert document["failures"] == {"tcp-bbr": "no bbr"}
    assert document["rows"] == [
        {
            "name": "fedrdma-x",
            "seconds": 1.0,
            "goodput_share": pytest.approx(0.8),
            "resent_bytes": 200,
            "sent_bytes": 1_010_000_000,
            "first_seconds": 1.6,
            "first_goodput_share": pytest.approx(0.5),
            "first_resent_bytes": 0,
            "later_seconds": [1.0, 0.8, 4.0],
            "lost_packets": 1234,
            "overflowed_packets": 5,
            "policed_packets": 0,
            "first_queue_bytes": 3_800_000,
            "queue_bytes": 410_000,
        }
    ]


def test_the_table_shows_the_first_transfer_apart() -> None:
    table = to_table(LINK, PAYLOAD, [MEASURED])
    assert table.title == "1,000,000,000 bytes over 10 Gbit/s, RTT 20 ms, buffer 4.00 MB, loss 0.1 %; virtual time"
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["median"], row["share"], row["slowest"]) == ("1.00 s", "80.0 %", "4.00 s")
    assert (row["first"], row["its share"]) == ("1.60 s", "50.0 %")
    assert (row["sent again"], row["lost"], row["overflowed"]) == ("200 B", "1,234", "5")
    assert (row["first queue"], row["queue"]) == ("3.80 MB", "410 kB")


def test_what_a_policer_dropped_is_a_column_where_there_is_one() -> None:
    policed = dataclasses.replace(LINK, policer=Policer(5 * 10**9, 100_000))
    measured = dataclasses.replace(MEASURED, policed_packets=6789)
    row = dict(zip((table := to_table(policed, PAYLOAD, [measured])).columns, table.rows[0], strict=True))
    assert (row["policed"], row["first queue"]) == ("6,789", "3.80 MB")
    assert "policed" not in to_table(LINK, PAYLOAD, [MEASURED]).columns


def test_plots_are_images() -> None:
    plots = to_plots(LINK, PAYLOAD, [MEASURED])
    assert [plot.name for plot in plots] == ["bench-wan-goodput", "bench-wan-resent"]
    assert all(plot.png.startswith(PNG_MAGIC) for plot in plots)


def test_what_a_device_sent_beyond_the_payload_and_its_headers_was_sent_again() -> None:
    payload, headers = 1000 * 4096, 1000 * 58
    assert resent_by_device(payload + headers, payload, 1) == 0
    assert resent_by_device(payload + headers + 20 * (4096 + 58) + 256, payload, 1) == 20 * 4096


@pytest.mark.parametrize(
    ("mtu", "carried"), [(None, 4096), (4200, 4096), (4175, 2048), (1500, 1024), (1280, 1024), (576, 256), (9000, 4096)]
)
def test_packets_of_a_small_mtu_carry_less_and_are_counted_so(mtu: int | None, carried: int) -> None:
    link = dataclasses.replace(LINK, mtu_bytes=mtu)
    assert link.rdma_packet_bytes == carried
    assert link.to_document().get("mtu_bytes") == mtu
    payload, packet = 1000 * carried, carried + 58
    told = {"seconds": 1.0, "sent_bytes": 1020 * packet + 256}
    (row,) = select_wan_rows(["one-shot"])
    assert row.to_transfer(told, payload, carried).resent_bytes == 20 * carried


def test_acknowledgements_of_chunks_do_not_count_as_sent_again() -> None:
    assert resent_by_device(16_227_906, 16_000_000, 5) == 0


def test_each_row_takes_the_count_of_whoever_sends_again() -> None:
    told = {"seconds": 1.0, "sent_bytes": 10_000, "resent_bytes": 7, "tcp_resent_bytes": 8, "chunks": 1}
    seen = {row.name: row.to_transfer(told, 100).resent_bytes for row in all_wan_rows()}
    assert (seen["fedrdma-x"], seen["tcp-bbr"], seen["grpc"]) == (7, 8, 8)
    assert seen["fedrdma-e"] == seen["one-shot"] == 2 * 4096


def test_rows_come_in_one_order_however_they_are_named() -> None:
    assert [row.name for row in select_wan_rows(["fedrdma-x", "tcp-8"])] == ["tcp-8", "fedrdma-x"]
    with pytest.raises(ConfigError) as caught:
        select_wan_rows(["quic"])
    assert all(row.name in caught.value.remedy for row in all_wan_rows())


TOLD = {"seconds": 0.5, "sent_bytes": 1000, "resent_bytes": 0, "tcp_resent_bytes": 0}


class FakeHosts:
    """Answers what it is told to, in turn."""

    def __init__(self, *answers: HostRun | RowError) -> None:
        self._answers = list(answers)
        self.programs: list[Sequence[str]] = []

    def run(self, program: Sequence[str], memory_bytes: int) -> HostRun:
        assert memory_bytes > 2**30
        self.programs.append(program)
        answer = self._answers.pop(0)
        if isinstance(answer, RowError):
            raise answer
        return answer


def printed(*lines: str) -> HostRun:
    return HostRun(lines, 3, 4, 1.0, [(1.0, 7_000), (2.0, 9_000), (2.5, 5_000), (4.0, 6_000)])


def test_a_row_that_fails_is_named_and_the_others_go_on() -> None:
    answer = json.dumps([{**TOLD, "begun": begun} for begun in (0.5, 2.1, 3.1)])
    hosts = FakeHosts(RowError("host 0: the guest's kernel has no TCP bbr"), printed(answer))
    told: list[str] = []
    measurements, failures = run_wan_rows(select_wan_rows(["tcp-bbr", "fedrdma-x"]), hosts, 100, 2, told.append)
    assert failures == {"tcp-bbr": "host 0: the guest's kernel has no TCP bbr"}
    assert [one.name for one in measurements] == ["fedrdma-x"]
    assert len(measurements[0].later) == 2
    assert (measurements[0].lost_packets, measurements[0].overflowed_packets) == (3, 4)
    assert (measurements[0].first_queue_bytes, measurements[0].queue_bytes) == (9_000, 6_000)
    assert told == ["tcp-bbr", "fedrdma-x"]
    assert hosts.programs[1] == ["deploy.softroce.programs.gateway_transfers", "fedrdma-x", "100", "3"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "did not say"),
        (["[1, 2"], "did not say"),
        (['[{"seconds": 1}]'], "did not say"),
        (["[]", "[]"], "did not say"),
        (["[]"], "did not say"),
        ([json.dumps([TOLD])], "1 transfers instead of 2"),
    ],
)
def test_a_program_that_says_something_else_fails_its_row(lines: list[str], said: str) -> None:
    measurements, failures = run_wan_rows(select_wan_rows(["tcp-bbr"]), FakeHosts(printed(*lines)), 100, 1, print)
    assert measurements == []
    assert said in failures["tcp-bbr"]


def test_a_row_whose_program_is_missing_is_not_booted_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    hosts = FakeHosts()
    measurements, failures = run_wan_rows(select_wan_rows(["iperf3-bbr"]), hosts, 100, 1, print)
    assert measurements == hosts.programs == []
    assert failures == {"iperf3-bbr": "needs the program iperf3: apt-get install iperf3"}


def test_a_payload_that_no_device_of_the_testbed_registers_is_refused_by_rows_over_rdma_only() -> None:
    hosts = FakeHosts(printed(json.dumps([TOLD] * 2)))
    rows = select_wan_rows(["tcp-bbr", "fedrdma-x"])
    measurements, failures = run_wan_rows(rows, hosts, 4 * 10**9, 1, print)
    assert [one.name for one in measurements] == ["tcp-bbr"]
    assert "register no region for 4,000,000,000 bytes: at most 1,000,000,000" in failures["fedrdma-x"]
    assert "--repeat" in failures["fedrdma-x"]


@pytest.mark.parametrize(
    ("status", "errors", "said"),
    [
        (
            1,
            "[1] gone\n[0] Traceback\n[0] OSError: full\ntestbed: host 0 ended with status 1\n",
            "host 0: OSError: full",
        ),
        (1, "[1] no bbr\ntestbed: host 1 ended with status 1\n", "host 1: no bbr"),
        (124, "[0] a warning\ntestbed: stopped after 5 s\n", "stopped after 5 s"),
        (125, "error: there is no nic kernel.\n  Build one\n", "there is no nic kernel.; Build one"),
        (
            2,
            "usage: scripts/testbed [-h]\n  more\nscripts/testbed: error: a buffer of 9 bytes\n",
            "a buffer of 9 bytes",
        ),
        (3, "", "the testbed ended with status 3"),
    ],
)
def test_the_reason_is_what_the_first_failed_host_said_last_or_else_the_testbed(
    status: int, errors: str, said: str
) -> None:
    assert reason(status, errors) == said


def test_the_repository_is_found_from_a_directory_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed, "__file__", str(tmp_path / "site-packages/fedrdma_fate/bench/wan/testbed.py"))
    inside = Path(__file__).resolve().parent
    monkeypatch.chdir(inside)
    assert find_checkout() == ROOT


def test_without_the_repository_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed, "__file__", str(tmp_path / "site-packages/fedrdma_fate/bench/wan/testbed.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TransportError) as caught:
        find_checkout()
    assert caught.value.code is ErrorCode.TESTBED_UNAVAILABLE
    assert "--checkout" in caught.value.remedy


def test_a_directory_that_is_no_repository_is_refused_by_the_command(tmp_path: Path) -> None:
    result = bench_wan("--checkout", str(tmp_path))
    assert result.exit_code == 1
    assert f"[FR505] {tmp_path} holds no testbed" in result.stderr
    assert "`fedrdma explain FR505` says more." in result.stderr


def test_without_a_kernel_nothing_is_measured(tmp_path: Path) -> None:
    result = bench_wan("--kernel", str(tmp_path / "linux"), "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "[FR505] the testbed: " in result.stderr
    assert "is no program." in result.stderr
