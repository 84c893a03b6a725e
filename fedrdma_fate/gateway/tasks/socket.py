"""The unix socket of a gateway: accepts the tasks of this site, reads their requests and writes the replies."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import stat
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from fedrdma_fate.client.protocol import AskStatus, Error, Notice, Reply, Request, decode_request, encode_message
from fedrdma_fate.gateway.accepting import Acceptor
from fedrdma_fate.gateway.tasks.answering import answered, error_reply
from fedrdma_fate.gateway.tasks.refused_connections import RefusedConnections
from fedrdma_fate.gateway.tasks.request_reader import MOST_LARGE_OF_A_USER, RequestReader
from fedrdma_fate.gateway.tasks.turns import TURN_REQUESTS, Turns
from fedrdma_fate.gateway.tasks.users import refused
from fedrdma_fate.memory.region import region_unusable
from fedrdma_fate.obs.complaints import EACH_TELLS, Complaints
from fedrdma_fate.unix_sockets import address_of, close_all, has_hung_up, has_unread, peer_user
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, WireError

logger = logging.getLogger(__name__)

_LAST_ANSWERS_SECONDS = 1.0
"""For requests that are being answered when the gateway ends; then their connections are closed."""

MOST_OF_A_USER = 1024
"""Connections of one user who is listed, each with a descriptor here: a task has one for each thread that waits, and so
has each worker of the engine. Where the gateway may have few descriptors, no more than a quarter of them."""

_BACKLOG = 100
"""Connections that the kernel completes ahead of us; more wait in their connect."""

_FIRST_LOOK_SECONDS = 0.001
"""Until it is looked anew whether a reply has been read, whose task has asked again before: no event tells. Doubled."""

_LONGEST_LOOK_SECONDS = 1.0
"""The same for a task that does not read for long: so many looks cost nothing."""

_OWN_MODE = 0o600
"""Of the socket: only the gateway's user can connect."""
_SHARED_MODE = 0o666
"""Everybody who can reach its directory can connect; then the user counts."""


class WithDescriptor:
    """A reply, and a descriptor to pass with it, which belongs to whoever has this.

    Attributes:
        reply: the reply.
        descriptor: open, until it is closed here.
        undo: called where it could not be passed.
    """

    def __init__(self, reply: Reply, descriptor: int, undo: Callable[[], object] = lambda: None) -> None:
        self.reply = reply
        self.descriptor = descriptor
        self.undo = undo

    def close(self) -> None:
        """Close the descriptor; what was passed stays with the task."""
        close_all([self.descriptor])


class WithSequel:
    """A reply, and what is done about it.

    Attributes:
        reply: the reply.
        then: called when the kernel has all of it: then the task gets it, whatever becomes of this process.
        undo: called where it could not be sent.
    """

    def __init__(self, reply: Reply, then: Callable[[], object], undo: Callable[[], object]) -> None:
        self.reply = reply
        self.then = then
        self.undo = undo


Answer = Reply | WithDescriptor | WithSequel


class Conversation(Protocol):
    """What one connection is about.

    Attributes:
        notify: sends a notice ahead of the reply that is due.
    """

    notify: Callable[[Notice], object]

    def answer(self, request: Request) -> Answer | Coroutine[Any, Any, Answer | None] | None:
        """The reply, None where there is none to give, or a coroutine that waits for it.

        Raises:
            FedRDMAError: the request is refused; also from the coroutine.
        """
        ...

    def end(self) -> None:
        """The connection is gone."""
        ...


class ConversationMaker(Protocol):
    """Who serves the connections."""

    def admits(self, user: int) -> bool:
        """Whether tasks of this user of the host may connect."""
        ...

    def begin(self, user: int) -> Conversation:
        """A task of this user has connected."""
        ...


