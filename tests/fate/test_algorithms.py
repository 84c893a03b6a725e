"""FATE's own algorithms over real gateways: everything that they send is let in, and comes out as over FATE's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways import Silos

pytestmark = [pytest.mark.fate, pytest.mark.sweep, pytest.mark.timeout(900)]

JOB = Path(__file__).parent / "jobs" / "algorithms.py"
TWO = ("guest:9999", "host:10000")
THREE = (*TWO, "arbiter:10000")
ALGORITHMS = [
    ("secureboost", "paillier", TWO),
    ("secureboost", "ou", TWO),
    ("sshe_lr", "", TWO),
    ("coordinated_lr", "", THREE),
    ("pearson", "", TWO),
    ("binning", "", TWO),
    ("psi", "", TWO),
]


def run(algorithm: str, cipher: str, parties: tuple[str, ...], directory: Path, *arguments: str) -> dict[str, Any]:
    """What each party wrote down, by the name of its file."""
    directory.mkdir()
    federation = "FedRDMAFederation" if arguments else "StandaloneFederation"
    asked = {"ALGORITHM": algorithm, "CIPHER": cipher, "EXPECTED_FEDERATION": federation, "OUTCOMES": str(directory)}
    command = [
        sys.executable,
        str(JOB),
        "--parties",
        *parties,
        "--log_level",
        "WARNING",
        f"--data_dir={directory}/data",
    ]
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return {file.name: json.loads(file.read_text()) for file in directory.glob("*.json")}


@pytest.mark.parametrize(("algorithm", "cipher", "parties"), ALGORITHMS)
def test_an_algorithm_of_fate_gives_what_it_gives_over_fate_s_own_federation(
    silos: Silos, tmp_path: Path, algorithm: str, cipher: str, parties: tuple[str, ...]
) -> None:
    gateways = ",".join(f"{party}={address}" for party, address in silos.addresses.items())

    ours = run(
        algorithm,
        cipher,
        parties,
        tmp_path / "ours",
        "--federation_engine=fedrdma",
        f"--fedrdma_gateways={gateways}",
        "--federation_session_id=algorithms",
        "--fedrdma_get_timeout=300",
    )

    assert len(ours) == len(parties)
    assert silos.pushed()
    assert ours == run(algorithm, cipher, parties, tmp_path / "fate-s")
