"""The second way in: a component as a process of each party, from configuration files, as schedulers start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fate.conftest import GUEST, HOST
from tests.support.gateways import PartyTuple, Silos

pytestmark = [pytest.mark.fate, pytest.mark.timeout(300)]

SAMPLES = 3000


def task_config(party: PartyTuple, federation: dict[str, Any], home: Path) -> dict[str, Any]:
    """A task of FATE's toy example: both parties exchange the index of a table and bring theirs into the same order."""
    role, party_id = party
    return {
        "task_id": "toy",
        "party_task_id": f"toy_{role}_{party_id}",
        "task_name": "toy_0",
        "component": "toy_example",
        "role": role,
        "party_id": party_id,
        "stage": "default",
        "parameters": {"data_num": SAMPLES, "partition": 3},
        "input_artifacts": {},
        "output_artifacts": {
            "output_data": {"uri": f"standalone://{home}/{role}/output", "type_name": "dataframe"},
            "json_model_output": {"uri": f"file://{home}/model", "type_name": "json_model"},
            "metric": {"uri": f"file://{home}/metric", "type_name": "json_metric"},
        },
        "conf": {"device": {"type": "CPU"}, "logger": {}, **engines(party, federation, home)},
    }


def engines(party: PartyTuple, federation: dict[str, Any], home: Path) -> dict[str, Any]:
    """The computing and federation sections, which a clean-up needs as well."""
    computing = {"computing_id": f"toy_{party[0]}", "options": {"data_dir": str(home), "task_cores": 2}}
    local, *_ = [{"role": role, "partyid": party_id} for role, party_id in (party,)]
    everybody = [{"role": role, "partyid": party_id} for role, party_id in (GUEST, HOST)]
    metadata = {"federation_id": "toy_session", "parties": {"local": local, "parties": everybody}}
    return {
        "computing": {"type": "standalone", "metadata": computing},
        "federation": {"type": federation["type"], "metadata": {**metadata, **federation["metadata"]}},
    }


def start(command: str, config: dict[str, Any], home: Path, *arguments: str) -> subprocess.Popen[str]:
    path = home / f"{command}.yaml"
    path.write_text(yaml.safe_dump(config))
    return subprocess.Popen(
        [sys.executable, "-m", "fate.components", "component", command, "--config", str(path), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=home,
        env={**os.environ, "DEBUG_MODE_LOG_LEVEL": "WARNING"},
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Its output, once it has ended well."""
    try:
        output, _ = process.communicate(timeout=200)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    assert process.returncode == 0, output[-6000:]
    return output


def homes(tmp_path: Path) -> dict[PartyTuple, Path]:
    found = {party: tmp_path / party[0] for party in (GUEST, HOST)}
    for home in found.values():
        home.mkdir()
    return found


def federation_section(silos: Silos, party: PartyTuple) -> dict[str, Any]:
    config = {"gateway": silos.address(party), "get_timeout": 120}
    return {"type": "fedrdma", "metadata": {"fedrdma_config": config}}


def test_a_component_runs_over_the_backend_and_cleans_up(silos: Silos, tmp_path: Path) -> None:
    running = []
    for party, home in homes(tmp_path).items():
        config = task_config(party, federation_section(silos, party), home)
        meta = ["--execution-final-meta-path", str(home / "meta.json")]
        running.append((party, home, start("execute", config, home, *meta)))
    for _, home, process in running:
        finish(process)
        assert json.loads((home / "meta.json").read_text())["status"] == {"code": 0}

    assert silos.pushed() == silos.delivered()
    names = {name.partition("__table")[0] for _, name, *_ in silos.pushed()}
    assert names == {"guest_index", "host_index"}
    for party, home, _ in running:
        finish(start("cleanup", engines(party, federation_section(silos, party), home), home))


def test_a_task_without_its_gateway_fails_with_the_code_and_what_to_do(hooks_in_children: None, tmp_path: Path) -> None:
    del hooks_in_children
    home = homes(tmp_path)[GUEST]
    metadata = {"fedrdma_config": {"gateway": f"unix://{tmp_path}/none", "connect_timeout": 0.1}}
    config = task_config(GUEST, {"type": "fedrdma", "metadata": metadata}, home)

    process = start("execute", config, home, "--execution-final-meta-path", str(home / "meta.json"))
    process.communicate(timeout=200)

    status = json.loads((home / "meta.json").read_text())["status"]
    assert (process.returncode, status["code"]) == (1, -1)
    assert "[FR601]" in status["exceptions"]
    assert "fedrdma gateway --config" in status["exceptions"]
