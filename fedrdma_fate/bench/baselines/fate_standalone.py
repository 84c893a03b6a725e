"""FATE's own standalone federation: pickles with safetensors inside, cut into slices, through LMDB files."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedrdma_fate.bench.baselines.fate_party import (
    PARTIES,
    SESSION,
    FateReceiver,
    FateSender,
    Side,
    computing_session,
    make_context,
    require_fate,
)
from fedrdma_fate.bench.baselines.interface import Schedule, Service


def _context(side: Side, data_directory: Path) -> Any:
    from fate.arch.federation.backends.standalone import StandaloneFederation

    computing = computing_session(side, data_directory)
    federation = StandaloneFederation(computing, SESSION, PARTIES[side], list(PARTIES.values()))
    return make_context(computing, federation)


def _open_sender(data_directory: Path) -> FateSender:
    return FateSender(_context("sender", data_directory))


def _open_receiver(data_directory: Path) -> FateReceiver:
    return FateReceiver(_context("receiver", data_directory))


class FateStandalone:
    """See the module. So slow, and so hungry, that it is run once."""

    name = "fate-standalone"
    schedule = Schedule(warm_ups=0, most_repeats=1)

    @contextlib.contextmanager
    def start(self, workspace: Path, largest_bytes: int) -> Iterator[Service]:
        """See `Rival.start`."""
        del largest_bytes
        require_fate()
        data = workspace / "data"
        yield Service(functools.partial(_open_sender, data), functools.partial(_open_receiver, data))
