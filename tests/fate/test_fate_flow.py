"""The third way in: a job of FATE Flow, with nothing set but its service configuration."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.fate_flow import running_fate_flow
from tests.support.gateways import Silos

pytestmark = [pytest.mark.fate, pytest.mark.slow, pytest.mark.timeout(900)]

JOB = Path(__file__).parent / "jobs" / "homo_nn.py"
EPOCHS = 2


def test_a_homo_nn_job_of_fate_flow_runs_over_the_backend(silos: Silos, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()

    with running_fate_flow(tmp_path / "flow", {"gateways": silos.addresses, "get_timeout": 600}) as flow:
        done = subprocess.run(
            [flow.python, str(JOB), "--port", str(flow.port), "--data", str(data)],
            env=flow.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:] + flow.logs()

    pushed = silos.pushed()
    assert pushed == silos.delivered()
    aggregates = [message for message in pushed.elements() if message[1] == "fedavg_model_aggregated_values"]
    assert sorted(destination for *_, destination, _ in aggregates) == ["guest:9999"] * EPOCHS + ["host:10000"] * EPOCHS
    # FATE Flow's clean-up has left the session at every party
    assert all(silos.status(party)["mailbox"]["messages"] == 0 for party in silos.parties)
