"""The TCP port of a gateway for its site's tasks on other hosts: TLS, and a secret that only the site's own tasks know.

Nothing of a connection is believed before its secret: it has ENTER_SECONDS, one frame of a kilobyte, and a place among
as many newcomers as `gateway/peers/newcomers.py` lets there be.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
import logging
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from fedrdma_fate.client.access import TaskAccess, read_access
from fedrdma_fate.client.protocol import (
    LENGTH_PREFIX,
    MOST_ENTER_BYTES,
    Done,
    Error,
    Fetch,
    Notice,
    RemoteRequest,
    Reply,
    decode_enter,
    decode_remote_request,
    encode_message,
)
from fedrdma_fate.client.remote import keep_alive
from fedrdma_fate.gateway.accepting import Acceptor, host_of, listen_at
from fedrdma_fate.gateway.config.errors import bad_value
from fedrdma_fate.gateway.config.schema import split_address
from fedrdma_fate.gateway.peers.newcomers import Newcomer, Newcomers
from fedrdma_fate.gateway.tasks.answering import answered, error_reply
from fedrdma_fate.gateway.tasks.conversation import TaskConversation
from fedrdma_fate.gateway.tasks.remote import RemoteConversation
from fedrdma_fate.gateway.tasks.request_reader import RequestReader
from fedrdma_fate.gateway.tasks.socket import Answer, WithDescriptor, WithSequel
from fedrdma_fate.obs.complaints import EACH_TELLS, Complaints
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, FedRDMAError, GatewayError, WireError

logger = logging.getLogger(__name__)

ENTER_SECONDS = 5.0
"""From a connection to its secret, TLS included: three round trips, on the longest paths of one second."""

MOST_OF_OTHER_HOSTS = 256
"""Of tasks that have entered: one for each core of some executors. Each takes some 0.4 MB of what asyncio reads ahead,
and a piece that is read or written."""

_MOST_LARGE = 32
"""Pieces that are read at a time, over all connections, and as many that are answered."""

PIECE_SECONDS = 60.0
"""For a piece to come, or to be taken: as long as a host may be silent. Who stands still must not keep its place."""

_BACKLOG = 128
"""Connections that the kernel completes ahead of us: twice as many as may wait to be known."""

_LAST_ANSWERS_SECONDS = 1.0
"""For requests that are being answered when the gateway ends, and for what a connection that ends was sent."""


class TaskMaker(Protocol):
    """Who serves the connections."""

    def begin(self, user: int) -> TaskConversation:
        """A task of this user has connected."""
        ...


@dataclasses.dataclass(slots=True)
class PortCounts:
    """What came to the port.

    Attributes:
        connections: of tasks that have entered, now.
        refused: connections that were not let in, since the gateway started.
    """

    connections: int = 0
    refused: int = 0


@dataclasses.dataclass(slots=True)
class _Entering:
    """What there is of a connection that has not entered.

    Attributes:
        writer: once TLS has begun.
        is_counted: whether it is one of the connections of tasks.
    """

    writer: asyncio.StreamWriter | None = None
    is_counted: bool = False


class TaskPort:
    """Belongs to the event loop's thread.

    Attributes:
        counts: what came.
        port: that it listens on; 0 before `start`.
    """

    def __init__(
        self,
        address: str,
        access: Path,
        site: str,
        tls: Callable[[], ssl.SSLContext],
        tasks: TaskMaker,
        complaints: Complaints,
    ) -> None:
        """
        Args:
            address: host:port to listen on; port 0 takes a free one.
            access: the file with the secret; read for each connection, so that another secret counts at once.
            site: whose gateway this is.
            tls: of the gateway's certificate in use.
            tasks: serves the connections.
            complaints: about those that are refused.

        Raises:
            ConfigError: the file will not do, or is another site's.
        """
        self._address = address
        self._access = access
        self._site = site
        self._tls = tls
        self._tasks = tasks
        self._complaints = complaints
        self._acceptor: Acceptor | None = None
        self._newcomers: Newcomers | None = None
        self._room = asyncio.Semaphore(_MOST_LARGE)
        self._answer_room = asyncio.Semaphore(_MOST_LARGE)
        self._serving: set[asyncio.Task[None]] = set()
        self._answering = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.counts = PortCounts()
        self.port = 0
        self._read_access()

    async def start(self) -> None:
        """Listen.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the address cannot be had.
        """
        self._newcomers = Newcomers(asyncio.get_running_loop().time)
        host, port = split_address("listen.tasks", self._address)
        listening = await listen_at(host, port, _BACKLOG, key="listen.tasks", address=self._address)
        self._acceptor = Acceptor(listening, asyncio.Protocol, "listen.tasks", self._complaints, self._serve)
        self.port = self._acceptor.port

    async def stop(self) -> None:
        """Stop listening, send the answers that are due, and end all connections; may be repeated."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        self._acceptor = None
        quiet = asyncio.create_task(self._quiet.wait())
        try:
            await asyncio.wait([quiet], timeout=_LAST_ANSWERS_SECONDS)
        finally:
            quiet.cancel()
        for connection in list(self._serving):
            connection.cancel()
        if self._serving:
            await asyncio.wait(self._serving, timeout=2)

    # -- who is it --------------------------------------------------------------------------------------------------

    async def _serve(self, connection: socket.socket) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        try:
            host = host_of(connection)

            def drop() -> None:
                self._refused(host, "others came, and had to be let in")
                serving.cancel()

            newcomer = self._newcomers.admit(host, drop) if self._newcomers is not None else None
            if newcomer is None:
                connection.close()
                self._refused(host, "it dials too often")
                return
            if (entered := await self._let_in(connection, host, newcomer)) is not None:
                try:
                    await self._talk(*entered, host)
                finally:
                    self.counts.connections -= 1
        except asyncio.CancelledError:
            # crowded out by others, or the gateway ends
            logger.debug("a connection of a task on another host was ended")
        finally:
            self._serving.discard(serving)

    async def _let_in(
        self, connection: socket.socket, host: str, newcomer: Newcomer
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Its stream, when it has entered and is counted as a task's."""
        assert self._newcomers is not None
        reader, entering = asyncio.StreamReader(), _Entering()
        is_in = False
        try:
            await asyncio.wait_for(self._enter(connection, reader, entering), ENTER_SECONDS)
            assert entering.writer is not None
            is_in = True
            self._newcomers.leave_known(newcomer)
            return reader, entering.writer
        except (asyncio.TimeoutError, TimeoutError):
            self._refused(host, f"it was not done with TLS and the secret within {ENTER_SECONDS:g} s")
        except FedRDMAError as error:
            self._refused(host, str(error))
            if entering.writer is not None:
                with contextlib.suppress(ConnectionError):
                    entering.writer.write(encode_message(error_reply(self._for_strangers(error))))
        except (OSError, EOFError) as error:
            self._refused(host, f"it ended before it had entered: {error}")
        finally:
            self._newcomers.leave(newcomer)
            if not is_in:
                if entering.is_counted:
                    self.counts.connections -= 1
                if entering.writer is not None:
                    # what was written is the kernel's; to close is to wait 30 s for a farewell, counted nowhere
                    entering.writer.transport.abort()
        return None

    async def _enter(self, connection: socket.socket, reader: asyncio.StreamReader, entering: _Entering) -> None:
        """Shake hands, and see that it knows the secret; what there is of it then is in `entering` at once.

        Raises:
            OSError: TLS fails, or the connection.
            FedRDMAError: it is none of the site's tasks.
        """
        loop = asyncio.get_running_loop()
        keep_alive(connection)
        transport, protocol = await loop.connect_accepted_socket(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop),
            connection,
            ssl=self._tls(),
            ssl_handshake_timeout=ENTER_SECONDS,
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        entering.writer = writer
        (length,) = LENGTH_PREFIX.unpack(await reader.readexactly(LENGTH_PREFIX.size))
        if length > MOST_ENTER_BYTES:
            raise WireError(ErrorCode.MALFORMED_FRAME, f"a first frame of {length} bytes; {MOST_ENTER_BYTES} may come.")
        shown = decode_enter(await reader.readexactly(length)).secret
        if not hmac.compare_digest(shown.encode(), self._read_access().secret.encode()):
            raise GatewayError(
                ErrorCode.NO_TASK_ACCESS,
                f"the gateway of {self._site} has another secret for tasks of other hosts.",
                "Copy the file that `tasks_access` of its configuration names to this host.",
            )
        if self.counts.connections >= MOST_OF_OTHER_HOSTS:
            raise GatewayError(
                ErrorCode.LIMIT_REACHED,
                f"tasks of other hosts have {MOST_OF_OTHER_HOSTS} connections to this gateway already.",
                "Have fewer executors at a time.",
            )
        # at once: those who enter together must not all find the last place free
        entering.is_counted = True
        self.counts.connections += 1
        writer.write(encode_message(Done()))

    def _read_access(self) -> TaskAccess:
        """What the file says now.

        Raises:
            ConfigError: it will not do, or is another site's.
        """
        access = read_access(self._access)
        if access.site != self._site:
            raise bad_value(
                "tasks_access",
                str(self._access),
                f", which is for the site {access.site!r}",
                "`fedrdma access` makes one.",
            )
        return access

    def _for_strangers(self, error: FedRDMAError) -> FedRDMAError:
        """What it is told who may be anybody: no paths of this host."""
        if not isinstance(error, ConfigError):
            return error
        return GatewayError(
            ErrorCode.NO_TASK_ACCESS,
            f"the gateway of {self._site} cannot use its own file of `tasks_access`.",
            "See its log.",
        )

    def _refused(self, host: str, why: str) -> None:
        self.counts.refused += 1
        message = "refused a connection of %s to `listen.tasks`: %s"
        self._complaints.add(logger, "refused task of another host", host, message, host, why, level=logging.ERROR)

    # -- what does it want ------------------------------------------------------------------------------------------

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        # who knows the secret has read a file of the gateway's user, and is taken for that
        inner = self._tasks.begin(os.geteuid())

        def notify(notice: Notice) -> None:
            writer.write(encode_message(notice))

        inner.notify = notify
        conversation = RemoteConversation(inner)
        connected = writer.get_extra_info("socket")
        requests = RequestReader(
            reader, self._room, connected, decode=decode_remote_request, large_seconds=PIECE_SECONDS
        )
        try:
            while (request := await requests.next()) is not None:
                async with self._answer_room if isinstance(request, Fetch) else contextlib.nullcontext():
                    await self._answer(requests, conversation, request, writer, host)
        except (ConnectionError, ssl.SSLError):
            logger.debug("a connection of a task on another host ended")
        except WireError as error:
            message = "a task on %s sent what is no request: %s"
            self._complaints.add(
                logger, "malformed request", host, message, host, error, level=logging.ERROR, lines=EACH_TELLS
            )
            with contextlib.suppress(ConnectionError):
                writer.write(encode_message(error_reply(error)))
        finally:
            requests.close()
            conversation.end()
            writer.close()
            # it may never take what it was sent, nor say farewell
            asyncio.get_running_loop().call_later(_LAST_ANSWERS_SECONDS, writer.transport.abort)

    async def _answer(
        self,
        requests: RequestReader[RemoteRequest],
        conversation: RemoteConversation,
        request: RemoteRequest,
        writer: asyncio.StreamWriter,
        host: str,
    ) -> None:
        """Answer one request.

        Raises:
            ConnectionError: the task went away.
            WireError: the connection is to end.
        """
        kind = type(request).__name__

        def refuse(error: FedRDMAError) -> Error:
            if isinstance(error, WireError):
                raise error
            message = "refused %s of a task on %s: %s"
            self._complaints.add(
                logger, "refused task", host, message, kind, host, error, level=logging.INFO, lines=EACH_TELLS
            )
            return error_reply(error)

        self._answering += 1
        self._quiet.clear()
        try:
            answer: Answer | None = await answered(requests, lambda: conversation.answer(request), kind, refuse)
            if isinstance(answer, WithDescriptor):
                # what it is of travels in pieces
                answer.close()
                await _send(writer, answer.reply, answer.undo)
            elif isinstance(answer, WithSequel):
                await _send(writer, answer.reply, answer.undo)
                answer.then()
            elif answer is not None:
                await _send(writer, answer, lambda: None)
        finally:
            self._answering -= 1
            if not self._answering:
                self._quiet.set()


async def _send(writer: asyncio.StreamWriter, reply: Reply, undo: Callable[[], object]) -> None:
    try:
        writer.write(encode_message(reply))
        # drain then says that the connection is lost
        too_long = asyncio.get_running_loop().call_later(PIECE_SECONDS, writer.transport.abort)
        try:
            await writer.drain()
        finally:
            too_long.cancel()
    except BaseException:
        undo()
        raise
