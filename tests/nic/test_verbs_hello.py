"""The example `verbs_hello`, by the command of its README."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from tests.support.repository import ROOT

COMMAND = [str(ROOT / "scripts" / "testbed"), "run", "--timeout", "60", "--"]
EXAMPLE = [sys.executable, "-m", "examples.verbs_hello"]


@pytest.mark.nic
def test_the_example_greets_the_other_host() -> None:
    result = subprocess.run([*COMMAND, *EXAMPLE], cwd=ROOT, capture_output=True, text=True, check=False, timeout=90)
    assert result.returncode == 0, result.stderr
    shown = (ROOT / "examples" / "verbs_hello" / "README.md").read_text()
    lines = sorted(result.stdout.splitlines())
    assert lines == [
        "[0] wrote 19 bytes and an immediate: work requests [1, 2] completed",
        "[1] read: 'hello by RDMA WRITE', announced by the immediate 42",
    ]
    assert "\n".join(lines) in shown


@pytest.mark.nic
def test_without_a_device_the_example_says_so() -> None:
    alone = ["sh", "-c", f"rdma link delete $TESTBED_DEVICE; exec {shlex.join(EXAMPLE)}"]
    result = subprocess.run([*COMMAND, *alone], cwd=ROOT, capture_output=True, text=True, check=False, timeout=90)
    assert result.returncode == 1
    assert "no RDMA device" in result.stderr
