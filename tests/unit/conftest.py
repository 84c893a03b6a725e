"""Fixtures of more than one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.twin_play import Play, player


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Plays a scenario with a new pair of gateways' peers."""
    return player(tmp_path)
