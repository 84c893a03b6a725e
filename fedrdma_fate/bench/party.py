"""One party of a measurement: a process of its own that does what the runner tells it, one step at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

from fedrdma_fate.bench.baselines.interface import Receiver, Sender
from fedrdma_fate.bench.payload import Array, PayloadArrays, PayloadSpec, digest
from fedrdma_fate.bench.processes import end_with_parent


@dataclasses.dataclass(frozen=True, slots=True)
class Prepare:
    """Have a payload ready, with contents of this iteration; answers its digest."""

    spec: PayloadSpec
    iteration: int


@dataclasses.dataclass(frozen=True, slots=True)
class Put:
    """Put what was prepared; answers the Interval."""

    iteration: int


@dataclasses.dataclass(frozen=True, slots=True)
class Get:
    """Get what was put; answers the Interval."""

    spec: PayloadSpec
    iteration: int


@dataclasses.dataclass(frozen=True, slots=True)
class Inspect:
    """Answer the digest of what was got, then drop it."""


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """Close the end and leave; no answer."""


Step = Prepare | Put | Get | Inspect


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """When something started and ended, by CLOCK_MONOTONIC, which all processes of a host share."""

    start: float
    end: float


@dataclasses.dataclass(frozen=True, slots=True)
class Broken:
    """An answer: the step raised this."""

    error: str
    details: str


Answer = Interval | str | None | Broken


def serve(connection: Connection, runner: int, log: Path, open_end: Callable[[], Sender | Receiver]) -> None:
    """Run a party: open its end, then carry out steps. The first answer is None.

    Where the connection just ends, so does the party: the gateway that it would say goodbye to may be gone as well.

    Args:
        connection: to the runner.
        runner: its process id; when it ends, so does the party.
        log: file for what is printed.
        open_end: makes the sender or the receiver.
    """
    end_with_parent(runner)
    # the runner ends us; what is printed here must not get into its output
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with log.open("ab") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    try:
        party = _Party(open_end())
        connection.send(None)
    except Exception as error:
        connection.send(_broken(error))
        return
    with contextlib.suppress(EOFError, OSError):
        while not isinstance(step := connection.recv(), End):
            connection.send(_attempt(party, step))
        party.close()


def _attempt(party: _Party, step: Step) -> Answer:
    try:
        return party.carry_out(step)
    except Exception as error:
        return _broken(error)


def _broken(error: Exception) -> Broken:
    return Broken(str(error) or type(error).__name__, traceback.format_exc())


class _Party:
    """The state of a party between steps."""

    def __init__(self, end: Sender | Receiver) -> None:
        self._end = end
        self._payload: PayloadArrays | None = None
        self._received: Sequence[Array] = ()

    def carry_out(self, step: Step) -> Answer:
        match step:
            case Prepare(spec, iteration):
                return self._prepare(spec).stamp(iteration)
            case Put(iteration):
                return self._put(iteration)
            case Get(spec, iteration):
                return self._get(spec, iteration)
            case Inspect():
                found, self._received = digest(self._received), ()
                return found

    def close(self) -> None:
        self._received = ()
        self._end.close()

    def _prepare(self, spec: PayloadSpec) -> PayloadArrays:
        if self._payload is None or self._payload.spec != spec:
            self._payload = PayloadArrays(spec)
        return self._payload

    def _put(self, iteration: int) -> Interval:
        if self._payload is None:
            raise RuntimeError("nothing was prepared")
        start = time.monotonic()
        cast(Sender, self._end).put(iteration, self._payload)
        return Interval(start, time.monotonic())

    def _get(self, spec: PayloadSpec, iteration: int) -> Interval:
        start = time.monotonic()
        self._received = cast(Receiver, self._end).get(iteration, spec)
        return Interval(start, time.monotonic())
