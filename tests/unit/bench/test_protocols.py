"""`fedrdma bench protocols`: what is asked, what is made of the server's words, and failures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.protocols import brokers
from fedrdma_fate.bench.protocols.brokers import amqp_messages, mqtt_problem, zmtp_problem
from fedrdma_fate.bench.protocols.models import VGG5_BYTES, Model, parse_model
from fedrdma_fate.bench.protocols.results import (
    ProtocolMeasurement,
    ProtocolRound,
    read_measurement,
    to_document,
    to_plot,
    to_table,
)
from fedrdma_fate.bench.protocols.rows import all_protocol_rows, select_protocol_rows, usual_protocol_rows
from fedrdma_fate.bench.protocols.runner import Log, ProtocolSweep, measure, run_protocols
from fedrdma_fate.bench.protocols.settings import ProtocolSetting, parse_protocol_settings
from fedrdma_fate.bench.sweep import INTERRUPTED
from fedrdma_fate.bench.wan.checkpoint import KeptMeasurements
from fedrdma_fate.bench.wan.settings import Peculiarities
from fedrdma_fate.bench.wan.testbed import TestbedRun
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.cli import bench_protocols as command
from fedrdma_fate.cli.main import main
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, TransportError

LINK = WanLink(20_000_000, 2_000_000, 126_600, 0.0, mtu_bytes=1500)
SETTING = ProtocolSetting(LINK, 4, Model("vgg5", VGG5_BYTES))


def bench_protocols(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "protocols", *arguments])


def told(seconds: float = 5.0, silos: int = 4, **more: Any) -> dict[str, Any]:
    """What the server says of a round."""
    return {
        "begun": 1.0,
        "seconds": seconds,
        "fedcomm_seconds": seconds - 1,
        "silo_seconds": [seconds * (number + 1) / silos for number in range(silos)],
        "down_seconds": [1.0] * silos,
        "resent_bytes": 1000,
        "tcp_resent_bytes": 7,
        "sent_bytes": 2 * 4 * VGG5_BYTES,
        "received_bytes": 4 * VGG5_BYTES,
        "missing_down_bytes": 0,
        "missing_up_bytes": 0,
        "dropped": 0,
        **more,
    }


class Hosts:
    """Say what they are told to, of every protocol of a run; may fail or be interrupted at a run by its number."""

    def __init__(self, rounds: Sequence[Any], failing: int | None = None, stopped: int | None = None) -> None:
        self.rounds, self.failing, self.stopped = rounds, failing, stopped
        self.programs: list[Sequence[str]] = []

    def run_all(self, program: Sequence[str], memory_bytes: int) -> TestbedRun:
        assert 2**30 < memory_bytes < 7.5e9
        self.programs.append(program)
        if len(self.programs) == self.stopped:
            raise KeyboardInterrupt
        if len(self.programs) == self.failing:
            raise RowError("the testbed is tired")
        counts = {"lost": {"1": 2, "2": 3}, "overflowed": {"0": 40, "1": 1}}
        lines = f"[0] {json.dumps(self.rounds)}\n" * (program[1].count(",") + 1)
        return TestbedRun(f"[1] noise\n[0] a warning\n{lines}", counts, 12.0)


def row(name: str) -> Any:
    (found,) = select_protocol_rows([name])
    return found


def settings(**asked: Any) -> list[ProtocolSetting]:
    usual = {
        "silos": "4",
        "models": "vgg5",
        "networks": None,
        "rates": "20mbit",
        "rtts": "2ms",
        "buffers": "126600",
        "losses": "0",
        "limited": "all",
        "common": Peculiarities(),
    }
    return parse_protocol_settings(**{**usual, **asked})


# --- what is asked ---


def test_models_have_the_bytes_of_fedcomm_s_messages_of_lora_adapters_or_as_many_as_one_says() -> None:
    assert [parse_model(name).size for name in ("vgg5", "vgg8", "2.34MB")] == [2_338_944, 5_370_297, 2_340_000]
    assert parse_model("lora-8").size == 2 * parse_model("lora-4").size
    for wrong in ("vgg6", "", "lora-x", "0"):
        with pytest.raises(ConfigError) as refused:
            parse_model(wrong)
        assert refused.value.code is ErrorCode.CONFIG_BAD_VALUE


def test_fedcomm_s_networks_queue_50_ms_and_a_burst() -> None:
    made = settings(networks="3g,4g,wifi")
    assert [(one.link.rate_bps, one.link.buffer_bytes) for one in made] == [
        (5_000_000, 31_250 + 1600),
        (20_000_000, 125_000 + 1600),
        (60_000_000, 375_000 + 1600),
    ]
    assert made[1] == settings()[0] == SETTING


def test_lists_are_run_in_all_combinations_silos_outermost_models_innermost() -> None:
    made = settings(silos="1,4", models="vgg5,vgg8", losses="0,5%")
    told_so = [(one.silos, one.link.loss, one.model.name) for one in made]
    assert told_so == [(n, loss, name) for n in (1, 4) for loss in (0.0, 0.05) for name in ("vgg5", "vgg8")]


def test_where_silos_alone_are_limited_their_cards_are_and_the_links_are_a_lan() -> None:
    (one,) = settings(silos="2", limited="silos")
    assert (one.network.rate_bps, one.network.nic_rate_bps) == (10**9, 10**9)
    cards = ("--host", "1:nic-rate=20000000bit", "--host", "2:nic-rate=20000000bit")
    assert one.host_options == ("--hosts", "3", *cards)
    assert (one.down_bps, one.up_bps) == (5e8, 2e7)
    (everybody,) = settings(silos="2")
    assert everybody.host_options == ("--hosts", "3")
    assert everybody.network == everybody.link
    assert (everybody.down_bps, everybody.up_bps) == (2e7, 1e7)


def test_a_card_that_is_as_slow_as_the_link_is_shared_on_the_way_down() -> None:
    (one,) = settings(common=Peculiarities(nic_rate_bps=20_000_000))
    assert one.down_bps == 5e6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--silos", "0"], "[FR102] --silos: '0' is no number from 1 to 64"),
        (["--silos", "65"], "[FR102] --silos: '65' is no number from 1 to 64"),
        (["--model", "vgg6"], "[FR102] --model: 'vgg6' is not vgg5, vgg8, lora-RANK or a size"),
        (["--model", "vgg5,2338944"], "[FR102] --model: a value is given twice"),
        (["--network", "5g"], "[FR102] --network: '5g' is none of 3g, 4g, wifi"),
        (["--network", "4g,4g"], "[FR102] --network: a value is given twice"),
        (["--loss", "100%"], "[FR102] --loss: "),
        (["--rows", "pigeon"], "[FR102] there is no row 'pigeon'"),
        (["--checkout", "/nowhere"], "[FR505] /nowhere holds no testbed"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(arguments: list[str], said: str) -> None:
    done = bench_protocols(*arguments)
    assert done.exit_code == 1
    assert said in done.output


@pytest.mark.parametrize("other", [["--rate", "5mbit"], ["--buffer", "1MB"]])
def test_a_network_has_its_own_rate_and_buffer(other: list[str]) -> None:
    done = bench_protocols("--network", "4g", *other)
    assert done.exit_code == 2
    assert "Give --network, or --rate and --buffer" in done.output


def test_without_a_kernel_nothing_is_measured_and_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(_: object) -> None:
        raise TransportError(ErrorCode.TESTBED_UNAVAILABLE, "the testbed: there is no nic kernel.", "Build one.")

    monkeypatch.setattr("fedrdma_fate.bench.wan.testbed.Testbed.check", check)
    done = bench_protocols()
    assert done.exit_code == 1
    assert "[FR505]" in done.output


# --- what is made of it ---


def test_a_row_has_both_clocks_and_what_was_sent_again_by_whoever_knows() -> None:
    hosts = Hosts([told(6.0), told(4.0)])
    measured = measure(row("fedrdma-x/udp"), SETTING, hosts, 2)
    assert list(hosts.programs[0][:4]) == ["deploy.softroce.programs.exchange", "fedrdma-x/udp", str(VGG5_BYTES), "2"]
    assert (measured.seconds, measured.fedcomm_seconds, measured.first_silo_seconds) == (5.0, 4.0, 1.25)
    assert measured.resent_bytes == 2000
    assert (measured.lost_packets, measured.overflowed_packets) == (5, 41)
    assert measured.sent_over_payload(SETTING.payload_bytes) == 2.0
    assert measured.received_over_payload(SETTING.payload_bytes) == 1.0
    assert measure(row("tcp-bbr"), SETTING, Hosts([told()]), 1).resent_bytes == 7
    assert measure(row("udp-indexed"), SETTING, Hosts([told()]), 1).resent_bytes == 0
    assert measure(row("fedrdma-e/verbs"), SETTING, Hosts([told()]), 1).resent_bytes is None


def test_what_was_never_delivered_fails_a_protocol_that_loses_nothing() -> None:
    lost = [told(missing_down_bytes=2048, missing_up_bytes=1)]
    assert measure(row("udp-fedcomm"), SETTING, Hosts(lost), 1).missing_bytes == 2049
    with pytest.raises(RowError, match="2049 bytes were never delivered"):
        measure(row("tcp-serial"), SETTING, Hosts(lost), 1)


@pytest.mark.parametrize(
    ("rounds", "problem"),
    [
        ([told()], "made 1 rounds instead of 2"),
        ([told(), {"begun": 3.0}], "did not say how long its rounds took"),
        ([told(), told(silos=3)], "when the model of each of 4 silos was there"),
        ([told(), 7], "did not say how long its rounds took"),
    ],
)
def test_a_server_that_says_too_little_fails_the_row(rounds: list[Any], problem: str) -> None:
    with pytest.raises(RowError, match=problem):
        measure(row("tcp-serial"), SETTING, Hosts(rounds), 2)


# --- what a row needs ---


def test_a_row_whose_client_or_broker_is_not_there_is_left_out_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(brokers.importlib.util, "find_spec", lambda _: None)
    assert zmtp_problem(VGG5_BYTES) == "needs pyzmq: pip install pyzmq"
    assert mqtt_problem(VGG5_BYTES) == "needs paho-mqtt: pip install paho-mqtt"
    hosts = Hosts([told()])
    run = run_protocols([SETTING], [row("zmtp-pub"), row("tcp-bbr")], lambda _: hosts, 1, _log(), lambda _: None)
    assert run.failures == {"zmtp-pub": "needs pyzmq: pip install pyzmq"}
    assert [one.name for one in run.runs[0].measurements] == ["tcp-bbr"]
    monkeypatch.setattr(brokers.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(brokers, "find_mosquitto", lambda: None)
    assert zmtp_problem(VGG5_BYTES) is None
    assert "apt-get install mosquitto" in (mqtt_problem(VGG5_BYTES) or "")
    monkeypatch.setattr(brokers, "find_mosquitto", lambda: "/usr/sbin/mosquitto")
    assert mqtt_problem(VGG5_BYTES) is None


def test_a_model_that_no_message_carries_is_refused_by_the_limit_s_name() -> None:
    assert "MQTT carries 268,435,455 bytes in a message at most" in (row("mqtt-1").find_problem(268_435_455) or "")
    assert row("tcp-serial").find_problem(10**12) is None


def test_rabbitmq_is_found_where_it_is_unpacked_and_only_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers.sys, "prefix", str(tmp_path))
    elsewhere = brokers.find_rabbitmq()
    assert elsewhere is None or not elsewhere.server.is_relative_to(tmp_path)
    root = tmp_path / "lib/rabbitmq/usr/lib"
    server = root / "rabbitmq/lib/rabbitmq_server-3.10.8/sbin/rabbitmq-server"
    emulator = root / "erlang/erts-13.1.5/bin/erlexec"
    for path in (server, emulator):
        assert brokers.find_rabbitmq() == elsewhere
        path.parent.mkdir(parents=True)
        path.touch()
    assert brokers.find_rabbitmq() == brokers.RabbitMq(server, root / "erlang", emulator.parent)


def test_amqp_rows_are_left_out_without_client_or_broker_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers.importlib.util, "find_spec", lambda _: None)
    assert row("amqp-fanout").find_problem(1) == "needs pika: pip install pika"
    assert row("fate-rabbitmq").find_problem(1) == "needs pyfate[rabbitmq]: pip install pyfate[rabbitmq]"
    monkeypatch.setattr(brokers.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(brokers, "find_rabbitmq", lambda: None)
    assert "apt-get install rabbitmq-server" in (row("amqp-confirm").find_problem(1) or "")
    monkeypatch.setattr(brokers, "find_rabbitmq", lambda: object())
    assert row("amqp-confirm").find_problem(10**12) is None


def test_rabbitmq_is_unpacked_by_the_checkout_and_what_it_says_last_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacks = tmp_path / "scripts/lib/rabbitmq.py"
    unpacks.parent.mkdir(parents=True)
    # without these the real one would be taken
    for package in (unpacks.parent, unpacks.parent.parent):
        (package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for script, reason in (
        ("", None),
        ("import sys; print('noise', file=sys.stderr); sys.exit('no network')", "no network"),
        ("raise SystemExit(7)", "it ended with status 7"),
    ):
        unpacks.write_text(script)
        assert brokers.provide_rabbitmq(tmp_path) == reason


def test_a_model_above_rabbitmq_s_message_is_cut_and_it_says_so() -> None:
    assert (amqp_messages(134_217_664), amqp_messages(134_217_665), amqp_messages(995_000_000)) == (1, 2, 8)
    large = dataclasses.replace(SETTING, model=Model("995MB", 995_000_000))
    rows = select_protocol_rows(["amqp-fanout", "tcp-serial"])
    assert command.notes_of([SETTING, large], rows) == [
        "amqp-fanout, 995MB: cuts a model into 8 messages: RabbitMQ's max_message_size is 134,217,728 bytes"
    ]


@pytest.mark.parametrize("reason", [None, "no network"])
def test_the_first_who_asks_for_rabbitmq_has_it_unpacked_and_is_told_of_it(
    reason: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr("fedrdma_fate.bench.protocols.rows.find_rabbitmq", lambda: None)
    monkeypatch.setattr(command, "provide_rabbitmq", lambda checkout: asked.append(checkout) or reason)
    command.provide_brokers([row("tcp-serial"), row("mqtt-0")], tmp_path)
    assert (asked, capsys.readouterr().err) == ([], "")
    command.provide_brokers([row("tcp-serial"), row("amqp-fanout")], tmp_path)
    assert asked == [tmp_path]
    said = capsys.readouterr().err
    assert "unpacking RabbitMQ and Erlang" in said
    assert ("no RabbitMQ: no network" in said) == (reason is not None)


# --- rows that share a boot ---


@pytest.fixture
def rabbitmq_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "missing_module", lambda *_: None)
    monkeypatch.setattr(brokers, "find_rabbitmq", lambda: object())


def amqp_sweep(hosts: Hosts, log: Log | None = None) -> ProtocolSweep:
    rows = select_protocol_rows(["amqp-fanout", "tcp-serial", "amqp-confirm"])
    return run_protocols([SETTING], rows, lambda _: hosts, 1, log or _log(), lambda _: None)


@pytest.mark.usefixtures("rabbitmq_is_there")
def test_one_boot_serves_all_rows_of_a_broker() -> None:
    hosts = Hosts([told(6.0)])
    done = amqp_sweep(hosts)
    assert [program[1] for program in hosts.programs] == ["tcp-serial", "amqp-fanout,amqp-confirm"]
    assert [one.name for one in done.runs[0].measurements] == ["tcp-serial", "amqp-fanout", "amqp-confirm"]
    assert not done.failures
    assert row("amqp-fanout").guest_bytes(SETTING) > row("tcp-serial").guest_bytes(SETTING) + 2**30


@pytest.mark.usefixtures("rabbitmq_is_there")
def test_fate_s_own_backend_is_measured_where_it_is_named_and_in_a_boot_of_its_own() -> None:
    hosts = Hosts([told(6.0)])
    rows = select_protocol_rows(["amqp-fanout", "fate-rabbitmq", "amqp-confirm"])
    run_protocols([SETTING], rows, lambda _: hosts, 1, _log(), lambda _: None)
    assert [program[1] for program in hosts.programs] == ["amqp-fanout,amqp-confirm", "fate-rabbitmq"]
    sizes = [row(name).guest_bytes(SETTING) for name in ("amqp-fanout", "fate-rabbitmq", "fate-rabbitmq-replication")]
    assert sizes == sorted(set(sizes))
    usual = usual_protocol_rows(loopback=True, options=["--osx", "--pulsar"])
    assert {each.name for each in all_protocol_rows()} - {each.name for each in usual} == {
        "fate-rabbitmq",
        "fate-rabbitmq-replication",
    }


@pytest.mark.usefixtures("rabbitmq_is_there")
def test_where_one_of_them_fails_each_has_a_boot_of_its_own_and_the_others_go_on() -> None:
    # the shared boot, and then the first row's own
    class Killed(Hosts):
        def run_all(self, program: Sequence[str], memory_bytes: int) -> TestbedRun:
            done = super().run_all(program, memory_bytes)
            if "amqp-fanout" in program[1]:
                raise RowError("host 1: the broker is gone: 1 models (9 bytes) of round 1 were not delivered")
            return done

    hosts = Killed([told(6.0)])
    done = amqp_sweep(hosts)
    names = [program[1] for program in hosts.programs]
    assert names == ["tcp-serial", "amqp-fanout,amqp-confirm", "amqp-fanout", "amqp-confirm"]
    assert [one.name for one in done.runs[0].measurements] == ["tcp-serial", "amqp-confirm"]
    failure = "host 1: the broker is gone: 1 models (9 bytes) of round 1 were not delivered"
    assert done.failures == {"amqp-fanout": failure}


@pytest.mark.usefixtures("rabbitmq_is_there")
def test_a_row_that_is_measured_already_is_not_measured_beside_another(tmp_path: Path) -> None:
    log = _log(tmp_path / "measured")
    log.add(SETTING, dataclasses.replace(_measured(1.0), name="amqp-confirm"))
    hosts = Hosts([told(6.0)])
    assert not amqp_sweep(hosts, log).failures
    assert [program[1] for program in hosts.programs] == ["tcp-serial", "amqp-fanout"]


# --- a sweep ---


def _log(path: Path | None = None, **conditions: object) -> Log:
    return KeptMeasurements(path, conditions or {"rounds": 1}, command.describe_setting, read_measurement)


def sweep(hosts: Hosts, log: Log | None = None) -> ProtocolSweep:
    rows = select_protocol_rows(["tcp-serial", "fedrdma-x/udp"])
    return run_protocols([SETTING], rows, lambda _: hosts, 1, log or _log(), lambda _: None)


def test_a_row_that_fails_is_named_and_the_others_go_on() -> None:
    done = sweep(Hosts([told()], failing=1))
    assert done.failures == {"tcp-serial": "the testbed is tired"}
    assert [one.name for one in done.runs[0].measurements] == ["fedrdma-x/udp"]


def test_an_interrupted_sweep_says_what_is_missing_and_goes_on_with_it(tmp_path: Path) -> None:
    path = tmp_path / "measured"
    first = sweep(Hosts([told(2.0)], stopped=2), _log(path))
    assert (first.interrupted, first.failures) == (True, {"fedrdma-x/udp": INTERRUPTED})
    hosts = Hosts([told(3.0)])
    second = sweep(hosts, _log(path))
    assert [one.seconds for one in second.runs[0].measurements] == [2.0, 3.0]
    assert first.runs[0].measurements[0] == second.runs[0].measurements[0]
    assert len(hosts.programs) == 1


def test_who_is_limited_makes_another_measurement(tmp_path: Path) -> None:
    log = _log(tmp_path / "measured")
    sweep(Hosts([told()]), log)
    assert log.find(SETTING, "tcp-serial") is not None
    assert log.find(dataclasses.replace(SETTING, limited="silos"), "tcp-serial") is None


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "measured"
    for content in ('{"what": {}, "measured": {"name": "x"}}\n', '{"what": {}, "measured": {"rounds": 3}}\n', "[]\n"):
        path.write_text(content)
        with pytest.raises(ConfigError) as refused:
            _log(path)
        assert refused.value.code is ErrorCode.CONFIG_BAD_VALUE


# --- what is shown ---


def _measured(*seconds: float, resent: int | None = 2**20) -> ProtocolMeasurement:
    rounds = [ProtocolRound(each, each / 2, (each, each), (1.0, 1.0), 9, 9, resent, 0, 0, 0) for each in seconds]
    return ProtocolMeasurement("tcp-serial", tuple(rounds), 1, 2, 3.0)


def test_the_document_says_whose_seconds_they_are_and_has_the_rounds() -> None:
    document = to_document(SETTING, [_measured(1.0, 3.0)], {"grpc-stream": "tired"})
    assert (document["clock"], document["model_bytes"], document["limited"]) == ("virtual", VGG5_BYTES, "all")
    assert document["failures"] == {"grpc-stream": "tired"}
    rows = document["rows"]
    assert isinstance(rows, list)
    assert (rows[0]["seconds"], rows[0]["fedcomm_seconds"], len(rows[0]["rounds"])) == (2.0, 1.0, 2)
    assert json.loads(json.dumps(document))["silos"] == 4


def test_the_table_has_shares_of_the_payloads_and_says_where_nobody_knows() -> None:
    table = to_table(SETTING, [_measured(1.0, 3.0), _measured(1.0, resent=None)])
    cells, unknown = (dict(zip(table.columns, each, strict=True)) for each in table.rows)
    assert cells["communication"] == "2.00 s"
    assert cells["sent again"] == f"{2**20 / (8 * VGG5_BYTES) * 100:.1f} %"
    assert unknown["sent again"] == "not known"
    assert "virtual time" in table.title
    assert to_plot("name", SETTING, [_measured(1.0)]).png.startswith(b"\x89PNG")


def test_a_run_is_shown_written_and_ends_with_the_status_of_its_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrdma_fate.bench.wan.testbed.Testbed.check", lambda _: None)
    hosts = Hosts([told(silos=2)] * 2, failing=2)
    monkeypatch.setattr("fedrdma_fate.bench.wan.testbed.Testbed.run_all", lambda _, *asked: hosts.run_all(*asked))
    rows = ["--rows", "tcp-serial,fedrdma-x/udp"]
    asked = ["--silos", "2", "--network", "4g", "--rounds", "2", *rows, "--output", str(tmp_path / "new")]
    done = bench_protocols(*asked)
    assert done.exit_code == 1
    assert "fedrdma-x/udp was not measured: the testbed is tired" in done.output
    assert "2 silos with vgg5 (2.34 MB) over 20 Mbit/s, RTT 2 ms" in done.output
    names = {path.name for path in (tmp_path / "new").iterdir()}
    kinds = ("json", "html", "measured.jsonl")
    assert names == {"bench-protocols-1.png", *(f"bench-protocols.{kind}" for kind in kinds)}
    # the second time only what failed is measured
    again = bench_protocols(*asked, "--json")
    assert again.exit_code == 0
    assert len(hosts.programs) == 3
    assert [each["name"] for each in json.loads(again.stdout)["rows"]] == ["tcp-serial", "fedrdma-x/udp"]


def test_each_row_is_named_once() -> None:
    names = [each.name for each in all_protocol_rows()]
    assert len(set(names)) == len(names)
