"""The connections of a task to a gateway on another host: TLS over TCP, and payloads that travel in pieces.

What `Connections` does by shared memory is done here by copies: a leased slot is memory of this process until it is
committed, and a message is fetched into a file of this process when it is got. Nothing outlives the connection: where
it breaks, or the gateway is killed, whoever called has an error, and a computing engine runs its task again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import mmap
import os
import secrets
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator

import msgspec

from fedrdma_fate import memory_files
from fedrdma_fate.client.access import TaskAccess
from fedrdma_fate.client.connections import Connections, Membership
from fedrdma_fate.client.protocol import (
    CLIENT_PROTOCOL_VERSION,
    LENGTH_PREFIX,
    REMOTE_PIECE_BYTES,
    AskStatus,
    Attach,
    Attached,
    Commit,
    Done,
    Enter,
    Error,
    ExpectSum,
    Fetch,
    Fill,
    Get,
    GotSlot,
    Leased,
    LeaseSlot,
    Notice,
    NotSummed,
    Piece,
    ReleaseLeases,
    RemoteRequest,
    Reply,
    Request,
    ReturnLease,
    StatusReport,
    Sum,
    Written,
    decode_reply,
    encode_message,
    frame_length,
)
from fedrdma_fate.client.rpc import expect
from fedrdma_fate.memory.region import region_unusable
from fedrdma_fate.security.gateway_proof import secured
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, WireError

logger = logging.getLogger(__name__)

_ENTER_SECONDS = 10.0
"""To connect, for TLS, and for the answer to the secret: each takes a round trip or two."""

_RETRY_SECONDS = 0.2
"""Between two attempts to reach a gateway that may be about to listen, or has too many newcomers."""

_PIECES_UNDER_WAY = 4
"""Asked for ahead, so that a round trip costs no time: 4 MiB are what 1 Gbit/s carries in 32 ms."""

KEEPALIVE_SECONDS = 30
"""Without a word until the kernel asks whether the other host is there, and _PROBES times 10 s more until it gives up:
a get may wait for hours, and nothing else tells it that there is nobody any more."""

_PROBE_SECONDS, _PROBES = 10, 3


_NO_LEASE = 0
"""The gateway's numbers begin with 1."""


