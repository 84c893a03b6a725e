"""How a FATE task talks to its site's gateway: blocking calls over a unix socket, payloads through shared memory."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from fedrdma_fate.gateway.config import socket_path
from fedrdma_fate.gateway.protocol import (
    CLIENT_PROTOCOL_VERSION,
    LENGTH_PREFIX,
    AskStatus,
    Attach,
    Attached,
    Commit,
    Done,
    Error,
    Get,
    GotInline,
    GotSlot,
    Leased,
    LeaseSlot,
    Leave,
    PutInline,
    ReleaseLeases,
    Reply,
    Request,
    StatusReport,
    decode_reply,
    encode_message,
    frame_length,
)
from fedrdma_fate.memory.mapping import WritableMapping, map_copy_on_write, map_for_writing
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, WireError, error_from_code
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, MessageKind, Mode, Party

AnyReply = TypeVar("AnyReply", bound=Reply)

_RETRY_SECONDS = 0.1
_START_GATEWAY = "Start it with `fedrdma gateway --config FILE`, and check `listen.socket` there."


class Received:
    """A message that was waited for.

    Attributes:
        kind: what the payload holds.
        buffer: the payload: writable, private to this process, and a view: nothing was copied. The receive slot goes
            back to the gateway when the last view of the buffer has died.
    """

    def __init__(self, kind: MessageKind, buffer: memoryview) -> None:
        self.kind: MessageKind = kind
        self.buffer = buffer


class SendLease:
    """A leased send slot: write the payload into `buffer`, then `commit` it.

    Attributes:
        buffer: exactly as long as was asked for, page-aligned, in shared memory.
    """

    def __init__(self, client: GatewayClient, lease: int, buffer: memoryview) -> None:
        self._client = client
        self._lease: int | None = lease
        self.buffer = buffer

    def commit(
        self, name: str, tag: str, destinations: Sequence[Party], kind: MessageKind, *, keep: bool = False
    ) -> None:
        """Hand the payload to the gateway, which sends it to every destination; returns at once.

        With `keep` the slot stays leased and its bytes must not change: it can be committed again, to others.

        Raises:
            GatewayError: DUPLICATE_PUSH, WRONG_PARTY, SESSION_CLOSED, GATEWAY_STOPPING or GATEWAY_UNREACHABLE.
            MemoryPoolError: LEASE_UNKNOWN when it was released, PAYLOAD_TOO_LARGE when a destination cannot hold it.
        """
        if self._lease is None:
            raise error_from_code(ErrorCode.LEASE_UNKNOWN, "this send slot was given back.")
        request = Commit(self._lease, name, tag, tuple(destinations), kind, keep)
        if not keep:
            self._lease = None
            self.buffer.release()
        self._client.call(request, Done)

    def release(self) -> None:
        """Give a slot back that was not committed, or was kept. May be repeated."""
        lease, self._lease = self._lease, None
        if lease is not None:
            self.buffer.release()
            self._client.release_leases((lease,))


class _ProcessState:
    """What belongs to one process: a forked child must not use its parent's."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.client_id = secrets.token_hex(8)
        self.idle: list[socket.socket] = []
        self.releases: socket.socket | None = None
        self.send_region: WritableMapping | None = None

    def close_connections(self) -> None:
        """Close this process's descriptors; in a child, those it has inherited."""
        for connection in [*self.idle, *([self.releases] if self.releases else [])]:
            connection.close()
        self.idle.clear()
        self.releases = None


