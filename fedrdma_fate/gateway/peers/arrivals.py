"""Connections to the control port that have not said yet whether they are a control channel or of a data path.

The first byte tells: what one kind begins with, TLS or the length of a greeting, the other never does.
Of a control channel no byte is taken here, of a data path its hello alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
from collections.abc import Callable
from typing import Protocol

from fedrdma_fate.gateway.accepting import host_of
from fedrdma_fate.gateway.peers.newcomers import Newcomer, Newcomers
from fedrdma_fate.transport.listener import HELLO_BYTES, may_be_hello

logger = logging.getLogger(__name__)


class DataConnections(Protocol):
    """Who wants those of data paths."""

    def listening(self, port: int) -> None:
        """They come to this port from now on."""
        ...

    def take(self, connection: socket.socket, hello: bytes) -> bool:
        """One has come, and how it began; False where it was closed, for nobody waits for it."""
        ...


@dataclasses.dataclass(eq=False, slots=True)
class Arrival:
    """A connection that was accepted.

    Attributes:
        connection: non-blocking.
        host: where it comes from.
        deadline: by the event loop's clock, for its peer to be known.
        newcomer: its place among those whose peers are not known.
        timer: drops it then.
        hello: what was taken of it.
        dropped: it has lost its place, or its time is over.
    """

    connection: socket.socket
    host: str
    deadline: float
    newcomer: Newcomer | None = None
    timer: asyncio.TimerHandle | None = None
    hello: bytes = b""
    dropped: bool = False


class Arrivals:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        newcomers: Newcomers,
        data: DataConnections,
        to_control: Callable[[Arrival], object],
        refused: Callable[[str, str, str], object],
    ) -> None:
        """
        Args:
            newcomers: have the places, which these take from the moment in which they are accepted.
            data: gets those of data paths.
            to_control: gets all others, unread and with their places.
            refused: told of each that is neither's: its host, what it did, and why in a word.
        """
        self._loop = asyncio.get_running_loop()
        self._newcomers = newcomers
        self._data = data
        self._to_control = to_control
        self._refused = refused
        self._present: set[Arrival] = set()

    def add(self, connection: socket.socket, seconds: float) -> None:
        """One was accepted, whose peer has so many seconds to be known."""
        arrival = Arrival(connection, host_of(connection), self._loop.time() + seconds)
        arrival.newcomer = self._newcomers.admit(
            arrival.host, lambda: self._drop(arrival, "others came", "crowded-out")
        )
        if arrival.newcomer is None:
            connection.close()
            self._refused(arrival.host, "it dials too often", "too-often")
            return
        self._present.add(arrival)
        too_slow = f"it has not said within {seconds:g} s what it is"
        arrival.timer = self._loop.call_at(arrival.deadline, self._drop, arrival, too_slow, "too-slow")
        self._loop.add_reader(connection, self._hear, arrival)
        # most have said it by now, and keep no place from others that came with them
        self._hear(arrival)

    def close(self) -> None:
        """Drop all that are here."""
        for arrival in list(self._present):
            self._let_go(arrival)
            self._end(arrival)

    def _hear(self, arrival: Arrival) -> None:
        connection = arrival.connection
        try:
            if not arrival.hello and not may_be_hello(connection.recv(1, socket.MSG_PEEK)):
                self._let_go(arrival)
                self._to_control(arrival)
                return
            received = connection.recv(HELLO_BYTES - len(arrival.hello))
        except BlockingIOError:
            return
        except OSError:
            received = b""
        arrival.hello += received
        if not received:
            self._drop(arrival, "it ended before it had said what it is", "cut")
        elif not may_be_hello(arrival.hello):
            self._drop(arrival, "it began as no gateway does", "malformed")
        elif len(arrival.hello) == HELLO_BYTES:
            self._to_data(arrival)

    def _to_data(self, arrival: Arrival) -> None:
        assert arrival.newcomer is not None
        self._let_go(arrival)
        if self._data.take(arrival.connection, arrival.hello):
            self._newcomers.leave_known(arrival.newcomer)
            return
        self._newcomers.leave(arrival.newcomer)
        self._refused(arrival.host, "it came for a data path that is not waited for", "no-path")

    def _drop(self, arrival: Arrival, what: str, why: str) -> None:
        """It loses its place, here or on its way to the control channels."""
        arrival.dropped = True
        if arrival in self._present:
            self._let_go(arrival)
            self._end(arrival)
        self._refused(arrival.host, what, why)

    def _let_go(self, arrival: Arrival) -> None:
        """Hear it no longer."""
        self._present.discard(arrival)
        self._loop.remove_reader(arrival.connection)
        if arrival.timer is not None:
            arrival.timer.cancel()

    def _end(self, arrival: Arrival) -> None:
        assert arrival.newcomer is not None
        self._newcomers.leave(arrival.newcomer)
        arrival.connection.close()
