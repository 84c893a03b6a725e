"""Where FATE is not installed: the gateway does not miss it, and whatever needs it says so with a code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

WITHOUT_FATE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fate", "fate_flow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """In which no interpreter finds FATE."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_FATE)
    path = os.pathsep.join(filter(None, [str(tmp_path), *sys.path]))
    return {**os.environ, "PYTHONPATH": path}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_the_gateway_does_not_need_it(environment: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(yaml.safe_dump({"site": "a", "parties": ["9999"], "security": "off"}))
    done = run(environment, "-m", "fedrdma_fate.cli.main", "gateway", "--config", str(config), "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_rows_of_the_benchmark_that_need_it_say_so_and_the_others_are_measured(environment: dict[str, str]) -> None:
    rows = "memcpy,fedrdma-e/shm,fate-standalone"
    bench = ["bench", "fate", "--bytes", "1MiB", "--repeat", "1", "--rows", rows]
    done = run(environment, "-m", "fedrdma_fate.cli.main", *bench)
    assert done.returncode == 1
    assert "memcpy" in done.stdout
    for row in ("fedrdma-e/shm", "fate-standalone"):
        assert f"fedrdma: {row} was not measured:" in done.stderr
    assert done.stderr.count("[FR702]") == 2


def test_the_check_that_the_backend_makes_names_the_code_and_the_extra(environment: dict[str, str]) -> None:
    check = "from fedrdma_fate.fate.compatibility import require_supported_fate; require_supported_fate()"
    done = run(environment, "-c", check)
    assert "FateError: [FR702] FATE is not installed (No module named 'fate')." in done.stderr
    assert "extra `fate`" in done.stderr
