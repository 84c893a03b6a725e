"""`fedrdma bench protocols --train`: what is asked, what is compared, and what is shown."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.protocols.results import to_document
from fedrdma_fate.bench.protocols.rows import select_protocol_rows
from fedrdma_fate.bench.protocols.runner import measure, run_protocols
from fedrdma_fate.bench.protocols.settings import ProtocolSetting
from fedrdma_fate.bench.protocols.training import Training, check_pictures, training_table
from fedrdma_fate.bench.wan.checkpoint import KeptMeasurements
from fedrdma_fate.bench.wan.testbed import TestbedRun
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.cli.bench_protocols import describe_setting
from fedrdma_fate.cli.main import main
from fedrdma_fate.wire.errors import ConfigError
from tests.support.repository import ROOT
from tests.unit.bench.test_protocols_loopback import ROUND

TRAINING = Training("vgg5", None, 7)
SETTING = ProtocolSetting(
    WanLink(20_000_000, 2_000_000, 126_600, 0.0, mtu_bytes=1500), 1, TRAINING.model, training=TRAINING
)


class Told:
    """Hosts that say what each row came to."""

    def __init__(self, digests: dict[str, list[str]]) -> None:
        self.digests, self.programs = digests, list[Any]()

    def run_all(self, program: Any, memory_bytes: int) -> TestbedRun:
        del memory_bytes
        self.programs.append(program)
        told = [{**ROUND, "accuracy": 0.5, "digest": digest} for digest in self.digests[program[1]]]
        return TestbedRun(f"[0] {json.dumps(told)}\n", {"lost": {}, "overflowed": {}}, 1.0)


def sweep(hosts: Told) -> Any:
    rows = select_protocol_rows(list(hosts.digests))
    log: Any = KeptMeasurements(None, {}, describe_setting, lambda _: None)
    return run_protocols([SETTING], rows, lambda _: hosts, 2, log, lambda _: None)


def test_hosts_are_told_what_to_train_and_a_stand_in_is_theirs_to_make(tmp_path: Path) -> None:
    hosts = Told({"tcp-cubic": ["a", "b"]})
    measure(select_protocol_rows(["tcp-cubic"])[0], SETTING, hosts, 2)
    assert hosts.programs[0][2] == "2330688"
    assert hosts.programs[0][-4:] == ["--train", "vgg5", "--seed", "7"]
    assert dataclasses.replace(TRAINING, data=tmp_path).arguments[-2:] == ("--data", str(tmp_path))


def test_a_reliable_row_whose_weights_are_others_fails_and_rows_that_lose_may_differ() -> None:
    hosts = Told({"tcp-cubic": ["a", "b"], "udp-indexed": ["c", "d"], "grpc-stream": ["a", "b"], "mqtt-0": ["a", "x"]})
    rows = [name for name in hosts.digests if select_protocol_rows([name])[0].find_problem(1) is None]
    hosts.digests = {name: hosts.digests[name] for name in rows}
    hosts.digests["grpc-stream"] = ["a", "x"]
    done = sweep(hosts)
    assert done.failures["grpc-stream"] == "after round 2 its weights are not those of tcp-cubic, to the bit"
    assert "udp-indexed" not in done.failures
    hosts.digests = {"tcp-cubic": ["a", "b"], "grpc-stream": ["a", "b"]}
    assert sweep(hosts).failures == {}


def test_hosts_that_do_not_say_what_came_of_training_fail() -> None:
    class Silent(Told):
        def run_all(self, program: Any, memory_bytes: int) -> TestbedRun:
            del program, memory_bytes
            return TestbedRun(f"[0] {json.dumps([ROUND])}\n", {"lost": {}, "overflowed": {}}, 1.0)

    with pytest.raises(RowError, match="did not say what came of training"):
        measure(select_protocol_rows(["tcp-cubic"])[0], SETTING, Silent({}), 1)


def test_accuracy_is_shown_by_round_with_the_beginning_of_the_digest() -> None:
    measured = measure(select_protocol_rows(["tcp-cubic"])[0], SETTING, Told({"tcp-cubic": ["a" * 64, "b" * 64]}), 2)
    table = training_table("somewhere", [measured])
    assert table.rows == [("tcp-cubic", "50.0% aaaaaaaa", "50.0% bbbbbbbb")]
    document = to_document(SETTING, [measured], {})
    assert (document["train"], document["data"], document["seed"]) == ("vgg5", "stand-in", 7)
    rows: Any = document["rows"]
    assert rows[0]["rounds"][1]["digest"] == "b" * 64


def test_what_was_measured_with_other_pictures_or_without_training_is_another_measurement(tmp_path: Path) -> None:
    plain = dataclasses.replace(SETTING, training=None)
    other = dataclasses.replace(SETTING, training=dataclasses.replace(TRAINING, data=tmp_path))
    told = [json.dumps(describe_setting(one, "tcp-cubic"), sort_keys=True) for one in (plain, other, SETTING)]
    assert len(set(told)) == 3


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--train", "vgg5", "--model", "vgg5"], 2, "Give --model, or --train"),
        (["--data", "."], 2, "--data is what is trained on: give --train, too"),
        (["--train", "vgg6"], 2, "Invalid value for '--train'"),
        (["--train", "vgg5", "--data", "/nowhere"], 1, "[FR102] --data: pictures: /nowhere is no directory"),
        (["--loopback", "--seed", "3"], 2, "--loopback has no network: without --seed"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(arguments: list[str], status: int, said: str) -> None:
    done = CliRunner().invoke(main, ["bench", "protocols", *arguments])
    assert (done.exit_code, said in done.output) == (status, True), done.output


def test_pictures_that_cannot_be_used_are_named_before_hosts_are_started(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(b"")
    with pytest.raises(ConfigError, match="data_batch_1 is no batch of CIFAR-10's Python version"):
        check_pictures(ROOT, tmp_path)