class GatewayClient:
    """A task's connection to its gateway. Usable from several threads, and in forked children (which attach anew)."""

    def __init__(
        self,
        address: str,
        session: str,
        party: Party,
        *,
        mode: Mode | None = None,
        connect_timeout: float = 30.0,
    ) -> None:
        """Attach to the gateway at `unix:///path`.

        Raises:
            GatewayError: GATEWAY_UNREACHABLE after `connect_timeout` seconds, WRONG_PARTY, CLIENT_PROTOCOL.
            ConfigError: CONFIG_BAD_VALUE when the address is not of that form.
        """
        self._path = socket_path(address)
        self._session = session
        self._party = party
        self._mode: Mode | None = mode
        self._connect_timeout = connect_timeout
        self._lock = threading.Lock()
        self._own = _ProcessState()
        with self._connection():
            pass

    @property
    def party(self) -> Party:
        return self._party

    def lease(self, total_bytes: int, *, timeout: float | None = None) -> SendLease:
        """Lease a send slot; waits while the send region is full.

        Args:
            total_bytes: length of the payload.
            timeout: seconds to wait for room; None for the gateway's `timeouts.put`.

        Raises:
            MemoryPoolError: POOL_TIMEOUT, or PAYLOAD_TOO_LARGE when the region will never hold it.
            GatewayError: SESSION_CLOSED, GATEWAY_STOPPING or GATEWAY_UNREACHABLE.
            TransferError: an earlier push of this party could not be delivered.
        """
        reply = self.call(LeaseSlot(total_bytes, timeout), Leased)
        region = self._own.send_region
        assert region is not None
        with self._lock:
            return SendLease(self, reply.lease, region.slot(reply.offset, total_bytes))

    def put_inline(self, name: str, tag: str, destinations: Sequence[Party], kind: MessageKind, body: bytes) -> None:
        """Send a message of up to INLINE_LIMIT_BYTES.

        Raises:
            GatewayError: as for `SendLease.commit`.
        """
        if len(body) > INLINE_LIMIT_BYTES:
            raise ValueError(f"{len(body)} bytes do not ride inline, {INLINE_LIMIT_BYTES} is the limit")
        self.call(PutInline(name, tag, tuple(destinations), kind, body), Done)

    def get(self, name: str, tag: str, source: Party, *, timeout: float | None = None) -> Received:
        """Wait for a message and map it.

        Args:
            name: FATE's message name.
            tag: FATE's tag.
            source: the party it comes from.
            timeout: seconds to wait; None waits for ever.

        Raises:
            GatewayError: PULL_TIMEOUT, DUPLICATE_PULL, WRONG_PARTY, SESSION_CLOSED or GATEWAY_STOPPING.
            TransferError: the message was pushed and could not be delivered; the code says why.
        """
        reply = self._ask(Get(name, tag, source, timeout))
        if isinstance(reply, GotInline):
            return Received(reply.kind, memoryview(bytearray(reply.body)))
        reply = _expect(reply, GotSlot)
        release = _Releaser(self, reply.lease)
        try:
            buffer = map_copy_on_write(Path(reply.path), reply.offset, reply.total_bytes, release)
        except BaseException:
            release()
            raise
        return Received(reply.kind, buffer)

    def leave(self) -> None:
        """The party leaves the session: what is still waiting for it is dropped."""
        self.call(Leave(), Done)

    def status(self) -> dict[str, object]:
        """The gateway's status document."""
        return _document(self.call(AskStatus(), StatusReport))

    def close(self) -> None:
        """Close all connections; leases still held go back. May be repeated."""
        with self._lock:
            own, self._own = self._own, _ProcessState()
        own.close_connections()
        if own.send_region is not None:
            own.send_region.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- used by the classes above --------------------------------------------------------------------------------

    def call(self, request: Request, expected: type[AnyReply]) -> AnyReply:
        """One request and its reply, which must be of the expected type.

        Raises:
            FedRDMAError: what the gateway answered, or GATEWAY_UNREACHABLE.
        """
        return _expect(self._ask(request), expected)

    def release_leases(self, leases: tuple[int, ...]) -> None:
        """Give leases back: one-way and without locks, so that a finalizer may call it anywhere."""
        own = self._own
        if own.releases is not None and own.pid == os.getpid():
            # where the gateway is gone, so are its leases
            with contextlib.suppress(OSError):
                own.releases.send(encode_message(ReleaseLeases(leases)), socket.MSG_DONTWAIT)

    # -- connections ----------------------------------------------------------------------------------------------

    def _ask(self, request: Request) -> Reply:
        with self._connection() as connection:
            return _exchange(connection, request, self._path)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        """A connection that no other thread uses; kept for the next call unless this one broke it."""
        with self._lock:
            if self._own.pid != os.getpid():
                # in a forked child: the parent's leases stay its own
                parent, self._own = self._own, _ProcessState()
                parent.close_connections()
            if self._own.releases is None:
                self._attach_first()
            own = self._own
            connection = own.idle.pop() if own.idle else None
        if connection is None:
            connection, _ = self._open(0.0)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            own.idle.append(connection)

    def _attach_first(self) -> None:
        """The first connection of a process only carries releases; with it comes the send region."""
        connection, attached = self._open(self._connect_timeout)
        try:
            self._own.send_region = map_for_writing(Path(attached.send_region))
        except BaseException:
            connection.close()
            raise
        self._own.releases = connection

    def _open(self, patience: float) -> tuple[socket.socket, Attached]:
        """Connect and attach; a gateway that is not there yet is waited for."""
        deadline = time.monotonic() + patience
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(str(self._path))
                break
            except OSError as error:
                connection.close()
                if time.monotonic() >= deadline:
                    raise _unreachable(self._path, error) from error
                time.sleep(_RETRY_SECONDS)
        try:
            attach = Attach(CLIENT_PROTOCOL_VERSION, self._own.client_id, self._session, self._party, self._mode)
            return connection, _expect(_exchange(connection, attach, self._path), Attached)
        except BaseException:
            connection.close()
            raise


