"""QUIC on loopback by a library, aioquic: what transport `udp`, sealed, is beside.

Its parties are processes that import from aioquic's own directory before all others, and so nothing older.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedrdma_fate.bench.baselines.interface import RowError, Schedule, Service
from fedrdma_fate.bench.payload import Array, PayloadArrays, PayloadSpec
from fedrdma_fate.bench.protocols.brokers import prefer_aioquic, quic_problem

if TYPE_CHECKING:
    from fedrdma_fate.bench.quic import Settings

_LOOPBACK = "127.0.0.1"
_MTU = 1500
"""As most paths have, and as `raw-udp` keeps to."""
_TOKEN_BYTES = 16
"""Nobody guesses so many."""
_SENDER = 1
"""Its number among the silos, of which it is the only one."""
_LOOK_AGAIN_SECONDS = 0.01
"""Between two looks at whether the receiver listens."""


def _settings(largest_bytes: int) -> Settings:
    from fedrdma_fate.bench.quic import Settings

    return Settings(_MTU, largest_bytes)


class QuicSender:
    """Hands the payload's one buffer to one stream."""

    def __init__(self, told: Path, largest_bytes: int) -> None:
        from fedrdma_fate.bench.quic import Loop, Ticket, dialled

        self._open = contextlib.ExitStack()
        while not told.exists():
            time.sleep(_LOOK_AGAIN_SECONDS)
        ticket = Ticket(**json.loads(told.read_text()))
        self._loop = self._open.enter_context(Loop())
        settings = _settings(largest_bytes)
        self._peer = self._open.enter_context(dialled(self._loop, _LOOPBACK, _SENDER, settings, ticket))

    def put(self, iteration: int, payload: PayloadArrays) -> None:
        """Returns when the receiver has acknowledged the last byte."""
        del iteration
        self._loop.run(self._send(payload.flat.data.cast("B")))

    def close(self) -> None:
        """Close the connection."""
        self._open.close()

    async def _send(self, body: memoryview) -> None:
        self._peer.send(body)
        await self._peer.delivered()


class QuicReceiver:
    """Takes what a stream brings, and copies it into one warm buffer."""

    def __init__(self, told: Path, largest_bytes: int) -> None:
        from fedrdma_fate.bench.quic import Listener, Loop

        # filled, not just allocated: otherwise receiving would pay for the page faults
        self._buffer = np.full(largest_bytes, 0xFF, np.uint8)
        self._open = contextlib.ExitStack()
        self._loop = self._open.enter_context(Loop())
        token = secrets.token_hex(_TOKEN_BYTES)
        listener = self._open.enter_context(Listener(self._loop, _LOOPBACK, 1, _settings(largest_bytes), token))
        whole = told.with_suffix(".part")
        whole.touch(mode=0o600)
        whole.write_text(json.dumps(dataclasses.asdict(listener.ticket)))
        whole.rename(told)
        (self._peer,) = listener.peers()
        self._taken = 0

    def get(self, iteration: int, spec: PayloadSpec) -> Sequence[Array]:
        """Wait until the stream has ended.

        Raises:
            RowError: it brought more or less than a payload.
        """
        del iteration
        # the token was the first
        self._taken += 1
        got = self._loop.run(self._peer.message(self._taken)).body
        if len(got) != spec.total_bytes:
            raise RowError(f"{len(got)} bytes came, and not {spec.total_bytes}")
        self._buffer.data[: spec.total_bytes] = got
        return spec.arrays_in(self._buffer)

    def close(self) -> None:
        """Close the connection."""
        self._open.close()


class Quic:
    """See the module."""

    name = "aioquic"
    # of GPT-2 in full each iteration takes minutes
    schedule = Schedule(warm_ups=0)

    @contextlib.contextmanager
    def start(self, workspace: Path, largest_bytes: int) -> Iterator[Service]:
        """See `Baseline.start`.

        Raises:
            RowError: there is no aioquic; with what to install.
        """
        if (problem := quic_problem()) is not None:
            raise RowError(problem)
        told = Path(workspace, "ticket")
        home = prefer_aioquic()
        try:
            # processes that are started now have the path as it is
            yield Service(
                functools.partial(QuicSender, told, largest_bytes),
                functools.partial(QuicReceiver, told, largest_bytes),
            )
        finally:
            sys.path.remove(home)