class TaskSocket:
    """Belongs to the event loop's thread."""

    def __init__(
        self, path: Path, maker: ConversationMaker, complaints: Complaints | None = None, *, shared: bool = False
    ) -> None:
        """
        Args:
            path: of the socket.
            maker: who serves the connections.
            complaints: about those who may not connect, or send what is no request.
            shared: whether other users may reach it; whom it then admits, the maker knows.
        """
        self._path = path
        self._shared = shared
        self._mode = _SHARED_MODE if shared else _OWN_MODE
        self._maker = maker
        self._complaints = complaints or Complaints()
        self._acceptor: Acceptor | None = None
        self._bound: os.stat_result | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._of_user: Counter[int] = Counter()
        self._large_of_user: dict[int, asyncio.Semaphore] = {}
        self._turns_of_user: dict[int, Turns] = {}
        self._refused = RefusedConnections()
        self._answering = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def start(self) -> None:
        """Listen; a stale file of a dead gateway is replaced.

        Raises:
            GatewayError: GATEWAY_UNREACHABLE when another gateway serves it, or it cannot be made.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if await _is_served(self._path):
                raise GatewayError(
                    ErrorCode.GATEWAY_UNREACHABLE,
                    f"another gateway serves {self._path}.",
                    "Stop it, or give this one a `listen.socket` of its own.",
                )
            _remove_stale(self._path)
            listener = _bind(self._path, self._mode)
            self._bound = self._path.lstat()
            listener.listen(_BACKLOG)
        except OSError as error:
            raise GatewayError(
                ErrorCode.GATEWAY_UNREACHABLE, f"cannot listen on {self._path}: {error}.", "Check `listen.socket`."
            ) from error
        self._acceptor = Acceptor([listener], self._make, "listen.socket", self._complaints)

    async def stop(self, *, keep: bool = False) -> None:
        """Stop listening, send the answers that are due, and end all connections.

        Args:
            keep: leave the file of the socket: by it tasks know that another run may come.
        """
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
            if not keep:
                self._remove()
        quiet = asyncio.create_task(self._quiet.wait())
        try:
            await asyncio.wait([quiet], timeout=_LAST_ANSWERS_SECONDS)
        finally:
            quiet.cancel()
        for connection in list(self._connections):
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=2)

    def _remove(self) -> None:
        """Remove the socket, unless it is another gateway's by now."""
        with contextlib.suppress(OSError):
            if self._bound is not None and os.path.samestat(self._bound, self._path.lstat()):
                self._path.unlink()

    def _make(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._accept)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        user = peer_user(writer.get_extra_info("socket"))
        if not self._maker.admits(user):
            self._complaints.add(
                logger, "refused user", f"user {user}", "%s", refused(user, "run tasks here"), level=logging.ERROR
            )
            await self._refused.refuse(reader, writer, user, refused(user, "run tasks here"))
            return
        if self._shared and not self._has_room(user):
            too_many = _too_many(user)
            self._complaints.add(logger, "connections", f"user {user}", "%s", too_many, level=logging.ERROR)
            await self._refused.refuse(reader, writer, user, too_many)
            return
        self._of_user[user] += 1
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        conversation = self._maker.begin(user)
        conversation.notify = lambda notice: writer.write(encode_message(notice))
        connected = writer.get_extra_info("socket")
        requests = RequestReader(reader, self._room_for_large(user), connected, decode=decode_request)
        try:
            await self._converse(requests, writer, conversation, user)
        except (ConnectionError, asyncio.CancelledError):
            logger.debug("a connection of a task ended")
        except WireError as error:
            message = "a task sent what is no request: %s"
            self._complaints.add(
                logger, "malformed request", f"user {user}", message, error, level=logging.ERROR, lines=EACH_TELLS
            )
            with contextlib.suppress(ConnectionError):
                writer.write(encode_message(error_reply(error)))
        finally:
            self._connections.discard(connection)
            self._of_user[user] -= 1
            requests.close()
            if not self._of_user[user]:
                del self._of_user[user]
                self._large_of_user.pop(user, None)
                self._turns_of_user.pop(user, None)
            conversation.end()
            writer.close()

    def _has_room(self, user: int) -> bool:
        """Whether a user may have another connection; the gateway's own, who could do worse, always."""
        return user in (os.geteuid(), 0) or self._of_user[user] < _most_of_a_user()

    def _room_for_large(self, user: int) -> asyncio.Semaphore | None:
        """What large requests of a user share; None: there may be as many as it likes."""
        if user in (os.geteuid(), 0):
            return None
        return self._large_of_user.setdefault(user, asyncio.Semaphore(MOST_LARGE_OF_A_USER))

    async def _turn(self, request: Request, user: int) -> None:
        """Wait until a request of a user may be begun; of the gateway's own user all may."""
        if user not in (os.geteuid(), 0):
            turns = self._turns_of_user.setdefault(user, Turns())
            # it takes as long as there is much to tell of
            await turns.take(TURN_REQUESTS if isinstance(request, AskStatus) else 1)

    async def _converse(
        self, requests: RequestReader[Request], writer: asyncio.StreamWriter, conversation: Conversation, user: int
    ) -> None:
        while (request := await requests.next()) is not None:
            await _until_read(writer)
            await self._turn(request, user)
            self._answering += 1
            self._quiet.clear()
            try:
                answer = await self._answer(requests, conversation, request, user)
                if isinstance(answer, WithSequel):
                    await _send_with_sequel(writer, answer)
                    continue
                if isinstance(answer, WithDescriptor):
                    answer = await self._send_with_descriptor(writer, answer, user)
                if answer is not None:
                    writer.write(encode_message(answer))
                    await writer.drain()
            finally:
                self._answering -= 1
                if not self._answering:
                    self._quiet.set()

    async def _answer(
        self, requests: RequestReader[Request], conversation: Conversation, request: Request, user: int
    ) -> Answer | None:
        kind = type(request).__name__
        return await answered(
            requests,
            lambda: conversation.answer(request),
            kind,
            lambda error: self._refuse(kind, user, error),
        )

    async def _send_with_descriptor(
        self, writer: asyncio.StreamWriter, answer: WithDescriptor, user: int
    ) -> Error | None:
        """Send a reply with its descriptor; what to answer instead, where the kernel does not pass that.

        It passes no more than the gateway's limit of open files to all tasks that have not read them yet.

        Raises:
            ConnectionError: the task went away.
        """
        try:
            await _send_with_descriptor(writer, answer)
        except ConnectionError:
            answer.undo()
            raise
        except OSError as error:
            answer.undo()
            unusable = region_unusable("a descriptor of the gateway's memory, which is not passed", error)
            return self._refuse(type(answer.reply).__name__, user, unusable)
        return None

    def _refuse(self, kind: str, user: int, error: FedRDMAError) -> Error:
        whose, message = f"user {user}", "refused %s of user %s: %s"
        self._complaints.add(
            logger, "refused task", whose, message, kind, user, error, level=logging.INFO, lines=EACH_TELLS
        )
        return error_reply(error)


