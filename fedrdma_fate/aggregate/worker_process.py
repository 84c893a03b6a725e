"""The program of a worker: it maps regions, adds the updates that it is told of, and ends with its gateway.

Argument: descriptor of the socket to its gateway. It knows nothing of messages, sessions or FATE; what the next one has
to know where it is killed lies in the accumulator.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import sys
from collections import OrderedDict

from fedrdma_fate import memory_files
from fedrdma_fate.aggregate.accumulator import Accumulator
from fedrdma_fate.aggregate.arithmetic import UnfitError, adder_for
from fedrdma_fate.aggregate.jobs import (
    LENGTH_PREFIX,
    Add,
    Begin,
    Done,
    End,
    Finish,
    Job,
    JobAnswer,
    Unfit,
    decode_job,
    encode,
)
from fedrdma_fate.core.fold import Order
from fedrdma_fate.unix_sockets import close_all, receive_with_descriptors
from fedrdma_fate.wire.summand import planes_bytes, planes_of

_PR_SET_PDEATHSIG = 1
"""prctl(2): a signal for when the parent ends."""

MOST_MAPPED = 32
"""Regions kept mapped: those of the own gateway and of gateways of this host that lend; more are mapped anew. The
memory of a gateway that has ended stays while it is mapped: what no sum has used for a while is unmapped."""


class _Sum:
    """A sum that is mapped here."""

    def __init__(self, job: Begin, descriptor: int) -> None:
        # this copy of the descriptor holds the lock on the slot, as long as it may be written to
        self._descriptor = os.dup(descriptor)
        # all pages at once: a fault for each would take as long as adding a whole update
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self._mapping = mmap.mmap(self._descriptor, job.length, flags=flags, offset=job.offset)
        self.planes_bytes = planes_bytes(job.shapes)
        adder = adder_for(Order(job.order), job.parties)
        self.accumulator: Accumulator | None = Accumulator(
            memoryview(self._mapping), list(planes_of(job.shapes)), adder
        )

    def close(self) -> None:
        self.accumulator = None
        with contextlib.suppress(BufferError):
            self._mapping.close()
        os.close(self._descriptor)


class Worker:
    """Does jobs, one after the other."""

    def __init__(self) -> None:
        self._sums: dict[int, _Sum] = {}
        self._mapped: OrderedDict[tuple[int, int], memoryview] = OrderedDict()
        self._used: set[tuple[int, int]] = set()

    def do(self, job: Job, descriptors: list[int]) -> JobAnswer:
        """Do a job; the descriptors that came with it are closed by whoever calls."""
        match job:
            case Begin():
                self._sums[job.sum_id] = _Sum(job, descriptors[0])
            case Add():
                return self._add(job, descriptors[0])
            case Finish():
                accumulator = self._sums[job.sum_id].accumulator
                assert accumulator is not None
                accumulator.finish()
            case End():
                self._sums.pop(job.sum_id).close()
                if not self._sums:
                    self._forget_unused()
        return Done()

    def _add(self, job: Add, descriptor: int) -> JobAnswer:
        its = self._sums[job.sum_id]
        assert its.accumulator is not None
        update = self._map(descriptor, keep=job.keep_mapped)
        if not 0 <= job.offset <= len(update) - its.planes_bytes:
            return Unfit("its arrays do not lie in the file")
        try:
            its.accumulator.add(job.number, update, job.offset, job.parties)
        except UnfitError as error:
            return Unfit(str(error))
        return Done()

    def _map(self, descriptor: int, *, keep: bool) -> memoryview:
        status = os.fstat(descriptor)
        name = status.st_dev, status.st_ino
        self._used.add(name)
        if (known := self._mapped.get(name)) is not None:
            self._mapped.move_to_end(name)
            return known
        # of an opening of its own: what holds the slot is the lock of the descriptor that came, and that is closed soon
        own = memory_files.open_for_reading(descriptor)
        try:
            mapped = memoryview(mmap.mmap(own, status.st_size, prot=mmap.PROT_READ))
        finally:
            os.close(own)
        if keep:
            self._mapped[name] = mapped
            if len(self._mapped) > MOST_MAPPED:
                self._mapped.popitem(last=False)
        return mapped

    def _forget_unused(self) -> None:
        for name in [name for name in self._mapped if name not in self._used]:
            del self._mapped[name]
        self._used.clear()


def main(arguments: list[str]) -> None:
    gateway = socket.socket(fileno=int(arguments[0]))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    worker = Worker()
    while True:
        try:
            prefix, descriptors = receive_with_descriptors(gateway, LENGTH_PREFIX.size, 1)
            body, _ = receive_with_descriptors(gateway, LENGTH_PREFIX.unpack(prefix)[0], 0)
        except (EOFError, OSError):
            return
        try:
            answer = worker.do(decode_job(body), descriptors)
        finally:
            close_all(descriptors)
        try:
            gateway.sendall(encode(answer))
        except OSError:
            return


if __name__ == "__main__":
    main(sys.argv[1:])
