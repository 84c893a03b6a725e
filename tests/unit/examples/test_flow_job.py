"""The example's job as FATE Flow carries it, without FATE: what its runner is told, and what the command refuses."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from examples.gpt2_advertisegen.flow_command import main
from examples.gpt2_advertisegen.flow_job import flow_runner_settings
from examples.gpt2_advertisegen.options import JobOptions, Tuning
from examples.gpt2_advertisegen.plan import ModelFacts, RunFiles, training_plan
from examples.gpt2_advertisegen.runner_settings import runner_settings
from tests.support.repository import ROOT

FACTS = ModelFacts("/data/model", False, 1000, 1000, 10, "<|endoftext|>", 16, 4)


def options(tuning: Tuning) -> JobOptions:
    return JobOptions(output=Path("unused"), preset="tiny", tuning=tuning, seed=7)


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_flow_s_runner_is_told_what_a_silo_s_is_but_for_the_model_and_evaluation(tuning: Tuning) -> None:
    job = options(tuning)
    told = flow_runner_settings(job, FACTS)
    silo = runner_settings(training_plan(job, job.hyper_parameters()), FACTS, told["model_conf"])
    assert silo["training_args_conf"].pop("evaluation_strategy") == "epoch"
    assert told["training_args_conf"].pop("evaluation_strategy") == "no"
    assert told == silo
    assert json.loads(json.dumps(told)) == told, "it travels as JSON"


def test_the_model_is_made_by_what_lies_at_the_sites_and_lora_s_first_weights_come_from_the_seed() -> None:
    model = flow_runner_settings(options("lora"), FACTS)["model_conf"]
    lines = (ROOT / f"examples/gpt2_advertisegen/at_sites/{model['module_name']}.py").read_text(encoding="utf-8")
    assert f"def {model['item_name']}(" in lines
    assert model["kwargs"]["seed"] == 7
    whole = flow_runner_settings(options("full"), FACTS)["model_conf"]
    assert f"def {whole['item_name']}(" in lines
    assert whole["kwargs"] == {"directory": "/data/model"}


def test_what_lies_at_the_sites_needs_nothing_of_ours() -> None:
    for path in (ROOT / "examples/gpt2_advertisegen/at_sites").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "fedrdma" not in text
        assert "examples" not in text


def test_a_directory_that_is_not_prepared_is_told(tmp_path: Path) -> None:
    for command in (["bind", "--role", "guest"], ["fit"]):
        done = CliRunner().invoke(main, [*command, "--directory", str(tmp_path)])
        assert done.exit_code == 2
        assert "is not prepared" in done.output


def test_a_directory_is_prepared_once(tmp_path: Path) -> None:
    RunFiles(tmp_path).model_facts.write_bytes(msgspec.json.encode(FACTS))
    done = CliRunner().invoke(main, ["prepare", "--preset", "tiny", "--directory", str(tmp_path)])
    assert done.exit_code == 2
    assert "is prepared already" in done.output


@pytest.mark.parametrize("flow", ["9380", "host:", "host:http", ":9380"])
def test_an_address_that_is_none_is_told(flow: str, tmp_path: Path) -> None:
    RunFiles(tmp_path).model_facts.write_bytes(msgspec.json.encode(FACTS))
    done = CliRunner().invoke(main, ["fit", "--preset", "tiny", "--directory", str(tmp_path), "--flow", flow])
    assert done.exit_code == 2
    assert "is no HOST:PORT" in done.output


def test_rows_that_are_none_are_told_with_their_line_before_anything_is_bound(tmp_path: Path) -> None:
    RunFiles(tmp_path).model_facts.write_bytes(msgspec.json.encode(FACTS))
    rows = tmp_path / "own.json"
    rows.write_text('{"content": "a", "summary": "b"}\n{"content": "a"}\n', encoding="utf-8")
    command = ["bind", "--role", "host", "--directory", str(tmp_path), "--rows", str(rows)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2
    assert "own.json:2 is no row" in done.output
