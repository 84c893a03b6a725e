"""The connections of one task process to its gateway, and what it holds there."""

from __future__ import annotations

import dataclasses
import logging
import mmap
import os
import secrets
import socket
import threading
import weakref
from collections import deque
from pathlib import Path

from fedrdma_fate.client.protocol import (
    CLIENT_PROTOCOL_VERSION,
    Attach,
    Attached,
    Notice,
    ReleaseLeases,
    Reply,
    Request,
    encode_message,
)
from fedrdma_fate.client.rpc import call_for_descriptors, connect, expect_with_descriptor
from fedrdma_fate.memory.mapping import WritableMapping, make_private, map_for_writing
from fedrdma_fate.unix_sockets import close_all
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import Mode, Party

logger = logging.getLogger(__name__)

ATTACH_SECONDS = 60.0
"""For the answer to an attach, which a gateway gives at once: one that has no descriptor left lets the connection wait
in the kernel, and its tasks are to hear of that."""


@dataclasses.dataclass(frozen=True, slots=True)
class Membership:
    """Who connects: the gateway's socket, the session, the party, the mode it asks for, its time-out in seconds, and
    who is in the session, None where that is not known."""

    path: Path
    session: str
    party: Party
    mode: Mode | None
    timeout: float
    parties: tuple[Party, ...] | None = None


class Connections:
    """One run of a gateway as one process sees it. Any thread may use it.

    Leases belong to the process that got them and to the run of the gateway that gave them: a forked child makes its
    own Connections, and after a restart of the gateway nothing here is of use.
    """

    def __init__(self, membership: Membership) -> None:
        """Attach.

        Raises:
            GatewayError: GATEWAY_UNREACHABLE after `timeout` seconds, WRONG_PARTY, CLIENT_PROTOCOL.
            MemoryPoolError: REGION_UNAVAILABLE when the send region cannot be mapped.
        """
        self._membership = membership
        self._client_id = secrets.token_hex(8)
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._owed: deque[int] = deque()
        self._mapped: dict[int, weakref.ref[mmap.mmap]] = {}
        # the first connection only carries releases
        self._releases, attached, region = self._open(membership.timeout)
        self._incarnation = attached.incarnation
        try:
            self._send_region = map_for_writing(region)
        except BaseException:
            self._releases.close()
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
            GatewayError: GATEWAY_UNREACHABLE; SESSION_CLOSED when the gateway was restarted; CLIENT_PROTOCOL.
        """
        reply, descriptors = self.call_for_descriptors(request)
        close_all(descriptors)
        return reply

    def call_for_descriptors(self, request: Request) -> tuple[Reply, list[int]]:
        """As `call`; the reply, and the descriptors that came with it, which whoever called closes.

        Raises:
            GatewayError: as `call`.
        """
        connection = self._take()
        try:
            answer = call_for_descriptors(connection, request, self._membership.path, self._on_notice)
        except BaseException:
            connection.close()
            self._drop_idle()
            raise
        with self._lock:
            self._idle.append(connection)
        self._pay()
        return answer

    def slot(self, offset: int, length: int) -> memoryview:
        """A leased piece of the send region."""
        with self._lock:
            return self._send_region.slot(offset, length)

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
            self._owed.extend(leases)
            self._pay()

    def close(self) -> None:
        """Close this process's descriptors, in a child those it has inherited; leases still held go back."""
        self._drop_idle()
        self._releases.close()
        if self.of_this_process:
            _unmap(self._send_region)

    def _pay(self) -> None:
        while self._owed:
            try:
                lease = self._owed.popleft()
            except IndexError:
                # another thread was faster
                return
            try:
                self._releases.send(encode_message(ReleaseLeases((lease,))), socket.MSG_DONTWAIT)
            except BlockingIOError:
                # the next request tries again
                self._owed.append(lease)
                return
            except OSError:
                # where the gateway is gone, so are its leases
                return

    def _take(self) -> socket.socket:
        """A connection that no other thread uses."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        connection, attached, region = self._open(0.0)
        os.close(region)
        if attached.incarnation != self._incarnation:
            connection.close()
            raise GatewayError(
                ErrorCode.SESSION_CLOSED,
                f"the gateway at unix://{self._membership.path} was restarted, and the session "
                f"{self._membership.session!r} of {self._membership.party} ended with its earlier run.",
                "Run the job again.",
            )
        return connection

    def _open(self, timeout: float) -> tuple[socket.socket, Attached, int]:
        """Connect and attach, which brings a descriptor of the send region; a gateway to come is waited for."""
        member = self._membership
        connection = connect(member.path, timeout)
        try:
            attach = Attach(
                CLIENT_PROTOCOL_VERSION, self._client_id, member.session, member.party, member.mode, member.parties
            )
            connection.settimeout(ATTACH_SECONDS)
            reply, descriptors = call_for_descriptors(connection, attach, member.path)
            connection.settimeout(None)
            return connection, *expect_with_descriptor(reply, descriptors, Attached)
        except BaseException:
            connection.close()
            raise

    def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _unmap(region: WritableMapping) -> None:
    try:
        region.close()
    except BufferError:
        # a slot's view is still held somewhere; the mapping goes when it does
        return
