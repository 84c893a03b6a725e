"""FATE's own federation for OSX, unmodified and with nothing of ours in FATE: ctx.put and ctx.get by two gateways."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.repository import ROOT

pytestmark = pytest.mark.fate

SECONDS = 300
"""For whatever a loaded machine may hold up."""


ATTEMPTS = 3
"""Now and then one of FATE's workers crashes, forked beside threads of gRPC: seen once, in a run of all tests."""

# slices and tables are sent by workers that are forked from a process that uses gRPC; nothing of ours is loaded
ENVIRONMENT = {
    **os.environ,
    "GRPC_ENABLE_FORK_SUPPORT": "1",
    "GRPC_POLL_STRATEGY": "poll",
    "FEDRDMA_FATE_DISABLE": "1",
    "PYTHONPATH": str(ROOT),
}


def test_what_is_put_over_osx_is_what_is_got_whole_and_in_slices() -> None:
    command = [sys.executable, "-m", "tests.support.osx_queue_times", "--megabytes", "3", "--rounds", "1"]
    for _ in range(ATTEMPTS):
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, env=ENVIRONMENT, timeout=SECONDS
        )
        if "BrokenProcessPool" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    ours = [line for line in done.stdout.splitlines() if line.startswith("gateways ")]
    assert ["max_message_size=None" in line for line in ours] == [True, False]
