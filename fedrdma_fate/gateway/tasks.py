"""Serves the FATE tasks of this site over the unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedrdma_fate.engine.events import Payload
from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.hub import Hub
from fedrdma_fate.gateway.mailbox import Message
from fedrdma_fate.gateway.peer import Peer
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
    decode_request,
    encode_message,
    frame_length,
)
from fedrdma_fate.gateway.spilling import make_room
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, MemoryPoolError, WireError
from fedrdma_fate.wire.frames import MessageKey, MessageKind, Party

logger = logging.getLogger(__name__)


class Task:
    """One task process: its connections share leases, which go back when the last connection ends."""

    def __init__(self, client: str, attach: Attach) -> None:
        self.client = client
        self.attach = attach
        self.connections = 0
        self._next_lease = 0
        self.sending: dict[int, Lease] = {}
        self.received: dict[int, Message] = {}

    @property
    def owner(self) -> str:
        return f"task:{self.client}"

    def new_lease(self) -> int:
        """A number that this task has not had."""
        self._next_lease += 1
        return self._next_lease

    def release(self, lease: int) -> None:
        """Give one lease back; an unknown one is ignored."""
        if (sending := self.sending.pop(lease, None)) is not None:
            sending.release()
        if (received := self.received.pop(lease, None)) is not None:
            received.discard()

    def release_all(self) -> int:
        """The process is gone; how many leases it held."""
        held = [*self.sending, *self.received]
        for lease in held:
            self.release(lease)
        return len(held)


class TaskServer:
    """The unix socket of a gateway. Belongs to the event loop's thread."""

    def __init__(
        self, path: Path, hub: Hub, peers: Mapping[str, Peer], status: Callable[[], dict[str, object]]
    ) -> None:
        self._path = path
        self._hub = hub
        self._peers = peers
        self._status = status
        self._server: asyncio.Server | None = None
        self._tasks: dict[str, Task] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self.stopping = False

    @property
    def task_count(self) -> int:
        """Task processes attached."""
        return len(self._tasks)

    async def start(self) -> None:
        """Listen on the socket; a stale file of a dead gateway is replaced.

        Raises:
            GatewayError: GATEWAY_UNREACHABLE when another gateway serves it, or it cannot be made.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if await _answers(self._path):
                raise GatewayError(
                    ErrorCode.GATEWAY_UNREACHABLE,
                    f"another gateway serves {self._path}.",
                    "Stop it, or give this one a `listen.socket` of its own.",
                )
            self._path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._accept, str(self._path))
            self._path.chmod(0o600)
        except OSError as error:
            raise GatewayError(
                ErrorCode.GATEWAY_UNREACHABLE, f"cannot listen on {self._path}: {error}.", "Check `listen.socket`."
            ) from error

    async def stop(self) -> None:
        """Stop listening, end all connections, take all leases back."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        for connection in list(self._connections):
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=2)

    # -- connections ----------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        attached: list[Task] = []
        try:
            while (request := await _read_request(reader)) is not None:
                reply = await _while_connected(reader, self._answer(request, attached))
                if reply is not None:
                    writer.write(encode_message(reply))
                    await writer.drain()
        except (ConnectionError, EOFError, asyncio.CancelledError):
            logger.debug("a connection of a task ended")
        except WireError as error:
            logger.error("a task sent what is no request: %s", error)
            with contextlib.suppress(ConnectionError):
                writer.write(encode_message(_error_reply(error)))
        finally:
            self._connections.discard(connection)
            for task in attached:
                self._detach(task)
            writer.close()

    def _detach(self, task: Task) -> None:
        task.connections -= 1
        if task.connections:
            return
        del self._tasks[task.client]
        held = task.release_all()
        self._hub.send_pool.release_owner(task.owner)
        if held:
            logger.info("%s of %s ended; %d leases came back", task.attach.party, task.attach.session, held)

    async def _answer(self, request: Request, attached: list[Task]) -> Reply | None:
        try:
            if isinstance(request, AskStatus):
                return StatusReport(msgspec.json.encode(self._status()))
            if isinstance(request, Attach):
                return self._attach(request, attached)
            if not attached:
                raise GatewayError(ErrorCode.CLIENT_PROTOCOL, "a task has to attach first.")
            return await self._serve(request, attached[0])
        except FedRDMAError as error:
            logger.info("refused %s: %s", type(request).__name__, error)
            return _error_reply(error)

    def _attach(self, attach: Attach, attached: list[Task]) -> Reply:
        if attach.protocol != CLIENT_PROTOCOL_VERSION or attached:
            raise GatewayError(
                ErrorCode.CLIENT_PROTOCOL,
                f"the task speaks client protocol {attach.protocol}, this gateway {CLIENT_PROTOCOL_VERSION}.",
                "Run the same fedrdma-fate version in FATE and in the gateway.",
            )
        if not self._hub.routes.is_local(attach.party):
            raise GatewayError(
                ErrorCode.WRONG_PARTY,
                f"{attach.party} is not served at site {self._hub.config.site!r}.",
                f"Parties here: {', '.join(self._hub.config.parties)}. Point the task at its own site's gateway.",
            )
        task = self._tasks.setdefault(attach.client, Task(attach.client, attach))
        task.connections += 1
        attached.append(task)
        self._hub.mailbox.join(attach.session, attach.party)
        return Attached(str(self._hub.send_pool.region.path), self._hub.incarnation)

    async def _serve(self, request: Request, task: Task) -> Reply | None:
        attach = task.attach
        match request:
            case ReleaseLeases(leases=leases):
                for lease in leases:
                    task.release(lease)
                return None
            case LeaseSlot():
                self._check_pushing(attach)
                return await self._lease(request, task)
            case Commit():
                return self._commit(request, task)
            case PutInline():
                self._check_pushing(attach)
                self._put_inline(request, attach)
                return Done()
            case Get():
                return await self._get(request, task)
            case Leave():
                dropped = self._hub.mailbox.leave(attach.session, attach.party)
                logger.info("%s left %s; %d messages were dropped", attach.party, attach.session, dropped)
                return Done()
            case _:
                raise GatewayError(ErrorCode.CLIENT_PROTOCOL, f"{type(request).__name__} is not for a gateway.")

    # -- pushing --------------------------------------------------------------------------------------------------

    def _check_pushing(self, attach: Attach) -> None:
        if self.stopping:
            raise GatewayError(ErrorCode.GATEWAY_STOPPING, "the gateway is stopping and takes no more messages.")
        self._hub.mailbox.raise_push_failure(attach.session, attach.party)

    async def _lease(self, request: LeaseSlot, task: Task) -> Reply:
        pool = self._hub.send_pool
        slot_bytes = max(request.total_bytes, 1)
        lease = pool.lease(slot_bytes, task.owner)
        if lease is None:
            timeout = self._hub.config.timeouts.put if request.timeout is None else request.timeout
            logger.info("%s waits for %d bytes of send memory", task.attach.party, slot_bytes)
            waiting = asyncio.ensure_future(pool.acquire(slot_bytes, task.owner, timeout))
            spawn(self._hub.tasks, make_room(self._hub, pool))
            try:
                lease = await waiting
            except asyncio.CancelledError:
                waiting.cancel()
                raise
        number = task.new_lease()
        task.sending[number] = lease
        return Leased(number, lease.slot.offset)

    def _commit(self, request: Commit, task: Task) -> Reply:
        lease = task.sending.get(request.lease)
        if lease is None:
            raise MemoryPoolError(ErrorCode.LEASE_UNKNOWN, f"lease {request.lease} is not this task's.")
        try:
            self._check_pushing(task.attach)
            total_bytes = lease.slot.length
            keys = self._register(task.attach, request.name, request.tag, request.destinations, total_bytes)
            payload = Payload(lease.slot, total_bytes)
            for key in keys:
                self._send_payload(key, request.kind, payload, lease.share(f"transfer:{key}"), task.attach)
            self._trace_put(task.attach, request.name, request.tag, request.destinations, total_bytes)
        finally:
            if not request.keep:
                del task.sending[request.lease]
                lease.release()
        return Done()

    def _put_inline(self, request: PutInline, attach: Attach) -> None:
        keys = self._register(attach, request.name, request.tag, request.destinations, len(request.body))
        for key in keys:
            peer = self._peer_of(key.destination)
            if peer is not None:
                peer.sending.put_inline(key, request.kind, request.body)
            else:
                self._keep(Message(key, request.kind, len(request.body), body=request.body), "inline")
        self._trace_put(attach, request.name, request.tag, request.destinations, len(request.body))

    def _register(
        self, attach: Attach, name: str, tag: str, destinations: tuple[Party, ...], total_bytes: int
    ) -> tuple[MessageKey, ...]:
        """Check everything before anything is sent: a put reaches all its destinations or raises."""
        for destination in destinations:
            peer = self._peer_of(destination)
            if peer is not None and peer.hello is not None and total_bytes > peer.hello.receive_bytes:
                raise MemoryPoolError(
                    ErrorCode.PAYLOAD_TOO_LARGE,
                    f"{total_bytes} bytes for {destination}; site {peer.config.site!r} can take "
                    f"{peer.hello.receive_bytes}.",
                    "Raise memory.receive_bytes there.",
                )
        keys = tuple(MessageKey(attach.session, name, tag, attach.party, destination) for destination in destinations)
        self._hub.mailbox.register_push(keys)
        return keys

    def _send_payload(self, key: MessageKey, kind: MessageKind, payload: Payload, lease: Lease, attach: Attach) -> None:
        peer = self._peer_of(key.destination)
        if peer is not None:
            peer.sending.put_payload(key, kind, payload, lease, attach.mode)
        else:
            self._keep(Message(key, kind, payload.total_bytes, lease=lease), "local")

    def _keep(self, message: Message, mode: str) -> None:
        """Both parties are served here: the message is delivered where it lies."""
        key, total_bytes = message.key, message.total_bytes
        kept = self._hub.mailbox.deliver(message)
        if self._hub.send_pool.wanted_bytes:
            spawn(self._hub.tasks, make_room(self._hub, self._hub.send_pool))
        fields = {"bytes": total_bytes, "mode": mode, "transport": "local", "seconds": 0.0, "kept": kept}
        self._hub.trace.emit("delivered", **_key_fields(key), **fields)

    def _peer_of(self, destination: Party) -> Peer | None:
        """The peer that serves a party, None when it is served here.

        Raises:
            GatewayError: WRONG_PARTY.
        """
        site = self._hub.routes.site_of(destination)
        return None if site == self._hub.config.site else self._peers[site]

    def _trace_put(
        self, attach: Attach, name: str, tag: str, destinations: tuple[Party, ...], total_bytes: int
    ) -> None:
        self._hub.trace.emit(
            "put",
            session=attach.session,
            name=name,
            tag=tag,
            source=str(attach.party),
            destinations=[str(destination) for destination in destinations],
            bytes=total_bytes,
        )

    # -- pulling --------------------------------------------------------------------------------------------------

    async def _get(self, request: Get, task: Task) -> Reply:
        attach = task.attach
        self._hub.routes.site_of(request.source)
        if self.stopping:
            raise GatewayError(ErrorCode.GATEWAY_STOPPING, "the gateway is stopping.")
        key = MessageKey(attach.session, request.name, request.tag, request.source, attach.party)
        message = await self._hub.mailbox.take(key, request.timeout)
        self._hub.trace.emit("get", **_key_fields(key), bytes=message.total_bytes)
        if message.body is not None:
            return GotInline(message.kind, message.body)
        path, offset = message.place
        number = task.new_lease()
        task.received[number] = message
        return GotSlot(message.kind, number, str(path), offset, message.total_bytes)