class RemoteConnections:
    """A gateway on another host as one process sees it. Any thread may use it; a forked child makes its own."""

    def __init__(self, membership: Membership, access: TaskAccess) -> None:
        """Attach.

        Raises:
            GatewayError: GATEWAY_UNREACHABLE after `timeout` seconds, NO_TASK_ACCESS, WRONG_PARTY, CLIENT_PROTOCOL.
            TransportError: TLS_REFUSED or PEER_IDENTITY: it is not this site's gateway that answers.
        """
        self._membership = membership
        self._access = access
        self._client_id = secrets.token_hex(8)
        self._process = os.getpid()
        # a finalizer that releases may run in a thread that has it
        self._lock = threading.RLock()
        self._gets = itertools.count(1)
        # by numbers of our own: the gateway begins anew with its own where the last connection broke
        self._numbers = itertools.count(1)
        self._leases: dict[int, int] = {}
        self._buffers: dict[int, mmap.mmap] = {}
        self._filled_from: dict[int, int] = {}
        self._owed: deque[int] = deque()
        connection, attached = self._open(membership.timeout)
        self._incarnation = attached.incarnation
        self._idle = [connection]

    # -- as `Connections` ------------------------------------------------------------------------------------------

    @property
    def of_this_process(self) -> bool:
        """False in a child forked from the process that made it."""
        return self._process == os.getpid()

    @property
    def incarnation(self) -> str:
        """The run of the gateway that was attached to first."""
        return self._incarnation

    def call(self, request: Request) -> Reply:
        """A request and its reply; of a message that was got, what `call_for_descriptors` brings is closed.

        Raises:
            GatewayError: GATEWAY_UNREACHABLE, CLIENT_PROTOCOL.
        """
        reply, descriptors = self.call_for_descriptors(request)
        for descriptor in descriptors:
            os.close(descriptor)
        return reply

    def call_for_descriptors(self, request: Request) -> tuple[Reply, list[int]]:
        """A request and its reply, and the file that a message was fetched into; whoever called closes it.

        Raises:
            GatewayError: as `call`.
            MemoryPoolError: REGION_UNAVAILABLE where there is no room for a message here; it waits for another get.
        """
        if isinstance(request, Sum):
            # its planes would travel like the updates themselves, and the task can add as well
            return NotSummed("this task is not on its gateway's host", expected=True), []
        if isinstance(request, ExpectSum):
            return Done(), []
        with self._connection() as connection:
            self._pay(connection)
            if isinstance(request, Commit | Written):
                if not isinstance(request, Commit):
                    self._fill(connection, request.lease, request.written_from)
                elif not request.unfinished:
                    self._fill(connection, request.lease, 0)
                # of one that went with its connection the gateway says that it knows none
                request = msgspec.structs.replace(request, lease=self._leases.get(request.lease, _NO_LEASE))
            reply = self._ask(connection, request)
            if isinstance(request, LeaseSlot) and isinstance(reply, Leased):
                return self._make_buffer(reply, request.total_bytes), []
            if isinstance(request, Get) and isinstance(reply, GotSlot):
                descriptor = self._fetch(connection, reply)
                fetched = GotSlot(reply.kind, reply.lease, "spilled", 0, reply.total_bytes, reply.missing)
                return fetched, [descriptor]
            return reply, []

    def new_get(self) -> int:
        """A number that no get of this task has had."""
        return next(self._gets)

    def not_got(self, number: int, lease: int) -> None:
        """What was fetched cannot be used here. The gateway has it no longer, unless it keeps it for another get."""
        del number, lease

    def given_away(self, lease: int) -> None:
        """A lease is the gateway's again, without being released."""
        self._forget(lease)

    def slot(self, leased: Leased, length: int) -> memoryview:
        """The memory of a leased slot."""
        return memoryview(self._buffers[leased.lease])[:length]

    def received(self, lease: int, buffer: memoryview) -> None:
        """A message was mapped: it is memory of this process, and nobody's else."""
        del lease, buffer

    def release(self, *leases: int) -> None:
        """Give send slots back; of what was got nothing is held. A finalizer may call it for that anywhere."""
        if not self.of_this_process:
            return
        held = [number for lease in leases if (number := self._forget(lease)) is not None]
        if not held:
            return
        self._owed.extend(held)
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            # the call that is being made pays when it is followed by another
            return
        with contextlib.suppress(OSError):
            self._pay(connection)
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        """Close this process's descriptors, in a child those it has inherited; leases still held go back."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        self._buffers.clear()
        self._leases.clear()

    # -- connections -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _connection(self) -> Iterator[ssl.SSLSocket]:
        """A connection that no other thread uses meanwhile; one that fails is used no more.

        Raises:
            GatewayError: GATEWAY_UNREACHABLE, CLIENT_PROTOCOL.
        """
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection, _ = self._open(0.0)
        try:
            yield connection
        except (OSError, EOFError) as error:
            connection.close()
            raise _unreachable(self._access, error) from error
        except WireError as error:
            connection.close()
            raise GatewayError(
                ErrorCode.CLIENT_PROTOCOL, error.message, "Run the same fedrdma-fate version here and in the gateway."
            ) from error
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)

    def _open(self, timeout: float) -> tuple[ssl.SSLSocket, Attached]:
        member = self._membership
        connection = entered(self._access, timeout)
        try:
            attach = Attach(
                CLIENT_PROTOCOL_VERSION, self._client_id, member.session, member.party, member.mode, member.parties
            )
            attached = expect(self._ask(connection, attach), Attached)
            connection.settimeout(None)
        except (OSError, EOFError) as error:
            connection.close()
            raise _unreachable(self._access, error) from error
        except BaseException:
            connection.close()
            raise
        return connection, attached

    def _ask(self, connection: ssl.SSLSocket, request: RemoteRequest) -> Reply:
        connection.sendall(encode_message(request))
        return self._reply(connection)

    def _reply(self, connection: ssl.SSLSocket) -> Reply:
        while isinstance(reply := _read_reply(connection), Notice):
            logger.warning("%s waits: %s", self._membership.party, reply.message)
        return reply

    def _pay(self, connection: ssl.SSLSocket) -> None:
        while self._owed:
            try:
                lease = self._owed.popleft()
            except IndexError:
                # another thread was faster
                return
            connection.sendall(encode_message(ReleaseLeases((lease,))))

    # -- payloads --------------------------------------------------------------------------------------------------

    def _make_buffer(self, leased: Leased, total_bytes: int) -> Leased:
        """The lease by a number of our own, which was no other's."""
        for gone in [lease for lease, number in list(self._leases.items()) if number == leased.lease]:
            # it went with its connection, and is not to be taken for this one when somebody lets go of it
            self._forget(gone)
        try:
            buffer = mmap.mmap(-1, max(1, total_bytes))
        except OSError as error:
            self._owed.append(leased.lease)
            raise region_unusable("memory for a payload", error) from error
        own = next(self._numbers)
        self._leases[own], self._buffers[own], self._filled_from[own] = leased.lease, buffer, total_bytes
        return msgspec.structs.replace(leased, lease=own)

    def _forget(self, lease: int) -> int | None:
        """The gateway's number of a lease that is ours no more; None where it was none."""
        self._filled_from.pop(lease, None)
        self._buffers.pop(lease, None)
        return self._leases.pop(lease, None)

    def _fill(self, connection: ssl.SSLSocket, lease: int, start: int) -> None:
        """Bring what lies in a slot from there on to the gateway: it is written from its end to its start."""
        end, buffer = self._filled_from.get(lease, 0), self._buffers.get(lease)
        if buffer is None or end <= start:
            return
        with memoryview(buffer) as payload:
            for at in range(start, end, REMOTE_PIECE_BYTES):
                body = bytes(payload[at : min(at + REMOTE_PIECE_BYTES, end)])
                connection.sendall(encode_message(Fill(self._leases[lease], at, body)))
        self._filled_from[lease] = start

    def _fetch(self, connection: ssl.SSLSocket, slot: GotSlot) -> int:
        """Bring a message here, into a file of this process.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE: there is no room for it; the gateway is given it back.
        """
        try:
            descriptor = memory_files.make("fedrdma-received")
        except OSError as error:
            raise self._no_room(connection, slot, error) from error
        try:
            try:
                os.ftruncate(descriptor, slot.total_bytes)
            except OSError as error:
                raise self._no_room(connection, slot, error) from error
            self._fetch_into(connection, slot, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        connection.sendall(encode_message(ReleaseLeases((slot.lease,))))
        return descriptor

    def _no_room(self, connection: ssl.SSLSocket, slot: GotSlot, error: OSError) -> Exception:
        self._ask(connection, ReturnLease(slot.lease))
        return region_unusable("memory for a message", error)

    def _fetch_into(self, connection: ssl.SSLSocket, slot: GotSlot, descriptor: int) -> None:
        asked = at = 0
        while at < slot.total_bytes:
            while asked < slot.total_bytes and asked < at + _PIECES_UNDER_WAY * REMOTE_PIECE_BYTES:
                length = min(REMOTE_PIECE_BYTES, slot.total_bytes - asked)
                connection.sendall(encode_message(Fetch(slot.lease, asked, length)))
                asked += length
            piece = expect(self._reply(connection), Piece).body
            if len(piece) != min(REMOTE_PIECE_BYTES, slot.total_bytes - at):
                raise WireError(ErrorCode.MALFORMED_FRAME, f"{len(piece)} bytes came in place of those asked for.")
            view = memoryview(piece)
            while view:
                written = os.pwrite(descriptor, view, at)
                view, at = view[written:], at + written


AnyConnections = Connections | RemoteConnections
"""How a task has its gateway: on this host, or on another."""


def connections_of(membership: Membership) -> AnyConnections:
    """Attach, as the membership says.

    Raises:
        FedRDMAError: see `Connections` and `RemoteConnections`.
    """
    access = membership.access
    return Connections(membership) if access is None else RemoteConnections(membership, access)


def entered(access: TaskAccess, timeout: float) -> ssl.SSLSocket:
    """A connection whose gateway knows that a task of its site is at the other end; still with a time-out.

    Args:
        access: how to get there.
        timeout: seconds to wait for a gateway that is not there yet.

    Raises:
        GatewayError: GATEWAY_UNREACHABLE, or NO_TASK_ACCESS where the secret is not the gateway's.
        TransportError: TLS_REFUSED or PEER_IDENTITY.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection = _connected(access)
        except (OSError, EOFError) as error:
            if time.monotonic() >= deadline:
                raise _unreachable(access, error) from error
            time.sleep(_RETRY_SECONDS)
            continue
        try:
            connection.sendall(encode_message(Enter(access.secret)))
            expect(_read_reply(connection), Done)
        except (OSError, EOFError) as error:
            connection.close()
            if time.monotonic() >= deadline:
                raise _unreachable(access, error) from error
            time.sleep(_RETRY_SECONDS)
        except BaseException:
            connection.close()
            raise
        else:
            return connection


def ask_remote_status(access: TaskAccess) -> bytes:
    """The status document of a gateway on another host, as JSON.

    Raises:
        GatewayError: see `entered`; CLIENT_PROTOCOL.
        TransportError: see there.
    """
    connection = entered(access, 0.0)
    try:
        connection.sendall(encode_message(AskStatus()))
        return expect(_read_reply(connection), StatusReport).document
    except (OSError, EOFError) as error:
        raise _unreachable(access, error) from error
    finally:
        connection.close()


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel find out when the other host is gone, and send small frames at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    # the same for what is under way, in milliseconds (tcp(7)): keepalive says nothing then
    patience = (KEEPALIVE_SECONDS + _PROBES * _PROBE_SECONDS) * 1000
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)


def _connected(access: TaskAccess) -> ssl.SSLSocket:
    plain = socket.create_connection(access.host_and_port, _ENTER_SECONDS)
    try:
        keep_alive(plain)
        return secured(plain, access.authorities, access.site)
    except BaseException:
        plain.close()
        raise


def _read_reply(connection: ssl.SSLSocket) -> Reply:
    length = frame_length(_read(connection, LENGTH_PREFIX.size))
    reply = decode_reply(_read(connection, length))
    if isinstance(reply, Error) and reply.code == ErrorCode.MALFORMED_FRAME:
        raise WireError(ErrorCode.MALFORMED_FRAME, reply.message)
    return reply


def _read(connection: ssl.SSLSocket, length: int) -> bytes:
    buffer = bytearray(length)
    with memoryview(buffer) as view:
        got = 0
        while got < length:
            count = connection.recv_into(view[got:])
            if not count:
                raise EOFError("the connection ended")
            got += count
    return bytes(buffer)


def _unreachable(access: TaskAccess, error: Exception) -> GatewayError:
    return GatewayError(
        ErrorCode.GATEWAY_UNREACHABLE,
        f"the gateway of {access.site} does not answer at {access.address}: {error}.",
        "Check that it runs with `listen.tasks`, and that this host reaches that port.",
    )