def _most_of_a_user() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OF_A_USER if soft == resource.RLIM_INFINITY else min(MOST_OF_A_USER, soft // 4)


def _too_many(user: int) -> GatewayError:
    return GatewayError(
        ErrorCode.LIMIT_REACHED,
        f"user {user} has {_most_of_a_user()} connections to this gateway already.",
        "Have fewer tasks at a time; where the limit is below 1024, raise the gateway's of open files (`ulimit -n`).",
    )


async def _send_with_descriptor(writer: asyncio.StreamWriter, answer: WithDescriptor) -> None:
    """Pass the descriptor with the first byte of the reply, and then the rest of it.

    Raises:
        ConnectionError: the task went away.
        OSError: the kernel does not pass it.
    """
    message = encode_message(answer.reply)
    try:
        # what asyncio has still to write goes first
        await _drain_all(writer)
        connection = writer.get_extra_info("socket").dup()
        try:
            sent = await _send_first(connection, message, answer.descriptor)
        finally:
            connection.close()
    finally:
        answer.close()
    writer.write(message[sent:])
    await writer.drain()


async def _send_with_sequel(writer: asyncio.StreamWriter, answer: WithSequel) -> None:
    """Send a reply, and see to it that the kernel has it.

    Raises:
        ConnectionError: the task went away.
    """
    try:
        writer.write(encode_message(answer.reply))
        await _drain_all(writer)
    except BaseException:
        answer.undo()
        raise
    answer.then()


async def _until_read(writer: asyncio.StreamWriter) -> None:
    """Wait until a task has read what it was answered, which it does before it asks again.

    Else it could have descriptors on their way without end: the kernel passes no more than the gateway's limit of open
    files to all tasks together, and the others would get none.

    Raises:
        ConnectionError: the task went away.
    """
    pause, connection = _FIRST_LOOK_SECONDS, writer.get_extra_info("socket")
    while writer.transport.get_write_buffer_size() or has_unread(connection):
        if has_hung_up(connection):
            raise ConnectionError("the task went away")
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_LOOK_SECONDS)


async def _drain_all(writer: asyncio.StreamWriter) -> None:
    """Wait until nothing waits to be written."""
    transport = writer.transport
    transport.set_write_buffer_limits(0)
    try:
        await writer.drain()
    finally:
        transport.set_write_buffer_limits()


async def _send_first(connection: socket.socket, message: bytes, descriptor: int) -> int:
    """Send the beginning of a message, and a descriptor with it; how many bytes went."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return socket.send_fds(connection, [message], [descriptor])
        except BlockingIOError:
            writable = asyncio.Event()
            loop.add_writer(connection, writable.set)
            try:
                await writable.wait()
            finally:
                loop.remove_writer(connection)


def _remove_stale(path: Path) -> None:
    """Remove the socket of a gateway that is dead.

    Raises:
        OSError: something else lies there.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "what lies there is no socket", str(path))
        path.unlink()


def _bind(path: Path, mode: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # before it has a name: nobody else can ever connect, nor put a link there that would be followed
        os.fchmod(listener.fileno(), mode)
        masked = os.umask(0)
        try:
            with address_of(path) as address:
                listener.bind(address)
        finally:
            os.umask(masked)
    except OSError:
        listener.close()
        raise
    return listener


async def _is_served(path: Path) -> bool:
    """Whether somebody serves this unix socket."""
    try:
        with address_of(path) as address:
            _, writer = await asyncio.open_unix_connection(address)
    except OSError:
        return False
    writer.close()
    return True
