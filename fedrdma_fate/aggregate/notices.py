"""How a worker is told of an update: by a job over its socket, with a descriptor, or by a notice that names its place.

A notice is one small record of fixed length, which carries no descriptor. So it can only name what the worker has
mapped already: its file by device and inode, as the worker knows it, and the offset there. What lies in a file that is
new, or that was spilled to, goes as a job over the socket, and so does all where anything about a notice fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from fedrdma_fate.aggregate.jobs import Add, Job

logger = logging.getLogger(__name__)

FileName = tuple[int, int]
"""Device and inode."""

OnTaken = Callable[[str, float], object]
"""Told by which way a worker was told of an update, and seconds until its addition began."""

_RECORD = struct.Struct("=IIQQQQQII")
"""Route, mark, sum, number, device, inode, offset, parties, zero. Route first: a program in the kernel reads it."""

NOTICE_BYTES = _RECORD.size

_MARK = 0x31544E46
"""`FNT1`: of this layout, which only processes of one version speak."""

MOST_KNOWN_FILES = 32
"""That a line remembers: as many as a worker keeps mapped. One that is forgotten goes as a job once more."""


class MalformedNoticeError(ValueError):
    """A record that no gateway of this version writes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Notice:
    """An update to add, that lies in a file which its reader has mapped.

    Attributes:
        sum_id: of the sum.
        number: of the update, from 1 on.
        file: it lies in.
        offset: where its planes begin there.
        parties: as in `jobs.Add`.
    """

    sum_id: int
    number: int
    file: FileName
    offset: int
    parties: int


def encode_notice(notice: Notice, route: int) -> bytes:
    """The record, for this route."""
    return _RECORD.pack(route, _MARK, notice.sum_id, notice.number, *notice.file, notice.offset, notice.parties, 0)


def decode_notice(record: bytes) -> Notice:
    """Parse a record; raises MalformedNoticeError."""
    if len(record) != NOTICE_BYTES:
        raise MalformedNoticeError(f"a notice of {len(record)} bytes")
    _, mark, sum_id, number, device, inode, offset, parties, zero = _RECORD.unpack(record)
    if mark != _MARK or zero or not number:
        raise MalformedNoticeError("no notice of this version")
    return Notice(sum_id, number, (device, inode), offset, parties)


def file_name(descriptor: int) -> FileName:
    """By what both ends know a file.

    Raises:
        OSError: it is no open descriptor.
    """
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


class Line(Protocol):
    """How one run of a worker is told of updates. Belongs to the event loop's thread."""

    @property
    def way(self) -> str:
        """Name of the way that notices go."""
        ...

    @property
    def descriptor(self) -> int | None:
        """Of the end that the worker inherits; None where all comes over its socket."""
        ...

    def handed_over(self) -> None:
        """The worker has its end, and this process needs it no longer."""
        ...

    def tell(self, job: Job, descriptor: int | None, /) -> bool:
        """Tell of an update by a notice; where it is False, the job has to go over the socket."""
        ...

    def has_mapped(self, job: Job, descriptor: int | None) -> None:
        """The worker has done this job, and so has mapped the file that came with it."""
        ...

    def has_not_mapped(self, descriptor: int) -> None:
        """The worker has the file mapped no longer."""
        ...

    def close(self) -> None:
        """The worker is gone. May be repeated."""
        ...


class Notices(Protocol):
    """A way for notices."""

    @property
    def way(self) -> str:
        """Its name."""
        ...

    @property
    def reason(self) -> str:
        """Why it is not the way that was asked for; empty where it is."""
        ...

    def open(self) -> Line:
        """For a run of a worker; never fails, for there is always the socket."""
        ...

    def taken(self, way: str, seconds: float) -> None:
        """A worker has begun to add an update, so long after it was told by this way."""
        ...

    def passed(self) -> int:
        """How many notices the kernel has passed on, as it has counted itself; any thread may ask."""
        ...

    def close(self) -> None:
        """Give back what it holds. May be repeated."""
        ...


