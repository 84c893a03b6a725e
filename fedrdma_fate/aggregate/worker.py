"""A worker, as its gateway has it: started when there is something to add, and started again where it was killed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

from fedrdma_fate.aggregate.jobs import (
    LENGTH_PREFIX,
    Add,
    AddLast,
    Begin,
    Done,
    End,
    Finish,
    Job,
    JobAnswer,
    Unmapped,
    decode_answer,
    encode,
)
from fedrdma_fate.aggregate.notices import Line, Notices, SocketNotices

logger = logging.getLogger(__name__)

MOST_DEATHS = 3
"""So often in a row a worker may end over one job: then it is the job, or the host, and not chance."""

ANSWER_SECONDS = 30.0
"""That a job may take besides its bytes: Python and NumPy load meanwhile, on a host that is busy."""

LEAST_BYTES_PER_SECOND = 16 * 2**20
"""That a job gets through, be it from a slow disk to which an update was spilled. A worker that takes longer was
stopped, or hangs: it would hold up all sums."""

_MOST_ANSWER_BYTES = 64 * 1024
"""An answer is a word, or a reason."""


_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""For the worker's NumPy, whose dot product would else be shared out among threads, block by block of 256 KiB."""


class WorkerLostError(Exception):
    """A job could not be done: its worker ended MOST_DEATHS times in a row, or cannot be started."""


class OpenSum:
    """A sum that a worker adds to; which run of the worker has it mapped is remembered here.

    Attributes:
        begin: what describes it.
        descriptor: of the file its accumulator lies in, held by whoever made this.
    """

    def __init__(self, begin: Begin, descriptor: int) -> None:
        self.begin = begin
        self.descriptor = descriptor
        self.mapped_by = 0


