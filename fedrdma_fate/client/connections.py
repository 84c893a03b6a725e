"""The connections of one task process to its gateway, and what it holds there."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import mmap
import os
import secrets
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fedrdma_fate.client.access import TaskAccess
from fedrdma_fate.client.protocol import (
    CLIENT_PROTOCOL_VERSION,
    MOST_HELD,
    SECRET_BYTES,
    Attach,
    Attached,
    Commit,
    Done,
    Error,
    Get,
    GoOn,
    GotSlot,
    Leased,
    Notice,
    PutInline,
    ReleaseLeases,
    Reply,
    Request,
    ReturnLease,
    Sum,
    Summed,
    encode_message,
)
from fedrdma_fate.client.rpc import (
    NotAskedError,
    call,
    call_for_descriptors,
    connect,
    expect,
    expect_with_descriptor,
    is_gone_for_good,
)
from fedrdma_fate.memory.mapping import WritableMapping, make_private, map_for_writing
from fedrdma_fate.unix_sockets import close_all
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from fedrdma_fate.wire.frames import Mode, Party

logger = logging.getLogger(__name__)

ATTACH_SECONDS = 60.0
"""For the answer to an attach, which a gateway gives at once: one that has no descriptor left lets the connection wait
in the kernel, and its tasks are to hear of that."""


_STOPPING_SECONDS = 0.1
"""Between two questions to a gateway that is stopping, as between two attempts to reach one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Membership:
    """Who connects: the gateway's socket, the session, the party, the mode it asks for, its time-out in seconds, who is
    in the session, None where that is not known, and whether it is for a message or two by one thread: a second
    connection is then worth its while only once there is something to release. With access, the gateway is on another
    host."""

    path: Path
    session: str
    party: Party
    mode: Mode | None
    timeout: float
    parties: tuple[Party, ...] | None = None
    brief: bool = False
    access: TaskAccess | None = None


class _UnansweredError(GatewayError):
    """A request was sent, and had no answer."""


class _StoppingError(GatewayError):
    """The gateway is stopping, and another run of it may come."""


