"""The first way in: FATE's launcher, parties as spawned processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gateways import Silos

pytestmark = [pytest.mark.fate, pytest.mark.timeout(300)]

JOB = Path(__file__).parent / "jobs" / "exchange.py"
PARTIES = ["guest:9999", "host:10000", "arbiter:10000"]


def launch(data: Path, expected: str, *arguments: str) -> None:
    """Run the job to its end; its own assertions decide."""
    command = [sys.executable, str(JOB), "--parties", *PARTIES, "--log_level", "WARNING", f"--data_dir={data}"]
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, "EXPECTED_FEDERATION": expected},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_a_launched_job_runs_over_the_backend_and_nothing_passes_it_by(silos: Silos, tmp_path: Path) -> None:
    gateways = ",".join(f"{party}={address}" for party, address in silos.addresses.items())

    launch(
        tmp_path,
        "FedRDMAFederation",
        "--federation_engine=fedrdma",
        f"--fedrdma_gateways={gateways}",
        "--federation_session_id=launched",
        "--fedrdma_get_timeout=120",
    )

    assert silos.pushed() == silos.delivered()
    assert {message[0] for message in silos.pushed()} == {"launched"}
    assert sum(name == "model_aggregated_values" for _, name, *_ in silos.pushed().elements()) == 4
    # FATE's own federation keeps its messages in files there
    assert not list(tmp_path.glob("__federation__*"))


def test_a_launched_job_that_does_not_ask_for_the_backend_does_not_get_it(
    hooks_in_children: None, tmp_path: Path
) -> None:
    del hooks_in_children

    launch(tmp_path, "StandaloneFederation")
