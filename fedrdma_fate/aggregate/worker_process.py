"""The program of a worker: it maps regions, adds the updates that it is told of, and ends with its gateway.

Arguments: descriptor of the socket to its gateway, and, where there is one, of what notices come from. It knows nothing
of messages, sessions or FATE; what the next one has to know where it is killed lies in the accumulator.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections import OrderedDict

from fedrdma_fate import memory_files
from fedrdma_fate.aggregate.accumulator import Accumulator
from fedrdma_fate.aggregate.arithmetic import UnfitError, adder_for
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
    Unfit,
    Unmapped,
    decode_job,
    encode,
)
from fedrdma_fate.aggregate.notices import NOTICE_BYTES, FileName, Notice, decode_notice, file_name
from fedrdma_fate.core.fold import Order
from fedrdma_fate.memory.shared_slots import hold_range, let_go_range
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
        self._range = job.offset, job.length
        # all pages at once: a fault for each would take as long as adding a whole update
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self._mapping = mmap.mmap(self._descriptor, job.length, flags=flags, offset=job.offset)
        self.planes_bytes = planes_bytes(job.shapes)
        adder = adder_for(Order(job.order), job.parties)
        self.accumulator: Accumulator | None = Accumulator(
            memoryview(self._mapping), list(planes_of(job.shapes)), adder
        )

    def let_go(self) -> None:
        """Nothing is written to it any more: the lock goes, which would stay as long as the slot is mapped."""
        self.accumulator = None
        with contextlib.suppress(OSError):
            let_go_range(self._descriptor, *self._range)

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            self._mapping.close()
        os.close(self._descriptor)


@dataclasses.dataclass(frozen=True, slots=True)
class _File:
    """What is mapped, for reading, and a descriptor of an opening of its own; -1: it is not kept."""

    view: memoryview
    descriptor: int

    def close(self) -> None:
        # what is mapped stays so while something uses it
        if self.descriptor >= 0:
            os.close(self.descriptor)


class Worker:
    """Does jobs, one after the other."""

    def __init__(self) -> None:
        self._sums: dict[int, _Sum] = {}
        self._mapped: OrderedDict[FileName, _File] = OrderedDict()
        self._used: set[FileName] = set()
        self._over: list[_Sum] = []

    def do(self, job: Job, descriptors: list[int]) -> JobAnswer:
        """Do a job; the descriptors that came with it are closed by whoever calls."""
        match job:
            case Begin():
                self._sums[job.sum_id] = _Sum(job, descriptors[0])
            case Add():
                return self._add(job, descriptors[0])
            case AddLast():
                return self._add_last(job, descriptors[0])
            case Finish():
                accumulator = self._sums[job.sum_id].accumulator
                assert accumulator is not None
                accumulator.finish()
            case End():
                self._end(job.sum_id)
        return Done()

    def tidy(self) -> None:
        """Unmap what is of no use any more, when the answer has gone: a task waits for it, and this takes a while."""
        for its in self._over:
            its.close()
        if self._over and not self._sums:
            self._forget_unused()
        self._over.clear()

    def take(self, notice: Notice) -> JobAnswer:
        """Add what a notice tells of.

        Raises:
            OSError: the bytes are not its to read.
        """
        its = self._sums[notice.sum_id]
        if (known := self._known(notice.file)) is None:
            return Unmapped()
        # no descriptor came that holds the slot, and the gateway's lock ends with the gateway
        hold_range(known.descriptor, notice.offset, its.planes_bytes)
        try:
            return self._add_from(known.view, notice.sum_id, notice.number, notice.offset, notice.parties)
        finally:
            let_go_range(known.descriptor, notice.offset, its.planes_bytes)

    def _add(self, job: Add, descriptor: int) -> JobAnswer:
        update = self._map(descriptor, keep=job.keep_mapped)
        return self._add_from(update, job.sum_id, job.number, job.offset, job.parties)

    def _add_from(self, update: memoryview, sum_id: int, number: int, offset: int, parties: int) -> JobAnswer:
        its = self._sums[sum_id]
        assert its.accumulator is not None
        if not 0 <= offset <= len(update) - its.planes_bytes:
            return Unfit("its arrays do not lie in the file")
        began = time.monotonic()
        try:
            its.accumulator.add(number, update, offset, parties)
        except UnfitError as error:
            return Unfit(str(error))
        return Done(began)

    def _add_last(self, job: AddLast, descriptor: int) -> JobAnswer:
        sum_, total = self._sums[job.sum_id], self._sums[job.total_id].accumulator
        assert sum_.accumulator is not None
        assert total is not None
        update = self._map(descriptor, keep=job.keep_mapped)
        if not 0 <= job.offset <= len(update) - sum_.planes_bytes:
            return Unfit("its arrays do not lie in the file")
        began = time.monotonic()
        try:
            sum_.accumulator.add_last(total, update, job.offset, range(job.start, job.end), job.parties)
        except UnfitError as error:
            return Unfit(str(error))
        if job.is_end:
            total.be_finished()
            self._end(job.total_id)
            self._end(job.sum_id)
        return Done(began)

    def _end(self, sum_id: int) -> None:
        its = self._sums.pop(sum_id)
        its.let_go()
        self._over.append(its)

    def _known(self, name: FileName) -> _File | None:
        self._used.add(name)
        if (known := self._mapped.get(name)) is not None:
            self._mapped.move_to_end(name)
        return known

    def _map(self, descriptor: int, *, keep: bool) -> memoryview:
        name = file_name(descriptor)
        if (known := self._known(name)) is not None:
            return known.view
        # of an opening of its own: what holds the slot is the lock of the descriptor that came, and that is closed soon
        own = memory_files.open_for_reading(descriptor)
        try:
            mapped = memoryview(mmap.mmap(own, os.fstat(own).st_size, prot=mmap.PROT_READ))
        except BaseException:
            os.close(own)
            raise
        if not keep:
            os.close(own)
            return mapped
        self._mapped[name] = _File(mapped, own)
        if len(self._mapped) > MOST_MAPPED:
            self._mapped.popitem(last=False)[1].close()
        return mapped

    def _forget_unused(self) -> None:
        for name in [name for name in self._mapped if name not in self._used]:
            self._mapped.pop(name).close()
        self._used.clear()


class _NoticeReader:
    """What notices come from, until it ends."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection: socket.socket | None = connection

    def next(self, gateway: socket.socket) -> Notice | None:
        """Wait for a notice, or for something from the gateway, and then it is None.

        Raises:
            MalformedNoticeError: what came is none.
        """
        if self._connection is None:
            return None
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(gateway, select.POLLIN)
        if self._connection.fileno() not in dict(poll.poll()):
            return None
        try:
            record, _ = receive_with_descriptors(self._connection, NOTICE_BYTES, 0)
        except (EOFError, OSError):
            # the gateway has given it up, and a piece of a record is none: all comes over the socket
            self._connection.close()
            self._connection = None
            return None
        return decode_notice(record)


def main(arguments: list[str]) -> None:
    gateway, *notices_from = (socket.socket(fileno=int(each)) for each in arguments)
    notices = _NoticeReader(notices_from[0]) if notices_from else None
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    worker = Worker()
    while True:
        if notices is not None and (notice := notices.next(gateway)) is not None:
            answer = worker.take(notice)
        else:
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
        worker.tidy()


if __name__ == "__main__":
    main(sys.argv[1:])