class Connections:
    """A gateway as one process sees it. Any thread may use it.

    Leases belong to the process that got them: a forked child makes its own Connections. Where the gateway is killed,
    its next run goes on with them, if it comes in time: until then calls wait, and then they are made again.
    """

    def __init__(self, membership: Membership) -> None:
        """Attach.

        Raises:
            GatewayError: GATEWAY_UNREACHABLE after `timeout` seconds, WRONG_PARTY, CLIENT_PROTOCOL.
            MemoryPoolError: REGION_UNAVAILABLE when the send region cannot be mapped.
        """
        self._membership = membership
        self._client_id = secrets.token_hex(8)
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._going_on = threading.Lock()
        self._patience = 0.0
        self._calls = 0
        self._no_call = threading.Condition(self._lock)
        self._held: set[int] = set()
        self._unanswered: set[int] = set()
        self._gets = itertools.count(1)
        self._highest = 0
        self._idle: list[socket.socket] = []
        self._owed: deque[int] = deque()
        self._mapped: dict[int, weakref.ref[mmap.mmap]] = {}
        connection, attached, region = self._open(membership.timeout)
        self._incarnation, self._patience = attached.incarnation, attached.patience
        # the first connection only carries releases
        self._releases: socket.socket | None = connection
        if membership.brief:
            self._releases, self._idle = None, [connection]
        try:
            self._region_file = _file_of(region)
            self._send_region = map_for_writing(region)
        except BaseException:
            connection.close()
            raise
        finally:
            os.close(region)

    @property
    def of_this_process(self) -> bool:
        """False in a child forked from the process that made it."""
        return self._process == os.getpid()

    def call(self, request: Request) -> Reply:
        """A request and its reply.

        Raises:
            GatewayError: GATEWAY_UNREACHABLE when there is no gateway, and none comes in time; SESSION_CLOSED when it
                was restarted, and has not what the earlier run had; CLIENT_PROTOCOL.
        """
        reply, descriptors = self.call_for_descriptors(request)
        close_all(descriptors)
        return reply

    @property
    def incarnation(self) -> str:
        """The run of the gateway that was attached to last."""
        return self._incarnation

    def call_for_descriptors(self, request: Request) -> tuple[Reply, list[int]]:
        """As `call`; the reply, and the descriptors that came with it, which whoever called closes.

        Raises:
            GatewayError: as `call`.
        """
        until: float | None = None
        ends = None
        if isinstance(request, Get | Sum) and request.timeout is not None:
            ends = time.monotonic() + request.timeout
        while True:
            try:
                with self._connection(until) as connection:
                    answer = self._ask(connection, request)
                    self._see_whether_stopping(answer[0])
            except GatewayError as error:
                self._drop_idle()
                stops = isinstance(error, _StoppingError)
                if not (stops or error.code is ErrorCode.GATEWAY_UNREACHABLE) or not self._may_come_back():
                    raise
                if stops:
                    time.sleep(_STOPPING_SECONDS)
                if isinstance(error, _UnansweredError):
                    request = _again(request)
                now = time.monotonic()
                if until is None:
                    until = now + self._patience
                    until = until if ends is None else min(until, ends)
                    # its words alone: whoever keeps what is logged would keep the frames of the error's traceback, and
                    # with them the arrays that callers have got, until it lets go of its log
                    reason = str(error)
                    logger.warning(
                        "%s waits up to %.0f s for its gateway: %s", self._membership.party, until - now, reason
                    )
                if now >= until:
                    raise
                if isinstance(request, Get | Sum) and ends is not None:
                    request = msgspec.structs.replace(request, timeout=max(0.0, ends - now))
            else:
                if self._releases is None and (self._held or self._owed):
                    self._open_releases()
                self._pay()
                return answer

    @contextlib.contextmanager
    def _connection(self, until: float | None) -> Iterator[socket.socket]:
        """A connection that no other thread uses meanwhile."""
        connection = self._take(until)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        else:
            with self._lock:
                self._idle.append(connection)
        finally:
            with self._lock:
                self._calls -= 1
                self._no_call.notify_all()

    def _ask(self, connection: socket.socket, request: Request) -> tuple[Reply, list[int]]:
        """Ask, and remember what the next run of the gateway is to know, if this one is killed."""
        if isinstance(request, Get | Sum):
            self._unanswered.add(request.number)
        try:
            answer = call_for_descriptors(connection, request, self._membership.path, self._on_notice)
        except NotAskedError:
            raise
        except GatewayError as error:
            # it may have been carried out
            raise _UnansweredError(error.code, error.message, error.remedy) from error
        if isinstance(request, Get | Sum):
            self._unanswered.discard(request.number)
        if isinstance(answer[0], Leased | GotSlot | Summed):
            self._held.add(answer[0].lease)
            with self._lock:
                self._highest = max(self._highest, answer[0].lease)
        return answer

    def _see_whether_stopping(self, reply: Reply) -> None:
        if self._patience and isinstance(reply, Error) and reply.next_run:
            raise _StoppingError(ErrorCode.GATEWAY_STOPPING, reply.message, reply.remedy)

    def _may_come_back(self) -> bool:
        return bool(self._patience) and self.of_this_process and not is_gone_for_good(self._membership.path)

    def new_get(self) -> int:
        """A number that no get or sum of this task has had."""
        return next(self._gets)

    def not_got(self, number: int, lease: int) -> None:
        """What this get has brought cannot be used here: let it wait again, for the same get made anew."""
        # where the gateway is killed meanwhile, its next run learns it in this way
        self._unanswered.add(number)
        self._held.discard(lease)
        try:
            with contextlib.suppress(FedRDMAError, OSError):
                self.call(ReturnLease(lease))
        finally:
            self._unanswered.discard(number)

    def given_away(self, lease: int) -> None:
        """A lease is the gateway's again, without being released."""
        self._held.discard(lease)

    def slot(self, leased: Leased, length: int) -> memoryview:
        """A leased piece of the send region."""
        with self._lock:
            return self._send_region.slot(leased.offset, length)

    def received(self, lease: int, buffer: memoryview) -> None:
        """A message was mapped from the gateway's receive memory, which may want it back."""
        mapping = buffer.obj
        assert isinstance(mapping, mmap.mmap)
        with self._lock:
            self._mapped = {held: there for held, there in self._mapped.items() if there() is not None}
            self._mapped[lease] = weakref.ref(mapping)

    def _on_notice(self, notice: Notice) -> None:
        logger.warning("%s waits: %s", self._membership.party, notice.message)
        if not notice.move or not self.of_this_process:
            return
        with self._lock:
            mapped, self._mapped = self._mapped, {}
        moved = 0
        for lease, there in mapped.items():
            mapping = there()
            if mapping is not None and make_private(mapping):
                moved += len(mapping)
                self.release(lease)
        if moved:
            logger.warning("%s bytes of what was got before are now memory of this process's own", moved)

    def release(self, *leases: int) -> None:
        """Give leases back: one-way and without locks, so that a finalizer may call it anywhere."""
        if self.of_this_process:
            self._held.difference_update(leases)
            self._owed.extend(leases)
            self._pay()

    def close(self) -> None:
        """Close this process's descriptors, in a child those it has inherited; leases still held go back."""
        self._drop_idle()
        if self._releases is not None:
            self._releases.close()
        if self.of_this_process:
            _unmap(self._send_region)

    def _open_releases(self) -> None:
        """Open the connection that only carries releases; where that cannot be, the next call tries again."""
        with self._going_on, contextlib.suppress(FedRDMAError, OSError):
            if self._releases is not None:
                return
            connection, attached, region = self._open(0.0)
            os.close(region)
            if attached.incarnation == self._incarnation:
                self._releases = connection
            else:
                connection.close()

    def _pay(self) -> None:
        releases = self._releases
        while self._owed and releases is not None:
            try:
                lease = self._owed.popleft()
            except IndexError:
                # another thread was faster
                return
            try:
                releases.send(encode_message(ReleaseLeases((lease,))), socket.MSG_DONTWAIT)
            except BlockingIOError:
                # the next request tries again
                self._owed.append(lease)
                return
            except OSError:
                # where the gateway is gone, the next one is told
                self._owed.append(lease)
                return

    def _take(self, until: float | None) -> socket.socket:
        """A connection that no other thread uses, for a call; until then, a gateway that is not there is waited for."""
        with self._lock:
            if self._idle:
                self._calls += 1
                return self._idle.pop()
        connection, attached, region = self._open(0.0 if until is None else max(0.0, until - time.monotonic()))
        try:
            self._go_on(connection, attached, region)
        except BaseException:
            connection.close()
            raise
        finally:
            os.close(region)
        return connection

    def _go_on(self, connection: socket.socket, attached: Attached, region: int) -> None:
        """Use a new connection for a call; where it is to another run of the gateway, go on there first.

        Raises:
            GatewayError: SESSION_CLOSED when that has not what the earlier run had; GATEWAY_UNREACHABLE.
            MemoryPoolError: REGION_UNAVAILABLE.
        """
        with self._going_on:
            if attached.incarnation != self._incarnation:
                with self._lock:
                    # on connections to the earlier run, which have ended: what they have got is to be told
                    if not self._no_call.wait_for(lambda: not self._calls, ATTACH_SECONDS):
                        raise GatewayError(ErrorCode.GATEWAY_UNREACHABLE, "a call to an earlier run has not ended.")
                self._drop_idle()
                held, unanswered = (tuple(numbers.copy())[:MOST_HELD] for numbers in (self._held, self._unanswered))
                connection.settimeout(ATTACH_SECONDS)
                expect(call(connection, GoOn(held, self._highest, unanswered), self._membership.path), Done)
                self._unanswered.clear()
                connection.settimeout(None)
                releases, again, its_region = self._open(0.0)
                os.close(its_region)
                if again.incarnation != attached.incarnation:
                    releases.close()
                    raise GatewayError(ErrorCode.GATEWAY_UNREACHABLE, "the gateway was restarted once more.")
                try:
                    self._use_region(region)
                except BaseException:
                    releases.close()
                    raise
                before, self._releases = self._releases, releases
                if before is not None:
                    before.close()
                self._incarnation, self._patience = attached.incarnation, attached.patience
                logger.warning("%s goes on with the next run of its gateway", self._membership.party)
            with self._lock:
                self._calls += 1

    def _use_region(self, region: int) -> None:
        """Where the send memory of the earlier run is gone, this one has another."""
        if (file := _file_of(region)) == self._region_file:
            return
        mapped = map_for_writing(region)
        with self._lock:
            before, self._send_region = self._send_region, mapped
            self._region_file = file
        _unmap(before)

    def _open(self, timeout: float) -> tuple[socket.socket, Attached, int]:
        """Connect and attach, which brings a descriptor of the send region; a gateway to come is waited for."""
        member = self._membership
        connection = connect(member.path, timeout)
        try:
            attach = Attach(
                CLIENT_PROTOCOL_VERSION,
                self._client_id,
                member.session,
                member.party,
                member.mode,
                member.parties,
                self._secret,
            )
            connection.settimeout(ATTACH_SECONDS)
            reply, descriptors = call_for_descriptors(connection, attach, member.path)
            self._see_whether_stopping(reply)
            connection.settimeout(None)
            return connection, *expect_with_descriptor(reply, descriptors, Attached)
        except BaseException:
            connection.close()
            raise

    def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _again(request: Request) -> Request:
    """The same request, of a gateway that may have carried it out before it was killed."""
    return msgspec.structs.replace(request, again=True) if isinstance(request, Commit | PutInline) else request


def _file_of(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _unmap(region: WritableMapping) -> None:
    try:
        region.close()
    except BufferError:
        # a slot's view is still held somewhere; the mapping goes when it does
        return