class WorkerHandle:
    """One worker. Belongs to the event loop's thread; jobs of several sums take turns.

    Attributes:
        restarts: how often it had to be started again.
    """

    def __init__(
        self,
        on_restart: Callable[[], object] = lambda: None,
        on_added: Callable[[float], object] = lambda _seconds: None,
        notices: Notices | None = None,
    ) -> None:
        """
        Args:
            on_restart: called each time that it has ended over a job.
            on_added: called with the seconds of each addition, without those that it waited for its turn.
            notices: how it is told of updates; None: over its socket.
        """
        self._notices = SocketNotices() if notices is None else notices
        self._line: Line | None = None
        self._told_by_notice = False
        self.restarts = 0
        self._on_restart = on_restart
        self._on_added = on_added
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._run = 0
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether it was ended for good."""
        return self._closed

    @property
    def process_id(self) -> int | None:
        """Of the process, where one runs."""
        return None if self._process is None else self._process.pid

    def prepare(self) -> None:
        """Start it, if it does not run: it will have something to do soon, and takes a while to load NumPy."""
        if self._connection is None and not self._turn.locked():
            # a job will say so
            with contextlib.suppress(OSError):
                self._start()

    async def do(
        self,
        job: Add | AddLast | Finish | End,
        target: OpenSum,
        descriptor: int | None = None,
        total: OpenSum | None = None,
    ) -> JobAnswer:
        """Have a job done, by another worker where the first one ends over it. Not to be cancelled in the middle.

        Args:
            job: what to do.
            target: the sum it is about.
            descriptor: what the job needs.
            total: of `AddLast`, the other one that it is about.

        Raises:
            WorkerLostError: no worker could do it.
        """
        async with self._turn:
            if self._process is not None and self._process.poll() is not None:
                # nothing was lost, for it had nothing to do
                self._end()
            for _ in range(MOST_DEATHS):
                try:
                    if isinstance(job, End) and (self._connection is None or target.mapped_by != self._run):
                        # nobody has it mapped
                        return Done()
                    if self._connection is None:
                        self._start()
                    seconds = ANSWER_SECONDS + target.begin.length / LEAST_BYTES_PER_SECOND
                    for each in (target,) if total is None else (target, total):
                        if each.mapped_by != self._run:
                            await self._call(each.begin, each.descriptor, seconds)
                            each.mapped_by = self._run
                    began = time.monotonic()
                    answer = await self._call(job, descriptor, seconds)
                    if isinstance(job, Add):
                        self._on_added(time.monotonic() - began)
                    return answer
                except (OSError, EOFError, msgspec.MsgspecError) as error:
                    if self._closed:
                        raise WorkerLostError("the gateway stops") from error
                    logger.warning("the worker that adds updates ended (%s) and is started again", error)
                    self.restarts += 1
                    self._on_restart()
                    self._end()
            raise WorkerLostError(f"the worker that adds ended {MOST_DEATHS} times in a row")

    def rest(self) -> None:
        """End it, where it has nothing to do; the next job starts it again."""
        if not self._turn.locked():
            self._end()

    def close(self) -> None:
        """End it at once; when this returns it writes nowhere. May be repeated."""
        self._closed = True
        self._end()

    def _start(self) -> None:
        if self._closed:
            raise OSError("the gateway stops")
        ours, its = socket.socketpair()
        line = self._notices.open()
        inherited = [its.fileno()] + ([] if line.descriptor is None else [line.descriptor])
        try:
            ours.setblocking(False)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", "fedrdma_fate.aggregate.worker_process", *map(str, inherited)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD},
                pass_fds=inherited,
                # what a terminal sends to its gateway is not meant for it
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            line.close()
            raise
        finally:
            its.close()
        line.handed_over()
        self._connection, self._line = ours, line
        self._run += 1

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            process, self._process = self._process, None
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()

    async def _call(self, job: Job, descriptor: int | None, seconds: float) -> JobAnswer:
        try:
            return await asyncio.wait_for(self._exchange(job, descriptor), seconds)
        except asyncio.TimeoutError as error:
            if self._told_by_notice and self._line is not None:
                # it may hang, or the notice was lost: then the next one is not to cost as long
                logger.warning(
                    "this worker is told of updates over its socket: of one told by %s it said nothing", self._line.way
                )
                self._notices = SocketNotices(self._notices.taken)
            # no OSError before Python 3.11
            raise OSError(f"it has not answered within {seconds:.0f} s") from error

    async def _exchange(self, job: Job, descriptor: int | None) -> JobAnswer:
        connection, line = self._connection, self._line
        assert connection is not None
        assert line is not None
        told = time.monotonic()
        self._told_by_notice = descriptor is not None and line.tell(job, descriptor)
        if descriptor is not None and self._told_by_notice:
            answer = await _answer(connection)
            self._told_by_notice = False
            if not isinstance(answer, Unmapped):
                self._note_taken(line.way, told, answer)
                return answer
            line.has_not_mapped(descriptor)
            told = time.monotonic()
        await _send(connection, job, descriptor)
        answer = await _answer(connection)
        if isinstance(answer, Unmapped):
            raise OSError("it has not mapped what came with a job")
        self._note_taken(SocketNotices.way, told, answer)
        line.has_mapped(job, descriptor)
        return answer

    def _note_taken(self, way: str, told: float, answer: JobAnswer) -> None:
        if isinstance(answer, Done) and answer.began:
            self._notices.taken(way, max(0.0, answer.began - told))


async def _send(connection: socket.socket, job: Job, descriptor: int | None) -> None:
    message = encode(job)
    if descriptor is not None:
        # the socket is empty, for there is one job at a time: the first bytes go at once
        sent = socket.send_fds(connection, [message[: LENGTH_PREFIX.size]], [descriptor])
        message = message[sent:]
    await asyncio.get_running_loop().sock_sendall(connection, message)


async def _answer(connection: socket.socket) -> JobAnswer:
    loop = asyncio.get_running_loop()
    length = LENGTH_PREFIX.unpack(await _read(loop, connection, LENGTH_PREFIX.size))[0]
    if length > _MOST_ANSWER_BYTES:
        raise OSError(f"an answer of {length} bytes")
    return decode_answer(await _read(loop, connection, length))


async def _read(loop: asyncio.AbstractEventLoop, connection: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        piece = await loop.sock_recv(connection, length - len(received))
        if not piece:
            raise EOFError("it closed its socket")
        received += piece
    return bytes(received)
