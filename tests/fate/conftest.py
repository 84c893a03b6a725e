"""What every test with real FATE processes needs: gateways, and our hooks in child interpreters."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateways import PartyTuple, Silos, running_gateways

GUEST: PartyTuple = ("guest", "9999")
HOST: PartyTuple = ("host", "10000")
ARBITER: PartyTuple = ("arbiter", "10000")


@pytest.fixture(scope="session")
def hooks_in_children() -> None:
    """Fail, with what to do, where an interpreter started now would not extend FATE."""
    code = "from fedrdma_fate.fate import autoload; print(autoload.is_installed())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    if done.stdout.strip() != "True":
        pytest.fail(
            "fedrdma-fate is not installed in this environment, so FATE's processes do not know the backend: "
            f"install the wheel (scripts/setup does), editable installs leave out the .pth file. {done.stderr}"
        )


@pytest.fixture
def silos(tmp_path: Path, hooks_in_children: None) -> Iterator[Silos]:
    """A gateway each for guest, host and arbiter."""
    del hooks_in_children
    with running_gateways(tmp_path / "gateways", [GUEST, HOST, ARBITER]) as running:
        yield running
