"""A task process of a FATE that this backend was not made for: it says so, before it touches a gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.fate.conftest import GUEST
from tests.fate.test_component_entrypoint import task_config

pytestmark = [pytest.mark.fate]

# as `python -m fate.components`, in a FATE that calls itself another version
OTHER_FATE = """
import runpy
import fate
fate.__version__ = "2.1.1"
runpy.run_module("fate.components", run_name="__main__")
"""


def test_a_task_of_another_fate_fails_with_the_code_both_versions_and_what_to_do(
    hooks_in_children: None, tmp_path: Path
) -> None:
    del hooks_in_children
    metadata = {"fedrdma_config": {"gateway": f"unix:///{tmp_path}/none"}}
    config, meta = tmp_path / "task.yaml", tmp_path / "meta.json"
    config.write_text(yaml.safe_dump(task_config(GUEST, {"type": "fedrdma", "metadata": metadata}, tmp_path)))
    arguments = ["component", "execute", "--config", str(config), "--execution-final-meta-path", str(meta)]

    command = [sys.executable, "-c", OTHER_FATE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False)

    status = json.loads(meta.read_text())["status"]
    assert (done.returncode, status["code"]) == (1, -1)
    assert "[FR701]" in status["exceptions"]
    assert "fate is version 2.1.1, not 2.2.0" in status["exceptions"]
    assert "Use FATE 2.2.0, or set FEDRDMA_FATE_DISABLE=1" in status["exceptions"]
    # whoever reads the console is warned when the first module is extended
    assert "FateVersionWarning" in done.stderr + done.stdout