def _key_fields(key: MessageKey) -> dict[str, object]:
    return {
        "session": key.session,
        "name": key.name,
        "tag": key.tag,
        "source": str(key.source),
        "destination": str(key.destination),
    }


def _error_reply(error: FedRDMAError) -> Error:
    return Error(error.code.value, error.message, error.remedy)


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        prefix = await reader.readexactly(LENGTH_PREFIX.size)
    except asyncio.IncompleteReadError as end:
        if end.partial:
            raise WireError(ErrorCode.MALFORMED_FRAME, "a request was cut short.") from end
        return None
    return decode_request(await reader.readexactly(frame_length(prefix)))


async def _while_connected(reader: asyncio.StreamReader, answer: Coroutine[Any, Any, Reply | None]) -> Reply | None:
    """Wait for an answer as long as its task is there to hear it.

    Raises:
        ConnectionError: the task went away; the answer was cancelled.
    """
    working = asyncio.ensure_future(answer)
    listening = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({working, listening}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        # a task sends one request at a time: whatever comes now is the end of the connection
        raise ConnectionError("the task went away")
    finally:
        for future in (working, listening):
            future.cancel()
        await asyncio.wait({working, listening})


async def _answers(path: Path) -> bool:
    """Whether somebody serves this unix socket."""
    try:
        _, writer = await asyncio.open_unix_connection(str(path))
    except OSError:
        return False
    writer.close()
    return True