class _Releaser:
    """Gives one receive lease back, once, from the process that got it."""

    def __init__(self, client: GatewayClient, lease: int) -> None:
        self._client = client
        self._lease = lease
        self._pid = os.getpid()

    def __call__(self) -> None:
        if self._pid == os.getpid():
            self._client.release_leases((self._lease,))


def ask_status(address: str) -> dict[str, object]:
    """The status document of the gateway at `unix:///path`, without attaching to a session.

    Raises:
        GatewayError: GATEWAY_UNREACHABLE.
    """
    path = socket_path(address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except OSError as error:
            raise _unreachable(path, error) from error
        return _document(_expect(_exchange(connection, AskStatus(), path), StatusReport))


def _document(report: StatusReport) -> dict[str, object]:
    return msgspec.json.decode(report.document, type=dict[str, object])


def _expect(reply: Reply, expected: type[AnyReply]) -> AnyReply:
    if isinstance(reply, expected):
        return reply
    if isinstance(reply, Error):
        raise error_from_code(reply.code, reply.message, reply.remedy)
    raise GatewayError(ErrorCode.CLIENT_PROTOCOL, f"the gateway answered {type(reply).__name__}.")


def _exchange(connection: socket.socket, request: Request, path: Path) -> Reply:
    try:
        connection.sendall(encode_message(request))
        prefix = _receive_exactly(connection, LENGTH_PREFIX.size)
        return decode_reply(_receive_exactly(connection, frame_length(prefix)))
    except (OSError, EOFError) as error:
        raise _unreachable(path, error) from error
    except WireError as error:
        raise GatewayError(
            ErrorCode.CLIENT_PROTOCOL, error.message, "Run the same fedrdma-fate version in FATE and in the gateway."
        ) from error


def _receive_exactly(connection: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        piece = connection.recv(length - len(received))
        if not piece:
            raise EOFError("the gateway closed the connection")
        received += piece
    return bytes(received)


def _unreachable(path: Path, error: Exception) -> GatewayError:
    return GatewayError(ErrorCode.GATEWAY_UNREACHABLE, f"no gateway answers at unix://{path}: {error}.", _START_GATEWAY)