class SocketLine:
    """Every job goes over the worker's socket."""

    way = "socket"
    descriptor: int | None = None

    def handed_over(self) -> None:
        """See `Line`."""

    def tell(self, _job: Job, _descriptor: int | None) -> bool:
        """See `Line`."""
        return False

    def has_mapped(self, job: Job, descriptor: int | None) -> None:
        """See `Line`."""

    def has_not_mapped(self, descriptor: int) -> None:
        """See `Line`."""

    def close(self) -> None:
        """See `Line`."""


class SocketNotices:
    """The socket from the gateway straight to its worker."""

    way = "socket"

    def __init__(self, on_taken: OnTaken = lambda _way, _seconds: None, reason: str = "") -> None:
        """
        Args:
            on_taken: see `OnTaken`.
            reason: see `Notices`.
        """
        self._on_taken = on_taken
        self.reason = reason

    def open(self) -> Line:
        """See `Notices`."""
        return SocketLine()

    def taken(self, way: str, seconds: float) -> None:
        """See `Notices`."""
        self._on_taken(way, seconds)

    def passed(self) -> int:
        """See `Notices`."""
        return 0

    def close(self) -> None:
        """See `Notices`."""


class RecordLine:
    """Notices go as records into a stream of their own.

    Where one cannot be written, whole and at once, none goes there any more: a reader could not tell where the next
    begins, and what the kernel has refused once on a socket it refuses for ever.
    """

    def __init__(
        self,
        way: str,
        ours: socket.socket,
        its: socket.socket,
        route: int = 0,
        on_closed: Callable[[], object] = lambda: None,
    ) -> None:
        """
        Args:
            way: its name.
            ours: that records are written to; belongs to this from now on.
            its: the worker's end, likewise.
            route: that records are for.
            on_closed: called once, when nothing is written any more.
        """
        self.way = way
        self._ours, self._its = ours, its
        self._ours.setblocking(False)
        self._route = route
        self._on_closed: Callable[[], object] | None = on_closed
        self._known: OrderedDict[FileName, None] = OrderedDict()

    @property
    def descriptor(self) -> int | None:
        """See `Line`."""
        return self._its.fileno() if self._on_closed is not None else None

    def handed_over(self) -> None:
        """See `Line`."""
        self._its.close()

    def tell(self, job: Job, descriptor: int | None) -> bool:
        """See `Line`."""
        if self._on_closed is None or descriptor is None or not isinstance(job, Add) or not job.keep_mapped:
            return False
        try:
            name = file_name(descriptor)
            if name not in self._known:
                return False
            self._known.move_to_end(name)
            record = encode_notice(Notice(job.sum_id, job.number, name, job.offset, job.parties), self._route)
            sent = self._ours.send(record)
        except OSError as error:
            self._give_up(str(error))
            return False
        if sent != len(record):
            self._give_up(f"only {sent} of {len(record)} bytes were taken")
            return False
        return True

    def has_mapped(self, job: Job, descriptor: int | None) -> None:
        """See `Line`."""
        if descriptor is None or not isinstance(job, Add) or not job.keep_mapped:
            return
        self._known[file_name(descriptor)] = None
        if len(self._known) > MOST_KNOWN_FILES:
            self._known.popitem(last=False)

    def has_not_mapped(self, descriptor: int) -> None:
        """See `Line`."""
        self._known.pop(file_name(descriptor), None)

    def close(self) -> None:
        """See `Line`."""
        when_closed, self._on_closed = self._on_closed, None
        if when_closed is not None:
            when_closed()
        for each in (self._ours, self._its):
            with contextlib.suppress(OSError):
                each.close()

    def _give_up(self, reason: str) -> None:
        logger.warning("a worker is told of updates over its socket from now on: no notice by %s: %s", self.way, reason)
        self.close()
