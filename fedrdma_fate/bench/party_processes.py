"""The party processes of one row, as the runner holds them."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from fedrdma_fate.bench.baselines.interface import Receiver, RowError, Sender, Service
from fedrdma_fate.bench.party import Answer, Broken, End, Get, Inspect, Interval, Prepare, Put, Step, serve
from fedrdma_fate.bench.payload import PayloadSpec
from fedrdma_fate.bench.processes import cpu_seconds, family

STEP_SECONDS = 900.0
"""Longest time for one step."""

END_SECONDS = 20.0
"""A party that has not ended by then, after it was asked to, is killed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Exchange:
    """One payload put and got.

    Attributes:
        seconds: from the start of the put to the end of the get.
        put_seconds: the put alone.
        cpu_seconds: of both parties and their helpers.
    """

    seconds: float
    put_seconds: float
    cpu_seconds: float


class PartyProcess:
    """One party's process.

    Attributes:
        side: `sender` or `receiver`, for messages.
        pid: of the process.
        connection: to it.
    """

    def __init__(self, side: str, workspace: Path, open_end: Callable[[], Sender | Receiver]) -> None:
        """Start it; its first answer says that it is ready."""
        # forked, a party would share pages with us and with the other one, and memory could not be told apart
        context = multiprocessing.get_context("spawn")
        self.side = side
        self.connection, theirs = context.Pipe()
        log = workspace / f"{side}.party.log"
        self._process = context.Process(target=serve, args=(theirs, os.getpid(), log, open_end), name=f"bench-{side}")
        self._process.start()
        theirs.close()
        self.pid: int = self._process.pid or 0

    def tell(self, step: Step) -> None:
        """Have a step carried out.

        Raises:
            RowError: the process is gone.
        """
        try:
            self.connection.send(step)
        except OSError as error:
            raise self._gone() from error

    def answer(self) -> Answer:
        """The answer that has come.

        Raises:
            RowError: the step failed, or the process is gone.
        """
        try:
            answer: Answer = self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._gone() from error
        if isinstance(answer, Broken):
            raise RowError(f"the {self.side}: {answer.error}")
        return answer

    def end(self, timeout: float = END_SECONDS) -> None:
        """Ask it to end, and make it after `timeout` seconds; its descendants too."""
        descendants = [_process(pid) for pid in family([self.pid]) if pid != self.pid]
        with contextlib.suppress(OSError):
            self.connection.send(End())
        self.connection.close()
        self._process.join(timeout)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        for descendant in descendants:
            # by identity, not by number: the number may be another process's by now
            if descendant is not None and descendant.is_running():
                with contextlib.suppress(psutil.Error):
                    descendant.kill()
        self._process.close()

    def _gone(self) -> RowError:
        self._process.join(END_SECONDS)
        return RowError(f"the {self.side}'s process ended with status {self._process.exitcode}")


class PartyProcesses:
    """Both parties of a row, or the only one of a baseline that needs no second."""

    def __init__(self, service: Service, workspace: Path) -> None:
        """Start the processes, and wait until their ends are open.

        Raises:
            RowError: an end cannot be opened.
        """
        self._parties: list[PartyProcess] = []
        self.groups: list[list[int]] = []
        try:
            self._start("sender", workspace, service.open_sender, service.sender_helpers)
            if service.open_receiver is not None:
                self._start("receiver", workspace, service.open_receiver, service.receiver_helpers)
            self._answers(self._parties)
        except BaseException:
            self._end(0.0)
            raise

    def __enter__(self) -> PartyProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # after a failure the other party may wait for what will never come
        self._end(END_SECONDS if error is None else 0.0)

    def prepare(self, spec: PayloadSpec, iteration: int) -> str:
        """Have the sender make the payload of an iteration; its digest."""
        return str(self._ask(self._sender, Prepare(spec, iteration)))

    def exchange(self, spec: PayloadSpec, iteration: int) -> Exchange:
        """Send one payload; the contents are checked afterwards.

        Raises:
            RowError: a step failed, or something else arrived than was sent.
        """
        expected = self.prepare(spec, iteration)
        cpu_before = self._cpu_seconds()
        put, get = self._put_and_get(spec, iteration)
        cpu_used = self._cpu_seconds() - cpu_before
        if self._ask(self._receiver, Inspect()) != expected:
            raise RowError(f"what arrived in iteration {iteration} is not what was sent")
        return Exchange(get.end - put.start, put.end - put.start, cpu_used)

    @property
    def _sender(self) -> PartyProcess:
        return self._parties[0]

    @property
    def _receiver(self) -> PartyProcess:
        return self._parties[-1]

    def _start(
        self, side: str, workspace: Path, open_end: Callable[[], Sender | Receiver], helpers: Sequence[int]
    ) -> None:
        self._parties.append(PartyProcess(side, workspace, open_end))
        self.groups.append([self._parties[-1].pid, *helpers])

    def _end(self, timeout: float) -> None:
        for party in self._parties:
            party.end(timeout)

    def _put_and_get(self, spec: PayloadSpec, iteration: int) -> tuple[Interval, Interval]:
        if self._sender is self._receiver:
            put = _interval(self._ask(self._sender, Put(iteration)))
            self._ask(self._receiver, Get(spec, iteration))
            return put, put
        # as in FATE, where an arbiter waits for its clients
        self._receiver.tell(Get(spec, iteration))
        self._sender.tell(Put(iteration))
        put, get = map(_interval, self._answers([self._sender, self._receiver]))
        return put, get

    def _cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self.groups))

    def _ask(self, party: PartyProcess, step: Step) -> Answer:
        party.tell(step)
        return self._answers([party])[0]

    def _answers(self, parties: Sequence[PartyProcess]) -> list[Answer]:
        """One answer of each; the first failure counts, however long the others would still wait.

        Raises:
            RowError: a step failed, or took too long.
        """
        answers: dict[str, Answer] = {}
        deadline = time.monotonic() + STEP_SECONDS
        while waiting := {party.connection: party for party in parties if party.side not in answers}:
            ready = multiprocessing.connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                late = " and ".join(f"the {party.side}" for party in waiting.values())
                raise RowError(f"{late} did not answer within {STEP_SECONDS:.0f} s")
            for party in waiting.values():
                if party.connection in ready:
                    answers[party.side] = party.answer()
        return [answers[party.side] for party in parties]


def _interval(answer: Answer) -> Interval:
    if not isinstance(answer, Interval):
        raise TypeError(f"expected an interval, not {answer!r}")
    return answer


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None
