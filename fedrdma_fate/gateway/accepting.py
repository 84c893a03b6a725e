"""Accepts connections on the event loop, also while the process has no descriptors left for them.

asyncio's own servers then write a traceback for each of the connections that they could take at once, every second.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fedrdma_fate.descriptors import RETRY_SECONDS, is_exhausted
from fedrdma_fate.obs.complaints import Complaints
from fedrdma_fate.wire.errors import ErrorCode, TransportError

logger = logging.getLogger(__name__)

_AT_ONCE = 64
"""Connections taken in one turn of the event loop, so that whoever dials on and on holds up nobody."""


class Acceptor:
    """Makes a protocol of each connection to some listening sockets. Belongs to the event loop's thread."""

    def __init__(
        self,
        listening: Sequence[socket.socket],
        make: Callable[[], asyncio.BaseProtocol],
        where: str,
        complaints: Complaints,
        serve: Callable[[socket.socket], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Begin to accept.

        Args:
            listening: what to accept on; closed with this.
            make: the protocol of the next connection.
            where: key of the configuration that names the address, for people.
            complaints: about connections that cannot be accepted.
            serve: does everything about a connection, which is its own then, in place of `make`.
        """
        self._loop = asyncio.get_running_loop()
        self._listening = list(listening)
        self._make = make
        self._serve = serve or self._connect
        self._where = where
        self._complaints = complaints
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        for each in self._listening:
            each.setblocking(False)
            self._resume(each)

    @property
    def port(self) -> int:
        """Of the first socket, where it has one."""
        return int(self._listening[0].getsockname()[1])

    def close(self) -> None:
        """Accept nothing more; may be repeated."""
        for each in self._listening:
            self._pause(each)
            each.close()
        self._listening.clear()

    def _resume(self, listening: socket.socket) -> None:
        self._pauses.pop(listening, None)
        self._loop.add_reader(listening, self._accept, listening)

    def _pause(self, listening: socket.socket) -> None:
        self._loop.remove_reader(listening)
        if (pause := self._pauses.pop(listening, None)) is not None:
            pause.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if is_exhausted(error):
                    self._wait(listening, error)
                    return
                # it has ended before it was taken, or the network says why it did (accept(2))
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(connection))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def _wait(self, listening: socket.socket, error: OSError) -> None:
        self._pause(listening)
        self._pauses[listening] = self._loop.call_later(RETRY_SECONDS, self._resume, listening)
        complain_of_no_room(self._complaints, self._where, error)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection)
        except OSError as error:
            connection.close()
            logger.debug("a connection ended as it was accepted: %s", error)


def host_of(connection: socket.socket) -> str:
    """The address at its other end."""
    try:
        return str(connection.getpeername()[0])
    except OSError:
        # it has ended already
        return "unknown"


def complain_of_no_room(complaints: Complaints, where: str, error: OSError) -> None:
    """Say that connections cannot be accepted just now.

    Args:
        complaints: who is told; any thread may.
        where: key of the configuration that names the address.
        error: what accept(2) says.
    """
    reason = error.strerror or os.strerror(error.errno or 0)
    told = TransportError(
        ErrorCode.TRANSPORT_UNAVAILABLE,
        f"connections to `{where}` cannot be accepted: {reason}; they wait.",
        "Raise the gateway's limit of open files (`ulimit -n`), or see who has so many connections.",
    )
    complaints.add(logger, "cannot accept", where, "%s", told, level=logging.ERROR)


async def listen_at(host: str, port: int, backlog: int, *, key: str, address: str) -> list[socket.socket]:
    """Sockets that listen at a configured address.

    Args:
        host: see `listen`, as the others.
        port: see there.
        backlog: see there.
        key: of the configuration, which says the address.
        address: as it is written there.

    Raises:
        TransportError: TRANSPORT_UNAVAILABLE when it cannot be had.
    """
    try:
        return await listen(host, port, backlog)
    except OSError as error:
        raise TransportError(
            ErrorCode.TRANSPORT_UNAVAILABLE,
            f"cannot listen on {address}: {error.strerror or error}.",
            f"Check `{key}`.",
        ) from error


async def listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of a host.

    Args:
        host: name or address; empty means every address of this host.
        port: 0 takes a free one.
        backlog: connections that the kernel completes ahead of us.

    Raises:
        OSError: an address cannot be had; then none is.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    made: list[socket.socket] = []
    try:
        for family, kind, protocol, _name, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            made.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # the addresses of IPv4 have a socket of their own
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(backlog)
    except BaseException:
        for each in made:
            each.close()
        raise
    return made
