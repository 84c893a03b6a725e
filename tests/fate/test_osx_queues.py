"""FATE's own federation for OSX, unmodified, between two gateways: ctx.put and ctx.get, whole and in slices."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.repository import ROOT

pytestmark = pytest.mark.fate

SECONDS = 300
"""For whatever a loaded machine may hold up."""


def test_what_is_put_over_osx_is_what_is_got_whole_and_in_slices() -> None:
    # slices go by FATE's tables, whose workers are forked from a process that uses gRPC
    forking = {"GRPC_ENABLE_FORK_SUPPORT": "1", "GRPC_POLL_STRATEGY": "poll", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.osx_queue_times", "--megabytes", "3", "--rounds", "1"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **forking},
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    ours = [line for line in done.stdout.splitlines() if line.startswith("gateways ")]
    assert ["max_message_size=None" in line for line in ours] == [True, False]
